// The product of a few rows, for decoding: a warp per column of the result, whose weights its lanes read in turn.
#pragma once

#include "kernels/cuda/lane_codes.h"
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

// Rows of x as a lane reads them: kCount elements at a time, at multiples of kCount.
template <typename X>
class RowsOfX {
 public:
  __device__ explicit RowsOfX(const MatmulArgs& args)
      : x_(static_cast<const X*>(args.x.data)),
        stride_(args.x.stride),
        last_(static_cast<int>(args.n_rows) - 1),
        aligned_((reinterpret_cast<uintptr_t>(x_) | static_cast<uintptr_t>(stride_) * sizeof(X)) % 16 == 0) {}

  // Rows that are not there are the last one again.
  __device__ __forceinline__ const X* row(int r) const { return x_ + (r < last_ ? r : last_) * stride_; }

  // sums[r] += the product of `weights` and as many elements of row r from `at` on.
  template <int kCount, int kRows>
  __device__ __forceinline__ void add(int64_t at, const float (&weights)[kCount], float (&sums)[kRows]) const {
    QUIRE_UNROLL for (int r = 0; r < kRows; ++r) {
      const X* const from = row(r) + at;
      alignas(16) X x[kCount];
      if (!aligned_) {
        QUIRE_UNROLL for (int j = 0; j < kCount; ++j) x[j] = from[j];
      } else if constexpr (kCount * sizeof(X) == 8) {
        store_8(x, load_8(from));
      } else {
        constexpr int kAtOnce = 16 / sizeof(X);
        QUIRE_UNROLL for (int j = 0; j < kCount; j += kAtOnce) load_16(x + j, from + j);
      }
      QUIRE_UNROLL for (int j = 0; j < kCount; ++j) sums[r] = fmaf(to_float(x[j]), weights[j], sums[r]);
    }
  }

 private:
  const X* const x_;
  const int64_t stride_;
  const int last_;
  const bool aligned_;
};

// The column of a warp; it may be behind the last one.
__device__ __forceinline__ int64_t column_of_warp() {
  return static_cast<int64_t>(blockIdx.x) * (kRowsThreads / kWarpSize) + warp_of_block();
}

// All lanes of a warp call it, with their sums.
template <int kRows>
__device__ __forceinline__ void finish_column(const MatmulArgs& args, int64_t column, const float (&sums)[kRows]) {
  QUIRE_UNROLL for (int r = 0; r < kRows; ++r) {
    const float sum = warp_sum(sums[r]);
    if (lane_of_warp() == 0 && r < args.n_rows) finish_element(args, r, column, sum);
  }
}

// Float weights: 16 bytes a lane, of which several loads are on their way at a time.
template <typename W, typename X, int kRows>
__global__ void __launch_bounds__(kRowsThreads) matmul_rows_kernel(MatmulArgs args) {
  constexpr int kElements = 16 / sizeof(W), kLoads = kRows <= 2 ? 8 : 4;
  constexpr int64_t kStep = int64_t{kWarpSize} * kElements;
  const int64_t column = column_of_warp();
  if (column >= args.w.n) return;  // a whole warp
  const RowsOfX<X> x(args);
  const W* const row = reinterpret_cast<const W*>(static_cast<const char*>(args.w.data) + column * args.w.row_bytes);
  const int64_t whole = args.w.k / kElements * kElements;
  float sums[kRows] = {};
  for (int64_t first = int64_t{lane_of_warp()} * kElements; first < whole; first += kLoads * kStep) {
    alignas(16) W loaded[kLoads][kElements];
    QUIRE_UNROLL for (int i = 0; i < kLoads; ++i) {
      if (first + i * kStep < whole) load_16(loaded[i], row + first + i * kStep);
    }
    QUIRE_UNROLL for (int i = 0; i < kLoads; ++i) {
      if (first + i * kStep >= whole) break;
      float weights[kElements];
      QUIRE_UNROLL for (int j = 0; j < kElements; ++j) weights[j] = to_float(loaded[i][j]);
      x.add(first + i * kStep, weights, sums);
    }
  }
  const int64_t at = whole + lane_of_warp();  // what is less than 16 bytes of weights
  if (at < args.w.k) {
    const float weight = to_float(row[at]);
    QUIRE_UNROLL for (int r = 0; r < kRows; ++r) sums[r] = fmaf(to_float(x.row(r)[at]), weight, sums[r]);
  }
  finish_column(args, column, sums);
}

// Quantised weights, as lane_codes.h says.
template <ElementType kType, typename X, int kRows>
__global__ void __launch_bounds__(kRowsThreads) matmul_rows_quantized_kernel(MatmulArgs args) {
  using Codes = LaneCodes<kType>;
  constexpr int kUnits = kWarpSize / Codes::kLanes;            // that a warp reads side by side
  constexpr int kLoads = (kRows <= 2 ? 8 : 4) / Codes::kRuns;  // of a lane, on their way at a time
  const int64_t column = column_of_warp();
  if (column >= args.w.n) return;
  const RowsOfX<X> x(args);
  const uint8_t* const row = static_cast<const uint8_t*>(args.w.data) + column * args.w.row_bytes;
  const int64_t n_units = args.w.k / Codes::kUnit;
  const int lane = lane_of_warp() % Codes::kLanes;
  float sums[kRows] = {};
  for (int64_t first = lane_of_warp() / Codes::kLanes; first < n_units; first += kLoads * kUnits) {
    Codes codes[kLoads];
    QUIRE_UNROLL for (int i = 0; i < kLoads; ++i) {
      if (first + i * kUnits < n_units) codes[i].load(row, first + i * kUnits, lane);
    }
    QUIRE_UNROLL for (int i = 0; i < kLoads; ++i) {
      const int64_t unit = first + i * kUnits;
      if (unit >= n_units) break;
      QUIRE_UNROLL for (int r = 0; r < Codes::kRuns; ++r) {
        float weights[4];
        codes[i].run(r, weights);
        x.add(unit * Codes::kUnit + 4 * lane + r * Codes::kBetween, weights, sums);
      }
    }
  }
  finish_column(args, column, sums);
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
