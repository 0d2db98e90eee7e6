// Rows of weights as bf16, for products of many rows: each weight is dequantised once, not once for every tile of rows.
//
// Neighbouring threads take neighbouring units, and write 16 bytes at a time.
#include "kernels/cuda/dequantize.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/types.h"

namespace quire::cuda {
namespace {

constexpr int kWarps = 4;  // of a block, each with a row of its own
constexpr int kThreads = kWarps * kWarpSize;
// Elements of a row that a warp makes: 64 a thread, whose codes are all on their way before the first is used.
constexpr int kStretch = 64 * kWarpSize;

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

template <ElementType kType>
int launch_rows(Stream stream, const DeviceMatrix& w, const DeviceRows& out) {
  const dim3 grid(static_cast<unsigned>((w.n + kWarps - 1) / kWarps),
                  static_cast<unsigned>((w.k + kStretch - 1) / kStretch));
  return launch(dequantize_rows_kernel<kType>, grid, kThreads, 0, stream, w, static_cast<bf16*>(out.data), out.stride);
}

}  // namespace

int dequantize_rows(Stream stream, const DeviceMatrix& w, DeviceRows out) {
  if (w.n == 0) return 0;
  if (is_quantized(w.type)) {
    return with_quantized_type(w.type, [&](auto type) { return launch_rows<type.value>(stream, w, out); });
  }
  const auto stride = w.row_bytes / static_cast<int64_t>(element_bytes(w.type));
  return copy_rows(stream, {const_cast<void*>(w.data), stride, w.type}, w.n, w.k, out);
}

}  // namespace quire::cuda
