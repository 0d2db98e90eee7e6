// What sampling needs of a stretch of logits: whether they are finite, their greatest ones and their sum.
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/logits.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/lane_sum.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu::HWY_NAMESPACE {
#if QUIRE_CPU_VECTORS

constexpr int64_t kBlockVectors = kLogitsBlock / kLanes;

// Sums by index % kSumLanes, in f64.
struct LaneSums {
  static constexpr int kParts = kSumLanes / kLanes;
  using Doubles = hn::Repartition<double, Floats>;
  using Halves = hn::Half<Floats>;

  hn::Vec<Doubles> lower[kParts], upper[kParts];

  HWY_INLINE LaneSums() {
    for (int p = 0; p < kParts; ++p) lower[p] = upper[p] = hn::Zero(Doubles());
  }
  HWY_INLINE void add(int part, Vector x) {
    lower[part] = hn::Add(lower[part], hn::PromoteTo(Doubles(), hn::LowerHalf(Halves(), x)));
    upper[part] = hn::Add(upper[part], hn::PromoteTo(Doubles(), hn::UpperHalf(Halves(), x)));
  }
  HWY_INLINE void store(double* lanes) const {
    for (int p = 0; p < kParts; ++p) {
      hn::StoreU(lower[p], Doubles(), lanes + p * kLanes);
      hn::StoreU(upper[p], Doubles(), lanes + p * kLanes + kLanes / 2);
    }
  }
};

HWY_INLINE float max_of_block(const float* logits) {
  const Floats d;
  auto most = hn::LoadU(d, logits);
  for (int64_t v = 1; v < kBlockVectors; ++v) most = hn::Max(most, hn::LoadU(d, logits + v * kLanes));
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

LogitsPart look_at_logits(const float* logits, int64_t n, float* maxima) {
  LogitsPart part{cpu::all_finite(logits, n), -std::numeric_limits<float>::infinity(), 0};
  if (!part.finite) return part;
  const int64_t whole = n - n % kLogitsBlock;
  for (int64_t begin = 0; begin < n; begin += kLogitsBlock, ++maxima) {
    if (begin < whole) {
      *maxima = max_of_block(logits + begin);
    } else {
      *maxima = logits[begin];
      for (int64_t j = begin + 1; j < n; ++j) *maxima = logits[j] > *maxima ? logits[j] : *maxima;
    }
    part.max = *maxima > part.max ? *maxima : part.max;
  }
  const Floats d;
  const auto shift = hn::Set(d, part.max);
  LaneSums sums;
  for (int64_t j = 0; j < whole; j += kSumLanes) {
    for (int p = 0; p < LaneSums::kParts; ++p) {
      sums.add(p, exp(d, hn::Sub(hn::LoadU(d, logits + j + p * kLanes), shift)));
    }
  }
  double lanes[kSumLanes];
  sums.store(lanes);
  for (int64_t j = whole; j < n; ++j) lanes[j % kSumLanes] += exp_f32(logits[j] - part.max);
  part.sum = add_by_halves(lanes);
  return part;
}

#else
using scalar::look_at_logits;
#endif
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::cpu {
QUIRE_CPU_EXPORT(look_at_logits);

LogitsPart look_at_logits(const float* logits, int64_t n, float* maxima) {
  return QUIRE_CPU_DISPATCH(look_at_logits)(logits, n, maxima);
}
}  // namespace quire::cpu
#endif
