// Copies many pieces of memory in one launch: KV records, from the host's pinned memory, which the device reads where
// it lies.
//
// The bus bounds it, not the device. What fills a bus is bytes under way: a read takes some two microseconds there, in
// which a bus of 64 GB/s brings 128 KiB. kBlocks blocks have twice that under way, and take a small part of the device,
// so that other work goes on beside them.
#include "kernels/cuda/gather.h"

#include "kernels/cuda/device.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kAtOnce = 4;  // reads of 16 bytes that a thread has under way
constexpr int kBlocks = 16;
constexpr int64_t kStretch = int64_t{kThreads} * kAtOnce * 16;  // bytes that a block has under way

constexpr int64_t n_stretches(int64_t bytes) { return (bytes + kStretch - 1) / kStretch; }

// Up to kStretch bytes.
__device__ __forceinline__ void copy_stretch(const unsigned char* from, unsigned char* to, int64_t bytes) {
  const int64_t whole = bytes / 16, thread = threadIdx.x;
  uint4 own[kAtOnce];
  QUIRE_UNROLL for (int i = 0; i < kAtOnce; ++i) {
    const int64_t at = thread + i * kThreads;
    if (at < whole) load_16(&own[i], from + 16 * at);
  }
  QUIRE_UNROLL for (int i = 0; i < kAtOnce; ++i) {
    const int64_t at = thread + i * kThreads;
    if (at < whole) load_16(to + 16 * at, &own[i]);
  }
  const int64_t tail = 16 * whole + thread;
  if (tail < bytes) to[tail] = from[tail];
}

// The stretches of all copies, one behind the other, are the blocks' in turn.
__global__ void __launch_bounds__(kThreads) gather_kernel(GatherList list) {
  int64_t stretch = blockIdx.x;  // of the copy
  for (int c = 0; c < list.n; ++c) {
    const auto* const from = static_cast<const unsigned char*>(list.copies[c].from);
    auto* const to = static_cast<unsigned char*>(list.copies[c].to);
    const int64_t bytes = list.copies[c].bytes, end = n_stretches(bytes);
    for (; stretch < end; stretch += gridDim.x) {
      const int64_t begin = stretch * kStretch, left = bytes - begin;
      copy_stretch(from + begin, to + begin, left < kStretch ? left : kStretch);
    }
    stretch -= end;
  }
}

}  // namespace

int gather(Stream stream, const GatherList& list) {
  int64_t all = 0;
  for (int c = 0; c < list.n; ++c) all += n_stretches(list.copies[c].bytes);
  if (all == 0) return 0;
  const auto blocks = static_cast<unsigned>(all < kBlocks ? all : kBlocks);
  return launch(gather_kernel, dim3(blocks), kThreads, 0, stream, list);
}

}  // namespace quire::cuda
