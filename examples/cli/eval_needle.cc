// quire eval needle: a needle in a haystack, over a grid of document lengths and of depths at which it lies.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "alignment.h"
#include "document.h"
#include "haystack.h"
#include "heat_map.h"
#include "output.h"
#include "progress.h"
#include "validators.h"

namespace cli {
namespace {

struct NeedleArguments {
  ModelArguments model;
  SessionArguments session;
  std::vector<int64_t> lengths;
  std::vector<double> depths = {0, 0.25, 0.5, 0.75, 1};
  int64_t n_trials = 5;
  uint64_t seed = 0;
  std::string file;
  std::string needle;
  std::string question;
  std::string answer;
  int64_t answer_tokens = 0;  // 0: from the answer
  bool same_length = false;
  std::string svg;
  bool json = false;
};

struct Cell {
  int64_t length = 0;
  double depth = 0;
  int64_t n_right = 0;
  double seconds = 0;
  Json documents = Json::array();
};

struct Grid {
  const NeedleArguments& arguments;
  const quire_tokenizer* tokenizer;
  quire_session* session;
  std::vector<std::string> pieces;  // of the haystack
  int64_t chunk;                    // of the method
};

bool has_key(const std::string& text) { return text.find("{key}") != std::string::npos; }

void check(NeedleArguments& a) {
  const bool any = !a.needle.empty() || !a.question.empty() || !a.answer.empty();
  if (any && (a.needle.empty() || a.question.empty() || a.answer.empty())) {
    throw UsageError("--needle, --question and --answer go together");
  }
  if (!any) {
    a.needle = kPasskeyNeedle;
    a.question = kPasskeyQuestion;
    a.answer = "{key}";
  }
  if (has_key(a.question)) throw UsageError("--question holds {key}: it would give the answer away");
  if (has_key(a.answer) && !has_key(a.needle)) {
    throw UsageError("--answer holds {key} but --needle does not: the answer stands nowhere");
  }
  if (!has_key(a.needle) && a.file.empty() && a.n_trials > 1) {
    throw UsageError(
        "all trials would be the same document: put {key} into --needle and --answer, give a text with -f, or ask for "
        "--trials 1");
  }
}

// The boundary that is nearest to `depth` of the haystack's tokens.
size_t place_at(double depth, const std::vector<int64_t>& piece_tokens) {
  int64_t n_all = 0;
  for (const int64_t n : piece_tokens) n_all += n;
  const double target = depth * static_cast<double>(n_all);
  int64_t n_before = 0;
  size_t best = 0;
  double distance = target;
  for (size_t i = 0; i < piece_tokens.size(); ++i) {
    n_before += piece_tokens[i];
    const double here = std::abs(static_cast<double>(n_before) - target);
    if (here < distance) {
      distance = here;
      best = i + 1;
    }
  }
  return best;
}

// The document of one trial. Its key and the place in the text where it begins depend on (seed, length, depth, trial)
// alone: other lengths and depths of the grid change nothing.
Document make_trial(const Grid& grid, const Cell& cell, uint64_t trial, std::string& expected) {
  const NeedleArguments& a = grid.arguments;
  const uint64_t seed = draw(a.seed, static_cast<uint64_t>(cell.length), std::bit_cast<uint64_t>(cell.depth));
  const std::string key = draw_key(seed, trial);
  expected = fill_in(a.answer, key);
  const auto shorter = a.same_length ? std::nullopt : std::optional(shortening(cell.length, grid.chunk, seed, trial));
  const Task task = {fill_in(a.needle, key), a.question, cell.length, a.answer_tokens, shorter};
  return make_document(grid.tokenizer, grid.pieces, draw(seed, trial, 1) % grid.pieces.size(), task,
                       [&](const std::vector<int64_t>& tokens) { return place_at(cell.depth, tokens); });
}

Cell evaluate(const Grid& grid, int64_t length, double depth, const std::function<void(int64_t done)>& show) {
  Cell cell{length, depth};
  const auto start = std::chrono::steady_clock::now();
  for (int64_t trial = 0; trial < grid.arguments.n_trials; ++trial) {
    std::string expected;
    const Document document = make_trial(grid, cell, static_cast<uint64_t>(trial), expected);
    const std::string said = ask(
        grid.session, document.text, grid.arguments.answer_tokens, [&](int64_t done) { show(trial * length + done); },
        [](const std::string&) { return false; });
    const bool right = says(said, expected);
    cell.n_right += right ? 1 : 0;
    cell.documents.push_back({{"trial", trial},
                              {"depth", document.depth},
                              {"n_prompt_tokens", document.n_tokens},
                              {"alignment", document.n_tokens % grid.chunk},
                              {"expected", expected},
                              {"answer", said},
                              {"right", right}});
    show((trial + 1) * length);
  }
  cell.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return cell;
}

double accuracy(const Cell& cell) {
  return static_cast<double>(cell.n_right) / static_cast<double>(cell.documents.size());
}

// Row by row: one row a depth, one column a length. What takes long comes last.
std::vector<Cell> evaluate_all(const Grid& grid) {
  const NeedleArguments& a = grid.arguments;
  const size_t n_columns = a.lengths.size();
  int64_t n_all = 0, n_before = 0;
  for (const int64_t length : a.lengths) {
    n_all += length * a.n_trials * static_cast<int64_t>(a.depths.size());
    std::string expected;
    (void)make_trial(grid, {length, 0}, 0, expected);  // too short a length is seen before hours of work
  }
  Progress progress("needle", "tokens");
  std::vector<Cell> cells(n_columns * a.depths.size());
  for (size_t column = 0; column < n_columns; ++column) {
    for (size_t row = 0; row < a.depths.size(); ++row) {
      cells[row * n_columns + column] = evaluate(grid, a.lengths[column], a.depths[row],
                                                 [&](int64_t done) { progress.show(n_before + done, n_all); });
      n_before += a.lengths[column] * a.n_trials;
    }
  }
  return cells;
}

std::string percent(double fraction) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g %%", 100 * fraction);
  return text;
}

// All documents of the grid by where they ended in a chunk.
ByAlignment by_alignment(const std::string& strategy, const std::vector<Cell>& cells) {
  ByAlignment sums(longest_chunk(strategy));
  for (const Cell& cell : cells) {
    for (const Json& document : cell.documents) {
      sums.add(document["n_prompt_tokens"].get<int64_t>(), document["right"].get<bool>() ? 1 : 0, 1);
    }
  }
  return sums;
}

void print_table(const NeedleArguments& a, const std::string& strategy, const std::vector<Cell>& cells) {
  print("%s, right answers of %lld\n%8s", strategy.c_str(), static_cast<long long>(a.n_trials), "depth");
  for (const int64_t length : a.lengths) print("  %8lld", static_cast<long long>(length));
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i % a.lengths.size() == 0) print("\n%8s", percent(cells[i].depth).c_str());
    print("  %8lld", static_cast<long long>(cells[i].n_right));
  }
  int64_t n_right = 0;
  for (const Cell& cell : cells) n_right += cell.n_right;
  const int64_t n_documents = a.n_trials * static_cast<int64_t>(cells.size());
  const auto [low, high] = confidence(n_right, n_documents);
  const ByAlignment places = by_alignment(strategy, cells);
  const auto [least, greatest] = places.spread();
  print("\nall %lld: %.0f %%, with 95 %% confidence %.0f to %.0f %%; by place in a chunk of %lld: %.0f to %.0f %%\n",
        static_cast<long long>(n_documents), 100 * static_cast<double>(n_right) / static_cast<double>(n_documents),
        100 * low, 100 * high, static_cast<long long>(places.chunk()), 100 * least, 100 * greatest);
}

Json to_json(const NeedleArguments& a, const Engine& engine, const std::string& strategy,
             const std::vector<Cell>& cells) {
  Json list = Json::array();
  int64_t n_right = 0;
  const Json alignment = by_alignment(strategy, cells).to_json();
  for (const Cell& cell : cells) {
    n_right += cell.n_right;
    const auto [low, high] = confidence(cell.n_right, a.n_trials);
    list.push_back({{"length", cell.length},
                    {"depth", cell.depth},
                    {"trials", a.n_trials},
                    {"right", cell.n_right},
                    {"accuracy", accuracy(cell)},
                    {"interval", {low, high}},
                    {"seconds", cell.seconds},
                    {"documents", cell.documents}});
  }
  const int64_t n_documents = a.n_trials * static_cast<int64_t>(cells.size());
  const auto [low, high] = confidence(n_right, n_documents);
  return {{"task", "needle"},
          {"model", a.model.path},
          {"strategy", strategy},
          {"train_len", engine.info().train_len},
          {"seed", a.seed},
          {"haystack", a.file.empty() ? Json(nullptr) : Json(a.file)},
          {"needle", a.needle},
          {"question", a.question},
          {"answer", a.answer},
          {"answer_tokens", a.answer_tokens},
          {"lengths", a.lengths},
          {"depths", a.depths},
          {"same_length", a.same_length},
          {"accuracy", static_cast<double>(n_right) / static_cast<double>(n_documents)},
          {"interval", {low, high}},
          {"by_alignment", alignment},
          {"cells", std::move(list)}};
}

HeatMap picture(const NeedleArguments& a, const std::string& strategy, const std::vector<Cell>& cells) {
  const std::filesystem::path directory = std::filesystem::canonical(a.model.path);
  const std::filesystem::path name = directory.parent_path().filename() / directory.filename();  // "maker/model"
  HeatMap map;
  map.title = "Needle in a haystack: " + name.string();
  map.subtitle = strategy;
  map.x_label = "document length (tokens)";
  map.y_label = "depth of the needle";
  map.scale_label = "right";
  for (const int64_t length : a.lengths) map.columns.push_back(std::to_string(length));
  for (const double depth : a.depths) map.rows.push_back(percent(depth));
  for (const Cell& cell : cells) {
    const std::string tooltip = std::to_string(cell.length) + " tokens, depth " + percent(cell.depth) + ": " +
                                std::to_string(cell.n_right) + " of " + std::to_string(a.n_trials) + " right";
    map.cells.push_back({accuracy(cell), percent(accuracy(cell)), tooltip});
  }
  return map;
}

int eval_needle(NeedleArguments& a) {
  check(a);
  std::vector<std::string> pieces = {kFiller};
  if (!a.file.empty()) pieces = split_sentences(read_document(a.file));
  if (pieces.empty()) throw UsageError(a.file + " is empty: no haystack");
  if (!a.svg.empty()) check_writable(a.svg);
  const Engine engine(a.model);
  const Tokenizer tokenizer = engine.tokenizer();
  if (a.answer_tokens == 0) {
    const int64_t n = count_tokens(tokenizer.get(), fill_in(a.answer, "12345"), QUIRE_TEXT_NO_BOS);
    a.answer_tokens = std::max<int64_t>(kPasskeyAnswerTokens, 2 * n);
  }
  if (a.file == "-") a.file = "standard input";
  const Session session = engine.create_session(a.session, *std::max_element(a.lengths.begin(), a.lengths.end()));
  const std::string strategy = strategy_of(session.get());
  const std::vector<Cell> cells =
      evaluate_all({a, tokenizer.get(), session.get(), std::move(pieces), longest_chunk(strategy)});
  if (a.json) {
    print_json(to_json(a, engine, strategy, cells));
  } else {
    print_table(a, strategy, cells);
  }
  if (!a.svg.empty()) write_document(a.svg, to_svg(picture(a, strategy, cells)));
  return 0;
}

}  // namespace

void add_eval_needle(CLI::App& eval, Action& action) {
  auto arguments = std::make_shared<NeedleArguments>();
  NeedleArguments& a = *arguments;
  a.session.overflow = QUIRE_OVERFLOW_EXTRAPOLATE;
  CLI::App* command =
      eval.add_subcommand("needle", "Hide a sentence at each depth of documents of each length, and ask for it");
  add_model_options(*command, a.model);
  add_session_options(*command, a.session);
  command
      ->add_option("--tokens,--lengths", a.lengths,
                   "most tokens of document, question and answer: 1024,2048 or 1024 2048")
      ->required()
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31))
      ->type_name("N...");
  command->add_option("--depths", a.depths, "where the needle lies: 0 begin, 1 end (default: 0,0.25,0.5,0.75,1)")
      ->delimiter(',')
      ->check(number(0, 1))
      ->type_name("D...");
  command->add_option("--trials", a.n_trials, "documents for each length and depth (default: 5)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->type_name("T");
  command->add_option("--seed", a.seed, "keys and places in the haystack's text (default: 0)")
      ->check(whole_number_of_64_bits())
      ->type_name("S");
  command
      ->add_option("-f,--file", a.file, "haystack in UTF-8, repeated if short; - reads stdin (default: filler lines)")
      ->type_name("FILE");
  command->add_option("--needle", a.needle, "sentence to hide; {key} in it is five random digits (default: a pass key)")
      ->type_name("TEXT");
  command->add_option("--question", a.question, "text after the document; the model goes on from its end")
      ->type_name("TEXT");
  command->add_option("--answer", a.answer, "right if the model says so, as whole words; {key} as in --needle")
      ->type_name("TEXT");
  command
      ->add_option("--answer-tokens", a.answer_tokens, "tokens to answer in (default: twice the answer's, at least 8)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->type_name("N");
  command->add_flag("--same-length", a.same_length, kSameLengthHelp);
  command->add_option("--svg", a.svg, "write a heat map, lengths across and depths down")->type_name("FILE");
  command->add_flag("--json", a.json, "print one JSON object with every cell and answer");
  command->footer(R"help(
A cell says how many of its T documents got the right answer. Documents come from (seed, length, depth, trial) and the
length of the method's chunks, below which each is shorter by a random number of tokens (at most an eighth of the
length), so that they end at different places in a chunk. With --same-length the same cell asks the same of every
strategy.

Examples:
  quire eval needle -m model -s dca --tokens 1024,2048,4096 --svg dca.svg
  quire eval needle -m model -s dca -f book.txt --tokens 8192 --depths 0.1,0.5,0.9 --trials 20 --json
  quire eval needle -m model --tokens 256 --needle "The code of Anna is {key}." \
    --question "What is the code of Anna? The code of Anna is" --answer "{key}")help");
  command->callback([arguments, &action] { action = [arguments] { return eval_needle(*arguments); }; });
}

}  // namespace cli
