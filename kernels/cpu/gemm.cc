// The matrix product of f32 rows: register tiles of up to kMaxRows<T> rows.
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

template <class T>
using TileFunction = void (*)(const float*, int64_t, int64_t, const T*, Prefetcher, const float*, bool, int64_t, float*,
                              int64_t);

template <class T, int... kRowsLess1>
constexpr std::array<TileFunction<T>, sizeof...(kRowsLess1)> tiles(std::integer_sequence<int, kRowsLess1...>) {
  return {gemm_tile<kRowsLess1 + 1, T>...};
}

template <class T>
void gemm_as(const float* x, int64_t ldx, int64_t m, const T* packed, int64_t panel_elements, int64_t n, int64_t k,
             int64_t panel_begin, int64_t panel_end, const float* bias, bool accumulate, float* y, int64_t ldy) {
  static constexpr auto kTiles = tiles<T>(std::make_integer_sequence<int, kMaxRows<T>>());
  for_tiles<kMaxRows<T>>(m, packed, panel_elements, n, panel_begin, panel_end, [&](const Tile<T>& tile) {
    kTiles[static_cast<size_t>(tile.n_rows - 1)](x + tile.row * ldx, ldx, k, tile.panel, tile.prefetcher,
                                                 bias != nullptr ? bias + tile.c : nullptr, accumulate, tile.columns,
                                                 y + tile.row * ldy + tile.c, ldy);
  });
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
