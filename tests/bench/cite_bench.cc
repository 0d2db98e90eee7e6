// What citing costs: a token with QUIRE_STREAM_CITE in relation to one without, in turns on two sessions that stand
// alike.
//
//   quire_bench_cite MODEL [STRATEGY] [DEPTH ...]
//
// By CPU time of the process, so that other load does not count; each pair of turns gives a ratio, their median counts.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "tests/bench/sessions.h"

namespace quire::bench {
namespace {

constexpr int64_t kTokens = 8;  // of a turn
constexpr int kTurns = 15;

// CPU seconds of a token.
double decode(const std::shared_ptr<Session>& session, bool cite) {
  StreamOptions options;
  options.max_tokens = kTokens;
  options.ignore_eos = true;
  options.cite = cite;
  const auto stream = take(GenerationStream::open(session, options));
  const double start = process_seconds();
  const StreamEvent* event = nullptr;
  while (take(stream->next(-1, &event)) != NextResult::kEnd) {
  }
  return (process_seconds() - start) / static_cast<double>(kTokens);
}

void measure(const std::shared_ptr<Model>& model, const std::string& strategy, int64_t depth) {
  SessionOptions options;
  options.strategy = strategy;
  options.expected_tokens = depth + kTurns * kTokens;
  options.overflow = OverflowPolicy::kExtrapolate;
  std::vector<std::shared_ptr<Session>> sessions;
  for (int i = 0; i < 2; ++i) {
    sessions.push_back(take(Session::create(model, options)));
    check(sessions.back()->fill_random(depth, 1));
    decode(sessions.back(), i == 1);  // memory that the first turn takes
  }
  std::vector<double> plain, citing, ratios;
  for (int turn = 0; turn < kTurns; ++turn) {
    double seconds[2];
    for (const int i : {turn % 2, 1 - turn % 2}) seconds[i] = decode(sessions[static_cast<size_t>(i)], i == 1);
    plain.push_back(seconds[0]);
    citing.push_back(seconds[1]);
    ratios.push_back(seconds[1] / seconds[0]);
  }
  std::printf("%-10s %8lld tokens: %8.3f ms a token, citing %8.3f ms, ratio %.3f\n", strategy.c_str(),
              static_cast<long long>(depth), 1e3 * median(plain), 1e3 * median(citing), median(ratios));
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s MODEL [STRATEGY] [DEPTH ...]\n", argv[0]);
    return 2;
  }
  RuntimeOptions options;
  options.n_threads = 1;
  const auto model = take(load_model(std::make_shared<Runtime>(options), argv[1], {}));
  std::vector<int64_t> depths;
  for (int i = 3; i < argc; ++i) depths.push_back(std::atoll(argv[i]));
  if (depths.empty()) depths = {1024, 8192, 32768};
  for (const int64_t depth : depths) measure(model, argc > 2 ? argv[2] : "full", depth);
  return 0;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) { return quire::bench::run(argc, argv); }
