// Softmax over a span of keys, and the log-sum-exp merge of two spans.
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
  auto top = hn::Set(d, -std::numeric_limits<float>::infinity());
  int64_t j = begin;
  for (; j + kLanes <= end; j += kLanes) top = hn::Max(top, hn::LoadU(d, scores + j));
  float result = hn::GetLane(hn::MaxOfLanes(d, top));
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

void softmax_partial(float* scores, int64_t begin, int64_t end, float* max, float* sum) {
  const Floats d;
  const float top = largest(scores, begin, end);
  const float shift = top == -std::numeric_limits<float>::infinity() ? 0.0f : top;
  const auto shifts = hn::Set(d, shift);

  float partial[kSumLanes] = {};
  int64_t block = begin - begin % kSumLanes;
  if (block < begin) {
    exp_edge(scores, block, begin, end, shift, partial);
    block += kSumLanes;
  }
  Vector sums[kParts];
  for (int p = 0; p < kParts; ++p) sums[p] = hn::LoadU(d, partial + p * kLanes);
  for (; block + kSumLanes <= end; block += kSumLanes) {
    for (int p = 0; p < kParts; ++p) {
      float* at = scores + block + p * kLanes;
      const auto e = exp(d, hn::Sub(hn::LoadU(d, at), shifts));
      hn::StoreU(e, d, at);
      sums[p] = hn::Add(sums[p], e);
    }
  }
  for (int p = 0; p < kParts; ++p) hn::StoreU(sums[p], d, partial + p * kLanes);
  if (block < end) exp_edge(scores, block, begin, end, shift, partial);
  *max = top;
  *sum = add_by_halves(partial);
}

void merge_partial(float max, float sum, const float* out, int64_t d, float* running_max, float* running_sum,
                   float* running_out) {
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
}

#else
using scalar::merge_partial;
using scalar::softmax_partial;
#endif
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::cpu {
QUIRE_CPU_EXPORT(merge_partial);
QUIRE_CPU_EXPORT(softmax_partial);

void softmax_partial(float* scores, int64_t begin, int64_t end, float* max, float* sum) {
  QUIRE_CPU_DISPATCH(softmax_partial)(scores, begin, end, max, sum);
}
void merge_partial(float max, float sum, const float* out, int64_t d, float* running_max, float* running_sum,
                   float* running_out) {
  QUIRE_CPU_DISPATCH(merge_partial)(max, sum, out, d, running_max, running_sum, running_out);
}
}  // namespace quire::cpu
#endif
