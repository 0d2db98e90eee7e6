// What prompt lookup gains: the tokens that a step generates, and the time of an answer without drafts in relation to
// one with them, where the answer quotes its document and where it does not.
//
//   quire_bench_draft MODEL FILE [STRATEGY [DEPTH [DRAFT ...]]]
//
// The document is the beginning of FILE, of DEPTH tokens. Each answer is that of a fork, which reads the beginning of a
// passage again and goes on greedily ("quoting"), or reads a few words of its own and draws tokens ("writing";
// greedily, small models repeat themselves). With drafts and without in turns, with one thread, by the CPU time of the
// process, so that other load does not count.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/bench/sessions.h"

namespace quire::bench {
namespace {

constexpr int64_t kAnswer = 96, kBegin = 32;
constexpr int kPlaces = 8, kTurns = 3;  // an odd number of turns

struct Arguments {
  std::string model, file;
  std::string strategy = "full";
  int64_t depth = 2048;
  std::vector<int64_t> drafts;
};

struct Answer {
  std::vector<int32_t> tokens;
  double seconds = 0;  // of decoding
  int64_t n_drafted = 0, n_accepted = 0;
};

// Of a greedy answer the temperature is 0.
struct Task {
  const char* name;
  float temperature;
  std::vector<std::vector<int32_t>> questions;
};

Answer answer(Session& document, const std::vector<int32_t>& question, float temperature, int64_t draft_tokens) {
  const auto session = take(document.fork());
  check(session->feed_tokens(question));
  tokens_of(*take(GenerationStream::open(session, {})));
  StreamOptions options;
  options.max_tokens = kAnswer;
  options.ignore_eos = true;
  if (temperature > 0) {
    options.sampling.greedy = false;
    options.sampling.steps.emplace_back().value = temperature;
  }
  options.draft_tokens = draft_tokens;
  const auto stream = take(GenerationStream::open(session, options));
  const double begin = process_seconds();
  Answer result;
  result.tokens = tokens_of(*stream);
  result.seconds = process_seconds() - begin;
  result.n_drafted = stats_of(*session).n_drafted;
  result.n_accepted = stats_of(*session).n_accepted;
  session->close();
  return result;
}

void measure(Session& document, const Task& task, int64_t draft) {
  std::vector<double> gains;
  int64_t n_tokens = 0, n_drafted = 0, n_accepted = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    double seconds[2] = {};  // without drafts, and with them
    for (size_t i = 0; i < task.questions.size(); ++i) {
      std::vector<int32_t> tokens[2];
      for (size_t k = 0; k < 2; ++k) {
        const size_t drafts = (i + static_cast<size_t>(turn) + k) % 2;
        Answer one = answer(document, task.questions[i], task.temperature, drafts == 1 ? draft : 0);
        seconds[drafts] += one.seconds;
        n_drafted += one.n_drafted;
        n_accepted += one.n_accepted;
        tokens[drafts] = std::move(one.tokens);
      }
      if (tokens[0] != tokens[1]) {
        std::fprintf(stderr, "the answer differs with drafts\n");
        std::exit(1);
      }
      n_tokens += static_cast<int64_t>(tokens[1].size());
    }
    gains.push_back(seconds[0] / seconds[1]);
  }
  std::printf("%-10s drafts of %2lld: %5.2f tokens a step, %3.0f %% of the drafted were right; %5.2f times as fast\n",
              task.name, static_cast<long long>(draft),
              static_cast<double>(n_tokens) / static_cast<double>(n_tokens - n_accepted),
              n_drafted > 0 ? 100 * static_cast<double>(n_accepted) / static_cast<double>(n_drafted) : 0.0,
              median(gains));
  std::fflush(stdout);
}

int run(const Arguments& arguments) {
  RuntimeOptions options;
  options.n_threads = 1;
  const auto model = take(load_model(std::make_shared<Runtime>(options), arguments.model, {}));
  std::ifstream file(arguments.file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<int32_t> tokens = take(model->tokenizer->tokenizer().encode(text, {}));
  if (static_cast<int64_t>(tokens.size()) < arguments.depth) {
    std::fprintf(stderr, "%s: %zu tokens; expected %lld\n", arguments.file.c_str(), tokens.size(),
                 static_cast<long long>(arguments.depth));
    return 1;
  }
  tokens.resize(static_cast<size_t>(arguments.depth));
  SessionOptions session_options;
  session_options.strategy = arguments.strategy;
  session_options.overflow = OverflowPolicy::kExtrapolate;
  const auto document = take(Session::create(model, session_options));
  check(document->feed_tokens(tokens));
  tokens_of(*take(GenerationStream::open(document, {})));
  Task quoting{"quoting", 0, {}}, writing{"writing", 0.8f, {}};
  for (int i = 0; i < kPlaces; ++i) {
    const auto place = tokens.begin() + (arguments.depth - 2 * kAnswer) * i / kPlaces;
    quoting.questions.emplace_back(place, place + kBegin);
    const std::string number = std::to_string(i + 1);
    writing.questions.push_back(
        take(model->tokenizer->tokenizer().encode("\n\nMy opinion of it, number " + number + ": I think that", {})));
  }
  for (const int64_t draft : arguments.drafts) {
    measure(*document, quoting, draft);
    measure(*document, writing, draft);
  }
  return 0;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s MODEL FILE [STRATEGY [DEPTH [DRAFT ...]]]\n", argv[0]);
    return 2;
  }
  quire::bench::Arguments arguments;
  arguments.model = argv[1];
  arguments.file = argv[2];
  if (argc > 3) arguments.strategy = argv[3];
  if (argc > 4) arguments.depth = std::atoll(argv[4]);
  for (int i = 5; i < argc; ++i) arguments.drafts.push_back(std::atoll(argv[i]));
  if (arguments.drafts.empty()) arguments.drafts = {4, 8, 16, 31};
  return quire::bench::run(arguments);
}
