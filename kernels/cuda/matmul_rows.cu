// The product of a few rows with weights that are not quantised, for decoding: a warp per column of the result, whose
// weights its lanes read in turn; of few long columns all warps of a block share each, so that there are blocks enough
// for the device's processors to end together.
#include <algorithm>

#include "kernels/cuda/matmul_kernels.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 128, kWarpsOfBlock = kThreads / kWarpSize;

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

// 16 bytes of weights a lane, of which several loads are on their way at a time. kWarps: that share a column, 1 or all.
template <typename W, typename X, int kRows, int kWarps>
__global__ void __launch_bounds__(kThreads) matmul_rows_kernel(MatmulArgs args) {
  constexpr int kElements = 16 / sizeof(W), kLoads = kRows <= 2 && kWarps == 1 ? 8 : 4;
  constexpr int64_t kStep = int64_t{kWarps * kWarpSize} * kElements;
  const int warp = warp_of_block(), place = (kWarps == 1 ? 0 : warp * kWarpSize) + lane_of_warp();
  const int64_t column = kWarps == 1 ? static_cast<int64_t>(blockIdx.x) * kWarpsOfBlock + warp : int64_t{blockIdx.x};
  if (column >= args.w.n) return;  // a whole warp, or none
  const bool finishes = (kWarps == 1 || warp == 0) && finishes_row(args, kRows);
  const Addends addends = finishes ? addends_of(args, lane_of_warp(), column) : Addends{};
  const RowsOfX<X> x(args);
  const W* const row = reinterpret_cast<const W*>(static_cast<const char*>(args.w.data) + column * args.w.row_bytes);
  const int64_t whole = args.w.k / kElements * kElements;
  float sums[kRows] = {};
  for (int64_t first = int64_t{place} * kElements; first < whole; first += kLoads * kStep) {
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
  const int64_t at = whole + place;  // what is less than 16 bytes of weights
  if (at < args.w.k) {
    const float weight = to_float(row[at]);
    QUIRE_UNROLL for (int r = 0; r < kRows; ++r) sums[r] = fmaf(to_float(x.row(r)[at]), weight, sums[r]);
  }
  float own = sum_of_own_row(sums);
  if constexpr (kWarps > 1) {
    QUIRE_SHARED_MEMORY(memory);
    float* const parts = reinterpret_cast<float*>(memory);  // [kWarps][kRows]
    if (lane_of_warp() < kRows) parts[warp * kRows + lane_of_warp()] = own;
    __syncthreads();
    if (!finishes) return;
    own = 0;
    QUIRE_UNROLL for (int w = 0; w < kWarps; ++w) own += parts[w * kRows + lane_of_warp()];
  }
  if (finishes) finish_element(args, lane_of_warp(), column, own, addends);
}

// With a column for each warp, fewer blocks than so many for each processor leave some processors idle at the end for a
// good part of the time: some seven are worked on at once.
constexpr int64_t kManyBlocks = 28;
// Shorter columns have too little for the warps of a block.
constexpr int64_t kLeastSharedBytes = 4096;

bool are_shared(const DeviceMatrix& w) {
  return w.n < kManyBlocks * kWarpsOfBlock * n_processors() && w.row_bytes >= kLeastSharedBytes;
}

}  // namespace

int matmul_rows(Stream stream, const MatmulArgs& args) {
  return with_type(args.w.type, [&](auto w) {
    return with_type(args.x.type, [&](auto x) {
      return with_rows(args.n_rows, [&](auto rows) {
        constexpr int kRows = decltype(rows)::value;
        if (are_shared(args.w)) {
          return launch(matmul_rows_kernel<decltype(w), decltype(x), kRows, kWarpsOfBlock>,
                        static_cast<unsigned>(args.w.n), kThreads, kWarpsOfBlock * kRows * sizeof(float), stream, args);
        }
        const auto blocks = static_cast<unsigned>((args.w.n + kWarpsOfBlock - 1) / kWarpsOfBlock);
        return launch(matmul_rows_kernel<decltype(w), decltype(x), kRows, 1>, blocks, kThreads, 0, stream, args);
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
