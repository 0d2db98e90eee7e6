// Matrices of weights as they lie on a device. Plain C++.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "lib/support/types.h"

namespace quire::cuda {

// Rows [n] of k weights of any type, each at a multiple of 16 bytes; k is whole blocks of the type. A row of a
// quantised type lies there as parts_of() says.
struct DeviceMatrix {
  const void* data = nullptr;
  int64_t n = 0;
  int64_t k = 0;
  int64_t row_bytes = 0;
  ElementType type = ElementType::kBF16;

  bool operator==(const DeviceMatrix&) const = default;
};

constexpr int64_t device_row_bytes(ElementType type, int64_t k) {
  return round_up(static_cast<int64_t>(row_bytes(type, k)), 16);
}

// Bytes [begin, begin + bytes) of a block.
struct BlockPart {
  int begin = 0, bytes = 0;
};

// A row of a quantised type on a device: the first part of all of its blocks, then the second part of all, and so on.
// So codes begin at multiples of 16 bytes, whatever stands beside them in a block, and a thread reads 16 bytes at a
// time. Files have whole blocks (lib/support/quantization.h).
struct BlockParts {
  int n = 0;
  BlockPart part[3];

  // Bytes of a block that lie in the parts in front of part p.
  constexpr int before(int p) const {
    int bytes = 0;
    for (int i = 0; i < p; ++i) bytes += part[i].bytes;
    return bytes;
  }
};

constexpr BlockParts parts_of(ElementType type) {
  switch (type) {
    case ElementType::kQ8_0:  // codes, scale
      return {2, {{2, 32}, {0, 2}}};
    case ElementType::kQ4_0:
    case ElementType::kIQ4_NL:
      return {2, {{2, 16}, {0, 2}}};
    case ElementType::kQ4_1:  // codes, scale and minimum
      return {2, {{4, 16}, {0, 4}}};
    case ElementType::kQ5_0:  // codes, fifth bits, scale
      return {3, {{6, 16}, {2, 4}, {0, 2}}};
    case ElementType::kQ5_1:
      return {3, {{8, 16}, {4, 4}, {0, 4}}};
    case ElementType::kQ6_K:  // all but the scale of scales
      return {2, {{0, 208}, {208, 2}}};
    case ElementType::kQ2_K:  // codes, scales and offsets, what these are multiples of
      return {3, {{16, 64}, {0, 16}, {80, 4}}};
    case ElementType::kQ3_K:  // codes, scales, scale of scales
      return {3, {{0, 96}, {96, 12}, {108, 2}}};
    case ElementType::kIQ4_XS:  // codes, scales
      return {2, {{8, 128}, {0, 8}}};
    default:  // blocks of a multiple of 16 bytes, whose codes lie at such multiples
      return {1, {{0, static_cast<int>(block_format(type).bytes)}}};
  }
}

// Puts blocks [first, first + n) where a row of n_blocks has them. row: of the device, or of the host's memory that is
// copied there.
inline void put_blocks(ElementType type, const std::byte* blocks, int64_t first, int64_t n, int64_t n_blocks,
                       std::byte* row) {
  const auto bytes = static_cast<int64_t>(block_format(type).bytes);
  const BlockParts parts = parts_of(type);
  for (int p = 0; p < parts.n; ++p) {
    const BlockPart part = parts.part[p];
    std::byte* const to = row + n_blocks * parts.before(p) + first * part.bytes;
    for (int64_t b = 0; b < n; ++b) {
      std::memcpy(to + b * part.bytes, blocks + b * bytes + part.begin, static_cast<size_t>(part.bytes));
    }
  }
}

}  // namespace quire::cuda
