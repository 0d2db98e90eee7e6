#include "arguments.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>
#include <map>

#include "progress.h"
#include "validators.h"

namespace cli {
namespace {

constexpr int64_t kMost32 = std::numeric_limits<int32_t>::max();
constexpr double kMostWeight = 1e6;      // of what sampling divides by, adds or subtracts, as of quire_sampler
constexpr double kMostSeconds = 1e9;     // somewhat less than quire_stream_options.deadline_ms can say
constexpr size_t kMostTextBytes = 1024;  // of a stop string or a breaker

const std::map<std::string, int32_t> kKvTypes = {
    {"f32", QUIRE_TYPE_F32}, {"f16", QUIRE_TYPE_F16}, {"bf16", QUIRE_TYPE_BF16}};
const std::map<std::string, int32_t> kOldTypes = {{"int8", QUIRE_TYPE_INT8}, {"int4", QUIRE_TYPE_INT4}};

const std::map<std::string, int32_t> kWeightTypes = {
    {"f32", QUIRE_TYPE_F32},      {"f16", QUIRE_TYPE_F16},   {"bf16", QUIRE_TYPE_BF16}, {"q8", QUIRE_TYPE_Q8_0},
    {"q8_0", QUIRE_TYPE_Q8_0},    {"q4", QUIRE_TYPE_Q4_0},   {"q4_0", QUIRE_TYPE_Q4_0}, {"q4_1", QUIRE_TYPE_Q4_1},
    {"q5_0", QUIRE_TYPE_Q5_0},    {"q5_1", QUIRE_TYPE_Q5_1}, {"q4_k", QUIRE_TYPE_Q4_K}, {"q5_k", QUIRE_TYPE_Q5_K},
    {"q6_k", QUIRE_TYPE_Q6_K},    {"q2_k", QUIRE_TYPE_Q2_K}, {"q3_k", QUIRE_TYPE_Q3_K}, {"iq4_nl", QUIRE_TYPE_IQ4_NL},
    {"iq4_xs", QUIRE_TYPE_IQ4_XS}};

const std::map<std::string, int32_t> kActivationTypes = {
    {"f32", QUIRE_TYPE_F32}, {"bf16", QUIRE_TYPE_BF16}, {"int8", QUIRE_TYPE_INT8}};

const std::map<std::string, int32_t> kOverflows = {
    {"error", QUIRE_OVERFLOW_ERROR}, {"stop", QUIRE_OVERFLOW_STOP}, {"extrapolate", QUIRE_OVERFLOW_EXTRAPOLATE}};

// An option whose value is one of a few words.
void add_word_option(CLI::App& command, const std::string& name, int32_t& target,
                     const std::map<std::string, int32_t>& words, const std::string& help) {
  CLI::Option* option = command.add_option_function<std::string>(
      name, [&target, &words](const std::string& word) { target = words.at(word); }, help);
  option->check(CLI::IsMember(words))->type_name("WORD");
}

// DIR or DIR=SCALE. What stands behind the last '=' is a scale if it is a number; a directory may have the sign, too.
AdapterArgument parse_adapter(const std::string& text) {
  const size_t sign = text.rfind('=');
  if (sign == std::string::npos || sign == 0) return {text, 1};
  double scale = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + sign + 1, end, scale);
  if (error != std::errc() || rest != end) return {text, 1};
  return {text.substr(0, sign), scale};
}

void add_adapter_option(CLI::App& command, const std::string& name, std::vector<AdapterArgument>& target,
                        const std::string& help) {
  command
      .add_option_function<std::vector<std::string>>(
          name,
          [&target](const std::vector<std::string>& texts) {
            for (const std::string& text : texts) target.push_back(parse_adapter(text));
          },
          help)
      ->allow_extra_args(false)
      ->type_name("DIR[=SCALE]");
}

}  // namespace

void add_model_options(CLI::App& command, ModelArguments& arguments) {
  command.add_option("-m,--model", arguments.path, "GGUF file, or directory: config.json, *.safetensors, tokenizer")
      ->required()
      ->type_name("PATH");
  command.add_option("--threads", arguments.n_threads, "compute threads (default: one for each usable core)")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  add_word_option(command, "--weights", arguments.weight_type, kWeightTypes,
                  "what weight matrices are kept as in memory; q8 and q4 are q8_0 and q4_0 (default: as stored)");
  add_word_option(
      command, "--activations", arguments.activation_type, kActivationTypes,
      "what rows may be rounded to for weights of few bits: int8, bf16, or f32, exact and slower (default: int8)");
  add_adapter_option(command, "--merge-adapter", arguments.merge,
                     "PEFT LoRA directory to merge into the weights, times SCALE (default: 1); may be repeated");
  command.add_option("--beacon", arguments.beacon, "Activation Beacon plug-in for the strategy beacon")
      ->type_name("DIR");
  command
      .add_option("--device", arguments.device, "what to run on: auto, cpu; see `quire info --devices` (default: auto)")
      ->type_name("NAME");
  command
      .add_option(
          "--packed", arguments.packed_directory,
          "directory that keeps packed weights: the first load writes a file there, later ones map it and start "
          "faster")
      ->type_name("DIR");
  add_quiet_option(command);
}

void add_quiet_option(CLI::App& command) {
  command.add_flag_callback("-q,--quiet", set_quiet,
                            "no progress bar; there is none either unless stderr is a terminal");
}

void add_session_options(CLI::App& command, SessionArguments& arguments) {
  const std::string strategy = arguments.strategy.empty() ? "full" : arguments.strategy;
  command
      .add_option("-s,--strategy", arguments.strategy,
                  "strategy expression, see `quire --help` (default: " + strategy + ")")
      ->type_name("EXPR");
  add_word_option(command, "--kv-type", arguments.kv_type, kKvTypes,
                  "how keys and values are stored: f32, f16, bf16 (default: f16)");
  add_word_option(command, "--kv-old", arguments.kv_old_type, kOldTypes,
                  "how keys and values of old text are read: int8, int4 (default: like all other)");
  command
      .add_option_function<int64_t>(
          "--old-after",
          [&arguments](int64_t tokens) { arguments.old_after = tokens == 0 ? QUIRE_OLD_AT_ONCE : tokens; },
          "with --kv-old: how many tokens before a token's own chunk text is old (default: 4096)")
      ->needs("--kv-old")
      ->check(whole_number(0, int64_t{1} << 40))
      ->type_name("N");
  command.add_flag("--keep-behind-windows", arguments.keep_behind_windows,
                   "where only some layers have a window (Gemma 3): keep what lies behind it in these, too, for texts "
                   "that will be edited");
  const bool extrapolates = arguments.overflow == QUIRE_OVERFLOW_EXTRAPOLATE;
  add_word_option(command, "--overflow", arguments.overflow, kOverflows,
                  std::string("text longer than the strategy's reach: error, stop, extrapolate (default: ") +
                      (extrapolates ? "extrapolate)" : "error)"));
  command
      .add_option("--expected-tokens", arguments.expected_tokens,
                  "length of text that auto, beacon, dynamic_ntk and longrope prepare for (default: prompt and answer)")
      ->check(whole_number(1))
      ->type_name("N");
  command
      .add_option("--kv-budget", arguments.kv_budget_bytes, "memory of the KV cache, such as 500MB (default: no limit)")
      ->transform(byte_count())
      ->type_name("BYTES");
  command
      .add_option(
          "--device-budget", arguments.device_budget_bytes,
          "memory of the KV cache on a GPU, what it has no room for being the machine's (default: what the GPU has)")
      ->transform(byte_count())
      ->type_name("BYTES");
  command
      .add_option("--compressed-budget", arguments.compressed_budget_bytes,
                  "memory for what does not fit in --kv-budget, compressed, before --spill-dir (default: none)")
      ->transform(byte_count())
      ->type_name("BYTES");
  command
      .add_option("--spill-dir", arguments.spill_directory,
                  "what does not fit in --kv-budget goes to a temporary file in DIR")
      ->type_name("DIR");
  add_adapter_option(command, "--adapter", arguments.adapters,
                     "PEFT LoRA directory to use beside the weights, times SCALE (default: 1); may be repeated");
}

// Where an option may be repeated, CLI11 takes a value in square brackets for a list unless allow_extra_args is false.
void add_sampling_options(CLI::App& command, SamplingArguments& arguments) {
  command.add_option("--temperature", arguments.temperature, "0: the most probable token (default)")
      ->check(number(0, kMostWeight))
      ->type_name("T");
  command.add_option("--top-k", arguments.top_k, "draw from the K most probable tokens (default: all)")
      ->check(whole_number(0, kMost32))
      ->type_name("K");
  command.add_option("--top-p", arguments.top_p, "draw from the smallest set with probability P (default: all)")
      ->check(number(0, 1))
      ->type_name("P");
  command.add_option("--min-p", arguments.min_p, "drop tokens below P times the most probable one (default: none)")
      ->check(number(0, 1))
      ->type_name("P");
  command
      .add_option("--typical", arguments.typical, "draw from the most typical set with probability P (default: all)")
      ->check(number(0, 1))
      ->type_name("P");
  command.add_option("--repeat-penalty", arguments.repetition, "divide the logits of recent tokens by X (default: 1)")
      ->check(positive_number(kMostWeight))
      ->type_name("X");
  command.add_option("--frequency-penalty", arguments.frequency, "subtract X for each recent occurrence")
      ->check(number(-kMostWeight, kMostWeight))
      ->type_name("X");
  command.add_option("--presence-penalty", arguments.presence, "subtract X from recent tokens")
      ->check(number(-kMostWeight, kMostWeight))
      ->type_name("X");
  command
      .add_option("--penalty-range", arguments.penalty_range, "recent: among the last N tokens (default: 64; 0: all)")
      ->check(whole_number(0, kMost32))
      ->type_name("N");
  command
      .add_option("--dry,--dry-multiplier", arguments.dry,
                  "penalty X * base ^ (length - L) on continuing a repetition (default: none)")
      ->check(number(0, kMostWeight))
      ->type_name("X");
  command.add_option("--dry-base", arguments.dry_base, "default: 1.75")->check(number(1, kMostWeight))->type_name("B");
  command.add_option("--dry-length", arguments.dry_length, "repetitions shorter than L are free (default: 2)")
      ->check(whole_number(1, 1'000'000))
      ->type_name("L");
  command
      .add_option("--dry-breaker", arguments.dry_breakers,
                  "repetitions do not reach across TEXT; may be repeated (default: newline : \" *)")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false)
      ->check(text_of_at_most(kMostTextBytes))
      ->type_name("TEXT");
  command
      .add_option("--logit-bias", arguments.logit_bias, "add BIAS to a token's logit (-inf: never); may be repeated")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false)
      ->type_name("ID=BIAS");
  command.add_option("--min-tokens", arguments.min_tokens, "do not end before N tokens")
      ->check(whole_number(0))
      ->type_name("N");
  command.add_option("--deadline", arguments.deadline, "end after so many seconds")
      ->check(number(0, kMostSeconds))
      ->type_name("SECONDS");
  command
      .add_option("--top-logprobs", arguments.n_top_logprobs, "with --json: the N most probable tokens at each place")
      ->check(CLI::Range(0, 64))
      ->type_name("N");
  command
      .add_option("--draft", arguments.draft_tokens,
                  "draft up to N tokens from the text: the same answer, sooner where it quotes (default: 8; 0: none)")
      ->check(CLI::Range(0, 31))
      ->type_name("N");
  command
      .add_option("--draft-match", arguments.draft_match,
                  "draft where the last N tokens stood in the text before (default: 2)")
      ->check(CLI::Range(1, 64))
      ->type_name("N");
  command.add_option("--seed", arguments.seed, "the same seed draws the same tokens (default: 0)")
      ->check(whole_number_of_64_bits())
      ->type_name("SEED");
  command.add_option("--stop", arguments.stop, "end before this text appears; may be repeated")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false)
      ->check(text_of_at_most(kMostTextBytes))
      ->type_name("TEXT");
  command.add_flag("--ignore-eos", arguments.ignore_eos, "go on after end-of-text tokens");
}

}  // namespace cli
