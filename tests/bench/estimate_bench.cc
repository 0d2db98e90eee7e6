// How near an estimate comes: what quire_model_estimate_rates says beside what the session then takes.
//
//   quire_bench_estimate MODEL TOKENS [--spill DIRECTORY [--memory FRACTION]] STRATEGY...
//
// For each strategy estimates, reads TOKENS made-up tokens and generates 16, three times in turn; figures are medians.
// With --spill again with FRACTION (default: 0.25) of the KV cache in memory and the rest in a file. The file's reads
// come from the page cache then, where the machine has room for it, while an estimate counts on the disk. So the
// session is saved as well and opened again: what the estimate of a cold token is compared with is one that has nothing
// in the page cache, and nothing in memory where the strategy chooses what it reads.
#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <string>

#include "lib/session/estimate.h"
#include "tests/bench/sessions.h"

namespace quire::bench {
namespace {

constexpr int64_t kAnswer = 16;
constexpr int kRounds = 3;

struct Arguments {
  std::string model;
  int64_t n_tokens = 0;
  std::string spill_directory;
  double memory = 0.25;
  std::vector<std::string> strategies;
};

void forget_cached(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || ::fdatasync(fd) != 0 || ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0) {
    std::exit((std::perror(path.c_str()), 1));
  }
  ::close(fd);
}

double seconds_of(int64_t ns) { return 1e-9 * static_cast<double>(ns); }

// Seconds of a token that reads from the disk.
double decode_cold(const Session& session, const std::shared_ptr<Model>& model, const SessionOptions& options) {
  const std::string path = options.spill_directory + "/quire_bench_estimate.quire";
  check(session.save(path, {}));
  LoadOptions loading;
  loading.session.kv_budget_bytes = options.kv_budget_bytes;
  loading.session.spill_directory = options.spill_directory;
  const auto opened = take(Session::load(model, path, loading));
  const auto decode = [&] {
    forget_cached(path);
    const int64_t before = stats_of(*opened).decode_ns;
    generate(opened, 1);
    return seconds_of(stats_of(*opened).decode_ns - before);
  };
  double seconds = decode();
  // A strategy that reads all has filled its memory now, as it has behind any token.
  if (!take(choose_strategy(*model, options))->selects_chunks()) seconds = decode();
  opened->close();
  std::remove(path.c_str());
  return seconds;
}

// The KV cache's bytes.
int64_t compare(const std::shared_ptr<Model>& model, const Arguments& arguments, const SessionOptions& options) {
  const int64_t n_tokens = arguments.n_tokens;
  const bool spills = options.kv_budget_bytes > 0;
  std::vector<double> prefill, decode, cold, calibration;
  int64_t measured = 0, kv_bytes = 0;
  for (int round = 0; round < kRounds; ++round) {
    const RateEstimate estimate = take(estimate_rates(model, options, n_tokens));
    const auto session = take(Session::create(model, options));
    feed(*session, n_tokens);
    generate(session, kAnswer);  // each of them is computed
    const SessionStats stats = stats_of(*session);
    prefill.push_back(estimate.rates.prefill_seconds / seconds_of(stats.prefill_ns));
    decode.push_back(estimate.rates.decode_token_seconds / (seconds_of(stats.decode_ns) / kAnswer));
    if (spills) cold.push_back(estimate.rates.decode_token_cold_seconds / decode_cold(*session, model, options));
    calibration.push_back(estimate.seconds / seconds_of(stats.prefill_ns));
    measured = estimate.measured_tokens;
    kv_bytes = stats.kv_bytes_peak;
    session->close();
  }
  std::printf("%-24s %8.2f %8lld %8lld %10.2f %10.2f ", options.strategy.c_str(), spills ? arguments.memory : 1.0,
              static_cast<long long>(n_tokens), static_cast<long long>(measured), median(prefill), median(decode));
  spills ? std::printf("%10.2f", median(cold)) : std::printf("%10s", "-");
  std::printf(" %12.3f\n", median(calibration));
  std::fflush(stdout);
  return kv_bytes;
}

int run(const Arguments& arguments) {
  const auto model = take(load_model(std::make_shared<Runtime>(RuntimeOptions()), arguments.model, {}));
  std::printf("%-24s %8s %8s %8s %10s %10s %10s %12s\n", "", "memory", "tokens", "measured", "prefill", "decode",
              "cold", "calibration");
  std::printf("%-52s%32s %12s\n", "", "estimated / taken", "of prefill");
  for (const std::string& strategy : arguments.strategies) {
    SessionOptions options;
    options.strategy = strategy;
    options.overflow = OverflowPolicy::kExtrapolate;
    const int64_t kv_bytes = compare(model, arguments, options);
    if (arguments.spill_directory.empty()) continue;
    options.kv_budget_bytes = std::llround(arguments.memory * static_cast<double>(kv_bytes));
    options.spill_directory = arguments.spill_directory;
    compare(model, arguments, options);
  }
  return 0;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  quire::bench::Arguments arguments;
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--spill" && i + 1 < argc) {
      arguments.spill_directory = argv[++i];
    } else if (word == "--memory" && i + 1 < argc) {
      arguments.memory = std::atof(argv[++i]);
    } else {
      words.push_back(word);
    }
  }
  if (words.size() < 3 || !(arguments.memory > 0 && arguments.memory < 1)) {
    std::fprintf(stderr,
                 "usage: quire_bench_estimate MODEL TOKENS [--spill DIRECTORY [--memory FRACTION]] STRATEGY...\n");
    return 2;
  }
  arguments.model = words[0];
  arguments.n_tokens = std::atoll(words[1].c_str());
  arguments.strategies.assign(words.begin() + 2, words.end());
  return quire::bench::run(arguments);
}
