// The product of a few rows, for decoding: a warp per column of the result, whose weights its lanes read in turn.
#pragma once

#include "kernels/cuda/dequantize.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/types.h"

namespace quire::cuda {

constexpr int kRowsThreads = 128;

struct MatmulArgs {
  DeviceRows x{};
  int64_t n_rows = 0;
  DeviceMatrix w{};
  const float* bias = nullptr;
  bool add = false;
  DeviceRows y{};
};

__device__ __forceinline__ void finish_element(const MatmulArgs& args, int64_t row, int64_t column, float sum) {
  if (args.bias != nullptr) sum += args.bias[column];
  const int64_t at = row * args.y.stride + column;
  const auto put = [&](auto* y) { from_float(args.add ? to_float(y[at]) + sum : sum, y[at]); };
  if (args.y.type == ElementType::kF32) {
    put(static_cast<float*>(args.y.data));
  } else if (args.y.type == ElementType::kBF16) {
    put(static_cast<bf16*>(args.y.data));
  } else {
    put(static_cast<f16*>(args.y.data));
  }
}

// Float weights: 16 bytes a lane.
template <typename W, typename X, int kRows>
__global__ void __launch_bounds__(kRowsThreads) matmul_rows_kernel(MatmulArgs args) {
  constexpr int kElements = 16 / sizeof(W);
  const int64_t column = static_cast<int64_t>(blockIdx.x) * (kRowsThreads / kWarpSize) + warp_of_block();
  if (column >= args.w.n) return;  // a whole warp
  const X* const x = static_cast<const X*>(args.x.data);
  const W* const row = reinterpret_cast<const W*>(static_cast<const char*>(args.w.data) + column * args.w.row_bytes);
  float sums[kRows] = {};
  for (int64_t i = int64_t{lane_of_warp()} * kElements; i < args.w.k; i += kWarpSize * kElements) {
    const int n = args.w.k - i < kElements ? static_cast<int>(args.w.k - i) : kElements;
    alignas(16) W weights[kElements];
    // Rows have whole groups of 16 bytes, whatever k is.
    load_16(weights, row + i);
    for (int j = 0; j < n; ++j) {
      const float weight = to_float(weights[j]);
      QUIRE_UNROLL for (int r = 0; r < kRows; ++r) sums[r] =
          fmaf(to_float(x[r * args.x.stride + i + j]), weight, sums[r]);
    }
  }
  QUIRE_UNROLL for (int r = 0; r < kRows; ++r) {
    const float sum = warp_sum(sums[r]);
    if (lane_of_warp() == 0) finish_element(args, r, column, sum);
  }
}

// Quantised weights: a group of 32 a lane.
template <ElementType kType, typename X, int kRows>
__global__ void __launch_bounds__(kRowsThreads) matmul_rows_quantized_kernel(MatmulArgs args) {
  constexpr BlockFormat kFormat = block_format(kType);
  constexpr int kGroups = kFormat.elements / kGroup;  // of a block
  const int64_t column = static_cast<int64_t>(blockIdx.x) * (kRowsThreads / kWarpSize) + warp_of_block();
  if (column >= args.w.n) return;
  const X* const x = static_cast<const X*>(args.x.data);
  const uint8_t* const row = static_cast<const uint8_t*>(args.w.data) + column * args.w.row_bytes;
  float sums[kRows] = {};
  for (int64_t group = lane_of_warp(); group < args.w.k / kGroup; group += kWarpSize) {
    const X* const own = x + group * kGroup;
    for_group<kType>(row + group / kGroups * kFormat.bytes, static_cast<int>(group % kGroups),
                     [&](int j, float weight) {
                       QUIRE_UNROLL for (int r = 0; r < kRows; ++r) sums[r] =
                           fmaf(to_float(own[r * args.x.stride + j]), weight, sums[r]);
                     });
  }
  QUIRE_UNROLL for (int r = 0; r < kRows; ++r) {
    const float sum = warp_sum(sums[r]);
    if (lane_of_warp() == 0) finish_element(args, r, column, sum);
  }
}

// Kernels of one type of weights: defined in matmul_rows.cu and matmul_rows_quantized.cu.
int matmul_rows(Stream stream, const MatmulArgs& args);
int matmul_rows_quantized(Stream stream, const MatmulArgs& args);
// Of more rows, any type: matmul_tiles.cu.
int matmul_tiles(Stream stream, const MatmulArgs& args);

// use(std::integral_constant<int, n>()) with n = 1, 2, 4 or 8, at most n_rows: how many rows come next.
template <typename Use>
int with_rows(int64_t n_rows, const Use& use) {
  if (n_rows >= 8) return use(std::integral_constant<int, 8>());
  if (n_rows >= 4) return use(std::integral_constant<int, 4>());
  if (n_rows >= 2) return use(std::integral_constant<int, 2>());
  return use(std::integral_constant<int, 1>());
}

}  // namespace quire::cuda
