// What a decoded token takes the host beside a GPU, and what it asks the GPU for: sessions on a device that computes
// nothing and takes no time (idle_device.h). No GPU is needed.
//
//   quire_bench_host MODEL DEPTH TOKENS STRATEGY...
//
// The model's widths do not matter, its heads and layers do. Texts of a depth have random keys and values.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "lib/backend/cuda/cuda_backend.h"
#include "tests/bench/idle_device.h"
#include "tests/bench/sessions.h"

namespace quire::bench {
namespace {

void decode(const std::shared_ptr<Model>& model, const char* strategy, int64_t depth, int64_t n_tokens) {
  SessionOptions options;
  options.strategy = strategy;
  options.kv_type = ElementType::kBF16;
  options.overflow = OverflowPolicy::kExtrapolate;
  const auto session = take(Session::create(model, options));
  check(session->fill_random(depth, 1));
  generate(session, 8);  // what is made once is made
  const DeviceCalls before = device_calls;
  const double cpu = process_seconds();
  const double wall = seconds([&] { generate(session, n_tokens); });
  const auto n = static_cast<double>(n_tokens);
  const auto per_token = [&](int64_t DeviceCalls::*calls) {
    return static_cast<double>(device_calls.*calls - before.*calls) / n;
  };
  std::printf(
      "%-24s %.1f us, %.1f of processors; launches %.2f, graphs %.2f (made %.3f), uploads %.2f, downloads %.2f, "
      "events %.2f, waits %.2f\n",
      strategy, 1e6 * wall / n, 1e6 * (process_seconds() - cpu) / n, per_token(&DeviceCalls::launches),
      per_token(&DeviceCalls::graphs), per_token(&DeviceCalls::made_graphs), per_token(&DeviceCalls::uploads),
      per_token(&DeviceCalls::downloads), per_token(&DeviceCalls::events), per_token(&DeviceCalls::waits));
}

int run(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: quire_bench_host MODEL DEPTH TOKENS STRATEGY...\n");
    return 2;
  }
  static Allocator& allocator = *new Allocator;  // never destroyed: sessions may go when main() has returned
  RuntimeOptions options;
  options.n_threads = 1;
  options.wrap_backend = [](std::unique_ptr<Backend>) {
    return take(cuda::create_cuda_backend(allocator, idle_device(), 0, {}));
  };
  const auto model = take(load_model(std::make_shared<Runtime>(std::move(options)), argv[1], {}));
  for (int i = 4; i < argc; ++i) decode(model, argv[i], std::atoll(argv[2]), std::atoll(argv[3]));
  return 0;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) { return quire::bench::run(argc, argv); }
