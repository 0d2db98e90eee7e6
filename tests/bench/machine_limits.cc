#include "tests/bench/machine_limits.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

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
  auto a = x, b = x, c = x, e = x, f = x, g = x, h = x, i = x, j = x, k = x;
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

}  // namespace quire::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::bench {
HWY_EXPORT(multiply_add);
HWY_EXPORT(read_all);
namespace {

template <class Work>
double seconds(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

void* huge_memory(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    std::exit(1);
  }
  madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

MachineLimits measure_limits(ThreadPool& pool) {
  constexpr size_t kWords = size_t{1} << 28;
  static const uint32_t* words = [] {
    auto* memory = static_cast<uint32_t*>(huge_memory(kWords * 4));
    std::memset(memory, 1, kWords * 4);
    return memory;
  }();
  MachineLimits limits;
  const int threads = pool.n_threads();
  const size_t share = kWords / static_cast<size_t>(threads);
  for (int run = 0; run < 10; ++run) {
    volatile uint32_t result = 0;
    const double read_s = seconds([&] {
      pool.run(threads, nullptr, [&](int64_t task, int) {
        result = HWY_DYNAMIC_DISPATCH(read_all)(words + static_cast<size_t>(task) * share, share);
      });
    });
    limits.read_bytes_per_s = std::max(limits.read_bytes_per_s, 4.0 * static_cast<double>(kWords) / read_s);
    double operations = 0;
    const double fma_s = seconds([&] {
      pool.run(threads, nullptr, [&](int64_t task, int) {
        float sink[2] = {0.0f, 1.0f};
        const double done = HWY_DYNAMIC_DISPATCH(multiply_add)(4000000, sink);
        if (task == 0) operations = done * threads;
      });
    });
    limits.fma_flops_per_s = std::max(limits.fma_flops_per_s, operations / fma_s);
  }
  return limits;
}

}  // namespace quire::bench
#endif
