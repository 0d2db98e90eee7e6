// quire run: feed a document and a prompt, stream the answer.
#include <cstdio>
#include <memory>

#include "document.h"
#include "engine.h"
#include "interrupt.h"
#include "progress.h"
#include "sampling.h"

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
  std::vector<std::vector<quire_token_logprob>> top_logprobs;  // of each token
  int32_t finish_reason = QUIRE_FINISH_NONE;
};

double per_second(int64_t n, int64_t ns) { return ns > 0 ? 1e9 * static_cast<double>(n) / static_cast<double>(ns) : 0; }

Answer generate(quire_session* session, const RunArguments& arguments) {
  const Sampling sampling(arguments.sampling);
  auto options = initialised(quire_stream_options_init);
  options.max_tokens = arguments.max_tokens;
  sampling.apply(options);

  Answer answer;
  Progress progress("reading");
  answer.finish_reason = run_stream(session, options, [&](const quire_event& event) {
    if (event.type == QUIRE_EVENT_PREFILL) {
      progress.show(event.reused + event.done, event.total, event.n_per_second, "tokens");
      return true;
    }
    if (event.type == QUIRE_EVENT_WARNING) {
      std::fprintf(stderr, "quire: warning: %.*s\n", static_cast<int>(event.text_len), event.text);
    }
    if (event.type != QUIRE_EVENT_TOKEN && event.type != QUIRE_EVENT_END) return true;
    progress.clear();
    if (event.type == QUIRE_EVENT_TOKEN) {
      answer.tokens.push_back(event.token);
      answer.top_logprobs.emplace_back(event.top_logprobs, event.top_logprobs + event.n_top_logprobs);
    }
    if (event.text_len > 0) answer.text.append(event.text, event.text_len);
    if (!arguments.json && event.text_len > 0) {
      std::fwrite(event.text, 1, event.text_len, stdout);
      std::fflush(stdout);
    }
    return true;
  });
  return answer;
}

// For each token the most probable ones, the first first.
Json top_logprobs_of(const Answer& answer) {
  Json all = Json::array();
  for (const auto& top : answer.top_logprobs) {
    Json& one = all.emplace_back(Json::array());
    for (const quire_token_logprob& t : top) one.push_back({{"token", t.token}, {"logprob", t.logprob}});
  }
  return all;
}

void print_answer(const Answer& answer, const quire_session* session, bool wants_top) {
  const quire_session_stats stats = get_stats(session);
  Json json = {{"text", answer.text},
               {"tokens", answer.tokens},
               {"finish_reason", finish_name(answer.finish_reason)},
               {"n_prompt_tokens", stats.n_prefilled},
               {"n_generated_tokens", answer.tokens.size()},
               {"n_pending_tokens", stats.n_pending},
               {"prefill_seconds", 1e-9 * static_cast<double>(stats.prefill_ns)},
               {"decode_seconds", 1e-9 * static_cast<double>(stats.decode_ns)},
               {"prefill_tokens_per_second", per_second(stats.n_prefilled, stats.prefill_ns)},
               {"decode_tokens_per_second", per_second(stats.n_generated, stats.decode_ns)},
               {"kv_bytes_peak", stats.kv_bytes_peak},
               {"strategy", strategy_of(session)}};
  if (wants_top) json["top_logprobs"] = top_logprobs_of(answer);
  print_json(json);
}

// Ends the answer's line, and sums up for a person who watches.
void print_summary(const Answer& answer, const quire_session* session) {
  if (!answer.text.empty() && answer.text.back() != '\n') std::puts("");
  std::fflush(stdout);
  if (!stderr_is_terminal()) return;
  const quire_session_stats stats = get_stats(session);
  std::fprintf(stderr, "[%lld tokens read at %.0f/s, %zu generated at %.1f/s, KV cache %s, ended by %s]\n",
               static_cast<long long>(stats.n_prefilled), per_second(stats.n_prefilled, stats.prefill_ns),
               answer.tokens.size(), per_second(stats.n_generated, stats.decode_ns),
               human_bytes(stats.kv_bytes_peak).c_str(), finish_name(answer.finish_reason));
}

int run(const RunArguments& arguments) {
  if (arguments.file.empty() && arguments.prompt.empty())
    throw UsageError("run needs a document (-f) or a prompt (-p)");
  // The document first: a misspelt path should not cost the time of loading a model.
  const std::string document = arguments.file.empty() ? "" : read_document(arguments.file);
  const Engine engine(arguments.model);
  const Session session = engine.create_session(arguments.session);
  const uint32_t flags = arguments.parse_special ? QUIRE_TEXT_PARSE_SPECIAL : 0;
  if (!document.empty()) feed_text(session.get(), document, flags);
  if (!arguments.prompt.empty()) feed_text(session.get(), arguments.prompt, flags);

  const Answer answer = generate(session.get(), arguments);
  if (arguments.json) {
    print_answer(answer, session.get(), arguments.sampling.n_top_logprobs > 0);
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
  CLI::Option* top =
      command->add_option("--top-logprobs", arguments->sampling.n_top_logprobs,
                          "with --json: log-probabilities of each token's N most probable alternatives (at most 64)");
  command->add_flag("--parse-special", arguments->parse_special,
                    "\"<s>\" and the like in the texts are control tokens (only for texts you trust)");
  CLI::Option* json = command->add_flag("--json", arguments->json, "print one JSON object at the end");
  top->needs(json)->check(CLI::Range(0, 64))->type_name("N");
  command->footer(R"help(
Examples:
  quire run -m model -f book.txt -s dca -p "The murderer is" -n 32
  quire run -m model -p "Once upon a time" --temperature 0.8 --top-p 0.95 --seed 7
  quire run -m model -f book.txt -p "In short," --dry-multiplier 0.8 --min-tokens 20 --deadline 30)help");
  command->callback([arguments, &action] { action = [arguments] { return run(*arguments); }; });
}

}  // namespace cli
