// The value product of attention. Lanes run over d; each lane adds over keys ascending, onto what `out` holds.
#include <array>
#include <utility>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_values.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/attention_int4-inl.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu::HWY_NAMESPACE {
#if QUIRE_CPU_VECTORS

constexpr int kMaxQueries = kAccumulators / 4;
constexpr int64_t kValueBlock = 64;  // keys whose values stay in the L1 cache while all queries use them

// Vectors of d that a tile of n_queries has in registers.
constexpr int tile_vectors(int n_queries) {
  const int fit = floor_power_of_2(kAccumulators / n_queries);
  return fit < 8 ? fit : 8;
}

// Some keys, all of d, a group of queries. p: [queries][ld] and values: [n_keys][d], both at the first key; out:
// [queries][d].
template <class T>
struct ValueBlock {
  const float* p;
  int64_t ld, n_keys, d;
  const T* values;
  float* out;
};

// kVectors vectors of D from column i on.
template <class D, int kQueries, int kVectors, class T>
HWY_INLINE void value_tile(const ValueBlock<T>& block, int64_t i, Prefetcher& ahead) {
  const D df;
  constexpr int kWidth = static_cast<int>(hn::MaxLanes(D()));
  const float* p = block.p;
  const T* values = block.values + i;
  const int64_t ld = block.ld, n_keys = block.n_keys, d = block.d;
  float* out = block.out + i;
  hn::Vec<D> sums[kQueries][kVectors];
  HWY_UNROLL(12)
  for (int r = 0; r < kQueries; ++r) {
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::LoadU(df, out + r * d + v * kWidth);
  }
  for (int64_t j = 0; j < n_keys; ++j) {
    ahead.step();
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) {
      const auto value = load(df, values + j * d + v * kWidth);
      HWY_UNROLL(12)
      for (int r = 0; r < kQueries; ++r) sums[r][v] = hn::MulAdd(hn::Set(df, p[r * ld + j]), value, sums[r][v]);
    }
  }
  HWY_UNROLL(12)
  for (int r = 0; r < kQueries; ++r) {
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sums[r][v], df, out + r * d + v * kWidth);
  }
}

// Tiles of kVectors vectors from column i on, while they fit; returns the first column left.
template <class D, int kQueries, int kVectors, class T>
int64_t value_columns(const ValueBlock<T>& block, int64_t i, Prefetcher& ahead) {
  constexpr int64_t kWidth = kVectors * static_cast<int64_t>(hn::MaxLanes(D()));
  for (; i + kWidth <= block.d; i += kWidth) {
    value_tile<D, kQueries, kVectors>(block, i, ahead);
  }
  return i;
}

// All columns: as many vectors at a time as fit the registers, fewer for the rest, then pairs of elements.
template <int kQueries, class T>
void all_columns(const ValueBlock<T>& block, Prefetcher& ahead) {
  constexpr int kWide = tile_vectors(kQueries);
  int64_t i = value_columns<Floats, kQueries, kWide>(block, 0, ahead);
  if constexpr (kWide > 4) i = value_columns<Floats, kQueries, 4>(block, i, ahead);
  if constexpr (kWide > 2) i = value_columns<Floats, kQueries, 2>(block, i, ahead);
  i = value_columns<Floats, kQueries, 1>(block, i, ahead);
  value_columns<hn::CappedTag<float, 2>, kQueries, 1>(block, i, ahead);
}

template <class T>
using ValueFunction = void (*)(const ValueBlock<T>&, Prefetcher&);

template <class T, int... kLess1>
constexpr std::array<ValueFunction<T>, sizeof...(kLess1)> functions(std::integer_sequence<int, kLess1...>) {
  return {all_columns<kLess1 + 1, T>...};
}

template <class T>
void values_as(const float* p, int64_t ld, int64_t n_q, int64_t d, const T* values, int64_t begin, int64_t end,
               float* out) {
  if (n_q <= 0) return;
  static constexpr auto kFunctions = functions<T>(std::make_integer_sequence<int, kMaxQueries>());
  const int64_t groups = ceil_div(n_q, kMaxQueries);
  const int64_t passes = groups * ceil_div(d, tile_vectors(static_cast<int>(ceil_div(n_q, groups))) * kLanes);
  const int64_t lines = ceil_div(d * static_cast<int64_t>(sizeof(T)), 64 * passes);
  const auto fetch = [&](int64_t from, int64_t lines_per_step) HWY_ATTR {
    const int64_t to = from + kValueBlock < end ? from + kValueBlock : end;
    return Prefetcher::range(values + from * d, values + to * d, lines_per_step);
  };
  if (n_q <= kFewQueries) fetch(begin, INT64_MAX).step();
  for (int64_t j = begin; j < end; j += kValueBlock) {
    const int64_t next = j + kValueBlock < end ? j + kValueBlock : end;
    Prefetcher ahead = fetch(next, lines);
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t first = n_q * g / groups, count = n_q * (g + 1) / groups - first;
      kFunctions[static_cast<size_t>(count - 1)]({p + first * ld + j, ld, next - j, d, values + j * d, out + first * d},
                                                 ahead);
    }
  }
}

void accumulate_values(const float* p, int64_t ld, int64_t n_q, int64_t d, ElementType type, const void* values,
                       int64_t begin, int64_t end, float* out) {
  switch (type) {
    case ElementType::kF32:
      return values_as(p, ld, n_q, d, static_cast<const float*>(values), begin, end, out);
    case ElementType::kF16:
      return values_as(p, ld, n_q, d, static_cast<const hwy::float16_t*>(values), begin, end, out);
    case ElementType::kBF16:
      return values_as(p, ld, n_q, d, static_cast<const hwy::bfloat16_t*>(values), begin, end, out);
    case ElementType::kInt4:
      return int4_values(p, ld, n_q, d, static_cast<const uint8_t*>(values), begin, end, out);
    default:
      break;
  }
}

#else
using scalar::accumulate_values;
#endif
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::cpu {
QUIRE_CPU_EXPORT(accumulate_values);

void accumulate_values(const float* p, int64_t ld, int64_t n_q, int64_t d, ElementType type, const void* values,
                       int64_t begin, int64_t end, float* out) {
  QUIRE_CPU_DISPATCH(accumulate_values)(p, ld, n_q, d, type, values, begin, end, out);
}
}  // namespace quire::cpu
#endif
