// quire eval passkey: can the model say a number that stands somewhere in a long text?
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "alignment.h"
#include "document.h"
#include "haystack.h"
#include "line_chart.h"
#include "output.h"
#include "progress.h"
#include "validators.h"

namespace cli {
namespace {

constexpr size_t kKeyDigits = 5;

struct PasskeyArguments {
  ModelArguments model;
  SessionArguments session;
  std::vector<int64_t> lengths;
  int64_t n_trials = 20;
  uint64_t seed = 0;
  bool same_length = false;
  std::string svg;
  bool json = false;
};

// The document of one trial: as much filler as keeps it, and the answer, within `length` tokens; the key at a random
// boundary of the filler's lines.
Document make_prompt(const quire_tokenizer* tokenizer, int64_t length, std::optional<int64_t> shorter, uint64_t seed,
                     uint64_t trial, const std::string& key) {
  const double where = static_cast<double>(draw(seed, trial, 1) >> 11) * 0x1p-53;  // in [0, 1)
  const auto place = [where](const std::vector<int64_t>& lines) {
    return static_cast<size_t>(where * static_cast<double>(lines.size() + 1));
  };
  const Task task = {fill_in(kPasskeyNeedle, key), kPasskeyQuestion, length, kPasskeyAnswerTokens, shorter};
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
  ByAlignment by_alignment;
  int64_t n_correct = 0;
  double seconds = 0;
  Json trials = Json::array();
};

Row evaluate(const PasskeyArguments& arguments, int64_t length, int64_t chunk, const quire_tokenizer* tokenizer,
             quire_session* session, const std::function<void(int64_t done)>& show) {
  Row row{length, ByAlignment(chunk)};
  const auto start = std::chrono::steady_clock::now();
  for (int64_t trial = 0; trial < arguments.n_trials; ++trial) {
    const auto t = static_cast<uint64_t>(trial);
    const std::string key = draw_key(arguments.seed, t);
    const auto shorter =
        arguments.same_length ? std::nullopt : std::optional(shortening(length, chunk, arguments.seed, t));
    const Document prompt = make_prompt(tokenizer, length, shorter, arguments.seed, t, key);
    const std::string text = ask(
        session, prompt.text, kPasskeyAnswerTokens, [&](int64_t done) { show(trial * length + done); },
        [](const std::string& so_far) { return digits_of(so_far).size() == kKeyDigits; });
    const std::string digits = digits_of(text);
    const std::string& answer = digits.empty() ? text : digits;
    const bool correct = answer == key;
    row.n_correct += correct ? 1 : 0;
    row.by_alignment.add(prompt.n_tokens, correct ? 1 : 0, 1);
    row.trials.push_back({{"trial", trial},
                          {"depth", prompt.depth},
                          {"n_prompt_tokens", prompt.n_tokens},
                          {"alignment", prompt.n_tokens % chunk},
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
  const int64_t chunk = longest_chunk(strategy);
  if (!arguments.json) {
    print("%s\n%8s  %8s  %8s  %13s  by place in a chunk of %lld\n", strategy.c_str(), "tokens", "correct", "accuracy",
          "95 % sure", static_cast<long long>(chunk));
  }
  for (const int64_t length : arguments.lengths) {
    Row row = evaluate(arguments, length, chunk, tokenizer.get(), session.get(),
                       [&](int64_t done) { progress.show(n_before + done, n_all); });
    n_before += arguments.n_trials * length;
    progress.clear();
    const std::string correct = std::to_string(row.n_correct) + "/" + std::to_string(arguments.n_trials);
    chart.points.push_back({std::to_string(length), accuracy(row), correct});
    const auto [low, high] = confidence(row.n_correct, arguments.n_trials);
    if (!arguments.json) {
      const auto [least, greatest] = row.by_alignment.spread();
      print("%8lld  %8s  %6.0f %%  %3.0f to %3.0f %%  %3.0f to %3.0f %%\n", static_cast<long long>(length),
            correct.c_str(), 100 * accuracy(row), 100 * low, 100 * high, 100 * least, 100 * greatest);
      flush_output();
      continue;
    }
    rows.push_back({{"n_tokens", length},
                    {"accuracy", accuracy(row)},
                    {"n_trials", arguments.n_trials},
                    {"n_correct", row.n_correct},
                    {"interval", {low, high}},
                    {"by_alignment", row.by_alignment.to_json()},
                    {"seconds", row.seconds},
                    {"trials", std::move(row.trials)}});
  }
  if (arguments.json) {
    Json result = {{"task", "passkey"},
                   {"strategy", strategy},
                   {"train_len", engine.info().train_len},
                   {"seed", arguments.seed},
                   {"same_length", arguments.same_length}};
    // With a single length its numbers stand in the object itself too.
    if (rows.size() == 1) result.update(rows[0]);
    result["rows"] = std::move(rows);
    print_json(result);
  }
  if (!arguments.svg.empty()) write_document(arguments.svg, to_svg(chart));
  return 0;
}

}  // namespace

void add_eval_passkey(CLI::App& eval, Action& action) {
  auto arguments = std::make_shared<PasskeyArguments>();
  arguments->session.overflow = QUIRE_OVERFLOW_EXTRAPOLATE;
  CLI::App* command = eval.add_subcommand("passkey", "Hide a number in filler text and ask for it");
  add_model_options(*command, arguments->model);
  add_session_options(*command, arguments->session);
  command->add_option("--tokens", arguments->lengths, "most tokens of prompt and answer: 1024,2048 or 1024 2048")
      ->required()
      ->delimiter(',')
      ->check(whole_number(1, int64_t{1} << 31))
      ->type_name("N...");
  command->add_option("--trials", arguments->n_trials, "documents per length (default: 20)")
      ->check(whole_number(1, int64_t{1} << 20))
      ->type_name("T");
  command->add_option("--seed", arguments->seed, "number and place depend on (seed, trial) alone (default: 0)")
      ->check(whole_number_of_64_bits())
      ->type_name("S");
  command->add_flag("--same-length", arguments->same_length, kSameLengthHelp);
  command->add_option("--svg", arguments->svg, "draw right answers by length")->type_name("FILE");
  command->add_flag("--json", arguments->json, "print one JSON object with every trial");
  command->footer(R"help(
Documents of a length end at different places in the method's chunks: each is shorter by a random number of tokens below
one chunk (at most an eighth of the length). The last columns are where the true share lies with 95 % confidence, and
the worst and the best quarter of a chunk for a document to end in.

Example: `full` fails beyond the trained length, `dca` does not
  quire eval passkey -m model -s full --tokens 256 1024 4096
  quire eval passkey -m model -s dca --tokens 256 1024 4096)help");
  command->callback([arguments, &action] { action = [arguments] { return eval_passkey(*arguments); }; });
}

}  // namespace cli
