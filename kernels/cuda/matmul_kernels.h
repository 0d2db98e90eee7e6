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

// Calls use(the element of y).
template <typename Use>
__device__ __forceinline__ void with_element(const MatmulArgs& args, int64_t row, int64_t column, const Use& use) {
  const int64_t at = row * args.y.stride + column;
  if (args.y.type == ElementType::kF32) {
    use(static_cast<float*>(args.y.data)[at]);
  } else if (args.y.type == ElementType::kBF16) {
    use(static_cast<bf16*>(args.y.data)[at]);
  } else {
    use(static_cast<f16*>(args.y.data)[at]);
  }
}

// What is added to an element of the product. Read long before the product is there, its memory is not waited for.
struct Addends {
  float bias = 0, y = 0;
};

__device__ __forceinline__ Addends addends_of(const MatmulArgs& args, int64_t row, int64_t column) {
  Addends addends;
  if (args.bias != nullptr) addends.bias = args.bias[column];
  if (args.add) with_element(args, row, column, [&](const auto& y) { addends.y = to_float(y); });
  return addends;
}

__device__ __forceinline__ void finish_element(const MatmulArgs& args, int64_t row, int64_t column, float sum,
                                               const Addends& addends) {
  with_element(args, row, column, [&](auto& y) { from_float(addends.y + (sum + addends.bias), y); });
}

// Of a few rows, a column of which is a warp's: a lane finishes one row, so that rows do not wait for each other's
// memory.
__device__ __forceinline__ bool finishes_row(const MatmulArgs& args, int n_rows) {
  return lane_of_warp() < n_rows && lane_of_warp() < args.n_rows;
}

// The sum over the warp of the row that the lane finishes. All lanes call it.
template <int kRows>
__device__ __forceinline__ float sum_of_own_row(const float (&sums)[kRows]) {
  float own = 0;
  QUIRE_UNROLL for (int r = 0; r < kRows; ++r) {
    const float sum = warp_sum(sums[r]);
    if (lane_of_warp() == r) own = sum;
  }
  return own;
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
