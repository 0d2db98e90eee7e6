// Sessions of one model that decode at once, against the same sessions one after the other.
//
//   quire_bench_batch [MODEL_DIRECTORY] [SESSIONS] [TOKENS] [DEPTH]
//
// Fails if a session's tokens depend on its company.
#include <algorithm>
#include <cstring>
#include <string>
#include <thread>

#include "tests/bench/sessions.h"

namespace quire::bench {
namespace {

struct Round {
  double seconds = 0;
  std::vector<std::vector<int32_t>> tokens;
};

// Fills the sessions to different depths around `depth`, and times the decoding alone.
Round decode(const std::shared_ptr<Model>& model, int n_sessions, int64_t n_tokens, int64_t depth, bool at_once) {
  std::vector<std::shared_ptr<Session>> sessions;
  for (int s = 0; s < n_sessions; ++s) {
    SessionOptions options;
    options.overflow = OverflowPolicy::kExtrapolate;
    sessions.push_back(take(Session::create(model, options)));
    feed(*sessions.back(), depth + s);
    generate(sessions.back(), 1);
  }
  Round round;
  round.tokens.resize(sessions.size());
  const double start = wall_seconds();
  std::vector<std::thread> readers;
  for (size_t s = 0; s < sessions.size(); ++s) {
    readers.emplace_back([&, s] { round.tokens[s] = generate(sessions[s], n_tokens); });
    if (!at_once) readers.back().join();
  }
  if (at_once) {
    for (auto& reader : readers) reader.join();
  }
  round.seconds = wall_seconds() - start;
  return round;
}

int run(int argc, char** argv) {
  const std::string directory = argc > 1 ? argv[1] : QUIRE_BENCH_MODEL;
  const int n_sessions = argc > 2 ? std::clamp(std::atoi(argv[2]), 1, 64) : 4;
  const int64_t n_tokens = argc > 3 ? std::max(1, std::atoi(argv[3])) : 64;
  const int64_t depth = argc > 4 ? std::max(1, std::atoi(argv[4])) : 128;
  const auto model = take(load_model(std::make_shared<Runtime>(RuntimeOptions()), directory, {}));
  double apart = 1e30, together = 1e30;
  bool same = true;
  for (int round = 0; round < 3; ++round) {
    const Round one = decode(model, n_sessions, n_tokens, depth, false);
    const Round all = decode(model, n_sessions, n_tokens, depth, true);
    apart = std::min(apart, one.seconds);
    together = std::min(together, all.seconds);
    same = same && one.tokens == all.tokens;
  }
  const double tokens = static_cast<double>(n_sessions * n_tokens);
  std::printf(
      "%d sessions at depth %lld: %.0f tokens/s one after the other, %.0f at once: %.2f times; same tokens: %s\n",
      n_sessions, static_cast<long long>(depth), tokens / apart, tokens / together, apart / together,
      same ? "yes" : "NO");
  return same ? 0 : 1;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) { return quire::bench::run(argc, argv); }
