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

// A group of kColumns columns.
template <int kColumns>
struct UnpackedGroup {
  alignas(64) uint8_t codes[kGroupQuads][kColumns][4];
  alignas(64) float scales[2][kColumns];  // the second one: of types with two
  alignas(64) float offsets[kColumns];    // of types with offset
};

// Scales of a group.
constexpr int scales_of(ElementType type) { return type == ElementType::kQ6_K ? 2 : 1; }

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
  // Byte b of the block, where its quads begin at multiples of 4.
  HWY_INLINE IntVector byte(int b) const {
    return hn::BitCast(Ints(), hn::And(hn::ShiftRightSame(quads(b / 4 * 4), b % 4 * 8), hn::Set(Quads(), 255)));
  }
  HWY_INLINE IntVector signed_byte(int b) const {
    return hn::ShiftRight<24>(hn::ShiftLeftSame(hn::BitCast(Ints(), quads(b / 4 * 4)), 24 - b % 4 * 8));
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
  return hn::ShiftLeft<4>(hn::And(hn::ShiftRightSame(q, bit), hn::Set(Quads(), 0x01010101)));
}

// Writes what a vector of columns has of a group.
template <int kColumns>
class Unpacked {
 public:
  Unpacked(UnpackedGroup<kColumns>& group, int vector) : group_(group), first_(vector * kLanes) {}

  HWY_INLINE void quad(int i, QuadVector codes) const {
    hn::StoreU(codes, Quads(), reinterpret_cast<uint32_t*>(group_.codes[i][first_]));
  }
  HWY_INLINE void scale(Vector x, int part = 0) const { hn::StoreU(x, Floats(), group_.scales[part] + first_); }
  HWY_INLINE void offset(Vector x) const { hn::StoreU(x, Floats(), group_.offsets + first_); }

 private:
  UnpackedGroup<kColumns>& group_;
  int first_;
};

// 4-bit codes of 32 elements in 16 bytes, from byte `at` on.
template <class To>
HWY_INLINE void unpack_halves(BlockColumns block, int at, To& to) {
  QuadVector q[4];
  for (int i = 0; i < 4; ++i) to.quad(i, low_nibbles(q[i] = block.quads(at + 4 * i)));
  for (int i = 0; i < 4; ++i) to.quad(i + 4, high_nibbles(q[i]));
}

// The same and their fifth bits, which packing has moved: bit i of byte e is of element 4 i + e.
template <class To>
HWY_INLINE void unpack_fives(BlockColumns block, int fifth, int at, To& to) {
  const auto h = block.quads(fifth);
  QuadVector q[4];
  for (int i = 0; i < 4; ++i) to.quad(i, hn::Or(low_nibbles(q[i] = block.quads(at + 4 * i)), sixteen_if(h, i)));
  for (int i = 0; i < 4; ++i) to.quad(i + 4, hn::Or(high_nibbles(q[i]), sixteen_if(h, i + 4)));
}

// Scale and offset of q4_k and q5_k.
template <class To>
HWY_INLINE void unpack_group_scale(BlockColumns block, int g, To& to) {
  const auto six = hn::Set(Ints(), 63);
  IntVector s, t;
  if (g < 4) {
    s = hn::And(block.byte(4 + g), six);
    t = hn::And(block.byte(8 + g), six);
  } else {
    const auto low = block.byte(8 + g);
    s = hn::Or(low_half(low), hn::ShiftLeft<4>(hn::ShiftRight<6>(block.byte(g))));
    t = hn::Or(high_half(low), hn::ShiftLeft<4>(hn::ShiftRight<6>(block.byte(4 + g))));
  }
  to.scale(hn::Mul(block.f16(0), real(s)));
  to.offset(hn::Neg(hn::Mul(block.f16(2), real(t))));
}

// Group g of the packed block, columns of one vector. To: as Unpacked; scales and offsets
// come before codes, and those in ascending order.
template <ElementType kType, class To>
HWY_INLINE void unpack_columns(BlockColumns block, int g, To& to) {
  if constexpr (kType == ElementType::kQ8_0) {
    to.scale(block.f16(0));
    for (int i = 0; i < kGroupQuads; ++i) {
      to.quad(i, hn::Xor(block.quads(2 + 4 * i), hn::Set(Quads(), 0x80808080)));  // plus 128
    }
  } else if constexpr (kType == ElementType::kQ4_0) {
    to.scale(block.f16(0));
    unpack_halves(block, 2, to);
  } else if constexpr (kType == ElementType::kQ4_1) {
    to.scale(block.f16(0));
    to.offset(block.f16(2));
    unpack_halves(block, 4, to);
  } else if constexpr (kType == ElementType::kQ5_0) {
    to.scale(block.f16(0));
    unpack_fives(block, 2, 6, to);
  } else if constexpr (kType == ElementType::kQ5_1) {
    to.scale(block.f16(0));
    to.offset(block.f16(2));
    unpack_fives(block, 4, 8, to);
  } else if constexpr (kType == ElementType::kQ4_K) {
    unpack_group_scale(block, g, to);
    for (int i = 0; i < kGroupQuads; ++i) {
      const auto q = block.quads(16 + g / 2 * 32 + 4 * i);
      to.quad(i, g % 2 == 0 ? low_nibbles(q) : high_nibbles(q));
    }
  } else if constexpr (kType == ElementType::kQ5_K) {
    unpack_group_scale(block, g, to);
    for (int i = 0; i < kGroupQuads; ++i) {
      const auto q = block.quads(48 + g / 2 * 32 + 4 * i);
      to.quad(i, hn::Or(g % 2 == 0 ? low_nibbles(q) : high_nibbles(q), sixteen_if(block.quads(16 + 4 * i), g)));
    }
  } else {
    static_assert(kType == ElementType::kQ6_K);
    const int half = g / 4, run = g % 4;
    for (int part = 0; part < 2; ++part) {
      to.scale(hn::Mul(block.f16(208), real(block.signed_byte(192 + 2 * g + part))), part);
    }
    for (int i = 0; i < kGroupQuads; ++i) {
      const auto q = block.quads(half * 64 + run % 2 * 32 + 4 * i);
      const auto high =
          hn::And(hn::ShiftRightSame(block.quads(128 + half * 32 + 4 * i), 2 * run), hn::Set(Quads(), 0x03030303));
      to.quad(i, hn::Or(run < 2 ? low_nibbles(q) : high_nibbles(q), hn::ShiftLeft<4>(high)));
    }
  }
}

// Group g of the packed block, all columns.
template <ElementType kType>
void unpack_group(const uint8_t* block, int g, UnpackedGroup<kPanel>& to) {
  for (int v = 0; v < kPanelVectors; ++v) {
    Unpacked columns(to, v);
    unpack_columns<kType>(BlockColumns(block, v), g, columns);
  }
}

#endif  // QUIRE_CPU_VECTORS
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
