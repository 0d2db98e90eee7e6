#include "lib/support/quantization.h"

#include <cstddef>

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

// Sets the codes of a group to what code(j) gives.
template <typename Code>
void set_codes(QuantizedGroup& group, const Code& code) {
  for (int j = 0; j < static_cast<int>(kQuantizedGroup); ++j) group.code[j] = static_cast<uint8_t>(code(j));
}

void set_scale(QuantizedGroup& group, float scale, float offset = 0) {
  group.scale[0] = group.scale[1] = scale;
  group.offset[0] = group.offset[1] = offset;
}

// Of half a group.
void set_part(QuantizedGroup& group, int part, float scale, float offset = 0) {
  group.scale[part] = scale;
  group.offset[part] = offset;
}

// 4-bit numbers of 32 elements in 16 bytes: the first 16 in the low halves, the others in the high ones.
int nibble(Bytes block, int64_t at, int j) { return j < 16 ? block[at + j] & 15 : block[at + j - 16] >> 4; }

// 16 if bit j of the 32 at `at` is set.
int fifth_bit(Bytes block, int64_t at, int j) { return (block[at + j / 8] >> j % 8 & 1) * 16; }

void read_q8_0(Bytes block, int, QuantizedGroup& group) {
  set_scale(group, block.f16(0));
  set_codes(group, [&](int j) { return block.signed_at(2 + j) + 128; });
}

void read_q4_0(Bytes block, int, QuantizedGroup& group) {
  set_scale(group, block.f16(0));
  set_codes(group, [&](int j) { return nibble(block, 2, j); });
}

void read_q4_1(Bytes block, int, QuantizedGroup& group) {
  set_scale(group, block.f16(0), block.f16(2));
  set_codes(group, [&](int j) { return nibble(block, 4, j); });
}

void read_q5_0(Bytes block, int, QuantizedGroup& group) {
  set_scale(group, block.f16(0));
  set_codes(group, [&](int j) { return nibble(block, 6, j) + fifth_bit(block, 2, j); });
}

void read_q5_1(Bytes block, int, QuantizedGroup& group) {
  set_scale(group, block.f16(0), block.f16(2));
  set_codes(group, [&](int j) { return nibble(block, 8, j) + fifth_bit(block, 4, j); });
}

// The 6-bit scale and offset of group g, in the 12 bytes at 4: those of groups 0 to 3 in the low bits of bytes 0 to 3
// and 4 to 7; those of groups 4 to 7 in the halves of bytes 8 to 11, and the high bits of bytes 0 to 7.
int group_scale(Bytes block, int g) { return g < 4 ? block[4 + g] & 63 : (block[8 + g] & 15) | (block[g] >> 6) << 4; }
int group_offset(Bytes block, int g) {
  return g < 4 ? block[8 + g] & 63 : block[8 + g] >> 4 | (block[4 + g] >> 6) << 4;
}

void set_group_scale(Bytes block, int g, QuantizedGroup& group) {
  set_scale(group, block.f16(0) * static_cast<float>(group_scale(block, g)),
            -(block.f16(2) * static_cast<float>(group_offset(block, g))));
}

// Groups 2i and 2i + 1 are the low and the high halves of 32 bytes.
int group_nibble(Bytes block, int64_t at, int g, int j) {
  const int byte = block[at + g / 2 * 32 + j];
  return g % 2 == 0 ? byte & 15 : byte >> 4;
}

void read_q4_k(Bytes block, int g, QuantizedGroup& group) {
  set_group_scale(block, g, group);
  set_codes(group, [&](int j) { return group_nibble(block, 16, g, j); });
}

// Bit g of byte j at 16 is the fifth bit of element j of group g.
void read_q5_k(Bytes block, int g, QuantizedGroup& group) {
  set_group_scale(block, g, group);
  set_codes(group, [&](int j) { return group_nibble(block, 48, g, j) + 16 * (block[16 + j] >> g & 1); });
}

// The scale of elements [16 i, 16 i + 16), in the 12 bytes at 96: the low four bits in the halves of bytes 0 to 7, the
// upper two in bytes 8 to 11.
int q3_k_scale(Bytes block, int i) {
  const int low = i < 8 ? block[96 + i] & 15 : block[96 + i - 8] >> 4;
  return (low | (block[104 + i % 4] >> 2 * (i / 4) & 3) << 4) - 32;
}

// Each half of the block has 4 runs of 32 elements: runs 0 and 1 are the low halves of 64 bytes, runs 2 and 3 the high
// ones; their upper two bits are bits 2 run and 2 run + 1 of 32 bytes.
void read_q6_k(Bytes block, int g, QuantizedGroup& group) {
  const int half = g / 4, run = g % 4;
  const float d = block.f16(208);
  for (int part = 0; part < 2; ++part) {
    set_part(group, part, d * static_cast<float>(block.signed_at(192 + 2 * g + part)));
  }
  set_codes(group, [&](int j) {
    const int byte = block[half * 64 + run % 2 * 32 + j];
    const int high = block[128 + half * 32 + j] >> 2 * run & 3;
    return (run < 2 ? byte & 15 : byte >> 4) | high << 4;
  });
}

// 2-bit numbers of 256 elements in 64 bytes: each half of the block has 4 runs of 32 elements, which are bits 2 run and
// 2 run + 1 of 32 bytes.
int two_bits(Bytes block, int64_t at, int g, int j) { return block[at + g / 4 * 32 + j] >> 2 * (g % 4) & 3; }

// Byte i has the scale of elements [16 i, 16 i + 16) in its low half, their offset in the high one.
void read_q2_k(Bytes block, int g, QuantizedGroup& group) {
  const float d = block.f16(80), e = block.f16(82);
  for (int part = 0; part < 2; ++part) {
    const int both = block[2 * g + part];
    set_part(group, part, d * static_cast<float>(both & 15), -(e * static_cast<float>(both >> 4)));
  }
  set_codes(group, [&](int j) { return two_bits(block, 16, g, j); });
}

// Bit g of byte j is the third bit of element j of group g.
void read_q3_k(Bytes block, int g, QuantizedGroup& group) {
  const float d = block.f16(108);
  for (int part = 0; part < 2; ++part) set_part(group, part, d * static_cast<float>(q3_k_scale(block, 2 * g + part)));
  set_codes(group, [&](int j) { return two_bits(block, 32, g, j) | (block[j] >> g & 1) << 2; });
}

void read_iq4_nl(Bytes block, int, QuantizedGroup& group) {
  set_scale(group, block.f16(0));
  set_codes(group, [&](int j) { return kLevels[nibble(block, 2, j)] + 128; });
}

void read_iq4_xs(Bytes block, int g, QuantizedGroup& group) {
  const int low = block[4 + g / 2] >> 4 * (g % 2) & 15, high = block[2 + g / 4] >> 2 * (g % 4) & 3;
  set_scale(group, block.f16(0) * static_cast<float>((low | high << 4) - 32));
  set_codes(group, [&](int j) { return kLevels[nibble(block, 8 + 16 * g, j)] + 128; });
}

using ReadGroup = void (*)(Bytes block, int group, QuantizedGroup& out);

ReadGroup reader_of(ElementType type) {
  switch (type) {
    case ElementType::kQ8_0:
      return read_q8_0;
    case ElementType::kQ4_0:
      return read_q4_0;
    case ElementType::kQ4_1:
      return read_q4_1;
    case ElementType::kQ5_0:
      return read_q5_0;
    case ElementType::kQ5_1:
      return read_q5_1;
    case ElementType::kQ4_K:
      return read_q4_k;
    case ElementType::kQ5_K:
      return read_q5_k;
    case ElementType::kQ6_K:
      return read_q6_k;
    case ElementType::kQ2_K:
      return read_q2_k;
    case ElementType::kQ3_K:
      return read_q3_k;
    case ElementType::kIQ4_NL:
      return read_iq4_nl;
    case ElementType::kIQ4_XS:
      return read_iq4_xs;
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

QuantizedGroup group_of_block(ElementType type, const void* block, int group) {
  QuantizedGroup out;
  reader_of(type)(Bytes(block), group, out);
  return out;
}

void dequantize(ElementType type, const void* source, int64_t n, float* out) {
  const ReadGroup read = reader_of(type);
  if (!read) {
    for (int64_t i = 0; i < n; ++i) out[i] = load_element(type, source, i);
    return;
  }
  const BlockFormat format = block_format(type);
  const int groups = static_cast<int>(format.elements / kQuantizedGroup), zero = zero_code(type);
  const bool offset = has_offset(type);
  const auto* block = static_cast<const std::byte*>(source);
  QuantizedGroup group;
  for (int64_t i = 0; i < n; i += format.elements, block += format.bytes) {
    for (int g = 0; g < groups; ++g) {
      read(Bytes(block), g, group);
      for (int j = 0; j < static_cast<int>(kQuantizedGroup); ++j) {
        const float value = group.scale[j / 16] * static_cast<float>(group.code[j] - zero);
        *out++ = offset ? value + group.offset[j / 16] : value;  // not + 0: that would turn -0 into 0
      }
    }
  }
}

}  // namespace quire
