// Scores of queries against keys stored in blocks of kKeyBlock. Lanes run over keys; each lane adds over d ascending.
#include <array>
#include <utility>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_scores.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/attention_int4-inl.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu::HWY_NAMESPACE {
#if QUIRE_CPU_VECTORS

constexpr int kBlockVectors = static_cast<int>(kKeyBlock) / kLanes;
constexpr int kMaxQueries = 6;

// Key blocks that a tile of n_queries has in registers together: enough chains of FMAs to hide their latency.
constexpr int tile_blocks(int n_queries) {
  const int fit = floor_power_of_2(kAccumulators / (n_queries * kBlockVectors));
  return fit < 4 ? fit : 4;
}

// q: [kQueries][d]; keys: kBlocks blocks; scores: [kQueries][ld].
template <int kQueries, int kBlocks, class T>
void score_tile(const float* q, int64_t d, const T* keys, float* scores, int64_t ld, Prefetcher& ahead) {
  const Floats df;
  constexpr int kVectors = kBlocks * kBlockVectors;
  Vector sums[kQueries][kVectors];
  HWY_UNROLL(12)
  for (int r = 0; r < kQueries; ++r) {
    HWY_UNROLL(16)
    for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::Zero(df);
  }
  for (int64_t i = 0; i < d; ++i) {
    ahead.step();
    HWY_UNROLL(16)
    for (int v = 0; v < kVectors; ++v) {
      const int block = v / kBlockVectors, part = v % kBlockVectors;
      const Vector key = load(df, keys + (block * d + i) * kKeyBlock + part * kLanes);
      HWY_UNROLL(12)
      for (int r = 0; r < kQueries; ++r) sums[r][v] = hn::MulAdd(hn::Set(df, q[r * d + i]), key, sums[r][v]);
    }
  }
  HWY_UNROLL(12)
  for (int r = 0; r < kQueries; ++r) {
    HWY_UNROLL(16)
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sums[r][v], df, scores + r * ld + v * kLanes);
  }
}

template <class T>
using ScoreFunction = void (*)(const float*, int64_t, const T*, float*, int64_t, Prefetcher&);

template <int kBlocks, class T, int... kLess1>
constexpr std::array<ScoreFunction<T>, sizeof...(kLess1)> tiles(std::integer_sequence<int, kLess1...>) {
  return {score_tile<kLess1 + 1, (kBlocks < tile_blocks(kLess1 + 1) ? kBlocks : tile_blocks(kLess1 + 1)), T>...};
}

template <class T>
void scores_as(const float* q, int64_t n_q, int64_t d, const T* keys, int64_t n_blocks, float* scores, int64_t ld) {
  using Counts = std::make_integer_sequence<int, kMaxQueries>;
  static constexpr auto kTiles1 = tiles<1, T>(Counts());
  static constexpr auto kTiles2 = tiles<2, T>(Counts());
  static constexpr auto kTiles4 = tiles<4, T>(Counts());
  if (n_q <= 0) return;
  const int64_t groups = ceil_div(n_q, kMaxQueries);
  int64_t width = tile_blocks(static_cast<int>(ceil_div(n_q, groups)));
  Prefetcher ahead = Prefetcher::range(keys, keys + width * d * kKeyBlock, n_q <= kFewQueries ? INT64_MAX : 0);
  ahead.step();
  for (int64_t block = 0; block < n_blocks; block += width) {
    while (width > n_blocks - block) width /= 2;
    const auto& functions = width == 4 ? kTiles4 : width == 2 ? kTiles2 : kTiles1;
    const T* at = keys + block * d * kKeyBlock;
    const int64_t next = block + width, after = next + width < n_blocks ? next + width : n_blocks;
    ahead = Prefetcher::range(keys + next * d * kKeyBlock, keys + after * d * kKeyBlock,
                              ceil_div(width * kKeyBlock * static_cast<int64_t>(sizeof(T)), 64 * groups));
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t first = n_q * g / groups, count = n_q * (g + 1) / groups - first;
      functions[static_cast<size_t>(count - 1)](q + first * d, d, at, scores + first * ld + block * kKeyBlock, ld,
                                                ahead);
    }
  }
}

void attention_scores(const float* q, int64_t n_q, int64_t d, ElementType type, const void* keys, int64_t key_begin,
                      int64_t key_end, float* scores, int64_t ld) {
  const int64_t first = key_begin / kKeyBlock;
  const int64_t n_blocks = ceil_div(key_end, kKeyBlock) - first;
  const int64_t skip = first * d * kKeyBlock;
  switch (type) {
    case ElementType::kF32:
      return scores_as(q, n_q, d, static_cast<const float*>(keys) + skip, n_blocks, scores, ld);
    case ElementType::kF16:
      return scores_as(q, n_q, d, static_cast<const hwy::float16_t*>(keys) + skip, n_blocks, scores, ld);
    case ElementType::kBF16:
      return scores_as(q, n_q, d, static_cast<const hwy::bfloat16_t*>(keys) + skip, n_blocks, scores, ld);
    case ElementType::kInt4:
      return int4_scores(q, n_q, d, static_cast<const uint8_t*>(keys), first, first + n_blocks, scores, ld);
    default:
      break;
  }
}

#else
using scalar::attention_scores;
#endif
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::cpu {
QUIRE_CPU_EXPORT(attention_scores);

void attention_scores(const float* q, int64_t n_q, int64_t d, ElementType type, const void* keys, int64_t key_begin,
                      int64_t key_end, float* scores, int64_t ld) {
  QUIRE_CPU_DISPATCH(attention_scores)(q, n_q, d, type, keys, key_begin, key_end, scores, ld);
}
}  // namespace quire::cpu
#endif
