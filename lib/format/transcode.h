// Types of GGUF files that no kernel computes with: they are read as a type that kernels have.
//
//   in the file   read as
//   Q2_K          q6_k      each of a group's four values off by at most a 62nd of the largest of the group's 16
//                           elements, a 7,800th of the largest of the block's 256, and 2^-25
//   Q3_K          q6_k      exact
//   IQ4_NL        q8_0      exact
//   IQ4_XS        q8_0      exact but for the scales, which are rounded to f16
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lib/support/types.h"

namespace quire {

// Writes one block of the file's type as whole blocks of `type`. Bytes of any value are a block.
struct Transcoding {
  std::string_view dtype;  // as the file says
  int64_t elements;        // of a block in the file
  int64_t stored_bytes;
  ElementType type;
  void (*block)(const std::byte* stored, std::byte* out);

  constexpr int64_t bytes() const { return static_cast<int64_t>(row_bytes(type, elements)); }  // of what is written
};

constexpr int64_t kMostStoredBytes = 136, kMostTranscodedBytes = 272;  // of a block of any type

// Null: the type is none of these.
const Transcoding* find_transcoding(std::string_view dtype);

// Whole blocks.
std::vector<std::byte> transcoded(const Transcoding& transcoding, std::span<const std::byte> stored);

}  // namespace quire
