#include "tests/bench/machine_limits.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/machine_limits.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace quire::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

uint32_t read_all(const uint32_t* data, size_t n) {
  const HWY_CAPPED(uint32_t, 16) d;
  const size_t lanes = hn::Lanes(d);
  auto a = hn::Zero(d), b = a, c = a, e = a;
  for (size_t i = 0; i + 4 * lanes <= n; i += 4 * lanes) {
    a = hn::Xor(a, hn::LoadU(d, data + i));
    b = hn::Xor(b, hn::LoadU(d, data + i + lanes));
    c = hn::Xor(c, hn::LoadU(d, data + i + 2 * lanes));
    e = hn::Xor(e, hn::LoadU(d, data + i + 3 * lanes));
  }
  return hn::GetLane(hn::Xor(hn::Xor(a, b), hn::Xor(c, e)));
}

// Does `rounds` rounds of independent FMAs in registers; returns the operations done.
double multiply_add(int64_t rounds, float* sink) {
  const HWY_CAPPED(float, 16) d;
  const auto x = hn::Set(d, sink[0]), y = hn::Set(d, sink[1]);
  // Each sum has another start, or the compiler would form only one of them.
  const auto a0 = hn::Iota(d, 0.0f);
  auto a = a0, b = hn::Add(a, y), c = hn::Add(b, y), e = hn::Add(c, y), f = hn::Add(e, y), g = hn::Add(f, y),
       h = hn::Add(g, y), i = hn::Add(h, y), j = hn::Add(i, y), k = hn::Add(j, y);
  for (int64_t round = 0; round < rounds; ++round) {
    a = hn::MulAdd(a, x, y);
    b = hn::MulAdd(b, x, y);
    c = hn::MulAdd(c, x, y);
    e = hn::MulAdd(e, x, y);
    f = hn::MulAdd(f, x, y);
    g = hn::MulAdd(g, x, y);
    h = hn::MulAdd(h, x, y);
    i = hn::MulAdd(i, x, y);
    j = hn::MulAdd(j, x, y);
    k = hn::MulAdd(k, x, y);
  }
  const auto all =
      hn::Add(hn::Add(hn::Add(a, b), hn::Add(c, e)), hn::Add(hn::Add(f, g), hn::Add(hn::Add(h, i), hn::Add(j, k))));
  sink[0] = hn::GetLane(all) * 0.0f;
  return 10.0 * 2.0 * static_cast<double>(hn::Lanes(d)) * static_cast<double>(rounds);
}

#if HWY_TARGET <= HWY_AVX3
// The same with dot products of bf16 pairs (AVX512_BF16): two FMAs a lane.
double multiply_add_pairs(int64_t rounds, float* sink) {
  const hn::FixedTag<float, 16> d;
  const auto x = hn::BitCast(hn::RebindToSigned<decltype(d)>(), hn::Zero(d));
  const auto y = hn::Set(d, sink[1]);
  auto a = hn::Iota(d, 0.0f), b = hn::Add(a, y), c = hn::Add(b, y), e = hn::Add(c, y), f = hn::Add(e, y),
       g = hn::Add(f, y), h = hn::Add(g, y), i = hn::Add(h, y), j = hn::Add(i, y), k = hn::Add(j, y);
  const auto multiply = [&x](auto& sum) { __asm__("vdpbf16ps %1, %1, %0" : "+v"(sum.raw) : "v"(x.raw)); };
  for (int64_t round = 0; round < rounds; ++round) {
    multiply(a), multiply(b), multiply(c), multiply(e), multiply(f);
    multiply(g), multiply(h), multiply(i), multiply(j), multiply(k);
  }
  const auto all =
      hn::Add(hn::Add(hn::Add(a, b), hn::Add(c, e)), hn::Add(hn::Add(f, g), hn::Add(hn::Add(h, i), hn::Add(j, k))));
  sink[0] = hn::GetLane(all) * 0.0f;
  return 10.0 * 4.0 * static_cast<double>(hn::Lanes(d)) * static_cast<double>(rounds);
}
#else
double multiply_add_pairs(int64_t, float*) { return 0; }
#endif

}  // namespace quire::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::bench {
HWY_EXPORT(multiply_add);
HWY_EXPORT(multiply_add_pairs);
HWY_EXPORT(read_all);
namespace {

constexpr size_t kWords = size_t{1} << 28;

// 1 GiB that was written once.
const uint32_t* read_memory() {
  static const uint32_t* words = [] {
    auto* memory = static_cast<uint32_t*>(huge_memory(kWords * 4));
    std::memset(memory, 1, kWords * 4);
    return memory;
  }();
  return words;
}

bool has_bf16_products() {
#if HWY_ARCH_X86
  return __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

double thread_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

double run_on_all(ThreadPool& pool, const std::function<void(int64_t)>& work) {
  std::vector<double> seconds(static_cast<size_t>(pool.n_threads()));
  pool.run(pool.n_threads(), nullptr, [&](int64_t task, int) {
    const double start = thread_seconds();
    work(task);
    seconds[static_cast<size_t>(task)] = thread_seconds() - start;
  });
  return *std::max_element(seconds.begin(), seconds.end());
}

void* huge_memory(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    std::exit(1);
  }
  madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

double read_by_clock(ThreadPool& pool, size_t bytes, int repeats) {
  constexpr int64_t kTaskWords = int64_t{1} << 18, kMostTasks = kWords / kTaskWords;
  const uint32_t* words = read_memory();
  const int64_t tasks = static_cast<int64_t>(bytes / 4) / kTaskWords;
  double best = 0;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    std::atomic<uint32_t> all{0};
    const auto start = std::chrono::steady_clock::now();
    pool.run(tasks, nullptr, [&](int64_t task, int) {
      all ^= HWY_DYNAMIC_DISPATCH(read_all)(words + task % kMostTasks * kTaskWords, static_cast<size_t>(kTaskWords));
    });
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(tasks * kTaskWords) * 4 / time.count());
  }
  return best;
}

MachineLimits measure_limits(ThreadPool& pool) {
  const uint32_t* words = read_memory();
  MachineLimits limits;
  const int threads = pool.n_threads();
  const size_t share = kWords / static_cast<size_t>(threads);
  for (int run = 0; run < 20; ++run) {
    std::atomic<uint32_t> all{0};
    const double read_s = run_on_all(pool, [&](int64_t task) {
      all ^= HWY_DYNAMIC_DISPATCH(read_all)(words + static_cast<size_t>(task) * share, share);
    });
    limits.read_bytes_per_s = std::max(limits.read_bytes_per_s, 4.0 * static_cast<double>(kWords) / read_s);
    const auto keep_best = [&](double& best, const auto& multiply) {
      std::atomic<double> operations{0};
      const double time = run_on_all(pool, [&](int64_t) {
        float sink[2] = {0.0f, 1.0f};
        operations = multiply(2000000, sink) * threads;
      });
      best = std::max(best, operations / time);
    };
    keep_best(limits.fma_flops_per_s, HWY_DYNAMIC_DISPATCH(multiply_add));
    if (has_bf16_products()) keep_best(limits.bf16_flops_per_s, HWY_DYNAMIC_DISPATCH(multiply_add_pairs));
  }
  return limits;
}

}  // namespace quire::bench
#endif
