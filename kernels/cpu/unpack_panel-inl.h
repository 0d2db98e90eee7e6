// What packed blocks hold of a group of 32 elements, for each of a panel's kPanel columns: codes, scales and offsets as
// QuantizedGroup (lib/support/quantization.h, which describes the formats) has them. All lanes of a vector are columns.
#if defined(QUIRE_KERNELS_CPU_UNPACK_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_KERNELS_CPU_UNPACK_PANEL_INL_H_
#undef QUIRE_KERNELS_CPU_UNPACK_PANEL_INL_H_
#else
#define QUIRE_KERNELS_CPU_UNPACK_PANEL_INL_H_
#endif

#include "kernels/cpu/simd-inl.h"
#include "lib/support/quantization.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu::HWY_NAMESPACE {
#if QUIRE_CPU_VECTORS

constexpr int kGroup = static_cast<int>(kQuantizedGroup);
constexpr int kGroupQuads = kGroup / 4;

using Ints = hn::RebindToSigned<Floats>;
using IntVector = hn::Vec<Ints>;
// A lane is a quad of a column: four bytes, those of the first element lowest.
using Quads = hn::RebindToUnsigned<Floats>;
using QuadVector = hn::Vec<Quads>;

// Each lane shifted by `bits` in [0, 32). Where that is known once the call is inlined, the instruction has it, not a
// register.
HWY_INLINE QuadVector shift_right(QuadVector q, int bits) {
  if (__builtin_constant_p(bits)) {
    switch (bits) {
      case 0:
        return q;
      case 1:
        return hn::ShiftRight<1>(q);
      case 2:
        return hn::ShiftRight<2>(q);
      case 3:
        return hn::ShiftRight<3>(q);
      case 4:
        return hn::ShiftRight<4>(q);
      case 5:
        return hn::ShiftRight<5>(q);
      case 6:
        return hn::ShiftRight<6>(q);
      case 7:
        return hn::ShiftRight<7>(q);
      case 8:
        return hn::ShiftRight<8>(q);
      case 16:
        return hn::ShiftRight<16>(q);
      case 24:
        return hn::ShiftRight<24>(q);
      default:
        break;
    }
  }
  return hn::ShiftRightSame(q, bits);
}

// A group of kColumns columns.
template <int kColumns>
struct UnpackedGroup {
  alignas(64) uint8_t codes[kGroupQuads][kColumns][4];
  alignas(64) float scales[2][kColumns];   // the second one: of types with two
  alignas(64) float offsets[2][kColumns];  // of types with offset
};

// kLanes columns of one packed block.
class BlockColumns {
 public:
  BlockColumns(const uint8_t* block, int vector) : block_(block), first_(vector * kLanes) {}

  // The bytes [b, b + 4) of the block.
  HWY_INLINE QuadVector quads(int b) const {
    return hn::LoadU(Quads(), reinterpret_cast<const uint32_t*>(block_ + b * kPanel + first_ * 4));
  }
  // The f16 at byte b.
  HWY_INLINE Vector f16(int b) const {
    const hn::Rebind<hwy::float16_t, Floats> half;
    return hn::PromoteTo(Floats(),
                         hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(block_ + b * kPanel + first_ * 2)));
  }
  // The two bytes at byte b, as a number.
  HWY_INLINE IntVector pair(int b) const {
    const hn::Rebind<uint16_t, Floats> half;
    return hn::PromoteTo(Ints(), hn::LoadU(half, reinterpret_cast<const uint16_t*>(block_ + b * kPanel + first_ * 2)));
  }
  // Byte b of the block, where its quads begin at multiples of 4.
  HWY_INLINE IntVector byte(int b) const {
    return hn::BitCast(Ints(), hn::And(shift_right(quads(b / 4 * 4), b % 4 * 8), hn::Set(Quads(), 255)));
  }
  HWY_INLINE IntVector signed_byte(int b) const {
    const auto low = shift_right(quads(b / 4 * 4), b % 4 * 8);
    return hn::ShiftRight<24>(hn::ShiftLeft<24>(hn::BitCast(Ints(), low)));
  }

 private:
  const uint8_t* block_;
  int first_;
};

HWY_INLINE Vector real(IntVector x) { return hn::ConvertTo(Floats(), x); }
HWY_INLINE IntVector low_half(IntVector byte) { return hn::And(byte, hn::Set(Ints(), 15)); }
HWY_INLINE IntVector high_half(IntVector byte) { return hn::ShiftRight<4>(byte); }

// Of each byte of a quad: its low and its high half; 16 where bit `bit` is set, else 0.
HWY_INLINE QuadVector low_nibbles(QuadVector q) { return hn::And(q, hn::Set(Quads(), 0x0f0f0f0f)); }
HWY_INLINE QuadVector high_nibbles(QuadVector q) { return low_nibbles(hn::ShiftRight<4>(q)); }
HWY_INLINE QuadVector sixteen_if(QuadVector q, int bit) {
  return hn::ShiftLeft<4>(hn::And(shift_right(q, bit), hn::Set(Quads(), 0x01010101)));
}

// 4-bit codes of 32 elements in 16 bytes, from byte `at` on: those of quad i.
HWY_INLINE QuadVector half_quad(BlockColumns block, int at, int i) {
  return i < 4 ? low_nibbles(block.quads(at + 4 * i)) : high_nibbles(block.quads(at + 4 * (i - 4)));
}

// The 6-bit numbers of group g of q4_k and q5_k: of its scale, of its offset.
HWY_INLINE IntVector scale_number(BlockColumns block, int g) {
  if (g < 4) return hn::And(block.byte(4 + g), hn::Set(Ints(), 63));
  return hn::Or(low_half(block.byte(8 + g)), hn::ShiftLeft<4>(hn::ShiftRight<6>(block.byte(g))));
}
HWY_INLINE IntVector offset_number(BlockColumns block, int g) {
  if (g < 4) return hn::And(block.byte(8 + g), hn::Set(Ints(), 63));
  return hn::Or(high_half(block.byte(8 + g)), hn::ShiftLeft<4>(hn::ShiftRight<6>(block.byte(4 + g))));
}

// The scale number of elements [16 i, 16 i + 16) of q3_k, less 32.
HWY_INLINE IntVector half_group_number(BlockColumns block, int i) {
  const auto low = i < 8 ? low_half(block.byte(96 + i)) : high_half(block.byte(96 + i - 8));
  const auto high =
      hn::And(hn::BitCast(Ints(), shift_right(block.quads(104), i % 4 * 8 + i / 4 * 2)), hn::Set(Ints(), 3));
  return hn::Sub(hn::Or(low, hn::ShiftLeft<4>(high)), hn::Set(Ints(), 32));
}

// That of group g of iq4_xs, less 32.
HWY_INLINE IntVector level_scale_number(BlockColumns block, int g) {
  const auto low = hn::And(hn::BitCast(Ints(), shift_right(block.quads(4), 4 * g)), hn::Set(Ints(), 15));
  const auto high =
      hn::And(hn::BitCast(Ints(), shift_right(hn::BitCast(Quads(), block.pair(2)), 2 * g)), hn::Set(Ints(), 3));
  return hn::Sub(hn::Or(low, hn::ShiftLeft<4>(high)), hn::Set(Ints(), 32));
}

// Of each byte of a quad, which is below 16: its level, or that plus 128.
template <bool kSigned>
HWY_INLINE QuadVector levels_of(QuadVector nibbles) {
  const hn::Repartition<int8_t, Quads> bytes;
  auto levels = hn::LoadDup128(bytes, kLevels);
  if (!kSigned) levels = hn::Xor(levels, hn::Set(bytes, -128));
  return hn::BitCast(Quads(), hn::TableLookupBytes(levels, hn::BitCast(bytes, nibbles)));
}

// Packing has put these in an order of its own (packed_block.h). Of quad i of group g: the 2-bit codes in 64 bytes,
// from byte `at` on; and 4 where the third bit, in 32 bytes at the block's begin, is set, else 0.
HWY_INLINE QuadVector two_bit_quad(BlockColumns block, int at, int g, int i) {
  return hn::And(shift_right(block.quads(at + g / 4 * 32 + i / 4 * 16 + g % 4 * 4), i % 4 * 2),
                 hn::Set(Quads(), 0x03030303));
}
HWY_INLINE QuadVector four_if_third(BlockColumns block, int g, int i) {
  const auto bits = block.quads(4 * g);
  return hn::And(i < 2 ? hn::ShiftLeftSame(bits, 2 - i) : shift_right(bits, i - 2), hn::Set(Quads(), 0x04040404));
}

// What a vector of columns has of group g of a packed block: the scale of elements [16 part, 16 part + 16) if there are
// two, likewise the offset if the type has any, and the codes of elements [4 i, 4 i + 4): if kSigned, those of 8 bits
// are less 128.

template <ElementType kType>
HWY_INLINE Vector group_scale(BlockColumns block, int g, int part) {
  if constexpr (kType == ElementType::kQ6_K) {
    return hn::Mul(block.f16(208), real(block.signed_byte(192 + 2 * g + part)));
  } else if constexpr (kType == ElementType::kQ2_K) {
    return hn::Mul(block.f16(80), real(low_half(block.byte(2 * g + part))));
  } else if constexpr (kType == ElementType::kQ3_K) {
    return hn::Mul(block.f16(108), real(half_group_number(block, 2 * g + part)));
  } else if constexpr (kType == ElementType::kIQ4_XS) {
    return hn::Mul(block.f16(0), real(level_scale_number(block, g)));
  } else if constexpr (kType == ElementType::kQ4_K || kType == ElementType::kQ5_K) {
    return hn::Mul(block.f16(0), real(scale_number(block, g)));
  } else {
    return block.f16(0);
  }
}

template <ElementType kType>
HWY_INLINE Vector group_offset(BlockColumns block, int g, int part) {
  static_assert(has_offset(kType));
  if constexpr (kType == ElementType::kQ2_K) {
    return hn::Neg(hn::Mul(block.f16(82), real(high_half(block.byte(2 * g + part)))));
  } else if constexpr (kType == ElementType::kQ4_K || kType == ElementType::kQ5_K) {
    return hn::Neg(hn::Mul(block.f16(2), real(offset_number(block, g))));
  } else {
    return block.f16(2);
  }
}

template <ElementType kType, bool kSigned = false>
HWY_INLINE QuadVector group_quad(BlockColumns block, int g, int i) {
  if constexpr (kType == ElementType::kQ8_0) {
    const auto numbers = block.quads(2 + 4 * i);
    return kSigned ? numbers : hn::Xor(numbers, hn::Set(Quads(), 0x80808080));  // plus 128
  } else if constexpr (kType == ElementType::kQ4_0) {
    return half_quad(block, 2, i);
  } else if constexpr (kType == ElementType::kIQ4_NL) {
    return levels_of<kSigned>(half_quad(block, 2, i));
  } else if constexpr (kType == ElementType::kIQ4_XS) {
    return levels_of<kSigned>(half_quad(block, 8 + 16 * g, i));
  } else if constexpr (kType == ElementType::kQ2_K) {
    return two_bit_quad(block, 16, g, i);
  } else if constexpr (kType == ElementType::kQ3_K) {
    return hn::Or(two_bit_quad(block, 32, g, i), four_if_third(block, g, i));
  } else if constexpr (kType == ElementType::kQ4_1) {
    return half_quad(block, 4, i);
  } else if constexpr (kType == ElementType::kQ5_0) {  // packing has moved the fifth bits: bit i of byte e
    return hn::Or(half_quad(block, 6, i), sixteen_if(block.quads(2), i));
  } else if constexpr (kType == ElementType::kQ5_1) {
    return hn::Or(half_quad(block, 8, i), sixteen_if(block.quads(4), i));
  } else if constexpr (kType == ElementType::kQ4_K) {
    return low_nibbles(shift_right(block.quads(16 + g / 2 * 32 + 4 * i), g % 2 * 4));
  } else if constexpr (kType == ElementType::kQ5_K) {
    const auto low = low_nibbles(shift_right(block.quads(48 + g / 2 * 32 + 4 * i), g % 2 * 4));
    return hn::Or(low, sixteen_if(block.quads(16 + 4 * i), g));
  } else {
    static_assert(kType == ElementType::kQ6_K);
    const int half = g / 4, run = g % 4;
    const auto low = low_nibbles(shift_right(block.quads(half * 64 + run % 2 * 32 + 4 * i), run / 2 * 4));
    const auto high = hn::And(shift_right(block.quads(128 + half * 32 + 4 * i), 2 * run), hn::Set(Quads(), 0x03030303));
    return hn::Or(low, hn::ShiftLeft<4>(high));
  }
}

// Group g of the packed block, all columns; kSigned as above. Inlined, for as a function of its own gcc 12 dropped the
// call for q6_k.
template <ElementType kType, bool kSigned>
HWY_INLINE void unpack_group(const uint8_t* block, int g, UnpackedGroup<kPanel>& to) {
  for (int v = 0; v < kPanelVectors; ++v) {
    const BlockColumns columns(block, v);
    for (int part = 0; part < scales_of(kType); ++part) {
      hn::StoreU(group_scale<kType>(columns, g, part), Floats(), to.scales[part] + v * kLanes);
      if constexpr (has_offset(kType)) {
        hn::StoreU(group_offset<kType>(columns, g, part), Floats(), to.offsets[part] + v * kLanes);
      }
    }
    for (int i = 0; i < kGroupQuads; ++i) {
      hn::StoreU(group_quad<kType, kSigned>(columns, g, i), Quads(),
                 reinterpret_cast<uint32_t*>(to.codes[i][v * kLanes]));
    }
  }
}

#endif  // QUIRE_CPU_VECTORS
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
