// Sums of products of unsigned codes and signed bytes, four a lane. With VNNI, and with SDOT of aarch64, one
// instruction adds four products to a 32-bit sum; without, pairs of products are summed in 16 bits, as many as fit, and
// then widened.
#if defined(QUIRE_KERNELS_CPU_BYTE_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_KERNELS_CPU_BYTE_PRODUCT_INL_H_
#undef QUIRE_KERNELS_CPU_BYTE_PRODUCT_INL_H_
#else
#define QUIRE_KERNELS_CPU_BYTE_PRODUCT_INL_H_
#endif

#include <algorithm>

#include "kernels/cpu/unpack_panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu::HWY_NAMESPACE {
#if QUIRE_CPU_VECTORS

constexpr bool kNeon = HWY_TARGET == HWY_NEON;

// Whether codes of 8 bits have to be less 128: pairs of products of codes up to 255 would not fit in 16 bits, and NEON
// multiplies signed bytes. kDot: by instructions for dot products of bytes.
template <bool kDot>
constexpr bool kSubtracts128 = !kDot || kNeon;

// Quads whose products fit in 16 bits together: two of at most (2^bits - 1) * 127 each, or 128 * 127.
constexpr int quads_in_16_bits(int bits) { return bits <= 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1; }
static_assert(8 * 2 * 15 * 127 <= INT16_MAX && 4 * 2 * 31 * 127 <= INT16_MAX && 2 * 2 * 63 * 127 <= INT16_MAX &&
              2 * 128 * 127 <= INT16_MAX);

// The sum of the products of kQuads quads, for codes of kBits bits (if kSubtracts128, less 128) and bytes of
// [-127, 127]: exact.
template <int kBits, int kQuads, bool kDot>
class ProductSum {
 public:
  HWY_INLINE ProductSum() {}  // one that the compiler makes is not of the target: gcc refuses it with NEON
  HWY_INLINE void begin(IntVector start) { sum_ = start; }

  // Quad i, from 0 on.
  HWY_INLINE void add(int i, QuadVector w, QuadVector x) {
    if constexpr (kDot) {
#if HWY_TARGET == HWY_AVX3
      // Not the intrinsic: Highway 1.0.3 has no target that includes AVX512_VNNI, and gcc 12 would keep arrays of sums
      // in memory.
      __asm__("vpdpbusd %2, %1, %0" : "+v"(sum_.raw) : "v"(w.raw), "v"(x.raw));
#elif HWY_TARGET == HWY_NEON
      // Not the intrinsic: the file is compiled for what every aarch64 has.
      __asm__(".arch armv8.2-a+crypto+dotprod\n\tsdot %0.4s, %1.16b, %2.16b" : "+w"(sum_.raw) : "w"(w.raw), "w"(x.raw));
#endif
    } else if constexpr (kNeon) {
      sum_ = products_added(sum_, w, x);
    } else {
      constexpr int kTogether = std::min(quads_in_16_bits(kBits), kQuads);
      static_assert(kQuads % kTogether == 0);
      const auto pairs = products_in_pairs(w, x);
      pairs_ = i % kTogether == 0 ? pairs : hn::Add(pairs_, pairs);
      if (i % kTogether == kTogether - 1) sum_ = hn::Add(sum_, sums_of_pairs(pairs_));
    }
  }

  HWY_INLINE IntVector sum() const { return sum_; }

 private:
  using Pairs = hn::Vec<hn::Repartition<int16_t, Floats>>;

#if HWY_TARGET == HWY_AVX3
  static HWY_INLINE Pairs products_in_pairs(QuadVector w, QuadVector x) {
    if constexpr (kBits == 8) {  // |w| times x with the sign of w
      x.raw = _mm512_mask_sub_epi8(x.raw, _mm512_movepi8_mask(w.raw), _mm512_setzero_si512(), x.raw);
      w.raw = _mm512_abs_epi8(w.raw);
    }
    return Pairs{_mm512_maddubs_epi16(w.raw, x.raw)};
  }
  static HWY_INLINE IntVector sums_of_pairs(Pairs pairs) {
    return IntVector{_mm512_madd_epi16(pairs.raw, _mm512_set1_epi16(1))};
  }
#elif HWY_TARGET == HWY_AVX2
  static HWY_INLINE Pairs products_in_pairs(QuadVector w, QuadVector x) {
    if constexpr (kBits == 8) {
      x.raw = _mm256_sign_epi8(x.raw, w.raw);
      w.raw = _mm256_abs_epi8(w.raw);
    }
    return Pairs{_mm256_maddubs_epi16(w.raw, x.raw)};
  }
  static HWY_INLINE IntVector sums_of_pairs(Pairs pairs) {
    return IntVector{_mm256_madd_epi16(pairs.raw, _mm256_set1_epi16(1))};
  }
#else
  static HWY_INLINE Pairs products_in_pairs(QuadVector, QuadVector);
  static HWY_INLINE IntVector sums_of_pairs(Pairs);
#endif
#if HWY_TARGET == HWY_NEON
  // More than one quad together would want registers that tiles do not have.
  static HWY_INLINE IntVector products_added(IntVector sum, QuadVector w, QuadVector x) {
    const int8x16_t codes = vreinterpretq_s8_u32(w.raw), values = vreinterpretq_s8_u32(x.raw);
    const int16x8_t low = vmull_s8(vget_low_s8(codes), vget_low_s8(values)), high = vmull_high_s8(codes, values);
    return IntVector{vpadalq_s16(sum.raw, vpaddq_s16(low, high))};
  }
#else
  static HWY_INLINE IntVector products_added(IntVector, QuadVector, QuadVector);
#endif

  IntVector sum_;
  Pairs pairs_;
};

#endif  // QUIRE_CPU_VECTORS
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
