// Element types of tensors, and the numbers that go with them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

enum class ElementType : int32_t { kF32 = 1, kF16 = 2, kBF16 = 3 };  // the numbers of QUIRE_TYPE_*

constexpr size_t element_bytes(ElementType type) { return type == ElementType::kF32 ? 4 : 2; }

constexpr const char* element_name(ElementType type) {
  return type == ElementType::kF32 ? "f32" : type == ElementType::kF16 ? "f16" : "bf16";
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

}  // namespace quire
