#include "lib/support/quantization.h"

#include <cstddef>
#include <cstring>

#include "lib/support/element.h"

namespace quire {
namespace {

// A block's bytes.
class Bytes {
 public:
  explicit Bytes(const void* block) : bytes_(static_cast<const uint8_t*>(block)) {}
  int operator[](int64_t i) const { return bytes_[i]; }
  int signed_at(int64_t i) const { return static_cast<int8_t>(bytes_[i]); }
  float f16(int64_t i) const { return from_f16(static_cast<uint16_t>(bytes_[i] | bytes_[i + 1] << 8)); }

 private:
  const uint8_t* bytes_;
};

// 4-bit numbers of 32 elements in 16 bytes: the first 16 in the low halves, the others in the high ones.
int nibble(Bytes block, int64_t at, int j) { return j < 16 ? block[at + j] & 15 : block[at + j - 16] >> 4; }

// Bit j of the 32 at `at`.
int fifth_bit(Bytes block, int64_t at, int j) { return block[at + j / 8] >> j % 8 & 1; }

void dequantize_q8_0(Bytes block, float* out) {
  const float d = block.f16(0);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(block.signed_at(2 + j));
}

void dequantize_q4_0(Bytes block, float* out) {
  const float d = block.f16(0);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(nibble(block, 2, j) - 8);
}

void dequantize_q4_1(Bytes block, float* out) {
  const float d = block.f16(0), m = block.f16(2);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(nibble(block, 4, j)) + m;
}

void dequantize_q5_0(Bytes block, float* out) {
  const float d = block.f16(0);
  for (int j = 0; j < 32; ++j) {
    out[j] = d * static_cast<float>(nibble(block, 6, j) + 16 * fifth_bit(block, 2, j) - 16);
  }
}

void dequantize_q5_1(Bytes block, float* out) {
  const float d = block.f16(0), m = block.f16(2);
  for (int j = 0; j < 32; ++j) {
    out[j] = d * static_cast<float>(nibble(block, 8, j) + 16 * fifth_bit(block, 4, j)) + m;
  }
}

// The 6-bit scale and offset of group g, in the 12 bytes at 4: those of groups 0 to 3 in the low bits of bytes 0 to 3
// and 4 to 7; those of groups 4 to 7 in the halves of bytes 8 to 11, and the high bits of bytes 0 to 7.
int group_scale(Bytes block, int g) { return g < 4 ? block[4 + g] & 63 : (block[8 + g] & 15) | (block[g] >> 6) << 4; }
int group_offset(Bytes block, int g) {
  return g < 4 ? block[8 + g] & 63 : block[8 + g] >> 4 | (block[4 + g] >> 6) << 4;
}

// Groups 2i and 2i + 1 are the low and the high halves of 32 bytes.
int group_nibble(Bytes block, int64_t at, int g, int j) {
  const int byte = block[at + g / 2 * 32 + j];
  return g % 2 == 0 ? byte & 15 : byte >> 4;
}

void dequantize_q4_k(Bytes block, float* out) {
  const float d = block.f16(0), e = block.f16(2);
  for (int g = 0; g < 8; ++g) {
    const float scale = d * static_cast<float>(group_scale(block, g));
    const float offset = e * static_cast<float>(group_offset(block, g));
    for (int j = 0; j < 32; ++j) *out++ = scale * static_cast<float>(group_nibble(block, 16, g, j)) - offset;
  }
}

// Bit g of byte j at 16 is the fifth bit of element j of group g.
void dequantize_q5_k(Bytes block, float* out) {
  const float d = block.f16(0), e = block.f16(2);
  for (int g = 0; g < 8; ++g) {
    const float scale = d * static_cast<float>(group_scale(block, g));
    const float offset = e * static_cast<float>(group_offset(block, g));
    for (int j = 0; j < 32; ++j) {
      const int q = group_nibble(block, 48, g, j) + 16 * (block[16 + j] >> g & 1);
      *out++ = scale * static_cast<float>(q) - offset;
    }
  }
}

// Each half of the block has 4 runs of 32 elements: runs 0 and 1 are the low halves of 64 bytes, runs 2 and 3 the high
// ones; their upper two bits are bits 2 run and 2 run + 1 of 32 bytes.
void dequantize_q6_k(Bytes block, float* out) {
  const float d = block.f16(208);
  for (int half = 0; half < 2; ++half) {
    for (int run = 0; run < 4; ++run) {
      for (int j = 0; j < 32; ++j) {
        const int byte = block[half * 64 + run % 2 * 32 + j];
        const int low = run < 2 ? byte & 15 : byte >> 4;
        const int high = block[128 + half * 32 + j] >> 2 * run & 3;
        const int scale = block.signed_at(192 + half * 8 + run * 2 + j / 16);
        *out++ = d * static_cast<float>(scale) * static_cast<float>((low | high << 4) - 32);
      }
    }
  }
}

using DequantizeBlock = void (*)(Bytes block, float* out);

DequantizeBlock block_function(ElementType type) {
  switch (type) {
    case ElementType::kQ8_0:
      return dequantize_q8_0;
    case ElementType::kQ4_0:
      return dequantize_q4_0;
    case ElementType::kQ4_1:
      return dequantize_q4_1;
    case ElementType::kQ5_0:
      return dequantize_q5_0;
    case ElementType::kQ5_1:
      return dequantize_q5_1;
    case ElementType::kQ4_K:
      return dequantize_q4_k;
    case ElementType::kQ5_K:
      return dequantize_q5_k;
    case ElementType::kQ6_K:
      return dequantize_q6_k;
    case ElementType::kF32:
    case ElementType::kF16:
    case ElementType::kBF16:
    case ElementType::kInt8:
    case ElementType::kInt4:
      break;
  }
  return nullptr;
}

}  // namespace

void dequantize(ElementType type, const void* source, int64_t n, float* out) {
  const DequantizeBlock function = block_function(type);
  if (!function) {
    for (int64_t i = 0; i < n; ++i) out[i] = load_element(type, source, i);
    return;
  }
  const BlockFormat format = block_format(type);
  const auto* block = static_cast<const std::byte*>(source);
  for (int64_t i = 0; i < n; i += format.elements, block += format.bytes) function(Bytes(block), out + i);
}

}  // namespace quire
