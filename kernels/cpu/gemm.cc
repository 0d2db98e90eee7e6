// The matrix product: blocks of rows, in each all panels, in each register tiles of up to kMaxRows<T> rows.
#include <array>
#include <utility>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/gemm_quantized-inl.h"
#include "kernels/cpu/gemm_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu::HWY_NAMESPACE {
#if QUIRE_CPU_VECTORS

constexpr int64_t kRowBlock = 96;            // rows of x that pass a panel while it stays in the L2 cache
constexpr int64_t kPrefetchDistance = 4096;  // bytes ahead in the weights when every byte is used once

template <class T>
using TileFunction = void (*)(const float*, int64_t, int64_t, const T*, Prefetcher, const float*, bool, int64_t, float*,
                              int64_t);

template <class T, int... kRowsLess1>
constexpr std::array<TileFunction<T>, sizeof...(kRowsLess1)> tiles(std::integer_sequence<int, kRowsLess1...>) {
  return {gemm_tile<kRowsLess1 + 1, T>...};
}

// With one tile a row block the weights stream past once, so ask for what comes next in the stream; with more, the
// first tile would wait for memory and the others for the arithmetic: each fetches its share of the next panel.
template <class T>
Prefetcher prefetcher(const T* panel, int64_t panel_elements, int64_t tile, int64_t n_tiles) {
  constexpr int64_t kStepBytes = kStep * kPanel * static_cast<int64_t>(sizeof(T));
  const uintptr_t at = reinterpret_cast<uintptr_t>(panel);
  if (n_tiles == 1) return {at + kPrefetchDistance, UINTPTR_MAX, kStepBytes / 64};
  const int64_t share = ceil_div(kStepBytes / 64, n_tiles);
  const int64_t bytes = panel_elements * static_cast<int64_t>(sizeof(T));
  return {at + static_cast<uintptr_t>(bytes + tile * share * 64 * (bytes / kStepBytes)), UINTPTR_MAX, share};
}

template <class T>
void gemm_as(const float* x, int64_t ldx, int64_t m, const T* packed, int64_t panel_elements, int64_t n, int64_t k,
             int64_t panel_begin, int64_t panel_end, const float* bias, bool accumulate, float* y, int64_t ldy) {
  static constexpr auto kTiles = tiles<T>(std::make_integer_sequence<int, kMaxRows<T>>());
  for (int64_t r0 = 0; r0 < m; r0 += kRowBlock) {
    const int64_t rows = m - r0 < kRowBlock ? m - r0 : kRowBlock;
    const int64_t n_tiles = ceil_div(rows, kMaxRows<T>);
    for (int64_t p = panel_begin; p < panel_end; ++p) {
      const T* w = packed + p * panel_elements;
      const int64_t c = p * kPanel;
      const int64_t columns = n - c < kPanel ? n - c : kPanel;
      const float* panel_bias = bias != nullptr ? bias + c : nullptr;
      for (int64_t t = 0; t < n_tiles; ++t) {
        const int64_t first = r0 + rows * t / n_tiles, last = r0 + rows * (t + 1) / n_tiles;
        kTiles[static_cast<size_t>(last - first - 1)](x + first * ldx, ldx, k, w,
                                                      prefetcher(w, panel_elements, t, n_tiles), panel_bias, accumulate,
                                                      columns, y + first * ldy + c, ldy);
      }
    }
  }
}

void gemm(const float* x, int64_t ldx, int64_t m, ElementType type, const void* packed, int64_t n, int64_t k,
          int64_t panel_begin, int64_t panel_end, const float* bias, bool accumulate, float* y, int64_t ldy) {
  switch (type) {
    case ElementType::kF32:
      return gemm_as(x, ldx, m, static_cast<const float*>(packed), k * kPanel, n, k, panel_begin, panel_end, bias,
                     accumulate, y, ldy);
    case ElementType::kF16:
      return gemm_as(x, ldx, m, static_cast<const hwy::float16_t*>(packed), k * kPanel, n, k, panel_begin, panel_end,
                     bias, accumulate, y, ldy);
    case ElementType::kBF16:
      return gemm_as(x, ldx, m, static_cast<const hwy::bfloat16_t*>(packed), round_up(k, 2) * kPanel, n, k, panel_begin,
                     panel_end, bias, accumulate, y, ldy);
    default:
      return gemm_quantized(x, ldx, m, type, packed, n, k, panel_begin, panel_end, bias, accumulate, y, ldy);
  }
}

#else
using scalar::gemm;
#endif
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::cpu {
QUIRE_CPU_EXPORT(gemm);

void gemm(const float* x, int64_t ldx, int64_t m, ElementType type, const void* packed, int64_t n, int64_t k,
          int64_t panel_begin, int64_t panel_end, const float* bias, bool accumulate, float* y, int64_t ldy) {
  QUIRE_CPU_DISPATCH(gemm)(x, ldx, m, type, packed, n, k, panel_begin, panel_end, bias, accumulate, y, ldy);
}
}  // namespace quire::cpu
#endif
