// Where the bytes of a quantised block lie when it is packed (layout in kernels.h). Plain C++.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/kernels.h"

namespace quire::cpu {

// Bytes of the unit that begins at byte b of a block: a quad, or two bytes, which are an f16 in most places.
constexpr int64_t packed_unit_bytes(ElementType type, int64_t b) {
  switch (type) {
    case ElementType::kQ8_0:
    case ElementType::kQ4_0:
    case ElementType::kQ5_0:
    case ElementType::kIQ4_NL:
      return b < 2 ? 2 : 4;
    case ElementType::kQ6_K:
      return b >= 208 ? 2 : 4;
    case ElementType::kQ2_K:
      return b >= 80 ? 2 : 4;
    case ElementType::kQ3_K:
      return b >= 108 ? 2 : 4;
    default:
      return b < 4 ? 2 : 4;
  }
}

// Where a block of q5_0 or q5_1 has the 32 fifth bits; of other types: -1.
constexpr int64_t fifth_bits_at(ElementType type) {
  if (type == ElementType::kQ5_0) return 2;
  return type == ElementType::kQ5_1 ? 4 : -1;
}

// Element j's bit is bit j in a file, and bit j / 4 of byte j % 4 when packed, so that those of a quad are at the same
// place of four bytes.
constexpr uint32_t pack_fifth_bits(uint32_t bits) {
  uint32_t packed = 0;
  for (int j = 0; j < 32; ++j) packed |= (bits >> j & 1) << (j % 4 * 8 + j / 4);
  return packed;
}
constexpr uint32_t unpack_fifth_bits(uint32_t packed) {
  uint32_t bits = 0;
  for (int j = 0; j < 32; ++j) bits |= (packed >> (j % 4 * 8 + j / 4) & 1) << j;
  return bits;
}

// Replaces the fifth bits of a block, if it has such, by `change` of them.
template <typename Change>
void change_fifth_bits(ElementType type, void* block, const Change& change) {
  const int64_t at = fifth_bits_at(type);
  if (at < 0) return;
  uint32_t bits;
  std::memcpy(&bits, static_cast<char*>(block) + at, sizeof bits);
  bits = change(bits);
  std::memcpy(static_cast<char*>(block) + at, &bits, sizeof bits);
}

}  // namespace quire::cpu
