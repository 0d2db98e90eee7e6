// Products of four unsigned and four signed bytes a lane, summed in 32 bits: one instruction where there is VNNI.
#if defined(QUIRE_KERNELS_CPU_BYTE_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_KERNELS_CPU_BYTE_PRODUCT_INL_H_
#undef QUIRE_KERNELS_CPU_BYTE_PRODUCT_INL_H_
#else
#define QUIRE_KERNELS_CPU_BYTE_PRODUCT_INL_H_
#endif

#include "kernels/cpu/unpack_panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu::HWY_NAMESPACE {
#if QUIRE_CPU_VECTORS

// Whether add_products subtracts 128 of each code of q8_0 itself: where pairs of products are summed in 16 bits, those
// of codes up to 255 would not fit.
template <bool kVnni>
constexpr bool kSubtracts128 = !kVnni && (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3);

// acc + the sum of w[i] * x[i], i < 4. w: codes, at most 63 unless kWide; x: bytes of [-127, 127]. The sum is exact.
// kVnni: on the target that has it.
template <bool kWide, bool kVnni>
HWY_INLINE IntVector add_products(IntVector acc, QuadVector w, QuadVector x) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (kVnni) {
    // Not the intrinsic: Highway 1.0.3 has no target that includes AVX512_VNNI, and gcc 12 would keep arrays of sums in
    // memory.
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc.raw) : "v"(w.raw), "v"(x.raw));
    return acc;
  }
  if constexpr (kWide) {  // |w - 128| times x with the sign of w - 128
    const __m512i code = _mm512_xor_si512(w.raw, _mm512_set1_epi8(-128));
    w.raw = _mm512_abs_epi8(code);
    x.raw = _mm512_mask_sub_epi8(x.raw, _mm512_movepi8_mask(code), _mm512_setzero_si512(), x.raw);
  }
  const __m512i pairs = _mm512_maddubs_epi16(w.raw, x.raw);
  acc.raw = _mm512_add_epi32(acc.raw, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  return acc;
#elif HWY_TARGET == HWY_AVX2
  if constexpr (kWide) {
    const __m256i code = _mm256_xor_si256(w.raw, _mm256_set1_epi8(-128));
    w.raw = _mm256_abs_epi8(code);
    x.raw = _mm256_sign_epi8(x.raw, code);
  }
  const __m256i pairs = _mm256_maddubs_epi16(w.raw, x.raw);
  acc.raw = _mm256_add_epi32(acc.raw, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  return acc;
#else
  const Ints d;
  for (int i = 0; i < 4; ++i) {
    const auto code = hn::BitCast(d, hn::And(hn::ShiftRightSame(w, 8 * i), hn::Set(Quads(), 255)));
    const auto value = hn::ShiftRight<24>(hn::ShiftLeftSame(hn::BitCast(d, x), 24 - 8 * i));
    acc = hn::Add(acc, hn::Mul(code, value));
  }
  return acc;
#endif
}

#endif  // QUIRE_CPU_VECTORS
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
