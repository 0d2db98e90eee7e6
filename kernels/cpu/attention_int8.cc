// Attention over keys and values of kInt8, in integers: rows of queries and of weights are rounded to 16 bits, with a
// scale each, and multiplied with the stored integers. The sums are exact, so their order does not matter.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_int8.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/code_scale.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/pair_product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu::HWY_NAMESPACE {
#if QUIRE_CPU_VECTORS
namespace {

constexpr int kMostRows = kAccumulators / 4;  // of queries or weights, whose sums are in registers together
constexpr int kBlockVectors = static_cast<int>(kKeyBlock) / kLanes;
constexpr int64_t kValueDistance = 4096;           // bytes that are asked for ahead of their use
constexpr int64_t kPairsInABlock = 2 * kKeyBlock;  // integers of a block's keys in two channels

// Vectors of sums that a tile of n_rows has, `most` at most.
constexpr int tile_vectors(int n_rows, int most) {
  const int fit = floor_power_of_2(kAccumulators / n_rows);
  return fit < most ? fit : most;
}

// ---- scores

// Channels [begin, end) of some rows and of the block at `keys`, of d channels. scores: [rows][ld], to be continued
// where begin > 0.
struct ScoreTile {
  const int16_t* q;
  const float* q_scales;
  int64_t d, begin, end;
  const int8_t* keys;
  float* scores;
  int64_t ld;
};

template <bool kVnni, int kRows, int kBlocks>
void score_tile(const ScoreTile& tile, Prefetcher& ahead) {
  constexpr int kVectors = kBlocks * kBlockVectors;
  SumVector sums[kRows][kVectors];
  HWY_UNROLL(6)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(16)
    for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::Zero(Sums());
  }
  const int64_t d = tile.d;
  const int16_t* const q = tile.q;
  const int8_t* const keys = tile.keys;
  for (int64_t i = tile.begin; i < tile.end; i += 2) {
    ahead.step();
    HWY_UNROLL(16)
    for (int v = 0; v < kVectors; ++v) {
      const int block = v / kBlockVectors, part = v % kBlockVectors;
      const ShortVector key = load_pairs(keys + (block * d + i) * kKeyBlock + 2 * part * kLanes);
      HWY_UNROLL(6)
      for (int r = 0; r < kRows; ++r) {
        sums[r][v] = products_added<kVnni>(sums[r][v], key, broadcast_pair(q + r * d + i));
      }
    }
  }
  const Floats df;
  HWY_UNROLL(6)
  for (int r = 0; r < kRows; ++r) {
    const Vector scale = hn::Set(df, tile.q_scales[r]);
    float* const row = tile.scores + r * tile.ld;
    HWY_UNROLL(16)
    for (int v = 0; v < kVectors; ++v) {
      const Vector before = tile.begin == 0 ? hn::Zero(df) : hn::LoadU(df, row + v * kLanes);
      hn::StoreU(hn::MulAdd(scale, hn::ConvertTo(df, sums[r][v]), before), df, row + v * kLanes);
    }
  }
}

using ScoreFunction = void (*)(const ScoreTile&, Prefetcher&);

// Of 1, 2 ... rows; of `most` blocks, or as many as fit.
template <bool kVnni, int kMost, int... kLess1>
constexpr std::array<ScoreFunction, sizeof...(kLess1)> score_tiles(std::integer_sequence<int, kLess1...>) {
  return {
      score_tile<kVnni, kLess1 + 1, std::max(1, tile_vectors(kLess1 + 1, kMost * kBlockVectors) / kBlockVectors)>...};
}

template <bool kVnni>
void scores_of(const int16_t* q, const float* q_scales, int64_t n_q, int64_t d, const int8_t* keys, int64_t key_begin,
               int64_t key_end, float* scores, int64_t ld) {
  using Counts = std::make_integer_sequence<int, kMostRows>;
  static constexpr std::array kTiles = {score_tiles<kVnni, 1>(Counts()), score_tiles<kVnni, 2>(Counts()),
                                        score_tiles<kVnni, 4>(Counts())};
  if (n_q <= 0) return;
  const int64_t first = key_begin / kKeyBlock, n_blocks = ceil_div(key_end, kKeyBlock) - first;
  const int64_t groups = ceil_div(n_q, kMostRows), block_bytes = d * kKeyBlock;
  keys += first * block_bytes;
  int64_t width = std::max(1, tile_vectors(static_cast<int>(ceil_div(n_q, groups)), 4 * kBlockVectors) / kBlockVectors);
  Prefetcher ahead = Prefetcher::range(keys, keys + width * block_bytes, n_q <= kFewQueries ? INT64_MAX : 0);
  ahead.step();
  for (int64_t block = 0; block < n_blocks; block += width) {
    while (width > n_blocks - block) width /= 2;
    const auto& functions = kTiles[width == 4 ? 2 : width == 2 ? 1 : 0];
    const int64_t next = block + width, after = std::min(next + width, n_blocks);
    ahead = Prefetcher::range(keys + next * block_bytes, keys + after * block_bytes,
                              ceil_div(width * kPairsInABlock, 64 * groups));
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t row = n_q * g / groups, count = n_q * (g + 1) / groups - row;
      ScoreTile tile = {
          q + row * d, q_scales + row, d, 0, 0, keys + block * block_bytes, scores + row * ld + block * kKeyBlock, ld};
      for (; tile.begin < d; tile.begin = tile.end) {
        tile.end = std::min(tile.begin + kInt8Products, d);
        functions[static_cast<size_t>(count - 1)](tile, ahead);
      }
    }
  }
}

// ---- values

// Some keys, of which the first has an even index, in pairs, and some rows. p: [rows][ld]; values: [pairs][d][2];
// out: [rows][d].
struct ValueTile {
  const int16_t* p;
  int64_t ld;
  const float* p_scales;
  int64_t n_pairs, d;
  const int8_t* values;
  float* out;
};

// kVectors vectors of channels from channel i on.
template <bool kVnni, int kRows, int kVectors>
HWY_INLINE void value_tile(const ValueTile& tile, int64_t i, Prefetcher& ahead) {
  SumVector sums[kRows][kVectors];
  HWY_UNROLL(6)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::Zero(Sums());
  }
  const int64_t d = tile.d, ld = tile.ld, n_pairs = tile.n_pairs;
  const int16_t* const p = tile.p;
  const int8_t* const values = tile.values + 2 * i;
  for (int64_t j = 0; j < n_pairs; ++j) {
    ahead.step();
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) {
      const ShortVector value = load_pairs(values + 2 * (j * d + v * kLanes));
      HWY_UNROLL(6)
      for (int r = 0; r < kRows; ++r) {
        sums[r][v] = products_added<kVnni>(sums[r][v], value, broadcast_pair(p + r * ld + 2 * j));
      }
    }
  }
  const Floats df;
  HWY_UNROLL(6)
  for (int r = 0; r < kRows; ++r) {
    const Vector scale = hn::Set(df, tile.p_scales[r]);
    float* const row = tile.out + r * d + i;
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(hn::MulAdd(scale, hn::ConvertTo(df, sums[r][v]), hn::LoadU(df, row + v * kLanes)), df,
                 row + v * kLanes);
    }
  }
}

// Tiles of kVectors vectors from channel i on, while they fit; returns the first channel left.
template <bool kVnni, int kRows, int kVectors>
int64_t value_channels(const ValueTile& tile, int64_t i, Prefetcher& ahead) {
  for (; i + kVectors * kLanes <= tile.d; i += kVectors * kLanes) value_tile<kVnni, kRows, kVectors>(tile, i, ahead);
  return i;
}

// All channels: as many vectors at a time as fit the registers, fewer for the rest, then single ones.
template <bool kVnni, int kRows>
void all_channels(const ValueTile& tile, Prefetcher& ahead) {
  constexpr int kWide = tile_vectors(kRows, 8);
  int64_t i = value_channels<kVnni, kRows, kWide>(tile, 0, ahead);
  if constexpr (kWide > 4) i = value_channels<kVnni, kRows, 4>(tile, i, ahead);
  if constexpr (kWide > 2) i = value_channels<kVnni, kRows, 2>(tile, i, ahead);
  i = value_channels<kVnni, kRows, 1>(tile, i, ahead);
  for (; i < tile.d; ++i) {
    for (int r = 0; r < kRows; ++r) {
      int32_t sum = 0;
      for (int64_t j = 0; j < 2 * tile.n_pairs; ++j) {
        sum += tile.p[r * tile.ld + j] * tile.values[(j / 2 * tile.d + i) * 2 + j % 2];
      }
      float& out = tile.out[r * tile.d + i];
      out = std::fma(tile.p_scales[r], static_cast<float>(sum), out);
    }
  }
}

using ValueFunction = void (*)(const ValueTile&, Prefetcher&);

template <bool kVnni, int... kLess1>
constexpr std::array<ValueFunction, sizeof...(kLess1)> value_tiles(std::integer_sequence<int, kLess1...>) {
  return {all_channels<kVnni, kLess1 + 1>...};
}

template <bool kVnni>
void values_of(const int16_t* p, int64_t ld, const float* p_scales, int64_t n_q, int64_t d, const int8_t* values,
               int64_t begin, int64_t end, float* out) {
  static constexpr auto kFunctions = value_tiles<kVnni>(std::make_integer_sequence<int, kMostRows>());
  if (n_q <= 0 || begin >= end) return;
  const int64_t groups = ceil_div(n_q, kMostRows);
  for (int64_t j = begin / 2 * 2; j < end;) {
    const int64_t next = std::min(round_up(end, 2), j / kInt8Products * kInt8Products + kInt8Products);
    Prefetcher ahead = Prefetcher::range(values + j * d, values + next * d, 0);
    if (n_q <= kFewQueries) {  // which wait for memory
      Prefetcher::range(values + j * d, std::min(values + j * d + kValueDistance, values + next * d), INT64_MAX).step();
      ahead = Prefetcher::range(values + j * d + kValueDistance, values + next * d, ceil_div(2 * d, 64));
    }
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t row = n_q * g / groups, count = n_q * (g + 1) / groups - row;
      kFunctions[static_cast<size_t>(count - 1)](
          {p + row * ld + j, ld, p_scales + row, (next - j) / 2, d, values + j * d, out + row * d}, ahead);
    }
    j = next;
  }
}

}  // namespace

void attention_scores_int8(const int16_t* q, const float* q_scales, int64_t n_q, int64_t d, const int8_t* keys,
                           int64_t key_begin, int64_t key_end, float* scores, int64_t ld) {
  scores_of<false>(q, q_scales, n_q, d, keys, key_begin, key_end, scores, ld);
}
void accumulate_values_int8(const int16_t* p, int64_t ld, const float* p_scales, int64_t n_q, int64_t d,
                            const int8_t* values, int64_t begin, int64_t end, float* out) {
  values_of<false>(p, ld, p_scales, n_q, d, values, begin, end, out);
}

#if HWY_TARGET == HWY_AVX3
void attention_scores_int8_vnni(const int16_t* q, const float* q_scales, int64_t n_q, int64_t d, const int8_t* keys,
                                int64_t key_begin, int64_t key_end, float* scores, int64_t ld) {
  scores_of<true>(q, q_scales, n_q, d, keys, key_begin, key_end, scores, ld);
}
void accumulate_values_int8_vnni(const int16_t* p, int64_t ld, const float* p_scales, int64_t n_q, int64_t d,
                                 const int8_t* values, int64_t begin, int64_t end, float* out) {
  values_of<true>(p, ld, p_scales, n_q, d, values, begin, end, out);
}
#endif

// ---- rows

namespace {

using Codes = hn::Rebind<int16_t, Floats>;

// Vectors of floats in memory, the last one with zeros behind the n elements.
class Row {
 public:
  HWY_INLINE Row(const float* x, int64_t n) : x_(x), whole_(n / kLanes * kLanes) {
    std::copy_n(x + whole_, n - whole_, last_);
  }
  HWY_INLINE Vector vector(int64_t j) const { return hn::LoadU(Floats(), j < whole_ ? x_ + j : last_); }

 private:
  const float* x_;
  int64_t whole_;
  float last_[kLanes] = {};
};

// The bits of the greatest magnitude: these are ordered as magnitudes are, NaN above infinity.
template <class Product>
HWY_INLINE int32_t greatest_magnitude(int64_t n, const Product& product) {
  const Sums di;
  const auto bits = [&](int64_t j) HWY_ATTR { return hn::BitCast(di, hn::Abs(product(j))); };
  SumVector even = hn::Zero(di), odd = even;
  int64_t j = 0;
  for (; j + kLanes < n; j += 2 * kLanes) {
    even = hn::Max(even, bits(j));
    odd = hn::Max(odd, bits(j + kLanes));
  }
  if (j < n) even = hn::Max(even, bits(j));
  return hn::GetLane(hn::MaxOfLanes(di, hn::Max(even, odd)));
}

// codes[j] = product(j), to nearest even.
template <class Product>
HWY_INLINE void round_row(int64_t n, const Product& product, int16_t* codes) {
  const auto rounded = [&](int64_t j) HWY_ATTR { return hn::DemoteTo(Codes(), hn::NearestInt(product(j))); };
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) hn::StoreU(rounded(j), Codes(), codes + j);
  if (j == n) return;
  int16_t last[kLanes];
  hn::StoreU(rounded(j), Codes(), last);
  std::copy_n(last, n - j, codes + j);
}

}  // namespace

void quantize_row_int16(const float* x, const float* factors, int64_t n, int16_t* codes, float* scale) {
  const Row of_x(x, n), of_factors(factors, n);
  const auto product = [&](int64_t j) HWY_ATTR { return hn::Mul(of_x.vector(j), of_factors.vector(j)); };
  const CodeScale of_row = code_scale(greatest_magnitude(n, product), kMostInt16);
  *scale = of_row.scale;
  if (of_row.inverse == 0) {
    std::fill_n(codes, n, int16_t{0});
    return;
  }
  const Vector inverse = hn::Set(Floats(), of_row.inverse);
  round_row(
      n, [&](int64_t j) HWY_ATTR { return hn::Mul(product(j), inverse); }, codes);
}

float weight_factors_int16(const float* scales, int64_t n, float* factors) {
  const Row of_scales(scales, n);
  const CodeScale unit =
      code_scale(greatest_magnitude(n, [&](int64_t j) HWY_ATTR { return of_scales.vector(j); }), kMostInt16);
  for (int64_t j = 0; j < n; ++j) factors[j] = unit.inverse == 0 ? 0 : scales[j] * unit.inverse;
  return unit.scale;
}

void round_weights_int16(const float* p, const float* factors, int64_t n, int16_t* codes) {
  const Row of_p(p, n), of_factors(factors, n);
  round_row(
      n, [&](int64_t j) HWY_ATTR { return hn::Mul(of_p.vector(j), of_factors.vector(j)); }, codes);
}

#else
using scalar::accumulate_values_int8;
using scalar::attention_scores_int8;
using scalar::quantize_row_int16;
using scalar::round_weights_int16;
using scalar::weight_factors_int16;
#endif  // QUIRE_CPU_VECTORS
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::cpu {
QUIRE_CPU_EXPORT(quantize_row_int16);
QUIRE_CPU_EXPORT(round_weights_int16);
QUIRE_CPU_EXPORT(weight_factors_int16);
QUIRE_CPU_EXPORT_VARIANTS(attention_scores_int8, attention_scores_int8_vnni, attention_scores_int8_vnni,
                          attention_scores_int8_vnni, attention_scores_int8);
QUIRE_CPU_EXPORT_VARIANTS(accumulate_values_int8, accumulate_values_int8_vnni, accumulate_values_int8_vnni,
                          accumulate_values_int8_vnni, accumulate_values_int8);

void quantize_row_int16(const float* x, const float* factors, int64_t n, int16_t* codes, float* scale) {
  QUIRE_CPU_DISPATCH(quantize_row_int16)(x, factors, n, codes, scale);
}

float weight_factors_int16(const float* scales, int64_t n, float* factors) {
  return QUIRE_CPU_DISPATCH(weight_factors_int16)(scales, n, factors);
}

void round_weights_int16(const float* p, const float* factors, int64_t n, int16_t* codes) {
  QUIRE_CPU_DISPATCH(round_weights_int16)(p, factors, n, codes);
}

void attention_scores_int8(const int16_t* q, const float* q_scales, int64_t n_q, int64_t d, const int8_t* keys,
                           int64_t key_begin, int64_t key_end, float* scores, int64_t ld) {
  QUIRE_CPU_DISPATCH(attention_scores_int8)(q, q_scales, n_q, d, keys, key_begin, key_end, scores, ld);
}

void accumulate_values_int8(const int16_t* p, int64_t ld, const float* p_scales, int64_t n_q, int64_t d,
                            const int8_t* values, int64_t begin, int64_t end, float* out) {
  QUIRE_CPU_DISPATCH(accumulate_values_int8)(p, ld, p_scales, n_q, d, values, begin, end, out);
}
}  // namespace quire::cpu
#endif
