// Sums of products of pairs of integers, 16 bits each: the integers of kInt8, widened, with rows of 16 bits. Exact in
// the 32 bits of a lane, as far as kernels.h says. Compiled once per target.
#if defined(QUIRE_KERNELS_CPU_PAIR_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_KERNELS_CPU_PAIR_PRODUCT_INL_H_
#undef QUIRE_KERNELS_CPU_PAIR_PRODUCT_INL_H_
#else
#define QUIRE_KERNELS_CPU_PAIR_PRODUCT_INL_H_
#endif

#include <cstring>

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu::HWY_NAMESPACE {
#if QUIRE_CPU_VECTORS

using Sums = hn::RebindToSigned<Floats>;  // of 32 bits, one a lane
using SumVector = hn::Vec<Sums>;
using Shorts = hn::Repartition<int16_t, Floats>;  // a pair a lane of Sums
using ShortVector = hn::Vec<Shorts>;

// kLanes pairs of bytes, widened. NEON: the first ones of the pairs, then the second ones.
HWY_INLINE ShortVector load_pairs(const int8_t* pairs) {
  const ShortVector wide = hn::PromoteTo(Shorts(), hn::LoadU(hn::Rebind<int8_t, Shorts>(), pairs));
#if HWY_TARGET == HWY_NEON
  const int16x8_t firsts = vuzp1q_s16(wide.raw, wide.raw), seconds = vuzp2q_s16(wide.raw, wide.raw);
  return ShortVector{vcombine_s16(vget_low_s16(firsts), vget_low_s16(seconds))};
#else
  return wide;
#endif
}

// A pair for all lanes, which products_added() multiplies with.
HWY_INLINE SumVector broadcast_pair(const int16_t* pair) {
  int32_t both;
  std::memcpy(&both, pair, sizeof both);
  return hn::Set(Sums(), both);
}

// sum + the products of each lane's pair of `a` with the pair `b`.
template <bool kVnni>
HWY_INLINE SumVector products_added(SumVector sum, ShortVector a, SumVector b) {
  if constexpr (kVnni) {
#if HWY_TARGET == HWY_AVX3
    // Not the intrinsic: see byte_product-inl.h.
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
#endif
    return sum;
  }
#if HWY_TARGET == HWY_AVX3
  return SumVector{_mm512_add_epi32(sum.raw, _mm512_madd_epi16(a.raw, b.raw))};
#elif HWY_TARGET == HWY_AVX2
  return SumVector{_mm256_add_epi32(sum.raw, _mm256_madd_epi16(a.raw, b.raw))};
#else
  const int16x4_t pair = vget_low_s16(vreinterpretq_s16_s32(b.raw));
  sum.raw = vmlal_lane_s16(sum.raw, vget_low_s16(a.raw), pair, 0);
  return SumVector{vmlal_lane_s16(sum.raw, vget_high_s16(a.raw), pair, 1)};
#endif
}

#endif  // QUIRE_CPU_VECTORS
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
