// Speed of the CPU kernels as fractions of this machine's limits, which are measured first in the same process.
// Times of all are CPU times of the slowest thread. Counters: GB/s and GFLOP/s of the mean iteration, of_read and
// of_fma: its fractions of the limits; best_*: those of the fastest iteration, which other load on the machine disturbs
// least. Runs with 1 thread and with --threads=n (default: all), on the best instruction set or on --target=AVX2 and so
// on.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/kernels.h"
#include "lib/support/quantization.h"
#include "tests/bench/machine_limits.h"

namespace quire::bench {
namespace {

constexpr size_t kRotation = size_t{300} << 20;  // more than any cache: data used once comes from memory

struct Machine {
  std::unique_ptr<ThreadPool> pool;
  MachineLimits limits;
};

// kRotation bytes of normal numbers, packed panels of a type.
const char* numbers(ElementType type) {
  static std::map<ElementType, const char*> memory;
  const char*& at = memory[type];
  if (at != nullptr) return at;
  std::mt19937 random(1);
  std::normal_distribution<float> distribution(0.0f, 0.05f);
  std::vector<float> x(1 << 16);
  for (float& v : x) v = distribution(random);
  const auto k = static_cast<int64_t>(x.size()) / cpu::kPanel;
  const size_t bytes = cpu::packed_bytes(type, cpu::kPanel, k);
  auto* begin = static_cast<char*>(huge_memory(kRotation));
  cpu::pack_rows(ElementType::kF32, x.data(), k, cpu::kPanel, k, type, begin, 0);
  for (size_t done = bytes; done < kRotation; done += bytes)
    std::memcpy(begin + done, begin, std::min(bytes, kRotation - done));
  return at = begin;
}

// Times iterations of `work(iteration, task)`, one task a thread, that together read `bytes` and do `flops`.
template <class Work>
void measure(benchmark::State& state, Machine& machine, double bytes, double flops, const Work& work) {
  double best = 1e30, total = 0;
  int64_t iteration = 0;
  for (auto _ : state) {
    const double s = run_on_all(*machine.pool, [&](int64_t task) { work(iteration, task); });
    ++iteration;
    best = std::min(best, s);
    total += s;
    state.SetIterationTime(s);
  }
  const double mean = total / static_cast<double>(iteration);
  state.counters["GB/s"] = bytes / mean * 1e-9;
  state.counters["GFLOP/s"] = flops / mean * 1e-9;
  state.counters["of_read"] = bytes / mean / machine.limits.read_bytes_per_s;
  state.counters["of_fma"] = flops / mean / machine.limits.fma_flops_per_s;
  state.counters["best_of_read"] = bytes / best / machine.limits.read_bytes_per_s;
  state.counters["best_of_fma"] = flops / best / machine.limits.fma_flops_per_s;
}

// Products of m rows and matrices of size x size that come from memory: multiply(x, packed, task, first panel, last
// panel, y), each task with its share of the panels.
template <class Multiply>
void bench_product(benchmark::State& state, Machine& machine, ElementType type, int64_t m, int64_t size,
                   const Multiply& multiply) {
  const size_t bytes = cpu::packed_bytes(type, size, size);
  const auto matrices = static_cast<int64_t>(kRotation / bytes);
  const char* weights = numbers(type);
  const std::vector<float> x(static_cast<size_t>(m * size), 0.5f);
  std::vector<float> y(static_cast<size_t>(m * size));
  const int64_t panels = ceil_div(size, cpu::kPanel);
  const int64_t tasks = machine.pool->n_threads();
  const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(size) * static_cast<double>(size);
  measure(state, machine, static_cast<double>(bytes), flops, [&](int64_t iteration, int64_t task) {
    const char* packed = weights + static_cast<size_t>(iteration % matrices) * bytes;
    multiply(x.data(), packed, task, panels * task / tasks, panels * (task + 1) / tasks, y.data());
  });
}

void bench_gemm(benchmark::State& state, Machine& machine, ElementType type, int64_t m, int64_t size) {
  bench_product(state, machine, type, m, size,
                [&](const float* x, const char* packed, int64_t, int64_t first, int64_t last, float* y) {
                  cpu::gemm(x, size, m, type, packed, size, size, first, last, nullptr, false, y, size);
                });
}

// With rows rounded to bf16, which each task rounds for itself.
void bench_gemm_bf16(benchmark::State& state, Machine& machine, ElementType type, int64_t m, int64_t size) {
  const int64_t stride = cpu::bf16_row_stride(size);
  std::vector<std::vector<uint16_t>> rows(static_cast<size_t>(machine.pool->n_threads()),
                                          std::vector<uint16_t>(static_cast<size_t>(m * stride)));
  bench_product(state, machine, type, m, size,
                [&](const float* x, const char* packed, int64_t task, int64_t first, int64_t last, float* y) {
                  uint16_t* const own = rows[static_cast<size_t>(task)].data();
                  for (int64_t r = 0; r < m; ++r) cpu::round_row_bf16(x + r * size, size, own + r * stride);
                  cpu::gemm_bf16(own, stride, m, packed, size, size, first, last, nullptr, false, y, size);
                });
}

// With rows as 8-bit numbers, which each task rounds for itself.
void bench_gemm_int8(benchmark::State& state, Machine& machine, ElementType type, int64_t m, int64_t size) {
  struct Rows {
    std::vector<int8_t> codes;
    std::vector<cpu::Int8Group> groups;
  };
  std::vector<Rows> rows(static_cast<size_t>(machine.pool->n_threads()));
  for (Rows& r : rows) {
    r.codes.resize(static_cast<size_t>(m * size));
    r.groups.resize(r.codes.size() / kQuantizedGroup);
  }
  bench_product(state, machine, type, m, size,
                [&](const float* x, const char* packed, int64_t task, int64_t first, int64_t last, float* y) {
                  Rows& own = rows[static_cast<size_t>(task)];
                  const cpu::Int8Rows rounded = {own.codes.data(), own.groups.data(), m, size};
                  for (int64_t r = 0; r < m; ++r) cpu::quantize_row(x + r * size, r, rounded);
                  cpu::gemm_int8(rounded, 0, m, type, packed, size, first, last, nullptr, false, y, size);
                });
}

// Attention of one KV head over chunks of 256 keys, each read once by n_q queries (scores, softmax, values).
void bench_attention(benchmark::State& state, Machine& machine, ElementType type, int64_t d, int64_t n_q) {
  constexpr int64_t kChunk = 256, kChunksPerTask = 32;
  const bool integers = type == ElementType::kInt8;
  const size_t half = static_cast<size_t>(kChunk * d) * element_bytes(type);
  const auto chunks = static_cast<int64_t>(kRotation / (2 * half));
  const char* kv = numbers(integers ? ElementType::kQ8_0 : type);  // any bytes serve
  const int64_t tasks = machine.pool->n_threads();
  const std::vector<float> scales(static_cast<size_t>(std::max(kChunk, d)), 0.01f);
  struct Task {
    std::vector<float> q, scores, out, code_scales, factors;
    std::vector<int16_t> codes;
  };
  std::vector<Task> buffers(static_cast<size_t>(tasks));
  for (Task& t : buffers) {
    t.q.assign(static_cast<size_t>(n_q * d), 0.1f);
    t.scores.resize(static_cast<size_t>(n_q * kChunk));
    t.out.resize(static_cast<size_t>(n_q * d));
    t.code_scales.resize(static_cast<size_t>(n_q));
    t.factors.resize(static_cast<size_t>(kChunk));
    t.codes.resize(static_cast<size_t>(n_q * std::max(kChunk, d)));
  }
  const auto softmax = [&](Task& t, int64_t r) {
    float max, sum;
    cpu::softmax_partial(t.scores.data() + r * kChunk, 0, kChunk, &max, &sum);
    benchmark::DoNotOptimize(sum);
  };
  const auto in_floats = [&](Task& t, const char* keys) {
    cpu::attention_scores(t.q.data(), n_q, d, type, keys, 0, kChunk, t.scores.data(), kChunk);
    for (int64_t r = 0; r < n_q; ++r) softmax(t, r);
    cpu::accumulate_values(t.scores.data(), kChunk, n_q, d, type, keys + half, 0, kChunk, t.out.data());
  };
  const auto in_integers = [&](Task& t, const char* bytes) {
    const auto* keys = reinterpret_cast<const int8_t*>(bytes);
    for (int64_t r = 0; r < n_q; ++r) {
      cpu::quantize_row_int16(t.q.data() + r * d, scales.data(), d, t.codes.data() + r * d,
                              &t.code_scales[static_cast<size_t>(r)]);
    }
    cpu::attention_scores_int8(t.codes.data(), t.code_scales.data(), n_q, d, keys, 0, kChunk, t.scores.data(), kChunk);
    const float unit = cpu::weight_factors_int16(scales.data(), kChunk, t.factors.data());
    for (int64_t r = 0; r < n_q; ++r) {
      softmax(t, r);
      t.code_scales[static_cast<size_t>(r)] = unit;
      cpu::round_weights_int16(t.scores.data() + r * kChunk, t.factors.data(), kChunk, t.codes.data() + r * kChunk);
    }
    cpu::accumulate_values_int8(t.codes.data(), kChunk, t.code_scales.data(), n_q, d, keys + half, 0, kChunk,
                                t.out.data());
  };
  const double work = static_cast<double>(tasks * kChunksPerTask);
  const double flops = work * 4.0 * static_cast<double>(n_q * d * kChunk);
  measure(state, machine, work * 2.0 * static_cast<double>(half), flops, [&](int64_t iteration, int64_t task) {
    Task& t = buffers[static_cast<size_t>(task)];
    for (int64_t c = 0; c < kChunksPerTask; ++c) {
      const int64_t chunk = ((iteration * tasks + task) * kChunksPerTask + c) % chunks;
      const char* keys = kv + static_cast<size_t>(chunk) * 2 * half;
      integers ? in_integers(t, keys) : in_floats(t, keys);
    }
  });
}

void add_benchmarks(Machine& machine) {
  const std::string threads = "/threads:" + std::to_string(machine.pool->n_threads());
  const auto add_products = [&](const char* name, ElementType type, std::initializer_list<int64_t> sizes, auto* bench) {
    for (const int64_t m : {1, 2, 3, 4, 6, 8, 16, 512}) {
      for (const int64_t size : sizes) {
        const std::string full = std::string(name) + "/" + element_name(type) + "/m:" + std::to_string(m) +
                                 "/nk:" + std::to_string(size) + threads;
        benchmark::RegisterBenchmark(full.c_str(), [=, &machine](benchmark::State& state) {
          bench(state, machine, type, m, size);
        })->UseManualTime();
      }
    }
  };
  for (const ElementType type : {ElementType::kF32, ElementType::kF16, ElementType::kBF16}) {
    add_products("gemm", type, {768, 2048, 4096}, bench_gemm);
  }
  add_products("gemm_bf16", ElementType::kBF16, {768, 2048, 4096}, bench_gemm_bf16);
  for (const ElementType type : {ElementType::kQ8_0, ElementType::kQ4_0, ElementType::kQ4_1, ElementType::kQ5_0,
                                 ElementType::kQ4_K, ElementType::kQ5_K, ElementType::kQ6_K, ElementType::kQ2_K,
                                 ElementType::kQ3_K, ElementType::kIQ4_NL, ElementType::kIQ4_XS}) {
    add_products("gemm", type, {2048, 4096}, bench_gemm);
    add_products("gemm_int8", type, {2048, 4096}, bench_gemm_int8);
  }
  for (const ElementType type : {ElementType::kF16, ElementType::kBF16, ElementType::kInt8}) {
    for (const int64_t d : {64, 128}) {
      for (const int64_t n_q : {1, 4, 8, 64}) {
        const std::string name = std::string("attention/") + element_name(type) + "/d:" + std::to_string(d) +
                                 "/queries:" + std::to_string(n_q) + threads;
        benchmark::RegisterBenchmark(name.c_str(), [=, &machine](benchmark::State& state) {
          bench_attention(state, machine, type, d, n_q);
        })->UseManualTime();
      }
    }
  }
}

}  // namespace

// False, and says so: this machine has none of this name.
bool use_target_named(const std::string& name) {
  std::string names;
  for (const cpu::Target target : cpu::supported_targets()) {
    cpu::use_target(target);
    if (cpu::target_name() == name) return true;
    names += std::string(" ") + cpu::target_name();
  }
  std::fprintf(stderr, "--target is one of%s\n", names.c_str());
  return false;
}

int run(int argc, char** argv) {
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("--threads=", 0) == 0) {
      threads = std::max(1, std::atoi(argv[i] + 10));
    } else if (argument.rfind("--target=", 0) == 0) {
      if (!use_target_named(argument.substr(9))) return 1;
    } else {
      continue;
    }
    std::copy(argv + i + 1, argv + argc, argv + i);
    --argc;
    --i;
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::AddCustomContext("instruction set", cpu::target_name());
  std::vector<Machine> machines;
  for (const int count : threads > 1 ? std::vector<int>{1, threads} : std::vector<int>{1}) {
    machines.push_back({std::make_unique<ThreadPool>(count), {}});
    Machine& machine = machines.back();
    machine.limits = measure_limits(*machine.pool);
    benchmark::AddCustomContext("limits, threads " + std::to_string(count),
                                std::to_string(machine.limits.read_bytes_per_s * 1e-9) + " GB/s, " +
                                    std::to_string(machine.limits.fma_flops_per_s * 1e-9) + " GFLOP/s");
  }
  for (Machine& machine : machines) add_benchmarks(machine);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace quire::bench

int main(int argc, char** argv) { return quire::bench::run(argc, argv); }
