// Quantised rows: blocks of elements that share scales, bit for bit as GGUF files hold them. Plain loops, which define
// what the SIMD kernels compute. Any thread; nothing is allocated.
//
// A block of each type, in the order of its bytes; f16 and the rest little-endian:
//
//   type  elements  bytes                                                    element j
//   q8_0  32        f16 d, int8 q[32]                                        d q[j]
//   q4_0  32        f16 d, 4-bit q[32]                                       d (q[j] - 8)
//   q4_1  32        f16 d, f16 m, 4-bit q[32]                                d q[j] + m
//   q5_0  32        f16 d, 1-bit h[32], 4-bit q[32]                          d (q[j] + 16 h[j] - 16)
//   q5_1  32        f16 d, f16 m, 1-bit h[32], 4-bit q[32]                   d (q[j] + 16 h[j]) + m
//   q4_k  256       f16 d, f16 e, 6-bit s[8], t[8], 4-bit q[256]             d s[g] q[j] - e t[g]
//   q5_k  256       f16 d, f16 e, 6-bit s[8], t[8], 1-bit h[256], 4-bit q[256]
//                                                                            d s[g] (q[j] + 16 h[j]) - e t[g]
//   q6_k  256       4-bit q[256], 2-bit h[256], int8 s[16], f16 d            d s[g] (q[j] + 16 h[j] - 32)
//   q2_k  256       4-bit s[16], t[16], 2-bit q[256], f16 d, f16 e           d s[g] q[j] - e t[g]
//   q3_k  256       1-bit h[256], 2-bit q[256], 6-bit s[16], f16 d           d (s[g] - 32) (q[j] + 4 h[j] - 4)
//   iq4_nl  32      f16 d, 4-bit q[32]                                       d level[q[j]]
//   iq4_xs  256     f16 d, 2-bit h[8], 4-bit s[8], 4-bit q[256]              d (s[g] + 16 h[g] - 32) level[q[j]]
//
// level is kLevels. g = j / 16 for q2_k, q3_k and q6_k, else j / 32. The order of the bits is at each format's code.
// All products are exact in f32, so an element is rounded at most once, where an offset is added.
#pragma once

#include <cstdint>

#include "lib/support/status.h"
#include "lib/support/types.h"

namespace quire {

constexpr int64_t kQuantizedGroup = 32;  // elements: every block is whole groups

// A group as its block holds it. Element j is scale[j / 16] * (code[j] - zero_code(type)) + offset[j / 16].
struct QuantizedGroup {
  uint8_t code[kQuantizedGroup];
  float scale[2];
  float offset[2];  // 0 if the type has none
};

// What the 4-bit numbers of iq4_nl and iq4_xs stand for: closer to each other around 0, where most weights are.
inline constexpr int8_t kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

constexpr bool has_levels(ElementType type) { return type == ElementType::kIQ4_NL || type == ElementType::kIQ4_XS; }

// Scales of a group, and offsets if there are any: one, or one for each half.
constexpr int scales_of(ElementType type) {
  return type == ElementType::kQ2_K || type == ElementType::kQ3_K || type == ElementType::kQ6_K ? 2 : 1;
}

// The code of the value 0 in types without offset; 0 in those with one.
constexpr int zero_code(ElementType type) {
  switch (type) {
    case ElementType::kQ8_0:
    case ElementType::kIQ4_NL:
    case ElementType::kIQ4_XS:
      return 128;  // so that codes have no sign: the number in the block, or its level, plus 128
    case ElementType::kQ4_0:
      return 8;
    case ElementType::kQ5_0:
      return 16;
    case ElementType::kQ6_K:
      return 32;
    case ElementType::kQ3_K:
      return 4;
    default:
      return 0;
  }
}

// Bits of a code.
constexpr int code_bits(ElementType type) {
  switch (type) {
    case ElementType::kQ2_K:
      return 2;
    case ElementType::kQ3_K:
      return 3;
    case ElementType::kQ4_0:
    case ElementType::kQ4_1:
    case ElementType::kQ4_K:
      return 4;
    case ElementType::kQ5_0:
    case ElementType::kQ5_1:
    case ElementType::kQ5_K:
      return 5;
    case ElementType::kQ6_K:
      return 6;
    default:
      return 8;
  }
}

constexpr bool has_offset(ElementType type) {
  return type == ElementType::kQ4_1 || type == ElementType::kQ5_1 || type == ElementType::kQ4_K ||
         type == ElementType::kQ5_K || type == ElementType::kQ2_K;
}

// Group `group` of the block, whose type is quantised.
QuantizedGroup group_of_block(ElementType type, const void* block, int group);

// The n elements at `source`, of any type, as f32. n is a multiple of the type's block.
void dequantize(ElementType type, const void* source, int64_t n, float* out);

// Rounds n values to a quantised type: the scales of a block are chosen to make the sum of squared errors small, in a
// way that depends on the block's values alone. A block that holds a value that is not finite, or too large for f16
// scales, becomes one whose values are not finite. n is a multiple of the type's block. Returns whether the values of
// all blocks are finite.
bool quantize(const float* source, int64_t n, ElementType type, void* out);

}  // namespace quire
