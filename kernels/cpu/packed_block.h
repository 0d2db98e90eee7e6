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

// Some types have bits in another order in a packed block than in a file, so that those of a quad are at the same place
// of four bytes, and those that are used together in few words.

// q5_0, q5_1: the fifth bit of element j is bit j in a file, and bit j / 4 of byte j % 4 when packed.
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

// Words of kWords fields a byte: field f of word w becomes field w of word f. Twice, it changes nothing.
template <int kWords>
void transpose_fields(uint8_t* at) {
  constexpr int kBits = 8 / kWords;
  constexpr uint32_t kField = 0x01010101u * ((1u << kBits) - 1);
  uint32_t from[kWords], to[kWords] = {};
  std::memcpy(from, at, sizeof from);
  for (int w = 0; w < kWords; ++w) {
    for (int f = 0; f < kWords; ++f) to[f] |= (from[w] >> kBits * f & kField) << kBits * w;
  }
  std::memcpy(at, to, sizeof to);
}

// q2_k, q3_k: 2-bit codes in 64 bytes. In a file, field f of word w of a half is quad w of group f of that half; when
// packed, it is quad 4 (w / 4) + f of group w % 4.
inline void transpose_two_bits(uint8_t* at) {
  for (int words = 0; words < 4; ++words) transpose_fields<4>(at + 16 * words);
}

// Puts the bits of a block of a file in the order of packed blocks, or (kPack false) the other way.
template <bool kPack>
void order_bits(ElementType type, void* block) {
  auto* const bytes = static_cast<uint8_t*>(block);
  switch (type) {
    case ElementType::kQ5_0:
    case ElementType::kQ5_1: {
      uint8_t* const at = bytes + (type == ElementType::kQ5_0 ? 2 : 4);
      uint32_t fifth;
      std::memcpy(&fifth, at, sizeof fifth);
      fifth = kPack ? pack_fifth_bits(fifth) : unpack_fifth_bits(fifth);
      std::memcpy(at, &fifth, sizeof fifth);
      return;
    }
    case ElementType::kQ2_K:
      return transpose_two_bits(bytes + 16);
    case ElementType::kQ3_K:  // in a file, field g of word i is the third bits of quad i of group g
      transpose_fields<8>(bytes);
      return transpose_two_bits(bytes + 32);
    default:
      return;
  }
}

}  // namespace quire::cpu
