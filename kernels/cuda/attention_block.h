// How the attention kernels divide their work: a block of threads and its shared memory.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/device.h"

namespace quire::cuda {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kKeys = 64;   // of a block of keys
constexpr int kStages = 2;  // blocks of keys in shared memory

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

}  // namespace quire::cuda
