// Where the bytes of a quantised block lie when it is packed (layout in kernels.h). Plain C++.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

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

// A packed block of these types has some bits in another order than a file, so that those of a quad are at the same
// place of four bytes, and those that are used together in few words:
//   q5_0, q5_1  fifth bits: that of element j is bit j / 4 of byte j % 4.
//   q2_k, q3_k  low bits: a group has 8 bytes. Those of quad i are bits 2 (i % 4) and 2 (i % 4) + 1 of the bytes of
//   word
//               i / 4.
//   q3_k        third bits: a group has a word. Those of quad i are bit i of its bytes.
enum class BlockOrder { kPacked, kOfFiles };

namespace packed_block {

constexpr uint32_t order_fifth_bits(uint32_t bits, BlockOrder order) {
  uint32_t out = 0;
  for (int j = 0; j < 32; ++j) {
    const int packed = j % 4 * 8 + j / 4, from = order == BlockOrder::kPacked ? j : packed,
              to = order == BlockOrder::kPacked ? packed : j;
    out |= (bits >> from & 1) << to;
  }
  return out;
}

// Numbers of `bits` bits of 256 elements, which begin at bit b of a byte.
struct Place {
  int byte, bit;
};
template <int bits, int bytes, typename InFile, typename Packed>
void order_numbers(uint8_t* at, BlockOrder order, const InFile& in_file, const Packed& packed) {
  uint8_t from[bytes];
  std::memcpy(from, at, sizeof from);
  std::memset(at, 0, sizeof from);
  for (int g = 0; g < 8; ++g) {
    for (int j = 0; j < 32; ++j) {
      Place source = in_file(g, j), target = packed(g, j);
      if (order == BlockOrder::kOfFiles) std::swap(source, target);
      const int number = from[source.byte] >> source.bit & ((1 << bits) - 1);
      at[target.byte] = static_cast<uint8_t>(at[target.byte] | number << target.bit);
    }
  }
}

inline void order_two_bits(uint8_t* at, BlockOrder order) {
  order_numbers<2, 64>(
      at, order,
      [](int g, int j) {
        return Place{g / 4 * 32 + j, g % 4 * 2};
      },
      [](int g, int j) {
        return Place{8 * g + j / 16 * 4 + j % 4, j / 4 % 4 * 2};
      });
}
inline void order_third_bits(uint8_t* at, BlockOrder order) {
  order_numbers<1, 32>(
      at, order,
      [](int g, int j) {
        return Place{j, g};
      },
      [](int g, int j) {
        return Place{4 * g + j % 4, j / 4};
      });
}

}  // namespace packed_block

// Puts the bits of a block, which has the other order, in this one.
inline void order_block(ElementType type, void* block, BlockOrder order) {
  auto* const bytes = static_cast<uint8_t*>(block);
  switch (type) {
    case ElementType::kQ5_0:
    case ElementType::kQ5_1: {
      uint8_t* const at = bytes + (type == ElementType::kQ5_0 ? 2 : 4);
      uint32_t fifth;
      std::memcpy(&fifth, at, sizeof fifth);
      fifth = packed_block::order_fifth_bits(fifth, order);
      std::memcpy(at, &fifth, sizeof fifth);
      return;
    }
    case ElementType::kQ2_K:
      return packed_block::order_two_bits(bytes + 16, order);
    case ElementType::kQ3_K:
      packed_block::order_third_bits(bytes, order);
      return packed_block::order_two_bits(bytes + 32, order);
    default:
      return;
  }
}

}  // namespace quire::cpu
