// What citing costs: a token with QUIRE_STREAM_CITE in relation to one without, in turns on two sessions that stand
// alike.
//
//   quire_bench_cite MODEL [--beacon PLUGIN] [--spill DIRECTORY] [STRATEGY [DEPTH ...]]
//
// With --spill a quarter of each session's KV cache is in memory, and the rest in a file. By CPU time of the process,
// so that other load does not count; each pair of turns gives a ratio, their median counts. Fails if one is above 1.05.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/bench/sessions.h"

namespace quire::bench {
namespace {

constexpr double kMostRatio = 1.05;
constexpr double kTurnSeconds = 0.02;  // at least, of a turn's tokens
constexpr int64_t kLeastTokens = 8, kMostTokens = 512;
constexpr int kTurns = 75;

struct Arguments {
  std::string model, beacon, spill_directory;
  std::string strategy = "full";
  std::vector<int64_t> depths;
};

// CPU seconds of a token.
double decode(const std::shared_ptr<Session>& session, int64_t n_tokens, bool cite) {
  StreamOptions options;
  options.max_tokens = n_tokens;
  options.ignore_eos = true;
  options.cite = cite;
  const auto stream = take(GenerationStream::open(session, options));
  const double start = process_seconds();
  const StreamEvent* event = nullptr;
  while (take(stream->next(-1, &event)) != NextResult::kEnd) {
  }
  return (process_seconds() - start) / static_cast<double>(n_tokens);
}

std::shared_ptr<Session> open(const std::shared_ptr<Model>& model, const SessionOptions& options, int64_t depth) {
  const auto session = take(Session::create(model, options));
  check(session->fill_random(depth, 1));
  return session;
}

bool measure(const std::shared_ptr<Model>& model, const Arguments& arguments, int64_t depth) {
  SessionOptions options;
  options.strategy = arguments.strategy;
  options.expected_tokens = depth + (kTurns + 1) * kMostTokens;
  options.overflow = OverflowPolicy::kExtrapolate;
  if (!arguments.spill_directory.empty()) {
    const auto all = open(model, options, depth);
    options.kv_budget_bytes = stats_of(*all).kv_bytes / 4;
    options.spill_directory = arguments.spill_directory;
    all->close();
  }
  std::vector<std::shared_ptr<Session>> sessions;
  int64_t n_tokens = kLeastTokens;
  for (int i = 0; i < 2; ++i) {
    sessions.push_back(open(model, options, depth));
    decode(sessions.back(), kLeastTokens, i == 1);  // memory that the first turn takes
    const double token = decode(sessions.back(), kLeastTokens, i == 1);
    if (i == 0) n_tokens = std::clamp(static_cast<int64_t>(kTurnSeconds / token), kLeastTokens, kMostTokens);
  }
  std::vector<double> plain, citing, ratios;
  for (int turn = 0; turn < kTurns; ++turn) {
    double seconds[2];
    for (const int i : {turn % 2, 1 - turn % 2}) {
      seconds[i] = decode(sessions[static_cast<size_t>(i)], n_tokens, i == 1);
    }
    plain.push_back(seconds[0]);
    citing.push_back(seconds[1]);
    ratios.push_back(seconds[1] / seconds[0]);
  }
  const double ratio = median(ratios);
  const SessionStats stats = stats_of(*sessions[1]);
  std::printf("%-12s %8lld tokens: %8.3f ms a token, citing %8.3f ms, ratio %.3f", arguments.strategy.c_str(),
              static_cast<long long>(depth), 1e3 * median(plain), 1e3 * median(citing), ratio);
  if (options.kv_budget_bytes > 0) {
    std::printf("; %lld of %lld bytes in memory, %lld records read", static_cast<long long>(options.kv_budget_bytes),
                static_cast<long long>(4 * options.kv_budget_bytes), static_cast<long long>(stats.kv_chunks_read));
  }
  std::printf("%s\n", ratio > kMostRatio ? "; TOO MUCH" : "");
  std::fflush(stdout);
  return ratio <= kMostRatio;
}

int run(const Arguments& arguments) {
  RuntimeOptions options;
  options.n_threads = 1;
  ModelLoadOptions loading;
  loading.beacon_directory = arguments.beacon;
  const auto model = take(load_model(std::make_shared<Runtime>(options), arguments.model, loading));
  bool good = true;
  for (const int64_t depth : arguments.depths) good = measure(model, arguments, depth) && good;
  return good ? 0 : 1;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  quire::bench::Arguments arguments;
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--beacon" && i + 1 < argc) {
      arguments.beacon = argv[++i];
    } else if (word == "--spill" && i + 1 < argc) {
      arguments.spill_directory = argv[++i];
    } else {
      words.push_back(word);
    }
  }
  if (words.empty()) {
    std::fprintf(stderr, "usage: %s MODEL [--beacon PLUGIN] [--spill DIRECTORY] [STRATEGY [DEPTH ...]]\n", argv[0]);
    return 2;
  }
  arguments.model = words[0];
  if (words.size() > 1) arguments.strategy = words[1];
  for (size_t i = 2; i < words.size(); ++i) arguments.depths.push_back(std::atoll(words[i].c_str()));
  if (arguments.depths.empty()) arguments.depths = {1024, 8192, 32768};
  return quire::bench::run(arguments);
}
