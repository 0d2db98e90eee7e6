// The matrix product with quantised weights: a stretch of a panel is dequantised into the first-level cache, and
// multiplied with all rows of a block before the next one. The sums wait in memory between stretches, which changes no
// bit: the result is that of the product with the dequantised f32 matrix.
#if defined(QUIRE_KERNELS_CPU_GEMM_QUANTIZED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_KERNELS_CPU_GEMM_QUANTIZED_INL_H_
#undef QUIRE_KERNELS_CPU_GEMM_QUANTIZED_INL_H_
#else
#define QUIRE_KERNELS_CPU_GEMM_QUANTIZED_INL_H_
#endif

#include <array>
#include <utility>

#include "kernels/cpu/dequantize_panel-inl.h"
#include "kernels/cpu/gemm_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu::HWY_NAMESPACE {
#if QUIRE_CPU_VECTORS
constexpr int64_t kBlockRows = 96;                 // rows of x whose sums wait together
constexpr int64_t kStretch = 4 * int64_t{kGroup};  // elements of k that are dequantised together
constexpr int kTileRows = kMaxRows<float>;

using DequantizeGroup = void (*)(const uint8_t* block, int group, float* out);

inline DequantizeGroup group_function(ElementType type) {
  switch (type) {
    case ElementType::kQ8_0:
      return dequantize_group<ElementType::kQ8_0>;
    case ElementType::kQ4_0:
      return dequantize_group<ElementType::kQ4_0>;
    case ElementType::kQ4_1:
      return dequantize_group<ElementType::kQ4_1>;
    case ElementType::kQ5_0:
      return dequantize_group<ElementType::kQ5_0>;
    case ElementType::kQ5_1:
      return dequantize_group<ElementType::kQ5_1>;
    case ElementType::kQ4_K:
      return dequantize_group<ElementType::kQ4_K>;
    case ElementType::kQ5_K:
      return dequantize_group<ElementType::kQ5_K>;
    case ElementType::kQ6_K:
      return dequantize_group<ElementType::kQ6_K>;
    case ElementType::kQ2_K:
      return dequantize_group<ElementType::kQ2_K>;
    case ElementType::kQ3_K:
      return dequantize_group<ElementType::kQ3_K>;
    case ElementType::kIQ4_NL:
      return dequantize_group<ElementType::kIQ4_NL>;
    case ElementType::kIQ4_XS:
      return dequantize_group<ElementType::kIQ4_XS>;
    default:
      return nullptr;
  }
}

// Continues the sums [kRows][kPanel] with k terms; w: f32 [k][kPanel].
template <int kRows>
void continue_sums(const float* x, int64_t ldx, int64_t k, const float* w, float* sums) {
  const Floats d;
  Vector in_registers[kRows][kPanelVectors];
  HWY_UNROLL(12)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8)
    for (int v = 0; v < kPanelVectors; ++v) in_registers[r][v] = hn::Load(d, sums + r * kPanel + v * kLanes);
  }
  Prefetcher none{0, 0, 0};
  add_product(x, ldx, k, w, none, in_registers);
  HWY_UNROLL(12)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8)
    for (int v = 0; v < kPanelVectors; ++v) hn::Store(in_registers[r][v], d, sums + r * kPanel + v * kLanes);
  }
}

using ContinueSums = void (*)(const float*, int64_t, int64_t, const float*, float*);

template <int... kRowsLess1>
constexpr std::array<ContinueSums, sizeof...(kRowsLess1)> sum_functions(std::integer_sequence<int, kRowsLess1...>) {
  return {continue_sums<kRowsLess1 + 1>...};
}

// The sums of `rows` rows of x over one panel.
inline void sum_panel(const float* x, int64_t ldx, int64_t rows, ElementType type, const uint8_t* panel, int64_t k,
                      float* sums) {
  static constexpr auto kFunctions = sum_functions(std::make_integer_sequence<int, kTileRows>());
  const DequantizeGroup dequantize_group_at = group_function(type);
  const BlockFormat format = block_format(type);
  const int64_t groups_per_block = format.elements / kGroup;
  const auto packed_block = static_cast<int64_t>(format.bytes) * kPanel;
  const int64_t n_tiles = ceil_div(rows, kTileRows);
  HWY_ALIGN float w[kStretch * kPanel];
  for (int64_t j = 0; j < k; j += kStretch) {
    const int64_t count = k - j < kStretch ? k - j : kStretch;
    for (int64_t i = 0; i < count; i += kGroup) {
      const int64_t group = (j + i) / kGroup;
      dequantize_group_at(panel + group / groups_per_block * packed_block, static_cast<int>(group % groups_per_block),
                          w + i * kPanel);
    }
    for (int64_t t = 0; t < n_tiles; ++t) {
      const int64_t first = rows * t / n_tiles, last = rows * (t + 1) / n_tiles;
      kFunctions[static_cast<size_t>(last - first - 1)](x + first * ldx + j, ldx, count, w, sums + first * kPanel);
    }
  }
}

inline void gemm_quantized(const float* x, int64_t ldx, int64_t m, ElementType type, const void* packed, int64_t n,
                           int64_t k, int64_t panel_begin, int64_t panel_end, const float* bias, bool accumulate,
                           float* y, int64_t ldy) {
  const Floats d;
  const auto panel_bytes = static_cast<int64_t>(row_bytes(type, k)) * kPanel;
  HWY_ALIGN float sums[kBlockRows * kPanel];
  for (int64_t r0 = 0; r0 < m; r0 += kBlockRows) {
    const int64_t rows = m - r0 < kBlockRows ? m - r0 : kBlockRows;
    for (int64_t p = panel_begin; p < panel_end; ++p) {
      for (int64_t i = 0; i < rows * kPanel; i += kLanes) hn::Store(hn::Zero(d), d, sums + i);
      sum_panel(x + r0 * ldx, ldx, rows, type, static_cast<const uint8_t*>(packed) + p * panel_bytes, k, sums);
      const int64_t c = p * kPanel;
      const int64_t columns = n - c < kPanel ? n - c : kPanel;
      for (int64_t r = 0; r < rows; ++r) {
        Vector row[kPanelVectors];
        for (int v = 0; v < kPanelVectors; ++v) row[v] = hn::Load(d, sums + r * kPanel + v * kLanes);
        finish_row(row, bias != nullptr ? bias + c : nullptr, accumulate, columns, y + (r0 + r) * ldy + c);
      }
    }
  }
}

#endif  // QUIRE_CPU_VECTORS
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
