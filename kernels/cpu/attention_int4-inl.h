// Attention over keys and values of kInt4 (lib/support/int4.h), whole groups at a time. Codes become numbers in
// registers, for as many queries as these hold; then the sums are those of the f32 kernels. Compiled once per target.
#if defined(QUIRE_KERNELS_CPU_ATTENTION_INT4_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_KERNELS_CPU_ATTENTION_INT4_INL_H_
#undef QUIRE_KERNELS_CPU_ATTENTION_INT4_INL_H_
#else
#define QUIRE_KERNELS_CPU_ATTENTION_INT4_INL_H_
#endif

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/cpu/simd-inl.h"
#include "lib/support/int4.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu::HWY_NAMESPACE {
#if QUIRE_CPU_VECTORS

static_assert(kInt4Group == 2 * kKeyBlock && kInt4Tokens == kKeyBlock);

constexpr int kGroupVectors = static_cast<int>(kInt4Group) / kLanes;
constexpr int kHalfVectors = kGroupVectors / 2;
constexpr int kMostInt4Queries = kAccumulators / kGroupVectors < 6 ? kAccumulators / kGroupVectors : 6;

// Groups that a tile of n_queries has in registers, `most` at most.
constexpr int tile_groups(int n_queries, int most) {
  const int fit = floor_power_of_2(kAccumulators / (n_queries * kGroupVectors));
  return fit < most ? fit : most;
}

// n f16 as f32.
HWY_INLINE void widen_f16(const uint8_t* from, int64_t n, float* to) {
  const Floats df;
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    hn::StoreU(load(df, reinterpret_cast<const hwy::float16_t*>(from) + k), df, to + k);
  }
  for (; k < n; ++k) to[k] = load_f16(from, 2 * k);
}

// The numbers of kLanes codes' low halves and of their high ones.
struct Halves {
  Vector low, high;
};
HWY_INLINE Halves load_codes(const uint8_t* codes, Vector scale, Vector minimum) {
  const Floats df;
  const hn::RebindToSigned<Floats> di;
  const auto both = hn::PromoteTo(di, hn::LoadU(hn::Rebind<uint8_t, Floats>(), codes));
  const auto low = hn::ConvertTo(df, hn::And(both, hn::Set(di, 15)));
  const auto high = hn::ConvertTo(df, hn::ShiftRight<4>(both));
  return {hn::MulAdd(low, scale, minimum), hn::MulAdd(high, scale, minimum)};
}

// ---- scores

// q: [kQueries][d]; keys: kGroups groups; scores: [kQueries][ld].
template <int kQueries, int kGroups>
void score_groups(const float* q, int64_t d, const uint8_t* keys, float* scores, int64_t ld, Prefetcher& ahead) {
  const Floats df;
  constexpr int64_t kStretch = 64;  // channels whose scales are widened together
  float scale[kGroups][kStretch], minimum[kGroups][kStretch];
  Vector sums[kQueries][kGroups * kGroupVectors];
  HWY_UNROLL(6)
  for (int r = 0; r < kQueries; ++r) {
    HWY_UNROLL(16)
    for (int v = 0; v < kGroups * kGroupVectors; ++v) sums[r][v] = hn::Zero(df);
  }
  for (int64_t begin = 0; begin < d; begin += kStretch) {
    const int64_t end = begin + kStretch < d ? begin + kStretch : d;
    for (int g = 0; g < kGroups; ++g) {
      const uint8_t* const scales = keys + g * d * kInt4GroupBytes + d * kInt4CodeBytes;
      widen_f16(scales + 2 * begin, end - begin, scale[g]);
      widen_f16(scales + 2 * (d + begin), end - begin, minimum[g]);
    }
    for (int64_t i = begin; i < end; ++i) {
      ahead.step();
      HWY_UNROLL(2)
      for (int g = 0; g < kGroups; ++g) {
        const uint8_t* const codes = keys + g * d * kInt4GroupBytes + i * kInt4CodeBytes;
        const Vector s = hn::Set(df, scale[g][i - begin]), m = hn::Set(df, minimum[g][i - begin]);
        HWY_UNROLL(4)
        for (int v = 0; v < kHalfVectors; ++v) {
          const Halves key = load_codes(codes + v * kLanes, s, m);
          const int low = g * kGroupVectors + v, high = low + kHalfVectors;
          HWY_UNROLL(6)
          for (int r = 0; r < kQueries; ++r) {
            const Vector element = hn::Set(df, q[r * d + i]);
            sums[r][low] = hn::MulAdd(element, key.low, sums[r][low]);
            sums[r][high] = hn::MulAdd(element, key.high, sums[r][high]);
          }
        }
      }
    }
  }
  HWY_UNROLL(6)
  for (int r = 0; r < kQueries; ++r) {
    HWY_UNROLL(16)
    for (int v = 0; v < kGroups * kGroupVectors; ++v) hn::StoreU(sums[r][v], df, scores + r * ld + v * kLanes);
  }
}

using ScoreGroups = void (*)(const float*, int64_t, const uint8_t*, float*, int64_t, Prefetcher&);

template <int kGroups, int... kLess1>
constexpr std::array<ScoreGroups, sizeof...(kLess1)> score_tiles(std::integer_sequence<int, kLess1...>) {
  return {score_groups<kLess1 + 1, tile_groups(kLess1 + 1, kGroups)>...};
}

// Blocks [first, end) of kKeyBlock keys. A group of which only one block is wanted is computed whole and half copied.
inline void int4_scores(const float* q, int64_t n_q, int64_t d, const uint8_t* keys, int64_t first, int64_t end,
                        float* scores, int64_t ld) {
  using Counts = std::make_integer_sequence<int, kMostInt4Queries>;
  static constexpr auto kTiles1 = score_tiles<1>(Counts());
  static constexpr auto kTiles2 = score_tiles<2>(Counts());
  if (n_q <= 0) return;
  const int64_t group_bytes = d * kInt4GroupBytes, parts = ceil_div(n_q, kMostInt4Queries);
  const int64_t most = tile_groups(static_cast<int>(ceil_div(n_q, parts)), 2), end_group = ceil_div(end, 2);
  const auto fetch = [&](int64_t group, int64_t lines_per_step) HWY_ATTR {
    const int64_t to = group + most < end_group ? group + most : end_group;
    return Prefetcher::range(keys + group * group_bytes, keys + to * group_bytes, lines_per_step);
  };
  if (n_q <= kFewQueries) fetch(first / 2, INT64_MAX).step();
  int64_t width = 0;
  for (int64_t group = first / 2; group < end_group; group += width) {
    const bool whole = 2 * group >= first && 2 * group + 2 <= end;
    width = whole && most == 2 && 2 * group + 4 <= end ? 2 : 1;
    const auto& functions = width == 2 ? kTiles2 : kTiles1;
    Prefetcher ahead = group + width < end_group ? fetch(group + width, 1) : Prefetcher{0, 0, 0};
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t from = n_q * part / parts, count = n_q * (part + 1) / parts - from;
      const ScoreGroups function = functions[static_cast<size_t>(count - 1)];
      if (whole) {
        function(q + from * d, d, keys + group * group_bytes, scores + from * ld + (2 * group - first) * kKeyBlock, ld,
                 ahead);
        continue;
      }
      float both[kMostInt4Queries * kInt4Group];
      function(q + from * d, d, keys + group * group_bytes, both, kInt4Group, ahead);
      const int64_t wanted = 2 * group >= first ? 0 : kKeyBlock;
      for (int64_t r = 0; r < count; ++r) {
        std::copy_n(both + r * kInt4Group + wanted, kKeyBlock,
                    scores + (from + r) * ld + (2 * group - first) * kKeyBlock + wanted);
      }
    }
  }
}

// ---- values

// Some keys, [begin, end), all of d, a part of the queries. p: [queries][ld]; p and values at a key whose index is a
// multiple of kInt4Tokens; out: [queries][out_ld].
struct Int4Values {
  const float* p;
  int64_t ld, begin, end, n_groups;
  const uint8_t* values;
  float* out;
  int64_t out_ld;
};
constexpr int64_t kInt4ValueBlock = 64;  // keys whose scales are widened together

// kGroups groups of channels from group `first` on; out is at the first one's channels.
template <int kQueries, int kGroups>
void value_groups(const Int4Values& block, int64_t first, float* out, Prefetcher& ahead) {
  const Floats df;
  const int64_t ld = block.ld, out_ld = block.out_ld, n_groups = block.n_groups;
  const int64_t origin = block.begin / kInt4Tokens * kInt4Tokens, stride = kInt4Tokens * n_groups * kInt4GroupBytes;
  const float* const p = block.p;
  float scale[kGroups][kInt4ValueBlock], minimum[kGroups][kInt4ValueBlock];
  for (int64_t j = origin; j < block.end; j += kInt4Tokens) {
    const uint8_t* const tokens = block.values + j / kInt4Tokens * stride;
    const uint8_t* const scales = tokens + kInt4Tokens * (n_groups * kInt4CodeBytes + 2 * first);
    for (int g = 0; g < kGroups; ++g) {
      widen_f16(scales + 2 * g * kInt4Tokens, kInt4Tokens, scale[g] + (j - origin));
      widen_f16(scales + 2 * (n_groups + g) * kInt4Tokens, kInt4Tokens, minimum[g] + (j - origin));
    }
  }
  Vector sums[kQueries][kGroups * kGroupVectors];
  HWY_UNROLL(6)
  for (int r = 0; r < kQueries; ++r) {
    HWY_UNROLL(16)
    for (int v = 0; v < kGroups * kGroupVectors; ++v) sums[r][v] = hn::LoadU(df, out + r * out_ld + v * kLanes);
  }
  for (int64_t j = block.begin; j < block.end; ++j) {
    ahead.step();
    const uint8_t* const codes =
        block.values + j / kInt4Tokens * stride + (j % kInt4Tokens * n_groups + first) * kInt4CodeBytes;
    HWY_UNROLL(4)
    for (int g = 0; g < kGroups; ++g) {
      const Vector s = hn::Set(df, scale[g][j - origin]), m = hn::Set(df, minimum[g][j - origin]);
      HWY_UNROLL(4)
      for (int v = 0; v < kHalfVectors; ++v) {
        const Halves value = load_codes(codes + g * kInt4CodeBytes + v * kLanes, s, m);
        const int low = g * kGroupVectors + v, high = low + kHalfVectors;
        HWY_UNROLL(6)
        for (int r = 0; r < kQueries; ++r) {
          const Vector weight = hn::Set(df, p[r * ld + j]);
          sums[r][low] = hn::MulAdd(weight, value.low, sums[r][low]);
          sums[r][high] = hn::MulAdd(weight, value.high, sums[r][high]);
        }
      }
    }
  }
  HWY_UNROLL(6)
  for (int r = 0; r < kQueries; ++r) {
    HWY_UNROLL(16)
    for (int v = 0; v < kGroups * kGroupVectors; ++v) hn::StoreU(sums[r][v], df, out + r * out_ld + v * kLanes);
  }
}

// All channels: as many groups at a time as fit the registers, fewer for the rest, then those of no whole group.
template <int kQueries>
void all_groups(const Int4Values& block, int64_t d, Prefetcher& ahead) {
  constexpr int kWide = tile_groups(kQueries, 4);
  const int64_t whole = d / kInt4Group, rest = d % kInt4Group;
  int64_t g = 0;
  for (; g + kWide <= whole; g += kWide) value_groups<kQueries, kWide>(block, g, block.out + g * kInt4Group, ahead);
  if constexpr (kWide > 2) {
    for (; g + 2 <= whole; g += 2) value_groups<kQueries, 2>(block, g, block.out + g * kInt4Group, ahead);
  }
  for (; g < whole; ++g) value_groups<kQueries, 1>(block, g, block.out + g * kInt4Group, ahead);
  if (rest == 0) return;
  float padded[kQueries * kInt4Group] = {};
  float* const out = block.out + g * kInt4Group;
  for (int r = 0; r < kQueries; ++r) std::copy_n(out + r * block.out_ld, rest, padded + r * kInt4Group);
  Int4Values last = block;
  last.out_ld = kInt4Group;
  value_groups<kQueries, 1>(last, g, padded, ahead);
  for (int r = 0; r < kQueries; ++r) std::copy_n(padded + r * kInt4Group, rest, out + r * block.out_ld);
}

using ValueGroups = void (*)(const Int4Values&, int64_t, Prefetcher&);

template <int... kLess1>
constexpr std::array<ValueGroups, sizeof...(kLess1)> value_tiles(std::integer_sequence<int, kLess1...>) {
  return {all_groups<kLess1 + 1>...};
}

inline void int4_values(const float* p, int64_t ld, int64_t n_q, int64_t d, const uint8_t* values, int64_t begin,
                        int64_t end, float* out) {
  static constexpr auto kFunctions = value_tiles(std::make_integer_sequence<int, kMostInt4Queries>());
  if (n_q <= 0) return;
  const int64_t parts = ceil_div(n_q, kMostInt4Queries), n_groups = ceil_div(d, kInt4Group);
  const int64_t row = n_groups * kInt4GroupBytes;
  const auto fetch = [&](int64_t from, int64_t lines_per_step) HWY_ATTR {
    const int64_t to = from + kInt4ValueBlock < end ? from + kInt4ValueBlock : end;
    return Prefetcher::range(values + from * row, values + to * row, lines_per_step);
  };
  if (n_q <= kFewQueries) fetch(begin, INT64_MAX).step();
  int64_t next = begin;
  for (int64_t j = begin; j < end; j = next) {
    next = j / kInt4ValueBlock * kInt4ValueBlock + kInt4ValueBlock;
    next = next < end ? next : end;
    Prefetcher ahead = fetch(next, ceil_div(row, 64 * parts));
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t from = n_q * part / parts, count = n_q * (part + 1) / parts - from;
      const Int4Values block{p + from * ld, ld, j, next, n_groups, values, out + from * d, d};
      kFunctions[static_cast<size_t>(count - 1)](block, d, ahead);
    }
  }
}

#endif  // QUIRE_CPU_VECTORS
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
