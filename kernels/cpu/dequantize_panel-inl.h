// Groups of 32 elements of each of a panel's kPanel columns, out of packed blocks, as f32: what `dequantize`
// (lib/support/quantization.h, which describes the formats) gives, bit for bit. All lanes of a vector are columns.
#if defined(QUIRE_KERNELS_CPU_DEQUANTIZE_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_KERNELS_CPU_DEQUANTIZE_PANEL_INL_H_
#undef QUIRE_KERNELS_CPU_DEQUANTIZE_PANEL_INL_H_
#else
#define QUIRE_KERNELS_CPU_DEQUANTIZE_PANEL_INL_H_
#endif

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu::HWY_NAMESPACE {
#if QUIRE_CPU_VECTORS

constexpr int kGroup = 32;
constexpr int kColumnVectors = static_cast<int>(kPanel) / kLanes;

using Ints = hn::RebindToSigned<Floats>;
using IntVector = hn::Vec<Ints>;

// kLanes columns of one packed block: byte b of all of them lies together.
class BlockColumns {
 public:
  BlockColumns(const uint8_t* block, int vector) : at_(block + vector * kLanes) {}

  HWY_INLINE IntVector bytes(int b) const { return hn::PromoteTo(Ints(), raw(b)); }
  HWY_INLINE IntVector signed_bytes(int b) const {
    const hn::Rebind<int8_t, Floats> d8;
    return hn::PromoteTo(Ints(), hn::BitCast(d8, raw(b)));
  }
  HWY_INLINE Vector f16(int b) const {
    const hn::Rebind<uint16_t, Floats> d16;
    const hn::Rebind<hwy::float16_t, Floats> half;
    const auto bits = hn::Or(hn::PromoteTo(d16, raw(b)), hn::ShiftLeft<8>(hn::PromoteTo(d16, raw(b + 1))));
    return hn::PromoteTo(Floats(), hn::BitCast(half, bits));
  }

 private:
  HWY_INLINE hn::Vec<hn::Rebind<uint8_t, Floats>> raw(int b) const {
    return hn::LoadU(hn::Rebind<uint8_t, Floats>(), at_ + b * kPanel);
  }

  const uint8_t* at_;
};

HWY_INLINE Vector real(IntVector x) { return hn::ConvertTo(Floats(), x); }
HWY_INLINE IntVector low_half(IntVector byte) { return hn::And(byte, hn::Set(Ints(), 15)); }
HWY_INLINE IntVector high_half(IntVector byte) { return hn::ShiftRight<4>(byte); }
// 16 where bit `bit` of the byte is set, else 0.
HWY_INLINE IntVector sixteen_if(IntVector byte, int bit) {
  return hn::ShiftLeft<4>(hn::And(hn::ShiftRightSame(byte, bit), hn::Set(Ints(), 1)));
}

// Element j of the group, columns of vector v.
HWY_INLINE void put(float* out, int j, int v, Vector x) { hn::StoreU(x, Floats(), out + j * kPanel + v * kLanes); }

template <ElementType kType>
HWY_INLINE void dequantize_columns(BlockColumns block, int group, int v, float* out);

template <>
HWY_INLINE void dequantize_columns<ElementType::kQ8_0>(BlockColumns block, int, int v, float* out) {
  const auto d = block.f16(0);
  for (int j = 0; j < kGroup; ++j) put(out, j, v, hn::Mul(d, real(block.signed_bytes(2 + j))));
}

template <>
HWY_INLINE void dequantize_columns<ElementType::kQ4_0>(BlockColumns block, int, int v, float* out) {
  const auto d = block.f16(0);
  const auto eight = hn::Set(Ints(), 8);
  for (int j = 0; j < 16; ++j) {
    const auto byte = block.bytes(2 + j);
    put(out, j, v, hn::Mul(d, real(hn::Sub(low_half(byte), eight))));
    put(out, j + 16, v, hn::Mul(d, real(hn::Sub(high_half(byte), eight))));
  }
}

template <>
HWY_INLINE void dequantize_columns<ElementType::kQ4_1>(BlockColumns block, int, int v, float* out) {
  const auto d = block.f16(0), m = block.f16(2);
  for (int j = 0; j < 16; ++j) {
    const auto byte = block.bytes(4 + j);
    put(out, j, v, hn::MulAdd(d, real(low_half(byte)), m));
    put(out, j + 16, v, hn::MulAdd(d, real(high_half(byte)), m));
  }
}

// Of q5_0 and q5_1: the 5-bit numbers j and j + 16; their fifth bits begin at byte `bits`, the others 4 behind.
struct Fives {
  IntVector low, high;
};
HWY_INLINE Fives fives(BlockColumns block, int bits, int j) {
  const auto byte = block.bytes(bits + 4 + j);
  return {hn::Or(low_half(byte), sixteen_if(block.bytes(bits + j / 8), j % 8)),
          hn::Or(high_half(byte), sixteen_if(block.bytes(bits + 2 + j / 8), j % 8))};
}

template <>
HWY_INLINE void dequantize_columns<ElementType::kQ5_0>(BlockColumns block, int, int v, float* out) {
  const auto d = block.f16(0);
  const auto sixteen = hn::Set(Ints(), 16);
  for (int j = 0; j < 16; ++j) {
    const Fives q = fives(block, 2, j);
    put(out, j, v, hn::Mul(d, real(hn::Sub(q.low, sixteen))));
    put(out, j + 16, v, hn::Mul(d, real(hn::Sub(q.high, sixteen))));
  }
}

template <>
HWY_INLINE void dequantize_columns<ElementType::kQ5_1>(BlockColumns block, int, int v, float* out) {
  const auto d = block.f16(0), m = block.f16(2);
  for (int j = 0; j < 16; ++j) {
    const Fives q = fives(block, 4, j);
    put(out, j, v, hn::MulAdd(d, real(q.low), m));
    put(out, j + 16, v, hn::MulAdd(d, real(q.high), m));
  }
}

// Of q4_k and q5_k.
struct GroupScale {
  Vector scale, offset;  // offset: to be added
};
HWY_INLINE GroupScale group_scale(BlockColumns block, int g) {
  const auto six = hn::Set(Ints(), 63);
  IntVector s, t;
  if (g < 4) {
    s = hn::And(block.bytes(4 + g), six);
    t = hn::And(block.bytes(8 + g), six);
  } else {
    const auto low = block.bytes(8 + g);
    s = hn::Or(low_half(low), hn::ShiftLeft<4>(hn::ShiftRight<6>(block.bytes(g))));
    t = hn::Or(high_half(low), hn::ShiftLeft<4>(hn::ShiftRight<6>(block.bytes(4 + g))));
  }
  return {hn::Mul(block.f16(0), real(s)), hn::Neg(hn::Mul(block.f16(2), real(t)))};
}

template <>
HWY_INLINE void dequantize_columns<ElementType::kQ4_K>(BlockColumns block, int g, int v, float* out) {
  const GroupScale by = group_scale(block, g);
  for (int j = 0; j < kGroup; ++j) {
    const auto byte = block.bytes(16 + g / 2 * 32 + j);
    put(out, j, v, hn::MulAdd(by.scale, real(g % 2 == 0 ? low_half(byte) : high_half(byte)), by.offset));
  }
}

template <>
HWY_INLINE void dequantize_columns<ElementType::kQ5_K>(BlockColumns block, int g, int v, float* out) {
  const GroupScale by = group_scale(block, g);
  for (int j = 0; j < kGroup; ++j) {
    const auto byte = block.bytes(48 + g / 2 * 32 + j);
    const auto q = hn::Or(g % 2 == 0 ? low_half(byte) : high_half(byte), sixteen_if(block.bytes(16 + j), g));
    put(out, j, v, hn::MulAdd(by.scale, real(q), by.offset));
  }
}

template <>
HWY_INLINE void dequantize_columns<ElementType::kQ6_K>(BlockColumns block, int g, int v, float* out) {
  const int half = g / 4, run = g % 4;
  const auto three = hn::Set(Ints(), 3), thirty_two = hn::Set(Ints(), 32);
  const auto d = block.f16(208);
  for (int part = 0; part < 2; ++part) {
    const auto scale = hn::Mul(d, real(block.signed_bytes(192 + half * 8 + run * 2 + part)));
    for (int i = 0; i < 16; ++i) {
      const int j = part * 16 + i;
      const auto byte = block.bytes(half * 64 + run % 2 * 32 + j);
      const auto high = hn::And(hn::ShiftRightSame(block.bytes(128 + half * 32 + j), 2 * run), three);
      const auto q = hn::Or(run < 2 ? low_half(byte) : high_half(byte), hn::ShiftLeft<4>(high));
      put(out, j, v, hn::Mul(scale, real(hn::Sub(q, thirty_two))));
    }
  }
}

// Group `group` of the packed block, [kGroup][kPanel].
template <ElementType kType>
void dequantize_group(const uint8_t* block, int group, float* out) {
  for (int v = 0; v < kColumnVectors; ++v) dequantize_columns<kType>(BlockColumns(block, v), group, v, out);
}

#endif  // QUIRE_CPU_VECTORS
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
