// What the kernels of products have in common.
#pragma once

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/types.h"

namespace quire::cuda {

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

// Of a few rows, a column of which is a warp's: all of its lanes call it, with their sums. A lane finishes one row, so
// that rows do not wait for each other's memory.
template <int kRows>
__device__ __forceinline__ void finish_column(const MatmulArgs& args, int64_t column, const float (&sums)[kRows]) {
  const int lane = lane_of_warp();
  float own = 0;
  QUIRE_UNROLL for (int r = 0; r < kRows; ++r) {
    const float sum = warp_sum(sums[r]);
    if (lane == r) own = sum;
  }
  if (lane < kRows && lane < args.n_rows) finish_element(args, lane, column, own);
}

// Kernels of one type of weights: defined in matmul_rows.cu and matmul_rows_quantized.cu.
int matmul_rows(Stream stream, const MatmulArgs& args);
int matmul_rows_quantized(Stream stream, const MatmulArgs& args);
// Of more rows, any type: matmul_tiles.cu.
int matmul_tiles(Stream stream, const MatmulArgs& args);

// use(std::integral_constant<int, n>()) with n = 1, 2, 4 or 8, the least that is not less than n_rows.
template <typename Use>
int with_rows(int64_t n_rows, const Use& use) {
  if (n_rows <= 1) return use(std::integral_constant<int, 1>());
  if (n_rows <= 2) return use(std::integral_constant<int, 2>());
  if (n_rows <= 4) return use(std::integral_constant<int, 4>());
  return use(std::integral_constant<int, 8>());
}

}  // namespace quire::cuda
