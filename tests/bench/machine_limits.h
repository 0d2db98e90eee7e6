// What this machine can do, measured: the yardsticks of the kernel benchmarks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "lib/support/thread_pool.h"

namespace quire::bench {

struct MachineLimits {
  double read_bytes_per_s = 0;  // reading 1 GiB
  double fma_flops_per_s = 0;   // f32 FMA in registers, two operations each
  double bf16_flops_per_s = 0;  // dot products of bf16 pairs in registers; 0: the machine has none
};

// Calls work(task) for one task a thread of the pool; returns the largest CPU time that one of them took. CPU time,
// so that the turns of other processes on a shared machine do not count.
double run_on_all(ThreadPool& pool, const std::function<void(int64_t)>& work);

// Best of several runs on all threads of the pool.
MachineLimits measure_limits(ThreadPool& pool);

// Bytes a second by the clock at which the pool's threads together read `bytes` bytes, handed out in small tasks as the
// runtime hands out its work: the fastest of `repeats` passes. Of 1 GiB that is read again
// and again.
double read_by_clock(ThreadPool& pool, size_t bytes, int repeats);

// Zeroed memory in huge pages where the system gives them; never freed (the process ends with its benchmarks).
void* huge_memory(size_t bytes);

}  // namespace quire::bench
