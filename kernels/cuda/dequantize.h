// Quantised weights of rows that lie on a device (weights.h). A thread takes a unit at a time: 16 bytes of codes and
// what belongs to them.
//
// A unit has kVectors runs of 16 neighbouring elements, which are called vectors here; the elements of a vector share a
// scale. A weight is scale * (code - kZero), or scale * code + offset where kHasOffset: what `dequantize`
// (lib/support/quantization.h, which describes the formats) gives, bit for bit. A unit is large where it, or its use,
// takes many registers.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/weights.h"
#include "lib/support/quantization.h"

namespace quire::cuda {

constexpr int kVector = 16;

// f16 at an even address.
__device__ __forceinline__ float f16_at(const uint8_t* p) {
  return __half2float(__ushort_as_half(*reinterpret_cast<const unsigned short*>(p)));
}

// A tile is the units of kWarpSize lanes: a whole number of blocks of every type.
template <ElementType kType>
constexpr int kUnitsOfBlock = kType == ElementType::kQ8_0                                  ? 2
                              : kType == ElementType::kQ2_K || kType == ElementType::kQ3_K ? 4
                              : block_format(kType).elements == 256                        ? 8
                                                                                           : 1;

// Part p of block b of a row, which is less than 2 GiB; or of the block that is `tiles` tiles behind it. Where that
// number is a constant the address costs nothing beside that of block b.
template <ElementType kType, int p>
__device__ __forceinline__ const uint8_t* part_at(const uint8_t* row, int n_blocks, int b, int tiles) {
  constexpr int kBefore = parts_of(kType).before(p), kBytes = parts_of(kType).part[p].bytes;
  return row + (n_blocks * kBefore + b * kBytes) + tiles * (kWarpSize / kUnitsOfBlock<kType> * kBytes);
}

// Byte k of a word, less `zero`, as a float; exact. The byte becomes the last one of 2^23's mantissa, which costs less
// than a conversion.
__device__ __forceinline__ float byte_of(unsigned word, int k, float zero) {
  constexpr float kTwoTo23 = 8388608.0f;
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440u | static_cast<unsigned>(k))) - (kTwoTo23 + zero);
}

constexpr unsigned kLowNibbles = 0x0f0f0f0fu, kLowBits = 0x01010101u, kLowPairs = 0x03030303u;

// Bit k of four becomes bit 4 of byte k.
__device__ __forceinline__ unsigned spread_bits(unsigned four) { return (four * 0x00204081u & kLowBits) << 4; }

// The levels of four elements: those of the low halves of four bytes (v = 0), or of the high ones (v = 1).
__device__ __forceinline__ unsigned levels_of(unsigned bytes, int v) {
  constexpr auto kFour = [](int i) {
    unsigned word = 0;
    for (int j = 0; j < 4; ++j) word |= static_cast<unsigned>(kLevels[i + j] & 255) << 8 * j;
    return word;
  };
  constexpr unsigned k0 = kFour(0), k4 = kFour(4), k8 = kFour(8), k12 = kFour(12);
  // Of four halves that follow each other. Three bits of each choose among the first and among the last eight levels,
  // the fourth bit one of these two.
  const auto of_halves = [](unsigned halves) {
    const unsigned low = __byte_perm(k0, k4, halves & 0x7777u), high = __byte_perm(k8, k12, halves & 0x7777u);
    return __byte_perm(low, high, 0x3210u | (halves & 0x8888u) >> 1);
  };
  return __byte_perm(of_halves(bytes & 0xffffu), of_halves(bytes >> 16), v == 0 ? 0x6420u : 0x7531u);
}

struct VectorScale {
  float scale, offset;
};

// Of each type:
//   load          reads unit `unit` of a row, or the one that is `tiles` tiles behind it.
//   element       the first element of vector v of a unit, in the row.
//   group_unit,   the unit that has 16 elements, the first or the second ones (side), of a group of 32 of the row,
//   group_vector  and which of its vectors they are.
//   words         the codes of a vector, four a word.
//   scale_of      its scale, and its offset where the type has one.
template <ElementType kType>
struct Codes;

template <>
struct Codes<ElementType::kQ8_0> {
  static constexpr int kVectors = 1, kZero = 0;
  static constexpr bool kHasOffset = false, kIsSigned = true, kIsLarge = false;
  alignas(16) unsigned codes[4];
  float d;

  __device__ __forceinline__ static int element(int unit, int) { return unit * kVector; }
  __device__ __forceinline__ static int group_unit(int group, int side) { return 2 * group + side; }
  __device__ __forceinline__ static int group_vector(int, int) { return 0; }

  __device__ __forceinline__ void load(const uint8_t* row, int n_blocks, int unit, int tiles) {
    load_16(codes, part_at<ElementType::kQ8_0, 0>(row, n_blocks, unit / 2, tiles) + unit % 2 * 16);
    d = f16_at(part_at<ElementType::kQ8_0, 1>(row, n_blocks, unit / 2, tiles));
  }
  __device__ __forceinline__ void words(int, unsigned (&to)[4]) const {
    QUIRE_UNROLL for (int i = 0; i < 4; ++i) to[i] = codes[i];
  }
  __device__ __forceinline__ VectorScale scale_of(int) const { return {d, 0}; }
};

// q4_0, q4_1, q5_0, q5_1, iq4_nl: a unit is the codes of a block. A byte has an element's code and that of the 16th
// behind it; the fifth bits are apart.
template <ElementType kType>
struct NibbleCodes {
  static constexpr bool kFive = kType == ElementType::kQ5_0 || kType == ElementType::kQ5_1;
  static constexpr bool kHasOffset = kType == ElementType::kQ4_1 || kType == ElementType::kQ5_1;
  static constexpr bool kIsSigned = has_levels(kType), kIsLarge = kFive || kIsSigned;
  static constexpr int kVectors = 2, kZero = kHasOffset || kIsSigned ? 0 : kFive ? 16 : 8, kScalePart = kFive ? 2 : 1;
  alignas(16) unsigned codes[4];
  unsigned high, scales;

  __device__ __forceinline__ static int element(int unit, int v) { return unit * 32 + v * kVector; }
  __device__ __forceinline__ static int group_unit(int group, int) { return group; }
  __device__ __forceinline__ static int group_vector(int, int side) { return side; }

  __device__ __forceinline__ void load(const uint8_t* row, int n_blocks, int unit, int tiles) {
    load_16(codes, part_at<kType, 0>(row, n_blocks, unit, tiles));
    if constexpr (kFive) high = load_4(part_at<kType, 1>(row, n_blocks, unit, tiles));
    const uint8_t* const at = part_at<kType, kScalePart>(row, n_blocks, unit, tiles);
    if constexpr (kHasOffset) {
      scales = load_4(at);
    } else {
      scales = *reinterpret_cast<const unsigned short*>(at);
    }
  }
  __device__ __forceinline__ void words(int v, unsigned (&to)[4]) const {
    QUIRE_UNROLL for (int i = 0; i < 4; ++i) {
      to[i] = kIsSigned ? levels_of(codes[i], v) : codes[i] >> 4 * v & kLowNibbles;
      if constexpr (kFive) to[i] |= spread_bits(high >> (16 * v + 4 * i) & 15);
    }
  }
  __device__ __forceinline__ VectorScale scale_of(int) const {
    return {low_of(scales, f16()), kHasOffset ? high_of(scales, f16()) : 0.0f};
  }
};
template <>
struct Codes<ElementType::kQ4_0> : NibbleCodes<ElementType::kQ4_0> {};
template <>
struct Codes<ElementType::kQ4_1> : NibbleCodes<ElementType::kQ4_1> {};
template <>
struct Codes<ElementType::kQ5_0> : NibbleCodes<ElementType::kQ5_0> {};
template <>
struct Codes<ElementType::kQ5_1> : NibbleCodes<ElementType::kQ5_1> {};
template <>
struct Codes<ElementType::kIQ4_NL> : NibbleCodes<ElementType::kIQ4_NL> {};

// A unit is a group, which has 6 bits of scale: the high two of all groups together, then the low four.
template <>
struct Codes<ElementType::kIQ4_XS> {
  static constexpr int kVectors = 2, kZero = 0;
  static constexpr bool kHasOffset = false, kIsSigned = true, kIsLarge = true;
  alignas(16) unsigned codes[4];
  float scale;

  __device__ __forceinline__ static int element(int unit, int v) { return unit * 32 + v * kVector; }
  __device__ __forceinline__ static int group_unit(int group, int) { return group; }
  __device__ __forceinline__ static int group_vector(int, int side) { return side; }

  __device__ __forceinline__ void load(const uint8_t* row, int n_blocks, int unit, int tiles) {
    const int own = unit % 8;
    load_16(codes, part_at<ElementType::kIQ4_XS, 0>(row, n_blocks, unit / 8, tiles) + own * 16);
    const uint8_t* const scales = part_at<ElementType::kIQ4_XS, 1>(row, n_blocks, unit / 8, tiles);
    const unsigned first = load_4(scales), low = load_4(scales + 4) >> 4 * own & 15, high = first >> (16 + 2 * own) & 3;
    scale = low_of(first, f16()) * static_cast<float>(static_cast<int>(low | high << 4) - 32);
  }
  __device__ __forceinline__ void words(int v, unsigned (&to)[4]) const {
    QUIRE_UNROLL for (int i = 0; i < 4; ++i) to[i] = levels_of(codes[i], v);
  }
  __device__ __forceinline__ VectorScale scale_of(int) const { return {scale, 0}; }
};

// q4_k, q5_k: eight units a block, two for each pair of groups that follow each other. A byte has codes of both groups;
// the fifth bits are apart: bit g of a byte is of group g. A block begins with two factors in f16, and 6 bits of each
// group for both; of the last four groups the two high bits stand above the bits of the first four.
template <ElementType kType>
struct GroupCodes {
  static constexpr bool kFive = kType == ElementType::kQ5_K, kHasOffset = true, kIsSigned = false, kIsLarge = true;
  static constexpr int kVectors = 2, kZero = 0;
  alignas(16) unsigned codes[4];
  alignas(16) unsigned high[4];
  alignas(16) unsigned header[4];
  int group;  // of vector 0, in the block

  __device__ __forceinline__ static int element(int unit, int v) { return unit / 2 * 64 + v * 32 + unit % 2 * kVector; }
  __device__ __forceinline__ static int group_unit(int group, int side) { return group / 2 * 2 + side; }
  __device__ __forceinline__ static int group_vector(int group, int) { return group % 2; }

  __device__ __forceinline__ void load(const uint8_t* row, int n_blocks, int unit, int tiles) {
    const uint8_t* const block = part_at<kType, 0>(row, n_blocks, unit / 8, tiles);
    const int own = unit % 8;
    group = own / 2 * 2;
    load_16(header, block);
    if constexpr (kFive) load_16(high, block + 16 + own % 2 * 16);
    load_16(codes, block + (kFive ? 48 : 16) + own * 16);
  }
  __device__ __forceinline__ void words(int v, unsigned (&to)[4]) const {
    QUIRE_UNROLL for (int i = 0; i < 4; ++i) {
      to[i] = codes[i] >> 4 * v & kLowNibbles;
      if constexpr (kFive) to[i] |= (high[i] >> (group + v) & kLowBits) << 4;
    }
  }
  __device__ __forceinline__ VectorScale scale_of(int v) const {
    const int g = group + v, by = g % 4 * 8;
    const unsigned first = header[1] >> by & 255, second = header[2] >> by & 255, third = header[3] >> by & 255;
    const unsigned s = g < 4 ? first & 63 : (third & 15) | first >> 6 << 4;
    const unsigned t = g < 4 ? second & 63 : third >> 4 | second >> 6 << 4;
    return {low_of(header[0], f16()) * static_cast<float>(s), -(high_of(header[0], f16()) * static_cast<float>(t))};
  }
};
template <>
struct Codes<ElementType::kQ4_K> : GroupCodes<ElementType::kQ4_K> {};
template <>
struct Codes<ElementType::kQ5_K> : GroupCodes<ElementType::kQ5_K> {};

// Eight units a block, four for each half of it: of 32 bytes of codes the first or the second 16, then those of the
// next 32 bytes. A byte has codes of two elements, 64 apart, and one of the high bits those of four, 32 apart.
template <>
struct Codes<ElementType::kQ6_K> {
  static constexpr int kVectors = 2, kZero = 32;
  static constexpr bool kHasOffset = false, kIsSigned = false, kIsLarge = true;
  alignas(16) unsigned codes[4];
  alignas(16) unsigned high[4];
  float d;
  int8_t scales[2];
  int run;  // of vector 0, among four of a half

  __device__ __forceinline__ static int element(int unit, int v) {
    return unit / 4 * 128 + v * 64 + unit / 2 % 2 * 32 + unit % 2 * kVector;
  }
  __device__ __forceinline__ static int group_unit(int group, int side) { return group / 4 * 4 + group % 2 * 2 + side; }
  __device__ __forceinline__ static int group_vector(int group, int) { return group / 2 % 2; }

  __device__ __forceinline__ void load(const uint8_t* row, int n_blocks, int unit, int tiles) {
    const uint8_t* const block = part_at<ElementType::kQ6_K, 0>(row, n_blocks, unit / 8, tiles);
    const int own = unit % 8, half = own / 4, side = own % 2;
    run = own / 2 % 2;
    load_16(codes, block + own * 16);
    load_16(high, block + 128 + half * 32 + side * 16);
    QUIRE_UNROLL for (int v = 0; v < 2; ++v) {
      scales[v] = static_cast<int8_t>(block[192 + half * 8 + (run + 2 * v) * 2 + side]);
    }
    d = f16_at(part_at<ElementType::kQ6_K, 1>(row, n_blocks, unit / 8, tiles));
  }
  __device__ __forceinline__ void words(int v, unsigned (&to)[4]) const {
    QUIRE_UNROLL for (int i = 0; i < 4; ++i) {
      to[i] = (codes[i] >> 4 * v & kLowNibbles) | (high[i] >> 2 * (run + 2 * v) & kLowPairs) << 4;
    }
  }
  // v may be known at run time alone, and registers have no index.
  __device__ __forceinline__ VectorScale scale_of(int v) const {
    return {d * static_cast<float>(v == 0 ? scales[0] : scales[1]), 0};
  }
};

// q2_k, q3_k: four units a block, two for each half of it, of whose 32 bytes these are the first and the second 16. A
// byte has two bits of four elements, 32 apart.
struct TwoBitUnits {
  static constexpr int kVectors = 4;
  static constexpr bool kIsSigned = false, kIsLarge = true;
  __device__ __forceinline__ static int element(int unit, int v) {
    return unit / 2 * 128 + v * 32 + unit % 2 * kVector;
  }
  __device__ __forceinline__ static int group_unit(int group, int side) { return group / 4 * 2 + side; }
  __device__ __forceinline__ static int group_vector(int group, int) { return group % 4; }
  // Of eight bytes, those of the unit's vectors.
  __device__ __forceinline__ static unsigned own_bytes(unsigned first, unsigned second, int side) {
    return __byte_perm(first, second, side == 0 ? 0x6420u : 0x7531u);
  }
};

template <>
struct Codes<ElementType::kQ2_K> : TwoBitUnits {
  static constexpr int kZero = 0;
  static constexpr bool kHasOffset = true;
  alignas(16) unsigned codes[4];
  unsigned scales;   // byte v: of vector v, and its offset in the high half
  unsigned factors;  // of scales, of offsets

  __device__ __forceinline__ void load(const uint8_t* row, int n_blocks, int unit, int tiles) {
    const int half = unit % 4 / 2, side = unit % 2;
    load_16(codes, part_at<ElementType::kQ2_K, 0>(row, n_blocks, unit / 4, tiles) + half * 32 + side * 16);
    const uint2 of_half = load_8(part_at<ElementType::kQ2_K, 1>(row, n_blocks, unit / 4, tiles) + half * 8);
    scales = own_bytes(of_half.x, of_half.y, side);
    factors = load_4(part_at<ElementType::kQ2_K, 2>(row, n_blocks, unit / 4, tiles));
  }
  __device__ __forceinline__ void words(int v, unsigned (&to)[4]) const {
    QUIRE_UNROLL for (int i = 0; i < 4; ++i) to[i] = codes[i] >> 2 * v & kLowPairs;
  }
  __device__ __forceinline__ VectorScale scale_of(int v) const {
    const unsigned both = scales >> 8 * v;
    return {low_of(factors, f16()) * static_cast<float>(both & 15),
            -(high_of(factors, f16()) * static_cast<float>(both >> 4 & 15))};
  }
};

// The third bits are in 32 bytes for both halves: those of the first one in the low halves of the bytes.
template <>
struct Codes<ElementType::kQ3_K> : TwoBitUnits {
  static constexpr int kZero = 4;
  static constexpr bool kHasOffset = false;
  alignas(16) unsigned codes[4];
  alignas(16) unsigned high[4];
  unsigned scales;  // byte v: of vector v, plus 32
  float d;

  __device__ __forceinline__ void load(const uint8_t* row, int n_blocks, int unit, int tiles) {
    const int half = unit % 4 / 2, side = unit % 2;
    const uint8_t* const block = part_at<ElementType::kQ3_K, 0>(row, n_blocks, unit / 4, tiles);
    load_16(high, block + side * 16);
    load_16(codes, block + 32 + half * 32 + side * 16);
    QUIRE_UNROLL for (int i = 0; i < 4; ++i) high[i] >>= 4 * half;
    // Four bits of scale 8 half + 2 v + side are half of byte 2 v + side, two are a quarter of byte (2 v + side) % 4 of
    // the last word.
    const uint8_t* const at = part_at<ElementType::kQ3_K, 1>(row, n_blocks, unit / 4, tiles);
    const unsigned last = load_4(at + 8) >> 4 * half;
    scales = (own_bytes(load_4(at), load_4(at + 4), side) >> 4 * half & kLowNibbles) |
             (own_bytes(last, last >> 2, side) & kLowPairs) << 4;
    d = f16_at(part_at<ElementType::kQ3_K, 2>(row, n_blocks, unit / 4, tiles));
  }
  __device__ __forceinline__ void words(int v, unsigned (&to)[4]) const {
    QUIRE_UNROLL for (int i = 0; i < 4; ++i) {
      to[i] = (codes[i] >> 2 * v & kLowPairs) | (high[i] >> v & kLowBits) << 2;
    }
  }
  __device__ __forceinline__ VectorScale scale_of(int v) const {
    return {d * static_cast<float>(static_cast<int>(scales >> 8 * v & 255) - 32), 0};
  }
};

// The weights of a vector.
template <ElementType kType>
__device__ __forceinline__ void dequantize_vector(const Codes<kType>& unit, int v, float (&weights)[kVector]) {
  unsigned words[4];
  unit.words(v, words);
  const VectorScale by = unit.scale_of(v);
  QUIRE_UNROLL for (int j = 0; j < kVector; ++j) {
    if constexpr (Codes<kType>::kHasOffset) {
      weights[j] = fmaf(by.scale, byte_of(words[j / 4], j % 4, 0), by.offset);
    } else if constexpr (Codes<kType>::kIsSigned) {
      weights[j] = by.scale * byte_of(words[j / 4] ^ 0x80808080u, j % 4, 128);  // from -128..127 to 0..255
    } else {
      weights[j] = by.scale * byte_of(words[j / 4], j % 4, Codes<kType>::kZero);
    }
  }
}

// Calls use(j, element j of group g of a row) for j in [0, 32). A thread reads a group of its own.
constexpr int kGroup = 32;
template <ElementType kType, typename Use>
__device__ __forceinline__ void for_group(const uint8_t* row, int n_blocks, int g, const Use& use) {
  QUIRE_UNROLL for (int side = 0; side < 2; ++side) {
    Codes<kType> unit;
    unit.load(row, n_blocks, Codes<kType>::group_unit(g, side), 0);
    float weights[kVector];
    dequantize_vector(unit, Codes<kType>::group_vector(g, side), weights);
    QUIRE_UNROLL for (int j = 0; j < kVector; ++j) use(side * kVector + j, weights[j]);
  }
}

}  // namespace quire::cuda
