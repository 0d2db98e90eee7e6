// Products of rows with a weight matrix. Plain C++.
#pragma once

#include <cstdint>

#include "kernels/cuda/kernels.h"

namespace quire::cuda {

// y[r][j] = sum over i of x[r][i] * W[j][i], plus bias[j], plus what y[r][j] was if `add`. bias: f32 [n] or null. y is
// not x. Up to kFewRows rows W is read once, and products are in f32. With quantised weights they are in integers, W is
// read again for each further kFewRows rows, up to kFewQuantizedRows, and a row's product does not depend on the other
// rows: of 16 elements of x that follow each other each is rounded to a multiple of 1/32639 of the greatest magnitude
// among them, and a magnitude from 1e37 on counts as NaN. More rows: on tensor cores, x and W rounded to bf16.
constexpr int64_t kFewRows = 8, kFewQuantizedRows = 2 * kFewRows;
int matmul(Stream stream, DeviceRows x, int64_t n_rows, const DeviceMatrix& w, const float* bias, bool add,
           DeviceRows y);

// out[j] = row j of W, rounded to bf16. out: bf16 rows, aligned; what lies between them stays as it is.
int dequantize_rows(Stream stream, const DeviceMatrix& w, DeviceRows out);
// Of so many rows matmul() dequantises each weight once, and once more for every further so many.
constexpr int64_t kRowsOfTile = 64;

}  // namespace quire::cuda
