// The product of a few rows with weights that are not quantised, for decoding: a warp per column of the result, whose
// weights its lanes read in turn.
#include <algorithm>

#include "kernels/cuda/matmul_kernels.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 128;

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

// 16 bytes of weights a lane, of which several loads are on their way at a time.
template <typename W, typename X, int kRows>
__global__ void __launch_bounds__(kThreads) matmul_rows_kernel(MatmulArgs args) {
  constexpr int kElements = 16 / sizeof(W), kLoads = kRows <= 2 ? 8 : 4;
  constexpr int64_t kStep = int64_t{kWarpSize} * kElements;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarpSize) + warp_of_block();
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

unsigned blocks_for(int64_t columns) {
  constexpr int64_t kColumns = kThreads / kWarpSize;
  return static_cast<unsigned>((columns + kColumns - 1) / kColumns);
}

}  // namespace

int matmul_rows(Stream stream, const MatmulArgs& args) {
  return with_type(args.w.type, [&](auto w) {
    return with_type(args.x.type, [&](auto x) {
      return with_rows(args.n_rows, [&](auto rows) {
        return launch(matmul_rows_kernel<decltype(w), decltype(x), decltype(rows)::value>, blocks_for(args.w.n),
                      kThreads, 0, stream, args);
      });
    });
  });
}

namespace {

DeviceRows rows_from(DeviceRows rows, int64_t first) {
  rows.data = static_cast<char*>(rows.data) + static_cast<int64_t>(row_bytes(rows.type, rows.stride)) * first;
  return rows;
}

}  // namespace

int matmul(Stream stream, DeviceRows x, int64_t n_rows, const DeviceMatrix& w, const float* bias, bool add,
           DeviceRows y) {
  if (w.n == 0 || n_rows == 0) return 0;
  const MatmulArgs args{x, n_rows, w, bias, add, y};
  if (!is_quantized(w.type)) return n_rows <= kFewRows ? matmul_rows(stream, args) : matmul_tiles(stream, args);
  if (n_rows > kFewQuantizedRows) return matmul_tiles(stream, args);
  for (int64_t first = 0; first < n_rows; first += kFewRows) {
    MatmulArgs some = args;
    some.x = rows_from(x, first);
    some.y = rows_from(y, first);
    some.n_rows = std::min(kFewRows, n_rows - first);
    const int error = matmul_rows_quantized(stream, some);
    if (error != 0) return error;
  }
  return 0;
}

}  // namespace quire::cuda
