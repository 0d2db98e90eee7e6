// The matrix product of rows and weights in bf16. Where the CPU has fast dot products of bf16 pairs, a pair of k is one
// instruction; elsewhere the rows are widened, a cache line at a time, and a pair is two fused multiply-adds.
#include <array>
#include <utility>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_bf16.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/gemm_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu::HWY_NAMESPACE {
#if QUIRE_CPU_VECTORS
namespace {

using Bf16 = hwy::bfloat16_t;

// One row's elements of a step, widened.
HWY_INLINE void widen(const uint16_t* x, int64_t n, float* out) {
  const Floats d;
  if (n == kStep) {
    for (int i = 0; i < kStep; i += kLanes) {
      hn::Store(load(d, reinterpret_cast<const Bf16*>(x + i)), d, out + i);
    }
    return;
  }
  for (int64_t i = 0; i < n; ++i) out[i] = from_bf16(x[i]);
}

// Continues the sums of kRows rows with n / 2 pairs, n <= kStep.
template <int kRows>
HWY_INLINE void add_widened(const uint16_t* x, int64_t ldx, int64_t n, const Bf16* w,
                            Vector (&sums)[kRows][kPanelVectors]) {
  HWY_ALIGN float rows[kRows * kStep];
  for (int r = 0; r < kRows; ++r) widen(x + r * ldx, n, rows + r * kStep);
  for (int64_t i = 0; i < n; i += 2) {
    add_terms<1>(rows + i, kStep, w + i * kPanel, sums);
    add_terms<0>(rows + i, kStep, w + i * kPanel, sums);
  }
}

#if HWY_TARGET == HWY_AVX3
using PairVector = hn::Vec<hn::RebindToSigned<Floats>>;  // a pair of bf16 a lane

// sum + w[0] x[0] + w[1] x[1] of each lane's pairs. Sums go in and out by value: arrays of them stay in registers so.
HWY_INLINE Vector add_pairs(Vector sum, PairVector x, PairVector w) {
  // Not the intrinsic: Highway 1.0.3 has no target that includes AVX512_BF16.
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(x.raw), "v"(w.raw));
  return sum;
}

// As add_widened, by dot products.
template <int kRows>
HWY_INLINE void add_dot_products(const uint16_t* x, int64_t ldx, int64_t n, const Bf16* w,
                                 Vector (&sums)[kRows][kPanelVectors]) {
  const hn::RebindToSigned<Floats> d;
  HWY_UNROLL(8)
  for (int64_t i = 0; i < n; i += 2) {
    PairVector ws[kPanelVectors];
    HWY_UNROLL(2)
    for (int v = 0; v < kPanelVectors; ++v) {
      ws[v] = hn::LoadU(d, reinterpret_cast<const int32_t*>(w + i * kPanel + v * kLanes * 2));
    }
    HWY_UNROLL(12)
    for (int r = 0; r < kRows; ++r) {
      int32_t pair;
      __builtin_memcpy(&pair, x + r * ldx + i, sizeof pair);
      const PairVector factor = hn::Set(d, pair);
      HWY_UNROLL(2)
      for (int v = 0; v < kPanelVectors; ++v) sums[r][v] = add_pairs(sums[r][v], factor, ws[v]);
    }
  }
}
#endif

template <int kRows, bool kDot>
void tile_bf16(const uint16_t* x, int64_t ldx, int64_t k, const Bf16* w, Prefetcher prefetcher, const float* bias,
               bool accumulate, int64_t columns, float* y, int64_t ldy) {
  Vector sums[kRows][kPanelVectors];
  HWY_UNROLL(12)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8)
    for (int v = 0; v < kPanelVectors; ++v) sums[r][v] = hn::Zero(Floats());
  }
  const auto add = [&](int64_t j, int64_t n) HWY_ATTR {
    if constexpr (kDot) {
#if HWY_TARGET == HWY_AVX3
      add_dot_products(x + j, ldx, n, w + j * kPanel, sums);
#endif
    } else {
      add_widened(x + j, ldx, n, w + j * kPanel, sums);
    }
  };
  int64_t j = 0;
  for (; j + kStep <= k; j += kStep) {
    prefetcher.step();
    add(j, kStep);
  }
  if (j < k) add(j, round_up(k - j, 2));
  for (int r = 0; r < kRows; ++r) finish_row(sums[r], bias, accumulate, columns, y + r * ldy);
}

using TileBf16 = void (*)(const uint16_t*, int64_t, int64_t, const Bf16*, Prefetcher, const float*, bool, int64_t,
                          float*, int64_t);

template <bool kDot, int... kRowsLess1>
constexpr std::array<TileBf16, sizeof...(kRowsLess1)> tiles_bf16(std::integer_sequence<int, kRowsLess1...>) {
  return {tile_bf16<kRowsLess1 + 1, kDot>...};
}

template <bool kDot>
HWY_INLINE void multiply(const uint16_t* x, int64_t ldx, int64_t m, const void* packed, int64_t n, int64_t k,
                         int64_t panel_begin, int64_t panel_end, const float* bias, bool accumulate, float* y,
                         int64_t ldy) {
  constexpr int kMost = kDot ? kAccumulators / kPanelVectors : kMaxRows<Bf16>;
  static constexpr auto kTiles = tiles_bf16<kDot>(std::make_integer_sequence<int, kMost>());
  const int64_t panel_elements = round_up(k, 2) * kPanel;
  for_tiles<kMost>(
      m, static_cast<const Bf16*>(packed), panel_elements, n, panel_begin, panel_end, [&](const Tile<Bf16>& tile) {
        kTiles[static_cast<size_t>(tile.n_rows - 1)](x + tile.row * ldx, ldx, k, tile.panel, tile.prefetcher,
                                                     bias != nullptr ? bias + tile.c : nullptr, accumulate,
                                                     tile.columns, y + tile.row * ldy + tile.c, ldy);
      });
}

}  // namespace

void gemm_bf16(const uint16_t* x, int64_t ldx, int64_t m, const void* packed, int64_t n, int64_t k, int64_t panel_begin,
               int64_t panel_end, const float* bias, bool accumulate, float* y, int64_t ldy) {
  multiply<false>(x, ldx, m, packed, n, k, panel_begin, panel_end, bias, accumulate, y, ldy);
}

#if HWY_TARGET == HWY_AVX3
void gemm_bf16_dot(const uint16_t* x, int64_t ldx, int64_t m, const void* packed, int64_t n, int64_t k,
                   int64_t panel_begin, int64_t panel_end, const float* bias, bool accumulate, float* y, int64_t ldy) {
  multiply<true>(x, ldx, m, packed, n, k, panel_begin, panel_end, bias, accumulate, y, ldy);
}
#endif

void round_row_bf16(const float* source, int64_t k, uint16_t* row) {
  const Floats d;
  int64_t j = 0;
  for (; j + kLanes <= k; j += kLanes) store(d, hn::LoadU(d, source + j), reinterpret_cast<Bf16*>(row + j));
  for (; j < k; ++j) row[j] = to_bf16(source[j]);
  if (k % 2 != 0) row[k] = 0;
}

#else
using scalar::gemm_bf16;
using scalar::round_row_bf16;
#endif  // QUIRE_CPU_VECTORS
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::cpu {
QUIRE_CPU_EXPORT(round_row_bf16);
QUIRE_CPU_EXPORT_VARIANTS(gemm_bf16, gemm_bf16, gemm_bf16_dot, gemm_bf16, gemm_bf16);

void round_row_bf16(const float* source, int64_t k, uint16_t* row) {
  QUIRE_CPU_DISPATCH(round_row_bf16)(source, k, row);
}

void gemm_bf16(const uint16_t* x, int64_t ldx, int64_t m, const void* packed, int64_t n, int64_t k, int64_t panel_begin,
               int64_t panel_end, const float* bias, bool accumulate, float* y, int64_t ldy) {
  QUIRE_CPU_DISPATCH(gemm_bf16)(x, ldx, m, packed, n, k, panel_begin, panel_end, bias, accumulate, y, ldy);
}
}  // namespace quire::cpu
#endif
