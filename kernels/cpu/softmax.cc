// Softmax over a span of keys, what its blocks of keys have of it, and the log-sum-exp merge of two spans.
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/softmax.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/lane_sum.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu::HWY_NAMESPACE {
#if QUIRE_CPU_VECTORS

constexpr int kParts = kSumLanes / kLanes;

HWY_INLINE float largest(const float* scores, int64_t begin, int64_t end) {
  const Floats d;
  constexpr int kTops = 4;  // so that a comparison does not wait for the one before
  Vector tops[kTops];
  for (Vector& top : tops) top = hn::Set(d, -std::numeric_limits<float>::infinity());
  int64_t j = begin;
  for (; j + kTops * kLanes <= end; j += kTops * kLanes) {
    for (int t = 0; t < kTops; ++t) tops[t] = hn::Max(tops[t], hn::LoadU(d, scores + j + t * kLanes));
  }
  for (; j + kLanes <= end; j += kLanes) tops[0] = hn::Max(tops[0], hn::LoadU(d, scores + j));
  float result = hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(tops[0], tops[1]), hn::Max(tops[2], tops[3]))));
  for (; j < end; ++j) result = scores[j] > result ? scores[j] : result;
  return result;
}

// exp(scores - shift) of the keys [begin, end) of the block of kSumLanes at `block`, in place, added to sums.
HWY_INLINE void exp_edge(float* scores, int64_t block, int64_t begin, int64_t end, float shift, float* sums) {
  const int64_t first = begin > block ? begin : block;
  const int64_t last = end < block + kSumLanes ? end : block + kSumLanes;
  for (int64_t j = first; j < last; ++j) {
    scores[j] = exp_f32(scores[j] - shift);
    sums[j - block] += scores[j];
  }
}

// The sum of a vector's lanes, by halves.
template <class D>
HWY_INLINE float sum_by_halves(D, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    return sum_by_halves(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else {
    v = hn::Add(v, hn::Shuffle1032(v));
    return hn::GetLane(hn::Add(v, hn::Shuffle2301(v)));
  }
}

// add_by_halves of lane_sum.h, of sums in registers.
HWY_INLINE float sum_of_parts(Vector (&parts)[kParts]) {
  for (int half = kParts / 2; half > 0; half /= 2) {
    for (int p = 0; p < half; ++p) parts[p] = hn::Add(parts[p], parts[p + half]);
  }
  return sum_by_halves(Floats(), parts[0]);
}

HWY_INLINE float sum_block(const float* block) {
  Vector parts[kParts];
  for (int p = 0; p < kParts; ++p) parts[p] = hn::LoadU(Floats(), block + p * kLanes);
  return sum_of_parts(parts);
}

// Four blocks one behind the other, in fewer steps than one by one.
HWY_INLINE void sum_four_blocks(const float* block, float* sums) {
  const hn::CappedTag<float, 4> d;
  const auto quarter = [&](const float* p) { return hn::LoadU(d, p); };
  const auto fours = [&](int b) {  // by halves to 4 lanes
    const float* p = block + b * kSumLanes;
    return hn::Add(hn::Add(quarter(p), quarter(p + 8)), hn::Add(quarter(p + 4), quarter(p + 12)));
  };
  const auto pair = [&](auto x, auto y) {  // [sum of x, sum of y, the same again]
    const auto twos = hn::Add(hn::InterleaveLower(d, x, y), hn::InterleaveUpper(d, x, y));
    return hn::Add(twos, hn::Shuffle1032(twos));
  };
  hn::StoreU(hn::InterleaveLower(d, pair(fours(0), fours(2)), pair(fours(1), fours(3))), d, sums);
}

// A block that begins before `begin` or ends behind `end`.
HWY_INLINE float sum_edge(const float* p, int64_t block, int64_t begin, int64_t end) {
  float lanes[kSumLanes] = {};
  const int64_t first = begin > block ? begin : block;
  const int64_t last = end < block + kSumLanes ? end : block + kSumLanes;
  for (int64_t j = first; j < last; ++j) lanes[j - block] = p[j];
  return sum_block(lanes);
}

HWY_INLINE void sum_whole_blocks(const float* p, const float* end, float* sums) {
  for (; end - p >= 4 * kSumLanes; p += 4 * kSumLanes, sums += 4) sum_four_blocks(p, sums);
  for (; p < end; p += kSumLanes) *sums++ = sum_block(p);
}

HWY_NOINLINE void sum_ragged_blocks(const float* p, int64_t begin, int64_t end, float* sums) {
  int64_t block = begin - begin % kSumLanes;
  if (block < begin) {
    *sums++ = sum_edge(p, block, begin, end);
    block += kSumLanes;
  }
  const int64_t whole = block < end ? (end - block) / kSumLanes : 0;
  sum_whole_blocks(p + block, p + block + whole * kSumLanes, sums);
  if (block + whole * kSumLanes < end) sums[whole] = sum_edge(p, block + whole * kSumLanes, begin, end);
}

// Few pieces have ragged ones.
HWY_INLINE void sum_any_blocks(const float* p, int64_t begin, int64_t end, float* sums) {
  if ((begin | end) % kSumLanes != 0) return sum_ragged_blocks(p, begin, end, sums);
  sum_whole_blocks(p + begin, p + end, sums);
}

void sum_blocks(const float* p, int64_t begin, int64_t end, float* sums) { sum_any_blocks(p, begin, end, sums); }

void softmax_partial(float* scores, int64_t begin, int64_t end, float* max, float* sum, float* block_sums) {
  const Floats d;
  const float top = largest(scores, begin, end);
  const float shift = top == -std::numeric_limits<float>::infinity() ? 0.0f : top;
  const auto shifts = hn::Set(d, shift);

  Vector sums[kParts];
  for (int p = 0; p < kParts; ++p) sums[p] = hn::Zero(d);
  int64_t block = begin - begin % kSumLanes;
  if (block < begin) {
    float lanes[kSumLanes] = {};
    exp_edge(scores, block, begin, end, shift, lanes);
    for (int p = 0; p < kParts; ++p) sums[p] = hn::LoadU(d, lanes + p * kLanes);
    block += kSumLanes;
  }
  for (; block + kSumLanes <= end; block += kSumLanes) {
    for (int p = 0; p < kParts; ++p) {
      float* at = scores + block + p * kLanes;
      const auto e = exp(d, hn::Sub(hn::LoadU(d, at), shifts));
      hn::StoreU(e, d, at);
      sums[p] = hn::Add(sums[p], e);
    }
  }
  if (block < end) {
    float lanes[kSumLanes];
    for (int p = 0; p < kParts; ++p) hn::StoreU(sums[p], d, lanes + p * kLanes);
    exp_edge(scores, block, begin, end, shift, lanes);
    for (int p = 0; p < kParts; ++p) sums[p] = hn::LoadU(d, lanes + p * kLanes);
  }
  *sum = sum_of_parts(sums);
  *max = std::isnan(*sum) ? *sum : top;
  if (block_sums) sum_any_blocks(scores, begin, end, block_sums);
}

void scale_blocks(float factor, float* blocks, int64_t n) {
  const Floats d;
  const auto factors = hn::Set(d, factor);
  int64_t b = 0;
  for (; b + kLanes <= n; b += kLanes) hn::StoreU(hn::Mul(factors, hn::LoadU(d, blocks + b)), d, blocks + b);
  for (; b < n; ++b) blocks[b] *= factor;
}

void keep_peaks(const float* blocks, int64_t n, float* peaks) {
  const Floats d;
  int64_t b = 0;
  for (; b + kLanes <= n; b += kLanes) {
    const auto block = hn::LoadU(d, blocks + b), peak = hn::LoadU(d, peaks + b);
    hn::StoreU(hn::IfThenElse(hn::Gt(block, peak), block, peak), d, peaks + b);
  }
  for (; b < n; ++b) peaks[b] = blocks[b] > peaks[b] ? blocks[b] : peaks[b];
}

HWY_INLINE void merge_blocks(const BlockShares& blocks, float keep, float add) {
  if (keep != 1) scale_blocks(keep, blocks.running, blocks.n_running);  // the part has the greatest maximum so far
  const hn::CappedTag<float, 4> d4;                                     // a part has few
  constexpr auto kStep = static_cast<int64_t>(hn::MaxLanes(d4));
  const auto adds = hn::Set(d4, add);
  float* to = blocks.running + blocks.first;
  int64_t b = 0;
  for (; b + kStep <= blocks.n; b += kStep) {
    hn::StoreU(hn::MulAdd(adds, hn::LoadU(d4, blocks.sums + b), hn::LoadU(d4, to + b)), d4, to + b);
  }
  for (; b < blocks.n; ++b) to[b] = std::fma(add, blocks.sums[b], to[b]);
}

void merge_partial(float max, float sum, const float* out, int64_t d, float* running_max, float* running_sum,
                   float* running_out, const BlockShares* blocks) {
  constexpr float kEmpty = -std::numeric_limits<float>::infinity();
  if (max == kEmpty) return;
  const bool first = *running_max == kEmpty;  // then running_out need not be initialised
  const float top = !first && *running_max > max ? *running_max : max;
  const float keep = first ? 0.0f : exp_f32(*running_max - top);
  const float add = exp_f32(max - top);
  *running_sum = first ? sum : std::fma(add, sum, keep * *running_sum);
  *running_max = top;

  const Floats df;
  const auto keeps = hn::Set(df, keep), adds = hn::Set(df, add);
  int64_t i = 0;
  for (; i + kLanes <= d; i += kLanes) {
    const auto part = hn::LoadU(df, out + i);
    hn::StoreU(first ? part : hn::MulAdd(adds, part, hn::Mul(keeps, hn::LoadU(df, running_out + i))), df,
               running_out + i);
  }
  for (; i < d; ++i) running_out[i] = first ? out[i] : std::fma(add, out[i], keep * running_out[i]);
  if (blocks) merge_blocks(*blocks, first ? 1.0f : keep, add);
}

#else
using scalar::keep_peaks;
using scalar::merge_partial;
using scalar::scale_blocks;
using scalar::softmax_partial;
using scalar::sum_blocks;
#endif
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::cpu {
QUIRE_CPU_EXPORT(keep_peaks);
QUIRE_CPU_EXPORT(merge_partial);
QUIRE_CPU_EXPORT(scale_blocks);
QUIRE_CPU_EXPORT(softmax_partial);
QUIRE_CPU_EXPORT(sum_blocks);

void softmax_partial(float* scores, int64_t begin, int64_t end, float* max, float* sum, float* block_sums) {
  QUIRE_CPU_DISPATCH(softmax_partial)(scores, begin, end, max, sum, block_sums);
}
void sum_blocks(const float* p, int64_t begin, int64_t end, float* sums) {
  QUIRE_CPU_DISPATCH(sum_blocks)(p, begin, end, sums);
}
void merge_partial(float max, float sum, const float* out, int64_t d, float* running_max, float* running_sum,
                   float* running_out, const BlockShares* blocks) {
  QUIRE_CPU_DISPATCH(merge_partial)(max, sum, out, d, running_max, running_sum, running_out, blocks);
}
void scale_blocks(float factor, float* blocks, int64_t n) { QUIRE_CPU_DISPATCH(scale_blocks)(factor, blocks, n); }
void keep_peaks(const float* blocks, int64_t n, float* peaks) { QUIRE_CPU_DISPATCH(keep_peaks)(blocks, n, peaks); }
}  // namespace quire::cpu
#endif
