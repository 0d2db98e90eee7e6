#include "arguments.h"

#include <map>

#include "sampling.h"

namespace cli {
namespace {

const std::map<std::string, int32_t> kKvTypes = {
    {"f32", QUIRE_TYPE_F32}, {"f16", QUIRE_TYPE_F16}, {"bf16", QUIRE_TYPE_BF16}};

const std::map<std::string, int32_t> kOverflows = {
    {"error", QUIRE_OVERFLOW_ERROR}, {"stop", QUIRE_OVERFLOW_STOP}, {"extrapolate", QUIRE_OVERFLOW_EXTRAPOLATE}};

// An option whose value is one of a few words.
void add_word_option(CLI::App& command, const std::string& name, int32_t& target,
                     const std::map<std::string, int32_t>& words, const std::string& help) {
  CLI::Option* option = command.add_option_function<std::string>(
      name, [&target, &words](const std::string& word) { target = words.at(word); }, help);
  option->check(CLI::IsMember(words))->type_name("WORD");
}

}  // namespace

void add_model_options(CLI::App& command, ModelArguments& arguments) {
  command.add_option("-m,--model", arguments.directory, "model directory: config.json, *.safetensors, tokenizer.model")
      ->required()
      ->type_name("DIR");
  command.add_option("--threads", arguments.n_threads, "compute threads (default: the number of cores)")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
}

void add_session_options(CLI::App& command, SessionArguments& arguments) {
  command.add_option("-s,--strategy", arguments.strategy, "strategy expression, see `quire --help` (default: full)")
      ->type_name("EXPR");
  add_word_option(command, "--kv-type", arguments.kv_type, kKvTypes,
                  "how keys and values are stored: f32, f16, bf16 (default: f16)");
  const bool extrapolates = arguments.overflow == QUIRE_OVERFLOW_EXTRAPOLATE;
  add_word_option(command, "--overflow", arguments.overflow, kOverflows,
                  std::string("text longer than the strategy's reach: error, stop, extrapolate (default: ") +
                      (extrapolates ? "extrapolate)" : "error)"));
}

namespace {

void add_penalty_options(CLI::App& command, SamplingArguments& arguments) {
  command
      .add_option("--repeat-penalty", arguments.repeat_penalty, "divides positive logits of seen tokens (default: 1)")
      ->check(CLI::PositiveNumber)
      ->type_name("A");
  command.add_option("--frequency-penalty", arguments.frequency_penalty, "subtracted for each occurrence (default: 0)")
      ->type_name("B");
  command.add_option("--presence-penalty", arguments.presence_penalty, "subtracted from seen tokens (default: 0)")
      ->type_name("C");
  command
      .add_option("--penalty-last-n", arguments.penalty_last_n, "these three look at the last N tokens (default: all)")
      ->check(CLI::NonNegativeNumber)
      ->type_name("N");
  CLI::Option* dry =
      command.add_option("--dry-multiplier", arguments.dry_multiplier,
                         "penalise what continues a repetition, usually by 0.8 (default: 0, not at all)");
  dry->check(CLI::NonNegativeNumber)->type_name("A");
  command.add_option("--dry-base", arguments.dry_base, "how the penalty grows with its length (default: 1.75)")
      ->needs(dry)
      ->type_name("B");
  command.add_option("--dry-allowed-length", arguments.dry_allowed_length, "shorter ones are free (default: 2)")
      ->needs(dry)
      ->check(CLI::PositiveNumber)
      ->type_name("L");
  command.add_option("--dry-last-n", arguments.dry_last_n, "DRY looks at the last N tokens (default: all)")
      ->needs(dry)
      ->check(CLI::NonNegativeNumber)
      ->type_name("N");
  command
      .add_option("--dry-breaker", arguments.dry_breakers,
                  "repetitions do not reach across this text; may be repeated (default: newline : \" *)")
      ->needs(dry)
      ->expected(1)
      ->take_all()
      ->type_name("TEXT");
}

}  // namespace

void add_sampling_options(CLI::App& command, SamplingArguments& arguments) {
  command.add_option("--temperature", arguments.temperature, "0: the most probable token (default)")
      ->check(CLI::NonNegativeNumber)
      ->type_name("T");
  command.add_option("--top-k", arguments.top_k, "draw from the K most probable tokens (default: all)")
      ->check(CLI::NonNegativeNumber)
      ->type_name("K");
  command.add_option("--top-p", arguments.top_p, "draw from the smallest set with probability P (default: all)")
      ->check(CLI::Range(0.0, 1.0))
      ->type_name("P");
  command.add_option("--min-p", arguments.min_p, "drop tokens below P times the most probable one (default: none)")
      ->check(CLI::Range(0.0, 1.0))
      ->type_name("P");
  command
      .add_option("--typical", arguments.typical, "draw from the most typical set with probability P (default: all)")
      ->check(CLI::Range(0.0, 1.0))
      ->type_name("P");
  add_penalty_options(command, arguments);
  command
      .add_option("--logit-bias", arguments.logit_bias, "add BIAS to a token's logit, -inf: ban it; may be repeated")
      ->check([](const std::string& text) { return parse_logit_bias(text) ? "" : "\"" + text + "\" is not ID=BIAS"; })
      ->expected(1)
      ->take_all()
      ->type_name("ID=BIAS");
  command.add_option("--min-tokens", arguments.min_tokens, "no end-of-text token before N tokens (default: 0)")
      ->check(CLI::NonNegativeNumber)
      ->type_name("N");
  command
      .add_option("--deadline", arguments.deadline_seconds, "end after so many seconds of computing (default: none)")
      ->check(CLI::Range(0.0, 1e9))
      ->type_name("SECONDS");
  command.add_option("--seed", arguments.seed, "the same seed draws the same tokens (default: 0)")->type_name("SEED");
  command.add_option("--stop", arguments.stop, "end before this text appears; may be repeated")->type_name("TEXT");
  command.get_option("--stop")->expected(1)->take_all();
  command.add_flag("--ignore-eos", arguments.ignore_eos, "go on after end-of-text tokens");
}

}  // namespace cli
