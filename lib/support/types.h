// Element types of tensors, and the numbers that go with them.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace quire {

enum class ElementType : int32_t { kF32 = 1, kF16 = 2, kBF16 = 3 };  // the numbers of QUIRE_TYPE_*

// How the consecutive elements of a row lie in memory: in blocks of `elements`, each of `bytes`. The types so far have
// blocks of one element; in quantised ones the elements of a block share a scale.
struct BlockFormat {
  int64_t elements = 1;
  size_t bytes = 0;
};

constexpr BlockFormat block_format(ElementType type) { return {1, type == ElementType::kF32 ? size_t{4} : size_t{2}}; }

// Bytes of n consecutive elements; n is a multiple of the block's elements.
constexpr size_t row_bytes(ElementType type, int64_t n) {
  const BlockFormat format = block_format(type);
  return static_cast<size_t>(n / format.elements) * format.bytes;
}

// Of a type whose blocks have one element.
constexpr size_t element_bytes(ElementType type) { return block_format(type).bytes; }

constexpr const char* element_name(ElementType type) {
  return type == ElementType::kF32 ? "f32" : type == ElementType::kF16 ? "f16" : "bf16";
}

// Element `index` of an array of `type`, exactly, as f32. (For few elements; kernels/cpu converts rows.)
inline float widen(ElementType type, const void* data, int64_t index) {
  const auto* bytes = static_cast<const std::byte*>(data) + static_cast<size_t>(index) * element_bytes(type);
  if (type == ElementType::kF32) {
    float value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }
  uint16_t half;
  std::memcpy(&half, bytes, sizeof half);
  if (type == ElementType::kBF16) return std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fff) << 13;
  if (magnitude >= 0x7c00u << 13) return std::bit_cast<float>(sign | 0x7f800000u | magnitude);  // infinity, NaN
  const float value = std::bit_cast<float>(magnitude) * 0x1p112f;  // the exponents' biases differ by 112
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

}  // namespace quire
