// What this machine can do, measured: the yardsticks of the kernel benchmarks.
#pragma once

#include <cstddef>

#include "lib/support/thread_pool.h"

namespace quire::bench {

struct MachineLimits {
  double read_bytes_per_s = 0;  // reading 1 GiB
  double fma_flops_per_s = 0;   // f32 FMA in registers, two operations each
};

// Best of several runs on all threads of the pool.
MachineLimits measure_limits(ThreadPool& pool);

// Zeroed memory in huge pages where the system gives them; never freed (the process ends with its benchmarks).
void* huge_memory(size_t bytes);

}  // namespace quire::bench
