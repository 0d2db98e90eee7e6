// Products of rows with a weight matrix. Plain C++.
#pragma once

#include <cstdint>

#include "kernels/cuda/kernels.h"

namespace quire::cuda {

// Rows [n] of k weights of any type, each at a multiple of 16 bytes; k is whole blocks of the type.
struct DeviceMatrix {
  const void* data = nullptr;
  int64_t n = 0;
  int64_t k = 0;
  int64_t row_bytes = 0;
  ElementType type = ElementType::kBF16;

  bool operator==(const DeviceMatrix&) const = default;
};

// y[r][j] = sum over i of x[r][i] * W[j][i], plus bias[j], plus what y[r][j] was if `add`. bias: f32 [n] or null. y is
// not x. Up to kFewRows rows: products in f32, W is read once. More: on tensor cores, x and W rounded to bf16.
constexpr int64_t kFewRows = 8;
int matmul(Stream stream, DeviceRows x, int64_t n_rows, const DeviceMatrix& w, const float* bias, bool add,
           DeviceRows y);

// out[j] = row j of W, rounded to bf16. out: bf16 rows, aligned; what lies between them stays as it is.
int dequantize_rows(Stream stream, const DeviceMatrix& w, DeviceRows out);
// Of so many rows matmul() dequantises each weight once, and once more for every further so many.
constexpr int64_t kRowsOfTile = 64;

}  // namespace quire::cuda
