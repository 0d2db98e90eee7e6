// quire eval passkey: can the model say a number that stands somewhere in a long text?
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>

#include "document.h"
#include "engine.h"
#include "interrupt.h"
#include "progress.h"

namespace cli {
namespace {

constexpr const char* kPrefix =
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you "
    "about the important information there.\n";
constexpr const char* kFiller =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n";
constexpr const char* kQuestion = "What is the pass key? The pass key is";
constexpr int64_t kAnswerTokens = 8;  // of the N tokens, kept free for the answer
constexpr size_t kKeyDigits = 5;

struct PasskeyArguments {
  ModelArguments model;
  SessionArguments session;
  std::vector<int64_t> lengths;
  int64_t n_trials = 20;
  uint64_t seed = 0;
  bool json = false;
};

// A stateless generator (SplitMix64's finaliser): the n-th draw of a trial depends on (seed, trial, n) alone.
uint64_t draw(uint64_t seed, uint64_t trial, uint64_t n) {
  uint64_t x = seed;
  for (const uint64_t word : {trial, n}) {
    x += 0x9e3779b97f4a7c15u * (word + 1);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
  }
  return x;
}

struct Prompt {
  std::string text;
  std::string key;
  int64_t n_tokens = 0;
  double depth = 0;  // 0: the key line is the first after the prefix, 1: the last before the question
};

std::string prompt_text(const std::string& key, int64_t n_before, int64_t n_after) {
  std::string text = kPrefix;
  for (int64_t i = 0; i < n_before; ++i) text += kFiller;
  text += "The pass key is " + key + ". Remember it. " + key + " is the pass key.\n";
  for (int64_t i = 0; i < n_after; ++i) text += kFiller;
  return text + kQuestion;
}

int64_t count_tokens(const quire_tokenizer* tokenizer, const std::string& text) {
  return static_cast<int64_t>(encode(tokenizer, text, 0).size());
}

// The prompt of one trial: as many filler lines as keep it, and the answer, within `length` tokens.
Prompt make_prompt(const quire_tokenizer* tokenizer, int64_t length, uint64_t seed, uint64_t trial) {
  Prompt prompt;
  prompt.key = std::to_string(10000 + draw(seed, trial, 0) % 90000);
  const int64_t limit = length - kAnswerTokens;
  const int64_t bare = count_tokens(tokenizer, prompt_text(prompt.key, 0, 0));
  if (bare > limit) {
    throw UsageError("--tokens " + std::to_string(length) + " is too short: the prompt without filler takes " +
                     std::to_string(bare + kAnswerTokens));
  }
  const int64_t line = count_tokens(tokenizer, prompt_text(prompt.key, 1, 0)) - bare;
  const double where = static_cast<double>(draw(seed, trial, 1) >> 11) * 0x1p-53;  // in [0, 1)
  // An estimate, as tokens might join differently across lines; at most a step or two off.
  for (int64_t n_lines = (limit - bare) / line + 1; n_lines >= 0; --n_lines) {
    const auto n_before = static_cast<int64_t>(where * static_cast<double>(n_lines + 1));
    prompt.text = prompt_text(prompt.key, n_before, n_lines - n_before);
    prompt.n_tokens = count_tokens(tokenizer, prompt.text);
    prompt.depth = n_lines > 0 ? static_cast<double>(n_before) / static_cast<double>(n_lines) : 0;
    if (prompt.n_tokens <= limit) break;
  }
  return prompt;
}

// Greedy decoding until five digits have come.
std::string ask(quire_session* session, const std::string& prompt) {
  reset(session);
  feed_text(session, prompt);
  auto options = initialised(quire_stream_options_init);
  options.max_tokens = kAnswerTokens;
  std::string text;
  std::string digits;
  const int32_t finish = run_stream(session, options, [&](const quire_event& event) {
    if (event.type != QUIRE_EVENT_TOKEN && event.type != QUIRE_EVENT_END) return true;
    for (size_t i = 0; i < event.text_len; ++i) {
      if (event.text[i] >= '0' && event.text[i] <= '9' && digits.size() < kKeyDigits) digits += event.text[i];
    }
    if (event.text_len > 0) text.append(event.text, event.text_len);
    return digits.size() < kKeyDigits;
  });
  if (finish == QUIRE_FINISH_CANCELLED) throw Interrupted();
  return digits.empty() ? text : digits;
}

struct Row {
  int64_t length = 0;
  int64_t n_correct = 0;
  double seconds = 0;
  Json trials = Json::array();
};

Row evaluate(const PasskeyArguments& arguments, int64_t length, const quire_tokenizer* tokenizer,
             quire_session* session, Progress& progress) {
  Row row;
  row.length = length;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t trial = 0; trial < arguments.n_trials; ++trial) {
    const Prompt prompt = make_prompt(tokenizer, length, arguments.seed, static_cast<uint64_t>(trial));
    const std::string answer = ask(session, prompt.text);
    const bool correct = answer == prompt.key;
    row.n_correct += correct ? 1 : 0;
    row.trials.push_back({{"trial", trial},
                          {"depth", prompt.depth},
                          {"n_prompt_tokens", prompt.n_tokens},
                          {"key", prompt.key},
                          {"answer", answer},
                          {"correct", correct}});
    row.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    progress.show(trial + 1, arguments.n_trials, 0, ("trials of " + std::to_string(length) + " tokens").c_str());
  }
  return row;
}

double accuracy(const Row& row) { return static_cast<double>(row.n_correct) / static_cast<double>(row.trials.size()); }

int eval_passkey(const PasskeyArguments& arguments) {
  const Engine engine(arguments.model);
  const Tokenizer tokenizer = engine.tokenizer();
  const Session session =
      engine.create_session(arguments.session, *std::max_element(arguments.lengths.begin(), arguments.lengths.end()));
  const std::string strategy = strategy_of(session.get());
  Progress progress("passkey");
  Json rows = Json::array();
  if (!arguments.json) std::printf("%s\n%8s  %8s  %8s\n", strategy.c_str(), "tokens", "correct", "accuracy");
  for (const int64_t length : arguments.lengths) {
    Row row = evaluate(arguments, length, tokenizer.get(), session.get(), progress);
    progress.clear();
    if (!arguments.json) {
      const std::string correct = std::to_string(row.n_correct) + "/" + std::to_string(arguments.n_trials);
      std::printf("%8lld  %8s  %6.0f %%\n", static_cast<long long>(length), correct.c_str(), 100 * accuracy(row));
      std::fflush(stdout);
      continue;
    }
    rows.push_back({{"n_tokens", length},
                    {"accuracy", accuracy(row)},
                    {"n_trials", arguments.n_trials},
                    {"n_correct", row.n_correct},
                    {"seconds", row.seconds},
                    {"trials", std::move(row.trials)}});
  }
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
  command->add_flag("--json", arguments->json, "print one JSON object with every trial");
  command->footer(R"help(
Example: `full` fails beyond the trained length, `dca` does not
  quire eval passkey -m model -s full --tokens 256 1024 4096
  quire eval passkey -m model -s dca --tokens 256 1024 4096)help");
  command->callback([arguments, &action] { action = [arguments] { return eval_passkey(*arguments); }; });
}

}  // namespace cli
