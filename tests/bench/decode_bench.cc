// End-to-end speed of one session: prefill and decode of a model, as fractions of this machine's limits.
//
//   quire_bench_decode [MODEL] [ROUNDS] [DEPTH ...]
//
// Every round measures the limits and then the model, so that both see the same load; the best of all rounds counts.
// Times are taken where an application would: at the events of a stream. Operations are shares of the f32 FMA peak,
// and, where the machine has them, of that of bf16 dot products, by which a model whose matrices are in bf16 is read.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/support/os_file.h"
#include "tests/bench/machine_limits.h"
#include "tests/bench/sessions.h"

namespace quire::bench {
namespace {

constexpr int64_t kPrompt = 512;  // tokens of a prefill measurement
constexpr int64_t kDecoded = 24;  // tokens of a decode measurement
constexpr int kTurns = 2;         // decode and read measurements in turn, at each depth

// Seconds by the clock, and of CPU time of the whole process.
struct Seconds {
  double wall = 1e30;
  double cpu = 1e30;

  static Seconds now() { return {wall_seconds(), process_seconds()}; }
  Seconds since(const Seconds& start) const { return {wall - start.wall, cpu - start.cpu}; }
  void keep_best(const Seconds& other) {
    wall = std::min(wall, other.wall);
    cpu = std::min(cpu, other.cpu);
  }
};

// Reads a stream to its end; returns the time of each token.
std::vector<Seconds> read(GenerationStream& stream) {
  std::vector<Seconds> times;
  for (;;) {
    const StreamEvent* event = nullptr;
    if (take(stream.next(-1, &event)) == NextResult::kEnd) return times;
    if (event->type == StreamEvent::Type::kToken) times.push_back(Seconds::now());
  }
}

Seconds time_prefill(const std::shared_ptr<Session>& session, int64_t n) {
  feed(*session, n);
  const Seconds start = Seconds::now();
  read(*take(GenerationStream::open(session, {})));
  return Seconds::now().since(start);
}

// The fastest token: each is computed only after the one before was taken, so this is a whole step.
Seconds time_decode_token(const std::shared_ptr<Session>& session) {
  StreamOptions options;
  options.max_tokens = kDecoded;
  options.ignore_eos = true;
  const auto times = read(*take(GenerationStream::open(session, options)));
  Seconds best;
  for (size_t t = 1; t < times.size(); ++t) best.keep_best(times[t].since(times[t - 1]));
  return best;
}

// What the work of one token is, from the shapes.
class Work {
 public:
  explicit Work(const LlamaModel& model) : config_(model.config()) {
    for (const LayerWeights& layer : model.weights().layers) {
      for (const Matrix* m : {layer.qkv.get(), layer.o.get(), layer.gate_up.get(), layer.down.get()}) add(*m);
    }
    layer_products_ = products_;
    add(*model.weights().lm_head);
  }
  // Weights, and keys and values of the tokens before, in bytes.
  double bytes_per_decoded_token(double depth) const { return bytes_ + kv_elements() * 2 * depth; }
  double flops_per_decoded_token(double depth) const { return 2 * products_ + attention_flops(depth); }
  double flops_of_prefill(double n, double depth) const {
    return n * (2 * layer_products_ + attention_flops(depth + n / 2));
  }

 private:
  void add(const Matrix& m) {
    bytes_ += static_cast<double>(m.bytes);
    products_ += static_cast<double>(m.n) * static_cast<double>(m.k);
  }
  double kv_elements() const { return 2.0 * config_.n_layers * config_.n_kv_heads * config_.head_dim; }
  double attention_flops(double keys) const {
    return 4.0 * config_.n_layers * config_.n_query_heads * config_.head_dim * keys;
  }

  const ModelConfig& config_;
  double bytes_ = 0, products_ = 0, layer_products_ = 0;
};

struct Machine {
  explicit Machine(const std::string& path, int threads) : pool(threads) {
    RuntimeOptions options;
    options.n_threads = threads;
    model = take(load_model(std::make_shared<Runtime>(options), path, {}));
  }
  std::shared_ptr<Session> session() const {
    SessionOptions options;
    options.kv_type = ElementType::kF16;
    options.overflow = OverflowPolicy::kExtrapolate;
    return take(Session::create(model, options));
  }

  ThreadPool pool;  // for the limits
  std::shared_ptr<Model> model;
  MachineLimits limits;                        // by CPU time
  double read_by_clock_per_s = 0;              // as many bytes as a token reads, between the decode measurements
  std::map<int64_t, Seconds> prefill, decode;  // by depth
};

void measure(Machine& machine, const std::vector<int64_t>& depths) {
  const MachineLimits now = measure_limits(machine.pool);
  machine.limits.read_bytes_per_s = std::max(machine.limits.read_bytes_per_s, now.read_bytes_per_s);
  machine.limits.fma_flops_per_s = std::max(machine.limits.fma_flops_per_s, now.fma_flops_per_s);
  machine.limits.bf16_flops_per_s = std::max(machine.limits.bf16_flops_per_s, now.bf16_flops_per_s);
  const auto token_bytes = static_cast<size_t>(Work(*machine.model->llama).bytes_per_decoded_token(0));
  const auto session = machine.session();
  machine.prefill[0].keep_best(time_prefill(session, kPrompt));
  for (const int64_t depth : depths) {
    int64_t n_tokens = 0;
    check(session->count_tokens(&n_tokens, nullptr));
    if (depth < n_tokens) check(session->reset()), n_tokens = 0;
    if (depth > n_tokens) time_prefill(session, depth - n_tokens);
    for (int turn = 0; turn < kTurns; ++turn) {
      machine.decode[depth].keep_best(time_decode_token(session));
      const double read = read_by_clock(machine.pool, token_bytes, kDecoded);
      machine.read_by_clock_per_s = std::max(machine.read_by_clock_per_s, read);
    }
    if (depth == depths.back()) machine.prefill[depth + kTurns * kDecoded].keep_best(time_prefill(session, kPrompt));
  }
}

// One line for each measurement, as fractions of the read and FMA limits that were measured the same way.
void report_times(const Machine& machine, const char* how, double Seconds::*time, double read) {
  const Work work(*machine.model->llama);
  const double fma = machine.limits.fma_flops_per_s, bf16 = machine.limits.bf16_flops_per_s;
  std::printf("\nthreads %d, by %s: reads %.1f GB/s, f32 FMA %.0f GFLOP/s, bf16 dot products %.0f\n",
              machine.pool.n_threads(), how, read * 1e-9, fma * 1e-9, bf16 * 1e-9);
  std::printf("%-24s %10s %8s %8s %8s %8s %8s\n", "", "tokens/s", "GB/s", "of read", "GFLOP/s", "of FMA", "of bf16");
  for (const auto& [depth, seconds] : machine.prefill) {
    const double flops = work.flops_of_prefill(kPrompt, static_cast<double>(depth)) / (seconds.*time);
    std::printf("prefill %3lld at %-9lld %10.1f %8s %8s %8.1f %8.2f %8.2f\n", static_cast<long long>(kPrompt),
                static_cast<long long>(depth), static_cast<double>(kPrompt) / (seconds.*time), "", "", flops * 1e-9,
                flops / fma, bf16 > 0 ? flops / bf16 : 0);
  }
  for (const auto& [depth, seconds] : machine.decode) {
    const auto d = static_cast<double>(depth);
    const double bytes = work.bytes_per_decoded_token(d) / (seconds.*time);
    const double flops = work.flops_per_decoded_token(d) / (seconds.*time);
    std::printf("decode at %-14lld %10.1f %8.1f %8.2f %8.1f %8.2f\n", static_cast<long long>(depth),
                1 / (seconds.*time), bytes * 1e-9, bytes / read, flops * 1e-9, flops / fma);
  }
}

void report(const Machine& machine) {
  report_times(machine, "the clock", &Seconds::wall, machine.read_by_clock_per_s);
  // Of several threads the process's CPU time says nothing about how long they took together.
  if (machine.pool.n_threads() == 1) {
    report_times(machine, "CPU time", &Seconds::cpu, machine.limits.read_bytes_per_s);
  }
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  const std::string model = argc > 1 ? argv[1] : QUIRE_BENCH_MODEL;
  const int rounds = argc > 2 ? std::max(1, std::atoi(argv[2])) : 3;
  std::vector<int64_t> depths;
  for (int i = 3; i < argc; ++i) depths.push_back(std::atoll(argv[i]));
  if (depths.empty()) depths = {128, 512, 2048};
  if (const auto exists = path_exists(model); !exists.ok() || !exists.value()) {
    std::fprintf(stderr, "there is no %s; the target quire_bench_model makes a model\n", model.c_str());
    return 1;
  }
  std::vector<std::unique_ptr<Machine>> machines;
  for (const int threads : {1, 2}) machines.push_back(std::make_unique<Machine>(model, threads));
  for (int round = 0; round < rounds; ++round) {
    for (auto& machine : machines) measure(*machine, depths);
  }
  for (const auto& machine : machines) report(*machine);
  return 0;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) { return quire::bench::run(argc, argv); }
