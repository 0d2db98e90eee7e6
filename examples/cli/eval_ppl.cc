// quire eval ppl: perplexity of the end of a long text, given all of it or given sliding windows.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include "document.h"
#include "engine.h"
#include "interrupt.h"
#include "progress.h"

namespace cli {
namespace {

struct PplArguments {
  ModelArguments model;
  SessionArguments session;
  std::string file;
  int64_t n_tokens = 0;
  int64_t n_targets = 0;  // 0: half of n_tokens
  int64_t window = 0;     // 0: the strategy reads the whole text
  int64_t stride = 0;
  bool json = false;
};

using Ids = std::vector<int32_t>;
using ShowPrefill = std::function<void(int64_t done, double rate)>;

// log p of the tokens [first, ids.size()) of a fresh text `ids`.
std::vector<float> score(quire_session* session, const Ids& ids, int64_t first, const ShowPrefill& show) {
  reset(session);
  feed_tokens(session, ids.data(), ids.size());
  auto options = initialised(quire_stream_options_init);
  options.flags = QUIRE_STREAM_SCORE;
  const int32_t finish = run_stream(session, options, [&](const quire_event& event) {
    if (event.type == QUIRE_EVENT_PREFILL) show(event.reused + event.done, event.n_per_second);
    return true;
  });
  if (finish == QUIRE_FINISH_CANCELLED) throw Interrupted();
  if (finish == QUIRE_FINISH_REACH) throw std::runtime_error("the text is longer than the strategy's reach");
  std::vector<float> scores(ids.size() - static_cast<size_t>(first));
  Error error;
  error.check(quire_session_get_scores(session, first, static_cast<int64_t>(scores.size()), scores.data(), error.get()),
              "reading the scores");
  return scores;
}

double sum(const std::vector<float>& scores) {
  double total = 0;
  for (const float s : scores) total += s;
  return total;
}

// Sum of log p over the last n_targets of `ids`, each given everything before it.
double score_whole(quire_session* session, const Ids& ids, int64_t n_targets) {
  const auto n_tokens = static_cast<int64_t>(ids.size());
  Progress progress("scoring");
  return sum(score(session, ids, n_tokens - n_targets,
                   [&](int64_t done, double rate) { progress.show(done, n_tokens, rate, "tokens"); }));
}

// The same targets, each given at least window - stride tokens before it (fewer only where the text begins). A window
// begins with the tokenizer's beginning-of-sequence token, as the texts of training do.
double score_windows(quire_session* session, const Ids& ids, int64_t bos, const PplArguments& arguments) {
  const auto n_tokens = static_cast<int64_t>(ids.size());
  Progress progress("scoring");
  double total = 0;
  for (int64_t first = n_tokens - arguments.n_targets; first < n_tokens; first += arguments.stride) {
    const int64_t end = std::min(first + arguments.stride, n_tokens);
    int64_t begin = std::max<int64_t>(0, first + arguments.stride - arguments.window);
    Ids window;
    if (begin > 0 && bos >= 0) {
      ++begin;
      window.push_back(static_cast<int32_t>(bos));
    }
    window.insert(window.end(), ids.begin() + begin, ids.begin() + end);
    const auto n_context = static_cast<int64_t>(window.size()) - (end - first);
    total += sum(score(session, window, n_context, [](int64_t, double) {}));
    progress.show(end - (n_tokens - arguments.n_targets), arguments.n_targets, 0, "targets");
  }
  return total;
}

Ids first_tokens(const quire_tokenizer* tokenizer, const PplArguments& arguments) {
  Ids ids = encode(tokenizer, read_document(arguments.file), 0);
  if (static_cast<int64_t>(ids.size()) < arguments.n_tokens) {
    throw UsageError(arguments.file + " has " + std::to_string(ids.size()) + " tokens, fewer than --tokens " +
                     std::to_string(arguments.n_tokens));
  }
  ids.resize(static_cast<size_t>(arguments.n_tokens));
  return ids;
}

void check(PplArguments& arguments) {
  if (arguments.n_targets == 0) arguments.n_targets = arguments.n_tokens / 2;
  if (arguments.n_targets >= arguments.n_tokens) {
    throw UsageError("--target-tokens must be less than --tokens: the first token has nothing before it");
  }
  if ((arguments.window == 0) != (arguments.stride == 0)) throw UsageError("--window and --stride go together");
  if (arguments.window > 0 && arguments.stride > arguments.window - 2) {
    throw UsageError("--stride must be at most --window minus 2: every target needs a token before it");
  }
}

int eval_ppl(PplArguments& arguments) {
  check(arguments);
  const Engine engine(arguments.model);
  const Tokenizer tokenizer = engine.tokenizer();
  const Ids ids = first_tokens(tokenizer.get(), arguments);
  const Session session = engine.create_session(arguments.session, arguments.n_tokens);
  const bool windows = arguments.window > 0;
  const double log_p = windows ? score_windows(session.get(), ids, quire_tokenizer_bos(tokenizer.get()), arguments)
                               : score_whole(session.get(), ids, arguments.n_targets);
  const double nll = -log_p / static_cast<double>(arguments.n_targets);
  const double perplexity = std::exp(nll);
  if (!arguments.json) {
    std::printf("perplexity %.4f (nll %.5f) of %lld tokens\n", perplexity, nll,
                static_cast<long long>(arguments.n_targets));
    return 0;
  }
  Json result = {{"task", "ppl"},
                 {"strategy", strategy_of(session.get())},
                 {"train_len", engine.info().train_len},
                 {"n_tokens", arguments.n_tokens},
                 {"n_targets", arguments.n_targets},
                 {"perplexity", perplexity},
                 {"nll", nll}};
  if (windows) result.update({{"window", arguments.window}, {"stride", arguments.stride}});
  print_json(result);
  return 0;
}

}  // namespace

void add_eval_ppl(CLI::App& eval, Action& action) {
  auto arguments = std::make_shared<PplArguments>();
  arguments->session.overflow = QUIRE_OVERFLOW_EXTRAPOLATE;
  CLI::App* command = eval.add_subcommand("ppl", "Perplexity of the end of a long text");
  add_model_options(*command, arguments->model);
  add_session_options(*command, arguments->session);
  command->add_option("-f,--file", arguments->file, "text in UTF-8; - reads stdin")->required()->type_name("FILE");
  command->add_option("--tokens", arguments->n_tokens, "read the first N tokens of the file")
      ->required()
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 40))
      ->type_name("N");
  command->add_option("--target-tokens", arguments->n_targets, "score the last K of them (default: N/2)")
      ->check(CLI::PositiveNumber)
      ->type_name("K");
  command->add_option("--window", arguments->window, "score the same targets in separate windows of W tokens ...")
      ->check(CLI::PositiveNumber)
      ->type_name("W");
  command->add_option("--stride", arguments->stride, "... that advance by S: each target sees at least W - S tokens")
      ->check(CLI::PositiveNumber)
      ->type_name("S");
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->footer(R"help(
Example: is reading all of it better than reading windows of the trained length?
  quire eval ppl -m model -s dca -f book.txt --tokens 4096
  quire eval ppl -m model -s full -f book.txt --tokens 4096 --window 256 --stride 64)help");
  command->callback([arguments, &action] { action = [arguments] { return eval_ppl(*arguments); }; });
}

}  // namespace cli
