// Element types of tensors, and the numbers that go with them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

// The numbers of QUIRE_TYPE_*. Those from kQ8_0 on are quantised: GGUF's block formats of these names.
enum class ElementType : int32_t {
  kF32 = 1,
  kF16 = 2,
  kBF16 = 3,
  kQ8_0 = 4,
  kQ4_0 = 5,
  kQ4_1 = 6,
  kQ5_0 = 7,
  kQ5_1 = 8,
  kQ4_K = 9,
  kQ5_K = 10,
  kQ6_K = 11,
  kQ2_K = 12,
  kQ3_K = 13,
  kIQ4_NL = 14,
  kIQ4_XS = 15,
  kInt8 = 16,  // of old keys and values alone: integers, whose scales lie beside them in the record
  kInt4 = 17,  // likewise: groups of 32 codes, with their scales and minima (int4.h)
};
constexpr int32_t kLastElementType = static_cast<int32_t>(ElementType::kIQ4_XS);  // of tensors

// How the consecutive elements of a row lie in memory: in blocks of `elements`, each of `bytes`. In a quantised type
// the elements of a block share scales (quantization.h); the others have blocks of one element.
struct BlockFormat {
  int64_t elements = 1;
  size_t bytes = 0;
};

constexpr BlockFormat block_format(ElementType type) {
  switch (type) {
    case ElementType::kF32:
      return {1, 4};
    case ElementType::kF16:
    case ElementType::kBF16:
      return {1, 2};
    case ElementType::kQ8_0:
      return {32, 34};
    case ElementType::kQ4_0:
      return {32, 18};
    case ElementType::kQ4_1:
      return {32, 20};
    case ElementType::kQ5_0:
      return {32, 22};
    case ElementType::kQ5_1:
      return {32, 24};
    case ElementType::kQ4_K:
      return {256, 144};
    case ElementType::kQ5_K:
      return {256, 176};
    case ElementType::kQ6_K:
      return {256, 210};
    case ElementType::kQ2_K:
      return {256, 84};
    case ElementType::kQ3_K:
      return {256, 110};
    case ElementType::kIQ4_NL:
      return {32, 18};
    case ElementType::kIQ4_XS:
      return {256, 136};
    case ElementType::kInt8:
      return {1, 1};
    case ElementType::kInt4:
      return {32, 20};
  }
  return {};
}
constexpr int64_t kMostBlockElements = 256;

constexpr bool is_quantized(ElementType type) { return block_format(type).elements > 1; }

// What a gated MLP makes of its gate before that multiplies `up`: z / (1 + exp(-z)), as in SwiGLU, or GELU in its tanh
// form, z (1 + tanh(sqrt(2 / pi) (z + 0.044715 z^3))) / 2, as in GEGLU (Shazeer 2020, arXiv:2002.05202).
enum class Activation { kSilu, kGelu };

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// Bytes of n consecutive elements; n is a multiple of the block's elements, but for kInt4, which pads rows.
constexpr size_t row_bytes(ElementType type, int64_t n) {
  const BlockFormat format = block_format(type);
  return static_cast<size_t>(ceil_div(n, format.elements)) * format.bytes;
}

// Of a type whose blocks have one element.
constexpr size_t element_bytes(ElementType type) { return block_format(type).bytes; }

constexpr const char* element_name(ElementType type) {
  constexpr const char* kNames[] = {"",     "f32",  "f16",  "bf16", "q8_0", "q4_0",   "q4_1",   "q5_0", "q5_1",
                                    "q4_k", "q5_k", "q6_k", "q2_k", "q3_k", "iq4_nl", "iq4_xs", "int8", "int4"};
  return kNames[static_cast<int>(type)];
}

}  // namespace quire
