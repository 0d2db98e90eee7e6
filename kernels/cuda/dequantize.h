// Groups of 32 elements out of quantised blocks, as f32: what `dequantize` (lib/support/quantization.h, which describes
// the formats) gives, bit for bit. A thread reads a group of its own. lane_codes.h is for warps that read a row.
#pragma once

#include "kernels/cuda/device.h"
#include "lib/support/types.h"

namespace quire::cuda {

constexpr int kGroup = 32;

// f16 at an even address.
__device__ __forceinline__ float f16_at(const uint8_t* p) {
  return __half2float(__ushort_as_half(*reinterpret_cast<const unsigned short*>(p)));
}

__device__ __forceinline__ int sixteen_if(int byte, int bit) { return (byte >> bit & 1) << 4; }

// Of q4_k and q5_k: the scale of a group, and what is added to its elements.
struct GroupScale {
  float scale, offset;
};
// Those of a block, which lies at a multiple of 16 bytes: two factors in f16, and 6 bits of each group for both. Of the
// last four groups the two high bits stand above the bits of the first four.
struct GroupScales {
  uint4 words;

  __device__ __forceinline__ void load(const uint8_t* block) { load_16(&words, block); }
  __device__ __forceinline__ GroupScale of(int g) const {
    const int by = g % 4 * 8;
    const unsigned first = words.y >> by & 255, second = words.z >> by & 255, third = words.w >> by & 255;
    const unsigned s = g < 4 ? first & 63 : (third & 15) | first >> 6 << 4;
    const unsigned t = g < 4 ? second & 63 : third >> 4 | second >> 6 << 4;
    return {low_of(words.x, f16()) * static_cast<float>(s), -(high_of(words.x, f16()) * static_cast<float>(t))};
  }
};

// Calls use(j, element j of group g of the block) for j in [0, 32).
template <ElementType kType, typename Use>
__device__ __forceinline__ void for_group(const uint8_t* block, int g, const Use& use) {
  if constexpr (kType == ElementType::kQ8_0) {
    const float d = f16_at(block);
    QUIRE_UNROLL for (int j = 0; j < kGroup; ++j) use(j, d * static_cast<float>(static_cast<int8_t>(block[2 + j])));
  } else if constexpr (kType == ElementType::kQ4_0) {
    const float d = f16_at(block);
    QUIRE_UNROLL for (int j = 0; j < kGroup / 2; ++j) {
      use(j, d * static_cast<float>((block[2 + j] & 15) - 8));
      use(j + 16, d * static_cast<float>((block[2 + j] >> 4) - 8));
    }
  } else if constexpr (kType == ElementType::kQ4_1) {
    const float d = f16_at(block), m = f16_at(block + 2);
    QUIRE_UNROLL for (int j = 0; j < kGroup / 2; ++j) {
      use(j, fmaf(d, static_cast<float>(block[4 + j] & 15), m));
      use(j + 16, fmaf(d, static_cast<float>(block[4 + j] >> 4), m));
    }
  } else if constexpr (kType == ElementType::kQ5_0) {
    const float d = f16_at(block);
    QUIRE_UNROLL for (int j = 0; j < kGroup / 2; ++j) {
      use(j, d * static_cast<float>(((block[6 + j] & 15) | sixteen_if(block[2 + j / 8], j % 8)) - 16));
      use(j + 16, d * static_cast<float>((block[6 + j] >> 4 | sixteen_if(block[4 + j / 8], j % 8)) - 16));
    }
  } else if constexpr (kType == ElementType::kQ5_1) {
    const float d = f16_at(block), m = f16_at(block + 2);
    QUIRE_UNROLL for (int j = 0; j < kGroup / 2; ++j) {
      use(j, fmaf(d, static_cast<float>((block[8 + j] & 15) | sixteen_if(block[4 + j / 8], j % 8)), m));
      use(j + 16, fmaf(d, static_cast<float>(block[8 + j] >> 4 | sixteen_if(block[6 + j / 8], j % 8)), m));
    }
  } else if constexpr (kType == ElementType::kQ4_K || kType == ElementType::kQ5_K) {
    constexpr bool kFive = kType == ElementType::kQ5_K;
    GroupScales scales;
    scales.load(block);
    const GroupScale by = scales.of(g);
    const uint8_t* const codes = block + (kFive ? 48 : 16) + g / 2 * 32;
    QUIRE_UNROLL for (int j = 0; j < kGroup; ++j) {
      int q = g % 2 == 0 ? codes[j] & 15 : codes[j] >> 4;
      if (kFive) q |= sixteen_if(block[16 + j], g);
      use(j, fmaf(by.scale, static_cast<float>(q), by.offset));
    }
  } else {
    static_assert(kType == ElementType::kQ6_K);
    const int half = g / 4, run = g % 4;
    const float d = f16_at(block + 208);
    QUIRE_UNROLL for (int part = 0; part < 2; ++part) {
      const float scale = d * static_cast<float>(static_cast<int8_t>(block[192 + half * 8 + run * 2 + part]));
      QUIRE_UNROLL for (int j = part * 16; j < part * 16 + 16; ++j) {
        const int byte = block[half * 64 + run % 2 * 32 + j], high = block[128 + half * 32 + j] >> 2 * run & 3;
        use(j, scale * static_cast<float>(((run < 2 ? byte & 15 : byte >> 4) | high << 4) - 32));
      }
    }
  }
}

}  // namespace quire::cuda
