// Rows of weights as bf16, for products of many rows: each weight is dequantised once, not once for every tile of rows.
//
// Neighbouring threads take neighbouring units; a unit of floats is 16 bytes of them. All loads of a thread are on
// their way before the first is used.
#include "kernels/cuda/dequantize.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/types.h"

namespace quire::cuda {
namespace {

constexpr int kWarps = 4;  // of a block, each with a row of its own
constexpr int kThreads = kWarps * kWarpSize;
// Elements of a row that a warp makes: 64 a thread.
constexpr int kStretch = 64 * kWarpSize;

dim3 grid_of(const DeviceMatrix& w) {
  return dim3(static_cast<unsigned>((w.n + kWarps - 1) / kWarps),
              static_cast<unsigned>((w.k + kStretch - 1) / kStretch));
}

// Rows by index x of the grid, stretches of a row by index y.
template <ElementType kType>
__global__ void __launch_bounds__(kThreads) dequantize_rows_kernel(DeviceMatrix w, bf16* out, int64_t stride) {
  using Unit = Codes<kType>;
  constexpr int kElements = Unit::kVectors * kVector, kLoads = kStretch / (kElements * kWarpSize);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + warp_of_block();
  if (row >= w.n) return;
  const uint8_t* const from = static_cast<const uint8_t*>(w.data) + row * w.row_bytes;
  bf16* const to = out + row * stride;
  const int k = static_cast<int>(w.k), n_blocks = k / static_cast<int>(block_format(kType).elements),
            n_units = k / kElements;
  const int first = static_cast<int>(blockIdx.y) * (kStretch / kElements) + lane_of_warp();
  Unit units[kLoads];
  QUIRE_UNROLL for (int i = 0; i < kLoads; ++i) {
    if (first + i * kWarpSize < n_units) units[i].load(from, n_blocks, first, i);
  }
  QUIRE_UNROLL for (int i = 0; i < kLoads; ++i) {
    const int unit = first + i * kWarpSize;
    if (unit >= n_units) break;
    QUIRE_UNROLL for (int v = 0; v < Unit::kVectors; ++v) {
      float weights[kVector];
      dequantize_vector(units[i], v, weights);
      alignas(16) unsigned pairs[kVector / 2];
      QUIRE_UNROLL for (int j = 0; j < kVector / 2; ++j) pairs[j] = pack(weights[2 * j], weights[2 * j + 1], bf16());
      QUIRE_UNROLL for (int j = 0; j < 2; ++j) load_16(to + Unit::element(unit, v) + 8 * j, pairs + 4 * j);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    round_rows_kernel(const T* w, int64_t w_stride, int64_t n, int64_t k, bf16* out, int64_t stride) {
  constexpr int kElements = 16 / static_cast<int>(sizeof(T)), kLoads = kStretch / (kElements * kWarpSize);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + warp_of_block();
  if (row >= n) return;
  const T* const from = w + row * w_stride;
  bf16* const to = out + row * stride;
  const int n_units = static_cast<int>((k + kElements - 1) / kElements);
  const int first = static_cast<int>(blockIdx.y) * (kStretch / kElements) + lane_of_warp();
  alignas(16) T units[kLoads][kElements];
  QUIRE_UNROLL for (int i = 0; i < kLoads; ++i) {
    const int unit = first + i * kWarpSize;
    if (unit < n_units) load_16(units[i], from + unit * kElements);
  }
  QUIRE_UNROLL for (int i = 0; i < kLoads; ++i) {
    const int unit = first + i * kWarpSize;
    const int at = unit * kElements;
    if (at + kElements <= k) {
      alignas(16) unsigned pairs[kElements / 2];
      QUIRE_UNROLL for (int j = 0; j < kElements / 2; ++j) {
        pairs[j] = pack(to_float(units[i][2 * j]), to_float(units[i][2 * j + 1]), bf16());
      }
      if constexpr (kElements == 8) {
        load_16(to + at, pairs);
      } else {
        store_8(to + at, {pairs[0], pairs[1]});
      }
    } else {
      QUIRE_UNROLL for (int e = 0; e < kElements; ++e) {
        if (at + e < k) from_float(to_float(units[i][e]), to[at + e]);
      }
    }
  }
}

}  // namespace

int dequantize_rows(Stream stream, const DeviceMatrix& w, DeviceRows out) {
  if (w.n == 0) return 0;
  if (is_quantized(w.type)) {
    return with_quantized_type(w.type, [&](auto type) {
      return launch(dequantize_rows_kernel<type.value>, grid_of(w), kThreads, 0, stream, w,
                    static_cast<bf16*>(out.data), out.stride);
    });
  }
  return with_type(w.type, [&](auto type) {
    using T = decltype(type);
    return launch(round_rows_kernel<T>, grid_of(w), kThreads, 0, stream, static_cast<const T*>(w.data),
                  w.row_bytes / static_cast<int64_t>(sizeof(T)), w.n, w.k, static_cast<bf16*>(out.data), out.stride);
  });
}

}  // namespace quire::cuda
