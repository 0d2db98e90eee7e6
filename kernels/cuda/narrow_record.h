// Narrow records: keys and values of a chunk of old text in int8 or int4.
//
// They have the neutral form of all backends (lib/backend/backend.h): of int8 rows of integers and f32 scales, one for
// each channel of a head's keys and for each token's values; of int4 the groups of lib/support/int4.h. A chunk is a
// multiple of 16 tokens and a head an even number of channels, so that everything begins at a multiple of 8 bytes, and
// at one of 16 where the channels are a multiple of 4.
#pragma once

#include <cstdint>

#include "kernels/cuda/kernels.h"
#include "lib/support/int4.h"

namespace quire::cuda {

// Bytes from the first one of a KV head to its parts, and to the next head.
struct NarrowHead {
  int64_t keys = 0;
  int64_t key_scales = 0;  // of int8, and so value_scales
  int64_t values = 0;
  int64_t value_scales = 0;
  int64_t bytes = 0;
};

constexpr NarrowHead narrow_head(const KvShape& shape, ElementType type) {
  const int64_t l = shape.chunk, d = shape.head_dim;
  NarrowHead head;
  if (type == ElementType::kInt4) {
    head.values = static_cast<int64_t>(int4_key_bytes(l, d));
    head.bytes = head.values + static_cast<int64_t>(int4_value_bytes(l, d));
    return head;
  }
  constexpr auto kScale = static_cast<int64_t>(sizeof(float));
  head.key_scales = l * d;
  head.values = head.key_scales + d * kScale;
  head.value_scales = head.values + l * d;
  head.bytes = head.value_scales + l * kScale;
  return head;
}

}  // namespace quire::cuda
