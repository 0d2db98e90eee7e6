// quire run: feed a document and a prompt, stream the answer.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <utility>

#include "document.h"
#include "engine.h"
#include "interrupt.h"
#include "output.h"
#include "progress.h"

namespace cli {
namespace {

struct RunArguments {
  ModelArguments model;
  SessionArguments session;
  SamplingArguments sampling;
  std::string file;
  std::string prompt;
  int64_t max_tokens = 128;
  bool parse_special = false;
  bool json = false;
};

struct Answer {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<std::vector<std::pair<int32_t, float>>> top_logprobs;  // of each token, if asked for
  int32_t finish_reason = QUIRE_FINISH_NONE;
};

bool changes_logits(const SamplingArguments& s) {
  return s.repetition != 1 || s.frequency != 0 || s.presence != 0 || s.dry > 0 || s.typical > 0;
}

// Penalties first, then temperature, then the filters.
std::vector<quire_sampler> sampler_chain(const SamplingArguments& s) {
  std::vector<quire_sampler> chain;
  if (s.repetition != 1 || s.frequency != 0 || s.presence != 0) {
    chain.push_back({QUIRE_SAMPLER_PENALTIES, s.penalty_range, 0, s.repetition, s.frequency, s.presence});
  }
  if (s.dry > 0) chain.push_back({QUIRE_SAMPLER_DRY, 0, s.dry_length, s.dry, s.dry_base, 0});
  if (s.temperature == 0) {
    chain.push_back({QUIRE_SAMPLER_TOP_K, 1, 0, 0, 0, 0});
    return chain;
  }
  chain.push_back({QUIRE_SAMPLER_TEMPERATURE, 0, 0, s.temperature, 0, 0});
  if (s.top_k > 0) chain.push_back({QUIRE_SAMPLER_TOP_K, s.top_k, 0, 0, 0, 0});
  if (s.typical > 0) chain.push_back({QUIRE_SAMPLER_TYPICAL, 0, 0, s.typical, 0, 0});
  if (s.top_p > 0) chain.push_back({QUIRE_SAMPLER_TOP_P, 0, 0, s.top_p, 0, 0});
  if (s.min_p > 0) chain.push_back({QUIRE_SAMPLER_MIN_P, 0, 0, s.min_p, 0, 0});
  return chain;
}

std::vector<quire_logit_bias> logit_bias(const SamplingArguments& s) {
  std::vector<quire_logit_bias> biases;
  for (const std::string& text : s.logit_bias) {
    quire_logit_bias bias{};
    const size_t at = text.find('=');
    const std::string value = at == std::string::npos ? "" : text.substr(at + 1);
    char* end = nullptr;
    bias.bias = std::strtof(value.c_str(), &end);
    const auto id = std::from_chars(text.data(), text.data() + std::min(at, text.size()), bias.token);
    if (value.empty() || *end != '\0' || std::isnan(bias.bias) || id.ec != std::errc() || id.ptr != text.data() + at) {
      throw UsageError("--logit-bias " + text + ": expected ID=BIAS");
    }
    biases.push_back(bias);
  }
  return biases;
}

std::vector<quire_text> views(const std::vector<std::string>& texts) {
  std::vector<quire_text> out;
  for (const std::string& text : texts) out.push_back({text.data(), text.size()});
  return out;
}

double per_second(int64_t n, int64_t ns) { return ns > 0 ? 1e9 * static_cast<double>(n) / static_cast<double>(ns) : 0; }

Answer generate(quire_session* session, const RunArguments& arguments, const std::vector<quire_logit_bias>& biases) {
  const std::vector<quire_text> stop = views(arguments.sampling.stop);
  const std::vector<quire_text> breakers = views(arguments.sampling.dry_breakers);
  auto options = initialised(quire_stream_options_init);
  options.flags = arguments.sampling.ignore_eos ? QUIRE_STREAM_IGNORE_EOS : 0;
  options.max_tokens = arguments.max_tokens;
  const std::vector<quire_sampler> chain = sampler_chain(arguments.sampling);
  if (changes_logits(arguments.sampling)) {
    options.samplers = chain.data();
    options.n_samplers = chain.size();
  } else {
    options.temperature = arguments.sampling.temperature;
    options.top_k = arguments.sampling.top_k;
    options.top_p = arguments.sampling.top_p;
    options.min_p = arguments.sampling.min_p;
  }
  options.logit_bias = biases.data();
  options.n_logit_bias = biases.size();
  options.dry_breakers = breakers.empty() ? nullptr : breakers.data();
  options.n_dry_breakers = breakers.size();
  options.min_tokens = arguments.sampling.min_tokens;
  options.deadline_ms = static_cast<int64_t>(std::ceil(arguments.sampling.deadline * 1000));
  options.n_top_logprobs = arguments.sampling.n_top_logprobs;
  options.seed = arguments.sampling.seed;
  options.stop_strings = stop.data();
  options.n_stop_strings = stop.size();

  Answer answer;
  Progress progress("reading", "tokens");
  answer.finish_reason = run_stream(session, options, [&](const quire_event& event) {
    if (event.kind == QUIRE_EVENT_PREFILL) {
      progress.show(event.done, event.total - event.reused);
      return true;
    }
    if (event.kind == QUIRE_EVENT_WARNING || event.kind == QUIRE_EVENT_NOTICE) {
      const char* word = event.kind == QUIRE_EVENT_WARNING ? "warning: " : "";
      if (was_logged({event.message, event.message_len})) return true;
      std::fprintf(stderr, "quire: %s%.*s\n", word, static_cast<int>(event.message_len), event.message);
    }
    if (event.kind != QUIRE_EVENT_TOKEN && event.kind != QUIRE_EVENT_END) return true;
    progress.clear();
    if (event.kind == QUIRE_EVENT_TOKEN) {
      answer.tokens.push_back(event.token);
      if (event.n_top_logprobs > 0) answer.top_logprobs.emplace_back();
      for (size_t i = 0; i < event.n_top_logprobs; ++i) {
        answer.top_logprobs.back().emplace_back(event.top_logprobs[i].token, event.top_logprobs[i].logprob);
      }
    }
    if (event.text_len > 0) answer.text.append(event.text, event.text_len);
    if (!arguments.json && event.text_len > 0) {
      print_text({event.text, event.text_len});
      flush_output();
    }
    return true;
  });
  return answer;
}

void print_answer(const Answer& answer, const quire_session* session) {
  const quire_session_stats stats = get_stats(session);
  print_json({{"text", answer.text},
              {"top_logprobs", answer.top_logprobs},
              {"kv_file_bytes", get_tier_stats(session, QUIRE_TIER_FILE).bytes},
              {"tokens", answer.tokens},
              {"finish_reason", finish_name(answer.finish_reason)},
              {"n_prompt_tokens", stats.n_prefilled},
              {"n_generated_tokens", answer.tokens.size()},
              {"n_pending_tokens", stats.n_pending},
              {"prefill_seconds", 1e-9 * static_cast<double>(stats.prefill_ns)},
              {"decode_seconds", 1e-9 * static_cast<double>(stats.decode_ns)},
              {"prefill_tokens_per_second", per_second(stats.n_prefilled, stats.prefill_ns)},
              {"decode_tokens_per_second", per_second(stats.n_generated, stats.decode_ns)},
              {"kv_bytes_peak", get_tier_stats(session, QUIRE_TIER_HOST).bytes_peak},
              {"strategy", strategy_of(session)}});
}

// Ends the answer's line, and sums up for a person who watches.
void print_summary(const Answer& answer, const quire_session* session) {
  if (!answer.text.empty() && answer.text.back() != '\n') print_text("\n");
  flush_output();
  if (!progress_wanted()) return;
  const quire_session_stats stats = get_stats(session);
  std::fprintf(stderr, "[%lld tokens read at %.0f/s, %zu generated at %.1f/s, KV cache %s, ended by %s]\n",
               static_cast<long long>(stats.n_prefilled), per_second(stats.n_prefilled, stats.prefill_ns),
               answer.tokens.size(), per_second(stats.n_generated, stats.decode_ns),
               human_bytes(get_tier_stats(session, QUIRE_TIER_HOST).bytes_peak).c_str(),
               finish_name(answer.finish_reason));
}

// Document and prompt as two segments, as quire_session_feed_text would take them; their length is wanted beforehand.
std::vector<int32_t> tokenize(const Engine& engine, const std::string& document, const RunArguments& arguments) {
  const Tokenizer tokenizer = engine.tokenizer();
  const uint32_t flags = arguments.parse_special ? QUIRE_TEXT_PARSE_SPECIAL : 0;
  std::vector<int32_t> ids;
  for (const std::string* text : {&document, &arguments.prompt}) {
    if (text->empty()) continue;
    const auto part = encode(tokenizer.get(), *text, ids.empty() ? flags : flags | QUIRE_TEXT_CONTINUE);
    ids.insert(ids.end(), part.begin(), part.end());
  }
  return ids;
}

int run(const RunArguments& arguments) {
  if (arguments.file.empty() && arguments.prompt.empty())
    throw UsageError("run needs a document (-f) or a prompt (-p)");
  if (arguments.sampling.n_top_logprobs > 0 && !arguments.json) throw UsageError("--top-logprobs needs --json");
  const std::vector<quire_logit_bias> biases = logit_bias(arguments.sampling);
  // The document first: a misspelt path should not cost the time of loading a model.
  const std::string document = arguments.file.empty() ? "" : read_document(arguments.file);
  const Engine engine(arguments.model);
  const std::vector<int32_t> ids = tokenize(engine, document, arguments);
  const auto n_prompt = static_cast<int64_t>(ids.size());
  const int64_t n_tokens = n_prompt + std::min(arguments.max_tokens, std::numeric_limits<int64_t>::max() - n_prompt);
  const Session session = engine.create_session(arguments.session, n_tokens);
  feed_tokens(session.get(), ids.data(), ids.size());

  const Answer answer = generate(session.get(), arguments, biases);
  if (arguments.json) {
    print_answer(answer, session.get());
  } else {
    print_summary(answer, session.get());
  }
  if (answer.finish_reason == QUIRE_FINISH_CANCELLED) throw Interrupted();
  return 0;
}

}  // namespace

void add_run(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* command = app.add_subcommand("run", "Read a document, then a prompt, and stream the answer");
  add_model_options(*command, arguments->model);
  add_session_options(*command, arguments->session);
  command->add_option("-f,--file", arguments->file, "document in UTF-8, fed as it is; - reads stdin")
      ->type_name("FILE");
  command->add_option("-p,--prompt", arguments->prompt, "text fed after the document, as its own segment")
      ->type_name("TEXT");
  command->add_option("-n,--max-tokens", arguments->max_tokens, "generate at most N tokens (default: 128)")
      ->check(CLI::NonNegativeNumber)
      ->type_name("N");
  add_sampling_options(*command, arguments->sampling);
  command->add_flag("--parse-special", arguments->parse_special,
                    "\"<s>\" and the like in the texts are control tokens (only for texts you trust)");
  command->add_flag("--json", arguments->json, "print one JSON object at the end");
  command->footer(R"help(
Examples:
  quire run -m model -f book.txt -s dca -p "The murderer is" -n 32
  quire run -m model -p "Once upon a time" --temperature 0.8 --top-p 0.95 --seed 7)help");
  command->callback([arguments, &action] { action = [arguments] { return run(*arguments); }; });
}

}  // namespace cli
