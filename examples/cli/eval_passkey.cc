// quire eval passkey: can the model say a number that stands somewhere in a long text?
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <numeric>

#include "document.h"
#include "haystack.h"
#include "line_chart.h"
#include "output.h"
#include "progress.h"

namespace cli {
namespace {

constexpr size_t kKeyDigits = 5;

struct PasskeyArguments {
  ModelArguments model;
  SessionArguments session;
  std::vector<int64_t> lengths;
  int64_t n_trials = 20;
  uint64_t seed = 0;
  std::string svg;
  bool json = false;
};

// The document of one trial: as much filler as keeps it, and the answer, within `length` tokens; the key at a random
// boundary of the filler's lines.
Document make_prompt(const quire_tokenizer* tokenizer, int64_t length, uint64_t seed, uint64_t trial,
                     const std::string& key) {
  const double where = static_cast<double>(draw(seed, trial, 1) >> 11) * 0x1p-53;  // in [0, 1)
  const auto place = [where](const std::vector<int64_t>& lines) {
    return static_cast<size_t>(where * static_cast<double>(lines.size() + 1));
  };
  const Task task = {fill_in(kPasskeyNeedle, key), kPasskeyQuestion, length, kPasskeyAnswerTokens};
  return make_document(tokenizer, {kFiller}, 0, task, place);
}

std::string digits_of(const std::string& text) {
  std::string digits;
  for (const char c : text) {
    if (c >= '0' && c <= '9' && digits.size() < kKeyDigits) digits += c;
  }
  return digits;
}

struct Row {
  int64_t length = 0;
  int64_t n_correct = 0;
  double seconds = 0;
  Json trials = Json::array();
};

Row evaluate(const PasskeyArguments& arguments, int64_t length, const quire_tokenizer* tokenizer,
             quire_session* session, const std::function<void(int64_t done)>& show) {
  Row row;
  row.length = length;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t trial = 0; trial < arguments.n_trials; ++trial) {
    const auto t = static_cast<uint64_t>(trial);
    const std::string key = draw_key(arguments.seed, t);
    const Document prompt = make_prompt(tokenizer, length, arguments.seed, t, key);
    const std::string text = ask(
        session, prompt.text, kPasskeyAnswerTokens, [&](int64_t done) { show(trial * length + done); },
        [](const std::string& so_far) { return digits_of(so_far).size() == kKeyDigits; });
    const std::string digits = digits_of(text);
    const std::string& answer = digits.empty() ? text : digits;
    const bool correct = answer == key;
    row.n_correct += correct ? 1 : 0;
    row.trials.push_back({{"trial", trial},
                          {"depth", prompt.depth},
                          {"n_prompt_tokens", prompt.n_tokens},
                          {"key", key},
                          {"answer", answer},
                          {"correct", correct}});
    row.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    show((trial + 1) * length);
  }
  return row;
}

double accuracy(const Row& row) { return static_cast<double>(row.n_correct) / static_cast<double>(row.trials.size()); }

int eval_passkey(const PasskeyArguments& arguments) {
  if (!arguments.svg.empty()) check_writable(arguments.svg);
  const Engine engine(arguments.model);
  const Tokenizer tokenizer = engine.tokenizer();
  const Session session =
      engine.create_session(arguments.session, *std::max_element(arguments.lengths.begin(), arguments.lengths.end()));
  const std::string strategy = strategy_of(session.get());
  const auto n_all =
      arguments.n_trials * std::accumulate(arguments.lengths.begin(), arguments.lengths.end(), int64_t{0});
  int64_t n_before = 0;  // tokens of the lengths done
  Progress progress("passkey", "tokens");
  Json rows = Json::array();
  LineChart chart = {"Passkey retrieval", strategy, "document length (tokens)", "right", true, {}};
  if (!arguments.json) print("%s\n%8s  %8s  %8s\n", strategy.c_str(), "tokens", "correct", "accuracy");
  for (const int64_t length : arguments.lengths) {
    Row row = evaluate(arguments, length, tokenizer.get(), session.get(),
                       [&](int64_t done) { progress.show(n_before + done, n_all); });
    n_before += arguments.n_trials * length;
    progress.clear();
    const std::string correct = std::to_string(row.n_correct) + "/" + std::to_string(arguments.n_trials);
    chart.points.push_back({std::to_string(length), accuracy(row), correct});
    if (!arguments.json) {
      print("%8lld  %8s  %6.0f %%\n", static_cast<long long>(length), correct.c_str(), 100 * accuracy(row));
      flush_output();
      continue;
    }
    rows.push_back({{"n_tokens", length},
                    {"accuracy", accuracy(row)},
                    {"n_trials", arguments.n_trials},
                    {"n_correct", row.n_correct},
                    {"seconds", row.seconds},
                    {"trials", std::move(row.trials)}});
  }
  if (!arguments.svg.empty()) write_document(arguments.svg, to_svg(chart));
  if (!arguments.json) return 0;
  Json result = {
      {"task", "passkey"}, {"strategy", strategy}, {"train_len", engine.info().train_len}, {"seed", arguments.seed}};
  // With a single length its numbers stand in the object itself too.
  if (rows.size() == 1) result.update(rows[0]);
  result["rows"] = std::move(rows);
  print_json(result);
  return 0;
}

}  // namespace

void add_eval_passkey(CLI::App& eval, Action& action) {
  auto arguments = std::make_shared<PasskeyArguments>();
  arguments->session.overflow = QUIRE_OVERFLOW_EXTRAPOLATE;
  CLI::App* command = eval.add_subcommand("passkey", "Hide a number in filler text and ask for it");
  add_model_options(*command, arguments->model);
  add_session_options(*command, arguments->session);
  command->add_option("--tokens", arguments->lengths, "length of prompt and answer; several give a row each")
      ->required()
      ->check(CLI::PositiveNumber)
      ->type_name("N...");
  command->add_option("--trials", arguments->n_trials, "documents per length (default: 20)")
      ->check(CLI::PositiveNumber)
      ->type_name("T");
  command->add_option("--seed", arguments->seed, "number and place depend on (seed, trial) alone (default: 0)")
      ->type_name("S");
  command->add_option("--svg", arguments->svg, "draw right answers by length")->type_name("FILE");
  command->add_flag("--json", arguments->json, "print one JSON object with every trial");
  command->footer(R"help(
Example: `full` fails beyond the trained length, `dca` does not
  quire eval passkey -m model -s full --tokens 256 1024 4096
  quire eval passkey -m model -s dca --tokens 256 1024 4096)help");
  command->callback([arguments, &action] { action = [arguments] { return eval_passkey(*arguments); }; });
}

}  // namespace cli
