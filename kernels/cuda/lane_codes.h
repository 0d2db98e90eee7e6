// What a lane takes of a row of quantised weights at a time: four bytes of codes (8 of q6_k), and what belongs to them.
//
// Lanes of a warp take neighbouring bytes, so that a warp reads a stretch of the row without a gap. A unit is what some
// lanes share: its codes are runs of four elements, of which lane l has those that begin at 4 l + r * kBetween, r =
// 0, 1 ... kRuns - 1. The weights are what `dequantize` (lib/support/quantization.h) gives, bit for bit.
#pragma once

#include "kernels/cuda/dequantize.h"

namespace quire::cuda {

// Four bytes at a multiple of kAlign, which is 2 or 4.
template <int kAlign>
__device__ __forceinline__ unsigned word_at(const uint8_t* p) {
  if constexpr (kAlign == 4) return *reinterpret_cast<const unsigned*>(p);
  const auto* const halves = reinterpret_cast<const unsigned short*>(p);
  return halves[0] | static_cast<unsigned>(halves[1]) << 16;
}

// Byte k of a word, less `zero`, as a float; exact. The byte becomes the last one of 2^23's mantissa, which costs less
// than a conversion.
__device__ __forceinline__ float byte_of(unsigned word, int k, float zero = 0) {
  constexpr float kTwoTo23 = 8388608.0f;
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440u | static_cast<unsigned>(k))) - (kTwoTo23 + zero);
}

constexpr unsigned kLowNibbles = 0x0f0f0f0fu, kLowBits = 0x01010101u;

// Bit k of four becomes bit 4 of byte k.
__device__ __forceinline__ unsigned spread_bits(unsigned four) { return (four * 0x00204081u & kLowBits) << 4; }

// Of each type: `load` reads what lane `lane` of kLanes has of a unit; `run` makes weights of it, those of run r.
template <ElementType kType>
struct LaneCodes;

template <>
struct LaneCodes<ElementType::kQ8_0> {
  static constexpr int kLanes = 8, kUnit = 32, kRuns = 1, kBetween = 0;
  unsigned codes;
  float d;

  __device__ __forceinline__ void load(const uint8_t* row, int64_t unit, int lane) {
    const uint8_t* const block = row + unit * block_format(ElementType::kQ8_0).bytes;
    d = f16_at(block);
    codes = word_at<2>(block + 2 + 4 * lane);
  }
  __device__ __forceinline__ void run(int, float (&weights)[4]) const {
    // From -128..127 to 0..255.
    QUIRE_UNROLL for (int j = 0; j < 4; ++j) weights[j] = d * byte_of(codes ^ 0x80808080u, j, 128);
  }
};

// q4_0, q4_1, q5_0, q5_1: a byte has an element's code and that of the 16th behind it; the fifth bits are apart.
template <ElementType kType>
struct LaneNibbles {
  static constexpr bool kFive = kType == ElementType::kQ5_0 || kType == ElementType::kQ5_1;
  static constexpr bool kOffset = kType == ElementType::kQ4_1 || kType == ElementType::kQ5_1;
  static constexpr int kLanes = 4, kUnit = 32, kRuns = 2, kBetween = 16;
  static constexpr int kAlign = kOffset ? 4 : 2, kHigh = kOffset ? 4 : 2, kCodes = kHigh + (kFive ? 4 : 0);
  unsigned codes, high;
  float d, m;

  __device__ __forceinline__ void load(const uint8_t* row, int64_t unit, int lane) {
    const uint8_t* const block = row + unit * block_format(kType).bytes;
    d = f16_at(block);
    if constexpr (kOffset) m = f16_at(block + 2);
    if constexpr (kFive) high = word_at<kAlign>(block + kHigh) >> 4 * lane;
    codes = word_at<kAlign>(block + kCodes + 4 * lane);
  }
  __device__ __forceinline__ void run(int r, float (&weights)[4]) const {
    unsigned word = codes >> 4 * r & kLowNibbles;
    if constexpr (kFive) word |= spread_bits(high >> 16 * r & 15);
    QUIRE_UNROLL for (int j = 0; j < 4; ++j) {
      if constexpr (kOffset) {
        weights[j] = fmaf(d, byte_of(word, j), m);
      } else {
        weights[j] = d * byte_of(word, j, kFive ? 16 : 8);
      }
    }
  }
};
template <>
struct LaneCodes<ElementType::kQ4_0> : LaneNibbles<ElementType::kQ4_0> {};
template <>
struct LaneCodes<ElementType::kQ4_1> : LaneNibbles<ElementType::kQ4_1> {};
template <>
struct LaneCodes<ElementType::kQ5_0> : LaneNibbles<ElementType::kQ5_0> {};
template <>
struct LaneCodes<ElementType::kQ5_1> : LaneNibbles<ElementType::kQ5_1> {};

// q4_k, q5_k: a byte has codes of two groups that follow each other; the fifth bits are apart.
template <ElementType kType>
struct LaneGroups {
  static constexpr bool kFive = kType == ElementType::kQ5_K;
  static constexpr int kLanes = 8, kUnit = 64, kRuns = 2, kBetween = 32;
  static constexpr int kUnits = block_format(kType).elements / kUnit;  // of a block
  unsigned codes, high;
  GroupScales scales;
  int group;  // of run 0

  __device__ __forceinline__ void load(const uint8_t* row, int64_t unit, int lane) {
    const uint8_t* const block = row + unit / kUnits * block_format(kType).bytes;
    const int pair = static_cast<int>(unit % kUnits);
    group = 2 * pair;
    scales.load(block);
    if constexpr (kFive) high = word_at<4>(block + 16 + 4 * lane) >> group;
    codes = word_at<4>(block + (kFive ? 48 : 16) + 32 * pair + 4 * lane);
  }
  __device__ __forceinline__ void run(int r, float (&weights)[4]) const {
    unsigned word = codes >> 4 * r & kLowNibbles;
    if constexpr (kFive) word |= (high >> r & kLowBits) << 4;
    const GroupScale by = scales.of(group + r);
    QUIRE_UNROLL for (int j = 0; j < 4; ++j) weights[j] = fmaf(by.scale, byte_of(word, j), by.offset);
  }
};
template <>
struct LaneCodes<ElementType::kQ4_K> : LaneGroups<ElementType::kQ4_K> {};
template <>
struct LaneCodes<ElementType::kQ5_K> : LaneGroups<ElementType::kQ5_K> {};

// A unit is half a block: a byte has the high bits of four elements, 32 apart.
template <>
struct LaneCodes<ElementType::kQ6_K> {
  static constexpr int kLanes = 8, kUnit = 128, kRuns = 4, kBetween = 32;
  unsigned low[2], high, scales[2];
  float d;
  int part;  // of 16 elements that have a scale: the first or the second one of a run's 32

  __device__ __forceinline__ void load(const uint8_t* row, int64_t unit, int lane) {
    const uint8_t* const block = row + unit / 2 * block_format(ElementType::kQ6_K).bytes;
    const int half = static_cast<int>(unit % 2);
    part = lane / 4;
    d = f16_at(block + 208);
    QUIRE_UNROLL for (int i = 0; i < 2; ++i) {
      low[i] = word_at<2>(block + half * 64 + i * 32 + 4 * lane);
      scales[i] = word_at<2>(block + 192 + half * 8 + i * 4);
    }
    high = word_at<2>(block + 128 + half * 32 + 4 * lane);
  }
  __device__ __forceinline__ void run(int r, float (&weights)[4]) const {
    const unsigned word = (low[r % 2] >> r / 2 * 4 & kLowNibbles) | (high >> 2 * r & 0x03030303u) << 4;
    const float scale = d * static_cast<float>(static_cast<int8_t>(scales[r / 2] >> (r % 2 * 16 + part * 8)));
    QUIRE_UNROLL for (int j = 0; j < 4; ++j) weights[j] = scale * byte_of(word, j, 32);
  }
};

}  // namespace quire::cuda
