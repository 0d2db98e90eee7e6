// How the attention kernels divide their work: a block of threads, its shared memory, and the rows that come to it.
#pragma once

#include <type_traits>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/rotation.h"

namespace quire::cuda {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;

constexpr float kLog2E = 1.44269504088896340736f;

// Rows of a tile in shared memory are padded, so that the rows of 8 x 8 elements lie in different banks.
template <int kWidth>
constexpr int kRowElements = kWidth + 8;

// Where the elements of a tile of keys or values lie in shared memory. From a channel that is a multiple of 8 on, the
// next 8 follow each other.
template <int kWidthOf, int kKeysOf>
struct PaddedTile {
  static constexpr int kWidth = kWidthOf, kKeys = kKeysOf;
  static constexpr int kElements = kKeys * kRowElements<kWidth>;
  __device__ static constexpr int at(int row, int channel) { return row * kRowElements<kWidth> + channel; }
};
// As wgmma reads it (warpgroup.h): 64 channels of all rows, then the next 64; in each row its 8 runs of 8 elements are
// exchanged by the row's number. For wgmma it begins at a multiple of 1024 bytes.
template <int kWidthOf, int kKeysOf>
struct SwizzledTile {
  static constexpr int kWidth = kWidthOf, kKeys = kKeysOf;
  static constexpr int kElements = kKeys * kWidth;
  __device__ static constexpr int at(int row, int channel) {
    return (channel / kRunChannels * kKeys + row) * kRunChannels + ((channel / 8 ^ row) & 7) * 8 + channel % 8;
  }
  static constexpr int kRunChannels = 64;
};

// How a block of threads computes a tile. kKeys: of a block of keys; kStages: blocks of keys in shared memory; kAhead:
// those of them that are on their way while one is computed with; kTogether: warps that have to compute together;
// kKeysOfWarp: keys of a block that a warp computes with; kKeepsQueries: in shared memory, where they are faster to
// read each time that they are turned; kHoldsQueries: the turned ones, in registers, from piece to piece;
// kResidentBlocks: blocks of a multiprocessor that registers have to suffice for, said so that the assembler does not
// spill some to make room for one more. Products by single warps, each with 16 rows of its own:
struct ByWarps {
  static constexpr int kRows = kTileRows;
  static constexpr int kThreads = cuda::kThreads;
  static constexpr int kKeys = 64;
  static constexpr int kStages = 2;
  static constexpr int kAhead = kStages - 1;
  static constexpr int kTogether = 1;
  static constexpr int kKeysOfWarp = kKeys;
  static constexpr bool kKeepsQueries = false;
  static constexpr bool kHoldsQueries = true;
  static constexpr int kResidentBlocks = 2;
  template <int kWidth>
  using KeyTile = PaddedTile<kWidth, kKeys>;
};
// Of tiles with few rows, as in decoding: all warps have the same 16 rows, and each some keys of every block. Their
// results are merged behind the last block.
struct ByKeys : ByWarps {
  static constexpr int kRows = kFewTileRows;
  static constexpr int kKeysOfWarp = kKeys / kWarps;
  static constexpr bool kKeepsQueries = true;
};
// The same of large heads. Their results take 128 registers of a thread, so queries are read
// from shared memory for each block of keys; and blocks have half as many keys, so that two of them find room there.
struct ByWarpsOfLargeHeads : ByWarps {
  static constexpr int kKeys = 32;
  static constexpr int kKeysOfWarp = kKeys;
  static constexpr bool kHoldsQueries = false;
  template <int kWidth>
  using KeyTile = SwizzledTile<kWidth, kKeys>;  // without padding, which there is no room for
};
struct ByKeysOfLargeHeads : ByKeys {
  static constexpr int kThreads = 2 * kWarpSize;
  static constexpr int kKeys = 32;
  static constexpr int kKeysOfWarp = 16;
  static constexpr bool kHoldsQueries = false;
  template <int kWidth>
  using KeyTile = PaddedTile<kWidth, kKeys>;
};
template <int kWidth>
using ByWarpsOf = std::conditional_t<is_large_head(kWidth), ByWarpsOfLargeHeads, ByWarps>;
template <int kWidth>
using ByKeysOf = std::conditional_t<is_large_head(kWidth), ByKeysOfLargeHeads, ByKeys>;

// By two warpgroups, with wgmma: keys and values come to twice as many rows. Values are multiplied with while the next
// block's scores are weighed, and are kept for as long.
struct ByWarpgroups {
  static constexpr int kRows = kWideTileRows;
  static constexpr int kThreads = kRows / 16 * kWarpSize;
  static constexpr int kKeys = 64;
  static constexpr int kStages = 4;
  static constexpr int kAhead = kStages - 2;
  static constexpr int kTogether = 4;
  static constexpr int kKeysOfWarp = kKeys;
  static constexpr bool kKeepsQueries = true;
  static constexpr bool kHoldsQueries = true;
  static constexpr int kResidentBlocks = 1;
  template <int kWidth>
  using KeyTile = SwizzledTile<kWidth, kKeys>;
};

template <int kWidth, typename T, typename Way>
struct Shared {
  using KeyTile = typename Way::template KeyTile<kWidth>;
  static constexpr int kRow = kRowElements<kWidth>;
  static constexpr bool kByKeys = Way::kKeysOfWarp < Way::kKeys;
  T keys[Way::kStages][KeyTile::kElements];
  T values[Way::kStages][KeyTile::kElements];
  T queries[Way::kKeepsQueries ? Way::kRows * kRow : 8];  // 8: none
  T turned[Way::kRows * kRow];                            // the queries where the span wants them, or the piece
  alignas(16) Angle turn[kWidth / 2];           // by which all rows are turned from there to where the piece wants them
  Position position[kByKeys ? Way::kRows : 1];  // where rows that are turned together are turned to
  int32_t rank[Way::kRows];  // of tiles with a selection: of the piece's keys, by row; -1: not selected
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
  if (is_large_head(shape.head_dim)) return with_width(std::integral_constant<int, kMostHeadDim>());
  return with_width(std::integral_constant<int, 128>());
}

// Begins to copy rows of two halves, one behind the other in `from`, into a tile of keys: n of them, and zeros for the
// others and as padding. Other threads see them behind wait_for_copies() and a barrier. kThreadsOf threads call it.
template <typename Tile, int kThreadsOf, typename T>
__device__ __forceinline__ void copy_rows(T* to, const T* from, int n, int half, int thread) {
  constexpr int kKeys = Tile::kKeys, kWidth = Tile::kWidth, kElements = 16 / sizeof(T),
                kHalfCopies = kWidth / 2 / kElements;
  if (n == kKeys && half == kWidth / 2) {  // all of the tile: one stretch of memory
    constexpr int kRowCopies = kWidth / kElements;
    QUIRE_UNROLL for (int first = 0; first < kKeys * kRowCopies; first += kThreadsOf) {
      const int i = first + thread;
      copy_16_async(to + Tile::at(i / kRowCopies, i % kRowCopies * kElements), from + i * kElements, true);
    }
    return;
  }
  if (half % kElements != 0) {  // rows and halves are not whole groups of 16 bytes
    QUIRE_ROLLED for (int i = thread; i < kKeys * kWidth; i += kThreadsOf) {
      const int row = i / kWidth, side = i % kWidth / (kWidth / 2), at = i % (kWidth / 2);
      T& element = to[Tile::at(row, side * (kWidth / 2) + at)];
      if (row < n && at < half) {
        element = from[(2 * row + side) * half + at];
      } else {
        from_float(0.0f, element);
      }
    }
    return;
  }
  QUIRE_ROLLED for (int i = thread; i < kKeys * 2 * kHalfCopies; i += kThreadsOf) {
    const int row = i / (2 * kHalfCopies), part = i % (2 * kHalfCopies);
    const int side = part / kHalfCopies, at = part % kHalfCopies * kElements;
    const bool there = row < n && at < half;
    copy_16_async(to + Tile::at(row, side * (kWidth / 2) + at), there ? from + (2 * row + side) * half + at : nullptr,
                  there);
  }
}

}  // namespace quire::cuda
