// quire eval multikey, quire eval topics: several facts in one long document, and a question for each of them.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "alignment.h"
#include "document.h"
#include "haystack.h"
#include "heat_map.h"
#include "output.h"
#include "progress.h"
#include "validators.h"

namespace cli {
namespace {

constexpr int64_t kAnswerTokens = 10;
constexpr int64_t kMostAsked = 8;  // of one document
constexpr size_t kDepths = 5;      // rows of the picture

constexpr std::array<const char*, 32> kNames = {"Anna",  "Ben",   "Clara", "David",  "Emma",  "Frank", "Grace", "Henry",
                                                "Ida",   "Jack",  "Kate",  "Leo",    "Maria", "Nina",  "Oscar", "Paul",
                                                "Rosa",  "Simon", "Tina",  "Victor", "Wendy", "Zoe",   "Alice", "Bob",
                                                "Carol", "Dan",   "Eva",   "Felix",  "Gina",  "Hugo",  "Iris",  "Karl"};
constexpr std::array<const char*, 32> kTopics = {
    "music",   "water", "paper",   "garden", "bread",  "silver",  "winter",  "horses", "bridges", "coffee",  "letters",
    "stones",  "birds", "cities",  "clocks", "dreams", "engines", "forests", "glass",  "history", "islands", "kitchens",
    "ladders", "maps",  "numbers", "oceans", "prices", "queens",  "rivers",  "songs",  "towers",  "villages"};

struct FactsArguments {
  ModelArguments model;
  SessionArguments session;
  std::vector<int64_t> lengths;
  int64_t n_facts = 4;
  int64_t n_trials = 10;
  uint64_t seed = 0;
  std::string file;
  bool same_length = false;
  std::string svg;
  bool json = false;
};

struct Fact {
  std::string sentence;
  std::string question;
  std::string answer;
  std::string name;
};

// A task: how it is called, and the facts of a trial.
struct Kind {
  const char* task;
  const char* title;
  std::vector<Fact> (*facts)(int64_t n, uint64_t seed, uint64_t trial);
  bool spread;  // evenly over the document: each begins a section; else at random places
};

// n different numbers below `all`.
std::vector<size_t> choose(size_t all, int64_t n, uint64_t seed, uint64_t trial) {
  std::vector<size_t> order(all);
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t i = all; i > 1; --i) std::swap(order[i - 1], order[draw(seed, trial, 100 + i) % i]);
  order.resize(static_cast<size_t>(n));
  return order;
}

std::vector<Fact> keys_of_names(int64_t n, uint64_t seed, uint64_t trial) {
  std::vector<Fact> facts;
  for (const size_t i : choose(kNames.size(), n, seed, trial)) {
    const std::string name = kNames[i], key = std::to_string(10000 + draw(seed, trial, 1000 + i) % 90000);
    facts.push_back({"The pass key of " + name + " is " + key + ".",
                     "What is the pass key of " + name + "? The pass key of " + name + " is", key, name});
  }
  return facts;
}

std::vector<Fact> numbered_topics(int64_t n, uint64_t seed, uint64_t trial) {
  std::vector<Fact> facts;
  for (const size_t i : choose(kTopics.size(), n, seed, trial)) {
    const std::string number = std::to_string(facts.size() + 1);
    facts.push_back({"Topic " + number + " is " + kTopics[i] + ".",
                     "What is topic " + number + "? Topic " + number + " is", kTopics[i], number});
  }
  return facts;
}

struct Page {
  std::string text;
  int64_t n_tokens = 0;
  std::vector<double> depths;  // of each fact: 0 at the beginning, 1 at the end
};

// As many pieces as fit, with the facts among them; before them the end of a piece, unless lengths are to be the same.
Page make_page(const quire_tokenizer* tokenizer, const std::vector<std::string>& pieces, const Kind& kind,
               const std::vector<Fact>& facts, const FactsArguments& a, int64_t length, int64_t chunk, uint64_t trial) {
  const size_t first = draw(a.seed, trial, 1) % pieces.size();
  const auto assemble = [&](size_t n_pieces, const std::string& lead, std::vector<double>* depths) {
    std::vector<size_t> before;  // pieces before each fact
    for (size_t f = 0; f < facts.size(); ++f) {
      before.push_back(kind.spread ? f * n_pieces / facts.size() : draw(a.seed, trial, 2000 + f) % (n_pieces + 1));
    }
    std::string text = (kind.spread ? "" : kPrefix) + lead;
    for (size_t piece = 0; piece <= n_pieces; ++piece) {
      for (size_t f = 0; f < facts.size(); ++f) {
        if (before[f] == piece) text += facts[f].sentence + "\n";
      }
      if (piece < n_pieces) text += pieces[(first + piece) % pieces.size()];
    }
    if (text.back() != '\n') text += '\n';
    if (depths) {
      depths->clear();
      for (size_t f = 0; f < facts.size(); ++f) {
        depths->push_back(kind.spread
                              ? static_cast<double>(f) / static_cast<double>(facts.size())
                              : static_cast<double>(before[f]) / static_cast<double>(std::max<size_t>(1, n_pieces)));
      }
    }
    return text;
  };
  int64_t question = 0;
  for (const Fact& fact : facts) {
    question = std::max(question, count_tokens(tokenizer, fact.question, QUIRE_TEXT_CONTINUE));
  }
  const int64_t most = length - question - kAnswerTokens;
  const auto tokens_of = [&](size_t n) { return count_tokens(tokenizer, assemble(n, "", nullptr)); };
  const int64_t bare = tokens_of(0);
  if (bare > most) {
    throw UsageError("--tokens " + std::to_string(length) + " is too short for " + std::to_string(facts.size()) +
                     " facts");
  }
  const int64_t limit = a.same_length ? most : std::max(bare, most - shortening(length, chunk, a.seed, trial));
  size_t fits = 0, too_many = 1;
  while (tokens_of(too_many) <= limit) too_many *= 2;
  for (fits = too_many / 2; too_many - fits > 1;) {
    const size_t middle = (fits + too_many) / 2;
    (tokens_of(middle) <= limit ? fits : too_many) = middle;
  }
  Page page;
  const auto write = [&](const std::string& lead) {
    page.text = assemble(fits, lead, &page.depths);
    page.n_tokens = count_tokens(tokenizer, page.text);
    return page.n_tokens <= limit;
  };
  write("");
  if (a.same_length) return page;
  const std::string& before = pieces[(first + pieces.size() - 1) % pieces.size()];
  for (int64_t room = limit - page.n_tokens; room > 0; --room) {
    if (write(end_of_piece(tokenizer, before, room))) break;
  }
  return page;
}

struct Row {
  int64_t length = 0;
  ByAlignment by_alignment;
  int64_t n_asked = 0, n_right = 0;
  std::array<int64_t, kDepths> asked_at{}, right_at{};
  double seconds = 0;
  Json trials = Json::array();
};

struct Run {
  const FactsArguments& arguments;
  const Kind& kind;
  const quire_tokenizer* tokenizer;
  quire_session* session;
  std::vector<std::string> pieces;
  int64_t chunk;  // of the method
};

// Reads the document once and asks each question from where it ends.
void ask_all(const Run& run, int64_t trial, Row& row, const std::function<void(int64_t)>& show) {
  const FactsArguments& a = run.arguments;
  const auto t = static_cast<uint64_t>(trial);
  const std::vector<Fact> facts = run.kind.facts(a.n_facts, a.seed, t);
  const Page page = make_page(run.tokenizer, run.pieces, run.kind, facts, a, row.length, run.chunk, t);
  reset(run.session);
  feed_text(run.session, page.text);
  const auto on_prefill = [&](const quire_event& event) {
    if (event.kind == QUIRE_EVENT_PREFILL) show(event.done);
    return true;
  };
  if (run_stream(run.session, initialised(quire_stream_options_init), on_prefill) == QUIRE_FINISH_CANCELLED) {
    throw Interrupted();
  }
  const int64_t end = get_stats(run.session).n_tokens;
  const auto order = choose(facts.size(), std::min<int64_t>(kMostAsked, a.n_facts), a.seed + 1, t);
  Json asked = Json::array();
  int64_t n_right = 0;
  for (const size_t f : order) {
    truncate(run.session, end);
    const std::string said = go_on(run.session, facts[f].question, kAnswerTokens);
    const bool right = says(said, facts[f].answer);
    const auto bin = std::min(kDepths - 1, static_cast<size_t>(page.depths[f] * kDepths));
    ++row.n_asked;
    ++row.asked_at[bin];
    n_right += right ? 1 : 0;
    row.right_at[bin] += right ? 1 : 0;
    asked.push_back({{"of", facts[f].name},
                     {"depth", page.depths[f]},
                     {"expected", facts[f].answer},
                     {"answer", said},
                     {"right", right}});
  }
  row.n_right += n_right;
  row.by_alignment.add(page.n_tokens, n_right, static_cast<int64_t>(order.size()));
  row.trials.push_back({{"trial", trial},
                        {"n_prompt_tokens", page.n_tokens},
                        {"alignment", page.n_tokens % run.chunk},
                        {"asked", std::move(asked)}});
}

double share(int64_t right, int64_t asked) {
  return asked == 0 ? 0 : static_cast<double>(right) / static_cast<double>(asked);
}

HeatMap picture(const Kind& kind, const std::string& strategy, const std::vector<Row>& rows) {
  HeatMap map;
  map.title = kind.title;
  map.subtitle = strategy;
  map.x_label = "document length (tokens)";
  map.y_label = "depth of the fact";
  map.scale_label = "right";
  for (const Row& row : rows) map.columns.push_back(std::to_string(row.length));
  for (size_t d = 0; d < kDepths; ++d) {
    map.rows.push_back("to " + std::to_string(100 * (d + 1) / kDepths) + " %");
    for (const Row& row : rows) {
      const double value = share(row.right_at[d], row.asked_at[d]);
      map.cells.push_back({value, row.asked_at[d] == 0 ? "-" : std::to_string(std::lround(100 * value)) + " %",
                           std::to_string(row.right_at[d]) + " of " + std::to_string(row.asked_at[d]) + " right"});
    }
  }
  return map;
}

Json to_json(const Row& row) {
  Json depths = Json::array();
  for (size_t d = 0; d < kDepths; ++d) {
    depths.push_back(
        {{"from", static_cast<double>(d) / kDepths},
         {"n_asked", row.asked_at[d]},
         {"accuracy", row.asked_at[d] == 0 ? Json(nullptr) : Json(share(row.right_at[d], row.asked_at[d]))}});
  }
  const auto [low, high] = confidence(row.n_right, row.n_asked);
  return {{"n_tokens", row.length},        {"accuracy", share(row.n_right, row.n_asked)},
          {"n_asked", row.n_asked},        {"n_right", row.n_right},
          {"interval", {low, high}},       {"by_alignment", row.by_alignment.to_json()},
          {"by_depth", std::move(depths)}, {"seconds", row.seconds},
          {"trials", row.trials}};
}

void print_table(const std::string& strategy, int64_t chunk, const std::vector<Row>& rows) {
  print("%s\n%8s  %8s  %8s  %13s  by place in a chunk of %lld\n", strategy.c_str(), "tokens", "right", "accuracy",
        "95 % sure", static_cast<long long>(chunk));
  for (const Row& row : rows) {
    const std::string right = std::to_string(row.n_right) + "/" + std::to_string(row.n_asked);
    const auto [low, high] = confidence(row.n_right, row.n_asked);
    const auto [least, greatest] = row.by_alignment.spread();
    print("%8lld  %8s  %6.0f %%  %3.0f to %3.0f %%  %3.0f to %3.0f %%\n", static_cast<long long>(row.length),
          right.c_str(), 100 * share(row.n_right, row.n_asked), 100 * low, 100 * high, 100 * least, 100 * greatest);
  }
}

int eval_facts(const FactsArguments& a, const Kind& kind) {
  std::vector<std::string> pieces = {kFiller};
  if (!a.file.empty()) pieces = split_sentences(read_document(a.file));
  if (pieces.empty()) throw UsageError(a.file + " is empty: no text to hide the facts in");
  if (!a.svg.empty()) check_writable(a.svg);
  const Engine engine(a.model);
  const Tokenizer tokenizer = engine.tokenizer();
  const Session session = engine.create_session(a.session, *std::max_element(a.lengths.begin(), a.lengths.end()));
  const std::string strategy = strategy_of(session.get());
  const Run run = {a, kind, tokenizer.get(), session.get(), std::move(pieces), longest_chunk(strategy)};
  const int64_t n_all = a.n_trials * std::accumulate(a.lengths.begin(), a.lengths.end(), int64_t{0});
  int64_t n_before = 0;
  Progress progress(kind.task, "tokens");
  std::vector<Row> rows;
  for (const int64_t length : a.lengths) {
    rows.push_back({length, ByAlignment(run.chunk)});
    const auto start = std::chrono::steady_clock::now();
    for (int64_t trial = 0; trial < a.n_trials; ++trial) {
      ask_all(run, trial, rows.back(), [&](int64_t done) { progress.show(n_before + done, n_all); });
      n_before += length;
      progress.show(n_before, n_all);
    }
    rows.back().seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  progress.clear();
  if (a.json) {
    Json list = Json::array();
    for (const Row& row : rows) list.push_back(to_json(row));
    print_json({{"task", kind.task},
                {"strategy", strategy},
                {"train_len", engine.info().train_len},
                {"seed", a.seed},
                {"n_facts", a.n_facts},
                {"same_length", a.same_length},
                {"rows", std::move(list)}});
  } else {
    print_table(strategy, run.chunk, rows);
  }
  if (!a.svg.empty()) write_document(a.svg, to_svg(picture(kind, strategy, rows)));
  return 0;
}

void add_facts(CLI::App& eval, Action& action, const Kind& kind, const char* help, const char* count,
               const char* footer) {
  auto arguments = std::make_shared<FactsArguments>();
  FactsArguments& a = *arguments;
  a.session.overflow = QUIRE_OVERFLOW_EXTRAPOLATE;
  CLI::App* command = eval.add_subcommand(kind.task, help);
  add_model_options(*command, a.model);
  add_session_options(*command, a.session);
  command->add_option("--tokens", a.lengths, "most tokens of document, question and answer; several give a row each")
      ->required()
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31))
      ->type_name("N...");
  command->add_option(count, a.n_facts, "facts in each document, of which at most 8 are asked for (default: 4)")
      ->check(CLI::Range(int64_t{1}, static_cast<int64_t>(kNames.size())))
      ->type_name("K");
  command->add_option("--trials", a.n_trials, "documents per length (default: 10)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->type_name("T");
  command->add_option("--seed", a.seed, "facts and places depend on (seed, trial) alone (default: 0)")
      ->check(whole_number_of_64_bits())
      ->type_name("S");
  command->add_option("-f,--file", a.file, "text around the facts, in UTF-8, repeated if short (default: filler lines)")
      ->type_name("FILE");
  command->add_flag("--same-length", a.same_length, kSameLengthHelp);
  command->add_option("--svg", a.svg, "write a heat map, lengths across and depths down")->type_name("FILE");
  command->add_flag("--json", a.json, "print one JSON object with every question and answer");
  command->footer(footer);
  command->callback(
      [arguments, &kind, &action] { action = [arguments, &kind] { return eval_facts(*arguments, kind); }; });
}

}  // namespace

void add_eval_facts(CLI::App& eval, Action& action) {
  static const Kind multikey = {"multikey", "Keys of several names", keys_of_names, false};
  static const Kind topics = {"topics", "Topics of sections", numbered_topics, true};
  add_facts(eval, action, multikey, "Hide a key for each of several names and ask for them", "--keys", R"help(
The document is read once; each question is asked from its end. A small model may not tell names apart even within
its trained length: look there first.

Example:
  quire eval multikey -m model -s dca --tokens 1024,4096 --keys 8 --svg keys.svg)help");
  add_facts(eval, action, topics, "Name a topic at the beginning of each section and ask for them by number",
            "--topics",
            R"help(
Sections of equal length, each beginning with "Topic 3 is rivers."; the question is "What is topic 3?". In the manner
of LongChat's topic retrieval, without the need to follow a conversation.

Example:
  quire eval topics -m model -s dca -f book.txt --tokens 1024,4096 --topics 6 --json)help");
}

}  // namespace cli
