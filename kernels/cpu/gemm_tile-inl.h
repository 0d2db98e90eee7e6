// The register tile of the matrix product: kRows rows of x times one panel of kPanel columns, over all of k. And how
// rows and panels are cut into tiles.
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
constexpr int64_t kStep = 16;      // k per pass of the main loop: one cache line of x a row
constexpr int64_t kRowBlock = 96;  // rows of x that pass a panel while it stays in the L2 cache

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

// With one tile a row block the weights stream past once, so ask for what comes next in the stream; with more, the
// first tile would wait for memory and the others for the arithmetic: each fetches its share of the next panel. f32
// weights of one row are not waited for by anything else: there the processor's own prefetcher does best, if it is told
// where to begin.
template <class T>
Prefetcher prefetcher(const T* panel, int64_t panel_elements, int64_t tile, int64_t n_tiles, int64_t n_rows) {
  constexpr int64_t kStepBytes = kStep * kPanel * static_cast<int64_t>(sizeof(T));
  const uintptr_t at = reinterpret_cast<uintptr_t>(panel);
  if (n_tiles == 1) {
    const int64_t apart = sizeof(T) == sizeof(float) && n_rows == 1 ? 512 : 64;
    return {at + kPrefetchDistance, UINTPTR_MAX, kStepBytes / apart, apart};
  }
  const int64_t share = ceil_div(kStepBytes / 64, n_tiles);
  const int64_t bytes = panel_elements * static_cast<int64_t>(sizeof(T));
  return {at + static_cast<uintptr_t>(bytes + tile * share * 64 * (bytes / kStepBytes)), UINTPTR_MAX, share};
}

// A tile's place: rows [row, row + n_rows) and the panel at column c, of whose columns `columns` exist.
template <class T>
struct Tile {
  int64_t row, n_rows;
  const T* panel;
  Prefetcher prefetcher;
  int64_t c, columns;
};

// multiply(Tile) for tiles of at most kMost rows: blocks of rows, in each all panels, in each its tiles.
template <int kMost, class T, class Multiply>
HWY_INLINE void for_tiles(int64_t m, const T* packed, int64_t panel_elements, int64_t n, int64_t panel_begin,
                          int64_t panel_end, const Multiply& multiply) {
  for (int64_t r0 = 0; r0 < m; r0 += kRowBlock) {
    const int64_t rows = m - r0 < kRowBlock ? m - r0 : kRowBlock;
    const int64_t n_tiles = ceil_div(rows, kMost);
    for (int64_t p = panel_begin; p < panel_end; ++p) {
      const T* panel = packed + p * panel_elements;
      const int64_t c = p * kPanel;
      for (int64_t t = 0; t < n_tiles; ++t) {
        const int64_t first = r0 + rows * t / n_tiles, last = r0 + rows * (t + 1) / n_tiles;
        multiply(Tile<T>{first, last - first, panel, prefetcher(panel, panel_elements, t, n_tiles, rows), c,
                         n - c < kPanel ? n - c : kPanel});
      }
    }
  }
}

#endif  // QUIRE_CPU_VECTORS
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
