// Many copies of bytes by one launch. Plain C++, for a host compiler; see kernels.h.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace quire::cuda {

using Stream = CUstream_st*;

struct GatherCopy {
  const void* from = nullptr;  // both at multiples of 16 bytes, in memory of the device or in the host's pinned memory
  void* to = nullptr;
  int64_t bytes = 0;
};

// Goes with the launch itself, so that nothing has to be copied to the device before it: the parameters of a kernel
// have 4 KiB.
constexpr int kMostGathered = 128;
struct GatherList {
  int n = 0;
  GatherCopy copies[kMostGathered];
};
static_assert(sizeof(GatherList) <= 4096);

// In any order: no two of the copies overlap.
int gather(Stream stream, const GatherList& list);

}  // namespace quire::cuda
