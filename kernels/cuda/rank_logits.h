// What sampling needs of rows of logits that stay in the device's memory. Plain C++.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/kernels.h"

namespace quire::cuda {

constexpr int kMostRanked = 256;
// Logits that one block of threads looks at. A second block merges what it found in all slices of a row.
constexpr int64_t kRankedSlice = 8192;
constexpr int64_t kMostRankedWidth = 48 * kRankedSlice;
constexpr int64_t ranked_slices(int64_t width) { return (width + kRankedSlice - 1) / kRankedSlice; }
// Working memory for n rows: of a slice k numbers of 8 bytes, and 16 bytes.
constexpr size_t rank_logits_bytes(int64_t n, int64_t width, int k) {
  return ranked_slices(width) == 1 ? 0 : static_cast<size_t>(n * ranked_slices(width) * (8 * k + 16));
}

// Of each of n rows of `width` logits, at most kMostRankedWidth: the k greatest, 1 <= k <= kMostRanked, the greatest
// first, and of equal ones that with the lower index; and the sum of exp(logit - the greatest). The same rows give the
// same bits. Where a row has logits that are not finite, nothing else of it means anything.
struct RankLogits {
  const float* logits = nullptr;
  int64_t stride = 0;
  int64_t n = 0;
  int64_t width = 0;
  int k = 1;
  void* workspace = nullptr;  // rank_logits_bytes(); null where that is 0
  int32_t* tokens = nullptr;  // [n][k]: indexes; -1 behind those of a row of less than k
  float* values = nullptr;    // [n][k]: the logits of these; -infinity behind them
  double* sums = nullptr;     // [n]
  int32_t* finite = nullptr;  // [n]: 1 or 0

  bool operator==(const RankLogits&) const = default;
};
int rank_logits(Stream stream, const RankLogits& args);

}  // namespace quire::cuda
