// The register tile of the matrix product: kRows rows of x times one panel of kPanel columns, over all of k.
#if defined(QUIRE_KERNELS_CPU_GEMM_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_KERNELS_CPU_GEMM_TILE_INL_H_
#undef QUIRE_KERNELS_CPU_GEMM_TILE_INL_H_
#else
#define QUIRE_KERNELS_CPU_GEMM_TILE_INL_H_
#endif

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu::HWY_NAMESPACE {
#if QUIRE_CPU_VECTORS

// Rows of a tile. Of the 16 registers of AVX2, widening 16-bit weights takes more than three rows would leave.
template <class T>
constexpr int kMaxRows = HWY_TARGET == HWY_AVX2 && sizeof(T) == 2 ? 2 : kAccumulators / kPanelVectors;
constexpr int64_t kStep = 16;  // k per pass of the main loop: one cache line of x a row

// Vector v of the panel's weights of k + kParity; `w` is the place of an even k.
template <int kParity, class T>
HWY_INLINE Vector weights(const T* w, int v) {
  return load(Floats(), w + kParity * kPanel + v * kLanes);
}
template <int kParity>
HWY_INLINE Vector weights(const hwy::bfloat16_t* w, int v) {  // a pair is a 32-bit lane: even k low, odd k high
  const hn::RebindToUnsigned<Floats> d32;
  const auto pairs = hn::LoadU(d32, reinterpret_cast<const uint32_t*>(w + v * kLanes * 2));
  const auto bits = kParity == 0 ? hn::ShiftLeft<16>(pairs) : hn::And(pairs, hn::Set(d32, 0xffff0000u));
  return hn::BitCast(Floats(), bits);
}

template <int kParity, int kRows, class T>
HWY_INLINE void add_terms(const float* x, int64_t ldx, const T* w, Vector (&sums)[kRows][kPanelVectors]) {
  const Floats d;
  if constexpr (kPanelVectors <= 2) {
    Vector ws[kPanelVectors];
    HWY_UNROLL(2)
    for (int v = 0; v < kPanelVectors; ++v) ws[v] = weights<kParity>(w, v);
    HWY_UNROLL(12)
    for (int r = 0; r < kRows; ++r) {
      const Vector factor = hn::Set(d, x[r * ldx + kParity]);
      HWY_UNROLL(2)
      for (int v = 0; v < kPanelVectors; ++v) sums[r][v] = hn::MulAdd(factor, ws[v], sums[r][v]);
    }
  } else {  // few registers: one vector of weights at a time
    HWY_UNROLL(8)
    for (int v = 0; v < kPanelVectors; ++v) {
      const Vector w_v = weights<kParity>(w, v);
      HWY_UNROLL(12)
      for (int r = 0; r < kRows; ++r) {
        sums[r][v] = hn::MulAdd(hn::Set(d, x[r * ldx + kParity]), w_v, sums[r][v]);
      }
    }
  }
}

// y = (accumulate ? y : 0) + (sum + bias) for one row and `columns` columns.
HWY_INLINE void finish_row(const Vector* sums, const float* bias, bool accumulate, int64_t columns, float* y) {
  const Floats d;
  if (columns == kPanel) {
    for (int v = 0; v < kPanelVectors; ++v) {
      auto result = sums[v];
      if (bias != nullptr) result = hn::Add(result, hn::LoadU(d, bias + v * kLanes));
      if (accumulate) result = hn::Add(hn::LoadU(d, y + v * kLanes), result);
      hn::StoreU(result, d, y + v * kLanes);
    }
    return;
  }
  float row[kPanel];
  for (int v = 0; v < kPanelVectors; ++v) hn::StoreU(sums[v], d, row + v * kLanes);
  for (int64_t c = 0; c < columns; ++c) {
    const float sum = bias != nullptr ? row[c] + bias[c] : row[c];
    y[c] = accumulate ? y[c] + sum : sum;
  }
}

// Continues the sums of kRows rows with k terms each. x: [kRows][ldx]; w: [k][kPanel], in pairs if T is bf16.
template <int kRows, class T>
HWY_INLINE void add_product(const float* x, int64_t ldx, int64_t k, const T* w, Prefetcher& prefetcher,
                            Vector (&sums)[kRows][kPanelVectors]) {
  const Floats d;
  // Rows of x a power of two apart share cache sets; many rows are therefore copied together, a line at a time.
  constexpr bool kCopy = kRows > 4;
  HWY_ALIGN float copy[kCopy ? kRows * kStep : 1];
  int64_t j = 0;
  for (; j + kStep <= k; j += kStep) {
    prefetcher.step();
    const float* rows = x + j;
    int64_t stride = ldx;
    if constexpr (kCopy) {
      for (int r = 0; r < kRows; ++r) {
        for (int i = 0; i < kStep; i += kLanes) hn::Store(hn::LoadU(d, x + r * ldx + j + i), d, copy + r * kStep + i);
      }
      rows = copy;
      stride = kStep;
    }
    const T* at = w + j * kPanel;
    for (int i = 0; i < kStep; i += 2) {
      add_terms<0>(rows + i, kCopy ? kStep : stride, at + i * kPanel, sums);
      add_terms<1>(rows + i, kCopy ? kStep : stride, at + i * kPanel, sums);
    }
  }
  for (; j < k; ++j) {
    const T* at = w + (j - j % 2) * kPanel;
    if (j % 2 == 0) {
      add_terms<0>(x + j, ldx, at, sums);
    } else {
      add_terms<1>(x + j - 1, ldx, at, sums);
    }
  }
}

// x: [kRows][ldx]; w: the panel; bias, y: at the panel's first column, of which `columns` exist.
template <int kRows, class T>
void gemm_tile(const float* x, int64_t ldx, int64_t k, const T* w, Prefetcher prefetcher, const float* bias,
               bool accumulate, int64_t columns, float* y, int64_t ldy) {
  const Floats d;
  Vector sums[kRows][kPanelVectors];
  HWY_UNROLL(12)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8)
    for (int v = 0; v < kPanelVectors; ++v) sums[r][v] = hn::Zero(d);
  }
  add_product(x, ldx, k, w, prefetcher, sums);
  for (int r = 0; r < kRows; ++r) finish_row(sums[r], bias, accumulate, columns, y + r * ldy);
}

#endif  // QUIRE_CPU_VECTORS
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
