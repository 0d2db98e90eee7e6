// Rows of weights as bf16, for products of many rows: each weight is dequantised once, not once for every tile of rows.
//
// A thread makes runs of eight neighbouring elements, for which it takes what two lanes take in lane_codes.h: it writes
// 16 bytes at a time, and neighbouring threads read and write neighbouring bytes.
#include "kernels/cuda/lane_codes.h"
#include "kernels/cuda/matmul.h"

namespace quire::cuda {
namespace {

constexpr int kWarps = 4;  // of a block, each with a row of its own
constexpr int kThreads = kWarps * kWarpSize;
// Elements of a row that a warp makes: 32 a thread, whose codes are all on their way before the first is used.
constexpr int kStretch = 32 * kWarpSize;

// Rows by index x of the grid, stretches of a row by index y.
template <ElementType kType>
__global__ void __launch_bounds__(kThreads) dequantize_rows_kernel(DeviceMatrix w, bf16* out, int64_t stride) {
  using Codes = LaneCodes<kType>;
  constexpr int kSharing = Codes::kLanes / 2;   // threads that share a unit
  constexpr int kUnits = kWarpSize / kSharing;  // that a warp reads side by side
  constexpr int kLoads = kStretch / (kUnits * Codes::kUnit);
  static_assert(kLoads * kUnits * Codes::kUnit == kStretch);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + warp_of_block();
  if (row >= w.n) return;
  const uint8_t* const from = static_cast<const uint8_t*>(w.data) + row * w.row_bytes;
  bf16* const to = out + row * stride;
  const int64_t n_units = w.k / Codes::kUnit;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * (kStretch / Codes::kUnit) + lane_of_warp() / kSharing;
  const int lane = 2 * (lane_of_warp() % kSharing);  // the first one of two
  Codes codes[kLoads][2];
  QUIRE_UNROLL for (int i = 0; i < kLoads; ++i) {
    if (first + i * kUnits >= n_units) break;
    QUIRE_UNROLL for (int side = 0; side < 2; ++side) codes[i][side].load(from, first + i * kUnits, lane + side);
  }
  QUIRE_UNROLL for (int i = 0; i < kLoads; ++i) {
    const int64_t unit = first + i * kUnits;
    if (unit >= n_units) break;
    QUIRE_UNROLL for (int r = 0; r < Codes::kRuns; ++r) {
      alignas(16) unsigned pairs[4];
      QUIRE_UNROLL for (int side = 0; side < 2; ++side) {
        float weights[4];
        codes[i][side].run(r, weights);
        pairs[2 * side] = pack(weights[0], weights[1], bf16());
        pairs[2 * side + 1] = pack(weights[2], weights[3], bf16());
      }
      load_16(to + unit * Codes::kUnit + 4 * lane + r * Codes::kBetween, pairs);
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
  switch (w.type) {
    case ElementType::kQ8_0:
      return launch_rows<ElementType::kQ8_0>(stream, w, out);
    case ElementType::kQ4_0:
      return launch_rows<ElementType::kQ4_0>(stream, w, out);
    case ElementType::kQ4_1:
      return launch_rows<ElementType::kQ4_1>(stream, w, out);
    case ElementType::kQ5_0:
      return launch_rows<ElementType::kQ5_0>(stream, w, out);
    case ElementType::kQ5_1:
      return launch_rows<ElementType::kQ5_1>(stream, w, out);
    case ElementType::kQ4_K:
      return launch_rows<ElementType::kQ4_K>(stream, w, out);
    case ElementType::kQ5_K:
      return launch_rows<ElementType::kQ5_K>(stream, w, out);
    case ElementType::kQ6_K:
      return launch_rows<ElementType::kQ6_K>(stream, w, out);
    default: {
      const auto stride = w.row_bytes / static_cast<int64_t>(element_bytes(w.type));
      return copy_rows(stream, {const_cast<void*>(w.data), stride, w.type}, w.n, w.k, out);
    }
  }
}

}  // namespace quire::cuda
