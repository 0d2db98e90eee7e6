// quire eval ppl: perplexity of a text, given all of it that came before or given sliding windows.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "document.h"
#include "engine.h"
#include "interrupt.h"
#include "line_chart.h"
#include "output.h"
#include "progress.h"

namespace cli {
namespace {

constexpr int64_t kParts = 16;  // of the text, in the figure

struct PplArguments {
  ModelArguments model;
  SessionArguments session;
  std::string file;
  int64_t n_tokens = 0;   // 0: all
  int64_t n_targets = 0;  // 0: half of n_tokens
  bool all_targets = false;
  int64_t window = 0;  // 0: the strategy reads the whole text
  int64_t stride = 0;
  bool no_bos = false;
  std::string svg;
  bool json = false;
};

using Ids = std::vector<int32_t>;

// What is computed at once: tokens [begin, end) of the text, of which [first, end) are scored.
struct Window {
  int64_t begin = 0;
  int64_t first = 0;
  int64_t end = 0;
  bool bos = false;  // a beginning-of-sequence token stands before `begin`

  int64_t size() const { return end - begin + (bos ? 1 : 0); }
};

// log p of the tokens [first, ids.size()) of a fresh text `ids`.
std::vector<float> score(quire_session* session, const Ids& ids, int64_t first,
                         const std::function<void(int64_t done)>& show) {
  reset(session);
  feed_tokens(session, ids.data(), ids.size());
  auto options = initialised(quire_stream_options_init);
  options.flags = QUIRE_STREAM_SCORE;
  const int32_t finish = run_stream(session, options, [&](const quire_event& event) {
    if (event.kind == QUIRE_EVENT_PREFILL) show(event.reused + event.done);
    return true;
  });
  if (finish == QUIRE_FINISH_CANCELLED) throw Interrupted();
  if (finish == QUIRE_FINISH_REACH) throw std::runtime_error("the text is longer than the strategy's reach");
  std::vector<float> scores(ids.size() - static_cast<size_t>(first));
  Error error;
  error.check(quire_session_get_scores(session, first, static_cast<int64_t>(scores.size()), scores.data(),
                                       scores.size(), nullptr, error.get()),
              "reading the scores");
  return scores;
}

// Windows that score each of the last n_targets tokens once. Without --window there is one, the whole text. With it the
// first window ends where it is full, or one stride after the first target if that is later; each later one ends a
// stride after the one before. So every target has at least window - stride tokens before it, fewer only where the text
// begins.
std::vector<Window> make_windows(const PplArguments& arguments, bool has_bos) {
  const int64_t n = arguments.n_tokens;
  int64_t first = n - arguments.n_targets;
  if (arguments.window == 0) return {{0, first, n}};
  std::vector<Window> windows;
  for (int64_t end = std::max(arguments.window, first + arguments.stride); first < n; end += arguments.stride) {
    Window w = {std::max<int64_t>(0, end - arguments.window), first, std::min(end, n)};
    if (w.begin > 0 && has_bos) {  // it takes the place of the window's first token
      ++w.begin;
      w.bos = true;
    }
    windows.push_back(w);
    first = w.end;
  }
  return windows;
}

// log p of each target.
std::vector<float> score_windows(quire_session* session, const Ids& text, const std::vector<Window>& windows,
                                 int32_t bos) {
  int64_t n_all = 0, n_before = 0;
  for (const Window& w : windows) n_all += w.size();
  Progress progress("scoring", "tokens");
  std::vector<float> all;
  for (const Window& w : windows) {
    Ids ids;
    if (w.bos) ids.push_back(bos);
    ids.insert(ids.end(), text.begin() + w.begin, text.begin() + w.end);
    const int64_t n_context = w.size() - (w.end - w.first);
    const auto scores = score(session, ids, n_context, [&](int64_t done) { progress.show(n_before + done, n_all); });
    all.insert(all.end(), scores.begin(), scores.end());
    n_before += w.size();
  }
  return all;
}

// The targets that stand at [from, to) of the text.
struct Part {
  int64_t from = 0, to = 0;
  double nll = 0;
};

// Equal parts, as many as can be drawn side by side.
std::vector<Part> by_position(const std::vector<float>& scores, int64_t first) {
  const auto n = static_cast<int64_t>(scores.size()), n_parts = std::min<int64_t>(kParts, n);
  std::vector<Part> parts;
  for (int64_t i = 0; i < n_parts; ++i) {
    const int64_t begin = i * n / n_parts, end = (i + 1) * n / n_parts;
    const double total = std::accumulate(scores.begin() + begin, scores.begin() + end, 0.0);
    parts.push_back({first + begin, first + end, -total / static_cast<double>(end - begin)});
  }
  return parts;
}

LineChart picture(const std::string& strategy, const std::vector<Part>& parts) {
  LineChart chart = {"Perplexity by position", strategy, "up to token", "perplexity", false, {}};
  for (const Part& part : parts) {
    chart.points.push_back({std::to_string(part.to), std::exp(part.nll), std::to_string(std::exp(part.nll))});
  }
  return chart;
}

// The text's tokens, as many as are wanted; settles how many are read and scored.
Ids read_text(const quire_tokenizer* tokenizer, PplArguments& arguments) {
  Ids ids = encode(tokenizer, read_document(arguments.file), 0);
  const auto n_text = static_cast<int64_t>(ids.size());
  if (arguments.n_tokens == 0) arguments.n_tokens = n_text;
  if (n_text < std::max<int64_t>(2, arguments.n_tokens)) {
    throw UsageError(arguments.file + " has " + std::to_string(n_text) + " tokens, fewer than " +
                     (arguments.n_tokens < 2 ? "2" : "--tokens " + std::to_string(arguments.n_tokens)));
  }
  if (arguments.n_targets >= arguments.n_tokens) {
    throw UsageError("--target-tokens must be less than the " + std::to_string(arguments.n_tokens) +
                     " tokens read: the first one has nothing before it");
  }
  if (arguments.all_targets) arguments.n_targets = arguments.n_tokens - 1;
  if (arguments.n_targets == 0) arguments.n_targets = arguments.n_tokens / 2;
  ids.resize(static_cast<size_t>(arguments.n_tokens));
  return ids;
}

void check(const PplArguments& arguments) {
  if (arguments.n_tokens > 0 && arguments.n_targets >= arguments.n_tokens) {
    throw UsageError("--target-tokens must be less than --tokens: the first token has nothing before it");
  }
  if ((arguments.window == 0) != (arguments.stride == 0)) throw UsageError("--window and --stride go together");
  if (arguments.window > 0 && arguments.stride > arguments.window - 2) {
    throw UsageError("--stride must be at most --window minus 2: every target needs a token before it");
  }
  if (arguments.no_bos && arguments.window == 0) throw UsageError("--no-bos is about --window");
}

Json to_json(const PplArguments& a, const Engine& engine, const std::string& strategy, size_t n_windows, double nll,
             const std::vector<Part>& parts, double seconds) {
  Json result = {{"task", "ppl"},
                 {"strategy", strategy},
                 {"train_len", engine.info().train_len},
                 {"n_tokens", a.n_tokens},
                 {"n_targets", a.n_targets},
                 {"perplexity", std::exp(nll)},
                 {"nll", nll},
                 {"seconds", seconds}};
  for (const Part& part : parts) {
    result["by_position"].push_back({{"from", part.from}, {"to", part.to}, {"perplexity", std::exp(part.nll)}});
  }
  if (a.window > 0) {
    result.update({{"window", a.window}, {"stride", a.stride}, {"n_windows", n_windows}});
  }
  return result;
}

int eval_ppl(PplArguments& arguments) {
  check(arguments);
  if (!arguments.svg.empty()) check_writable(arguments.svg);
  const Engine engine(arguments.model);
  const Tokenizer tokenizer = engine.tokenizer();
  const Ids ids = read_text(tokenizer.get(), arguments);
  const Session session = engine.create_session(arguments.session, arguments.n_tokens);
  const int32_t bos = arguments.no_bos ? -1 : quire_tokenizer_get_bos(tokenizer.get());
  const auto windows = make_windows(arguments, bos >= 0);
  const auto start = std::chrono::steady_clock::now();
  const std::vector<float> scores = score_windows(session.get(), ids, windows, bos);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  const double nll = -std::accumulate(scores.begin(), scores.end(), 0.0) / static_cast<double>(arguments.n_targets);
  const std::vector<Part> parts = by_position(scores, arguments.n_tokens - arguments.n_targets);
  const std::string strategy = strategy_of(session.get());
  if (arguments.json) {
    print_json(to_json(arguments, engine, strategy, windows.size(), nll, parts, time.count()));
  } else {
    print("perplexity %.4f (nll %.5f) of %lld tokens\n", std::exp(nll), nll,
          static_cast<long long>(arguments.n_targets));
  }
  if (!arguments.svg.empty()) write_document(arguments.svg, to_svg(picture(strategy, parts)));
  return 0;
}

}  // namespace

void add_eval_ppl(CLI::App& eval, Action& action) {
  auto arguments = std::make_shared<PplArguments>();
  arguments->session.overflow = QUIRE_OVERFLOW_EXTRAPOLATE;
  CLI::App* command = eval.add_subcommand("ppl", "Perplexity of a long text, whole or in sliding windows");
  add_model_options(*command, arguments->model);
  add_session_options(*command, arguments->session);
  command->add_option("-f,--file", arguments->file, "text in UTF-8; - reads stdin")->required()->type_name("FILE");
  command->add_option("--tokens", arguments->n_tokens, "read the first N tokens of the file (default: all)")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 40))
      ->type_name("N");
  CLI::Option* targets =
      command->add_option("--target-tokens", arguments->n_targets, "score the last K of them (default: N/2)")
          ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
          ->type_name("K");
  command->add_flag("--all-targets", arguments->all_targets, "score all of them but the first")->excludes(targets);
  command->add_option("--window", arguments->window, "score the same targets in separate windows of W tokens ...")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->type_name("W");
  command->add_option("--stride", arguments->stride, "... that advance by S: each target sees at least W - S tokens")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->type_name("S");
  command->add_flag("--no-bos", arguments->no_bos,
                    "begin later windows in the middle of the text, without a beginning-of-sequence token");
  command->add_option("--svg", arguments->svg, "draw perplexity by position in the text")->type_name("FILE");
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->footer(R"help(
Without --window the strategy reads the whole text once. With it each target is scored once, in the first window
that holds it: "strided" perplexity, where a small stride gives more context and takes more time. With
--all-targets --no-bos the windows are those of the transformers library's example.

Example: is reading all of it better than reading windows of the trained length?
  quire eval ppl -m model -s dca -f book.txt --tokens 4096
  quire eval ppl -m model -s full -f book.txt --tokens 4096 --window 256 --stride 64)help");
  command->callback([arguments, &action] { action = [arguments] { return eval_ppl(*arguments); }; });
}

}  // namespace cli
