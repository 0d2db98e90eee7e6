// How near an estimate comes: what quire_model_estimate_rates says beside what the session then takes.
//
//   quire_bench_estimate MODEL TOKENS STRATEGY...
//
// For each strategy estimates, reads TOKENS made-up tokens and generates 16, three times in turn; figures are medians.
#include <string>

#include "lib/session/estimate.h"
#include "tests/bench/sessions.h"

namespace quire::bench {
namespace {

constexpr int64_t kAnswer = 16;
constexpr int kRounds = 3;

void run(const std::shared_ptr<Model>& model, int64_t n_tokens, const std::string& strategy) {
  SessionOptions options;
  options.strategy = strategy;
  options.overflow = OverflowPolicy::kExtrapolate;
  std::vector<double> prefill, decode, calibration;
  int64_t measured = 0;
  for (int round = 0; round < kRounds; ++round) {
    const RateEstimate estimate = take(estimate_rates(model, options, n_tokens));
    const auto session = take(Session::create(model, options));
    feed(*session, n_tokens);
    generate(session, kAnswer);  // each of them is computed
    const SessionStats stats = stats_of(*session);
    session->close();
    prefill.push_back(estimate.rates.prefill_seconds / (1e-9 * static_cast<double>(stats.prefill_ns)));
    decode.push_back(estimate.rates.decode_token_seconds / (1e-9 * static_cast<double>(stats.decode_ns) / kAnswer));
    calibration.push_back(estimate.seconds / (1e-9 * static_cast<double>(stats.prefill_ns)));
    measured = estimate.measured_tokens;
  }
  std::printf("%-32s %8lld %10lld %10.2f %10.2f %12.3f\n", strategy.c_str(), static_cast<long long>(n_tokens),
              static_cast<long long>(measured), median(prefill), median(decode), median(calibration));
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: quire_bench_estimate MODEL TOKENS STRATEGY...\n");
    return 2;
  }
  const auto model =
      quire::bench::take(quire::load_model(std::make_shared<quire::Runtime>(quire::RuntimeOptions()), argv[1], {}));
  std::printf("%-32s %8s %10s %10s %10s %12s\n", "", "tokens", "measured", "prefill", "decode", "calibration");
  std::printf("%62s %10s %12s\n", "estimated / taken", "", "of prefill");
  for (int i = 3; i < argc; ++i) quire::bench::run(model, std::atoll(argv[2]), argv[i]);
  return 0;
}
