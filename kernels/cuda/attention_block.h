// How the attention kernels divide their work: a block of threads, its shared memory, and the rows that come to it.
#pragma once

#include <type_traits>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/device.h"

namespace quire::cuda {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kKeys = 64;   // of a block of keys
constexpr int kStages = 2;  // blocks of keys in shared memory

constexpr float kLog2E = 1.44269504088896340736f;

// Rows of a tile in shared memory are padded, so that the rows of 8 x 8 elements lie in different banks.
template <int kWidth>
constexpr int kRowElements = kWidth + 8;

template <int kWidth, typename T>
struct Shared {
  static constexpr int kRow = kRowElements<kWidth>;
  T queries[kTileRows * kRow];
  T turned[kTileRows * kRow];  // the queries where the piece wants them
  T keys[kStages][kKeys * kRow];
  T values[kStages][kKeys * kRow];
  int32_t rank[kTileRows];  // of tiles with a selection: of the piece's keys, by row; -1: not selected
};

// Launches with the least padded width that a head fits into: use(std::integral_constant<int, width>(), T()).
template <typename Use>
int with_head(const KvShape& shape, const Use& use) {
  const auto with_width = [&](auto width) {
    return shape.type == ElementType::kBF16 ? use(width, bf16()) : use(width, f16());
  };
  if (shape.head_dim <= 32) return with_width(std::integral_constant<int, 32>());
  if (shape.head_dim <= 64) return with_width(std::integral_constant<int, 64>());
  if (shape.head_dim <= 96) return with_width(std::integral_constant<int, 96>());
  return with_width(std::integral_constant<int, 128>());
}

// Begins to copy rows of two halves, one behind the other in `from`, into a padded tile of kKeys rows: n of them, and
// zeros for the others and as padding. Other threads see them behind wait_for_copies() and a barrier.
template <int kWidth, typename T>
__device__ __forceinline__ void copy_rows(T* to, const T* from, int n, int half, int thread) {
  constexpr int kRow = kRowElements<kWidth>, kElements = 16 / sizeof(T), kHalfCopies = kWidth / 2 / kElements;
  if (half % kElements != 0) {  // rows and halves are not whole groups of 16 bytes
    for (int i = thread; i < kKeys * kWidth; i += kThreads) {
      const int row = i / kWidth, side = i % kWidth / (kWidth / 2), at = i % (kWidth / 2);
      T& element = to[row * kRow + side * (kWidth / 2) + at];
      if (row < n && at < half) {
        element = from[(2 * row + side) * half + at];
      } else {
        from_float(0.0f, element);
      }
    }
    return;
  }
  for (int i = thread; i < kKeys * 2 * kHalfCopies; i += kThreads) {
    const int row = i / (2 * kHalfCopies), part = i % (2 * kHalfCopies);
    const int side = part / kHalfCopies, at = part % kHalfCopies * kElements;
    const bool there = row < n && at < half;
    copy_16_async(to + row * kRow + side * (kWidth / 2) + at, there ? from + (2 * row + side) * half + at : nullptr,
                  there);
  }
}

}  // namespace quire::cuda
