#include "lib/format/transcode.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <iterator>

#include "lib/support/element.h"

namespace quire {
namespace {

int byte_at(const std::byte* bytes, int64_t at) { return std::to_integer<int>(bytes[at]); }

float f16_at(const std::byte* bytes, int64_t at) {
  return from_f16(static_cast<uint16_t>(byte_at(bytes, at) | byte_at(bytes, at + 1) << 8));
}

void put_f16(std::byte* bytes, int64_t at, float x) {
  const uint16_t h = to_f16(x);
  bytes[at] = static_cast<std::byte>(h), bytes[at + 1] = static_cast<std::byte>(h >> 8);
}

// ---- q6_k (quantization.h)

constexpr int kGroups = 16, kGroup = 16;  // of a block of 256

// What the elements of a block are multiples of, and the multiples, from -32 to 31.
struct Q6K {
  std::array<int, kGroups> scales;
  std::array<std::array<int, kGroup>, kGroups> numbers;
};

// Element 32 run + j of a half lies in byte 32 (run % 2) + j of its 64 bytes, in the low half of the byte if run < 2.
void put_q6_k(const Q6K& block, std::byte* out) {
  std::memset(out, 0, 192);
  for (int g = 0; g < kGroups; ++g) {
    out[192 + g] = static_cast<std::byte>(block.scales[static_cast<size_t>(g)]);
    const int half = g / 8, run = g % 8 / 2;
    for (int i = 0; i < kGroup; ++i) {
      const int code = block.numbers[static_cast<size_t>(g)][static_cast<size_t>(i)] + 32, j = g % 2 * kGroup + i;
      out[half * 64 + run % 2 * 32 + j] |= static_cast<std::byte>((code & 15) << (run < 2 ? 0 : 4));
      out[128 + half * 32 + j] |= static_cast<std::byte>(code >> 4 << 2 * run);
    }
  }
}

// Bits 2 run and 2 run + 1 of byte j of a half's 32: of element 32 run + j of the half. Q2_K and Q3_K.
int two_bits(const std::byte* bytes, int g, int i) {
  const int half = g / 8, run = g % 8 / 2;
  return byte_at(bytes, half * 32 + g % 2 * kGroup + i) >> 2 * run & 3;
}

// ---- Q3_K: 1-bit h[256], 2-bit q[256], 6-bit s[16], f16 d; element j: d (s[j / 16] - 32) (q[j] + 4 h[j] - 4)

// The low four bits in the halves of bytes 0 to 7, the upper two in bytes 8 to 11.
int q3_k_scale(const std::byte* scales, int g) {
  const int low = g < 8 ? byte_at(scales, g) & 15 : byte_at(scales, g - 8) >> 4;
  return (low | (byte_at(scales, 8 + g % 4) >> 2 * (g / 4) & 3) << 4) - 32;
}

void q3_k_block(const std::byte* stored, std::byte* out) {
  Q6K block;
  for (int g = 0; g < kGroups; ++g) {
    block.scales[static_cast<size_t>(g)] = q3_k_scale(stored + 96, g);
    for (int i = 0; i < kGroup; ++i) {
      const int high = byte_at(stored, g % 2 * kGroup + i) >> g / 2 & 1;
      block.numbers[static_cast<size_t>(g)][static_cast<size_t>(i)] = two_bits(stored + 32, g, i) + 4 * high - 4;
    }
  }
  put_q6_k(block, out);
  std::memcpy(out + 208, stored + 108, 2);
}

// ---- Q2_K: 4-bit s[16] and t[16], 2-bit q[256], f16 d, f16 e; element j: d s[j / 16] q[j] - e t[j / 16]

// Of a group, by q: what its elements can be.
using Values = std::array<float, 4>;

constexpr float kMostSteps = 31;   // from 0 to the element that is farthest from it
constexpr float kMostScale = 127;  // of a group

float largest_of(const Values& values, const std::byte* codes, int g) {
  std::array<bool, 4> occurs{};
  for (int i = 0; i < kGroup; ++i) occurs[static_cast<size_t>(two_bits(codes, g, i))] = true;
  float largest = 0;
  for (size_t q = 0; q < 4; ++q) {
    if (occurs[q]) largest = std::max(largest, std::fabs(values[q]));
  }
  return largest;
}

// The next f16 number that is not below x >= 0.
float f16_not_below(float x) {
  const uint16_t h = to_f16(x);
  return from_f16(from_f16(h) < x ? static_cast<uint16_t>(h + 1) : h);
}

void q2_k_block(const std::byte* stored, std::byte* out) {
  const std::byte* const codes = stored + 16;
  const float d = f16_at(stored, 80), e = f16_at(stored, 82);
  std::array<Values, kGroups> values;
  std::array<float, kGroups> largest;
  for (int g = 0; g < kGroups; ++g) {
    const auto group = static_cast<size_t>(g);
    const float scale = d * static_cast<float>(byte_at(stored, g) & 15);
    const float offset = e * static_cast<float>(byte_at(stored, g) >> 4);
    for (size_t q = 0; q < 4; ++q) values[group][q] = scale * static_cast<float>(q) - offset;
    largest[group] = largest_of(values[group], codes, g);
  }
  Q6K block{};
  const bool finite = std::isfinite(d) && std::isfinite(e);
  const float unit = finite ? f16_not_below(*std::ranges::max_element(largest) / (kMostSteps * kMostScale)) : NAN;
  for (int g = 0; g < kGroups && unit > 0; ++g) {
    const auto group = static_cast<size_t>(g);
    const float scale = std::clamp(std::ceil(largest[group] / (kMostSteps * unit)), 1.0f, kMostScale);
    std::array<int, 4> steps;
    for (size_t q = 0; q < 4; ++q) {
      // One that no element has can be anywhere.
      steps[q] = static_cast<int>(std::clamp(std::round(values[group][q] / (unit * scale)), -kMostSteps, kMostSteps));
    }
    block.scales[group] = static_cast<int>(scale);
    for (int i = 0; i < kGroup; ++i) {
      block.numbers[group][static_cast<size_t>(i)] = steps[static_cast<size_t>(two_bits(codes, g, i))];
    }
  }
  put_q6_k(block, out);
  put_f16(out, 208, unit);
}

// ---- IQ4_NL and IQ4_XS: what each of 16 codes stands for

constexpr std::array<int8_t, 16> kLevels = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// 32 codes: the first 16 in the low halves of bytes, the others in the high ones.
void put_levels(const std::byte* codes, float scale, std::byte* out) {
  put_f16(out, 0, scale);
  for (int i = 0; i < 16; ++i) {
    out[2 + i] = static_cast<std::byte>(kLevels[static_cast<size_t>(byte_at(codes, i) & 15)]);
    out[18 + i] = static_cast<std::byte>(kLevels[static_cast<size_t>(byte_at(codes, i) >> 4)]);
  }
}

// f16 d, 4-bit q[32]; element j: d level[q[j]]
void iq4_nl_block(const std::byte* stored, std::byte* out) { put_levels(stored + 2, f16_at(stored, 0), out); }

// f16 d, 2-bit h[8], 4-bit l[8], 4-bit q[256]; element j of group g = j / 32: d (l[g] + 16 h[g] - 32) level[q[j]]
void iq4_xs_block(const std::byte* stored, std::byte* out) {
  const float d = f16_at(stored, 0);
  const int high = byte_at(stored, 2) | byte_at(stored, 3) << 8;
  for (int g = 0; g < 8; ++g) {
    const int low = byte_at(stored, 4 + g / 2) >> 4 * (g % 2) & 15;
    const int scale = (low | (high >> 2 * g & 3) << 4) - 32;
    put_levels(stored + 8 + 16 * g, d * static_cast<float>(scale), out + 34 * g);
  }
}

constexpr Transcoding kTranscodings[] = {{"Q2_K", 256, 84, ElementType::kQ6_K, q2_k_block},
                                         {"Q3_K", 256, 110, ElementType::kQ6_K, q3_k_block},
                                         {"IQ4_NL", 32, 18, ElementType::kQ8_0, iq4_nl_block},
                                         {"IQ4_XS", 256, 136, ElementType::kQ8_0, iq4_xs_block}};
static_assert(std::ranges::all_of(kTranscodings, [](const Transcoding& t) {
  return t.stored_bytes <= kMostStoredBytes && t.bytes() <= kMostTranscodedBytes;
}));

}  // namespace

const Transcoding* find_transcoding(std::string_view dtype) {
  const auto* found = std::ranges::find(kTranscodings, dtype, &Transcoding::dtype);
  return found == std::end(kTranscodings) ? nullptr : found;
}

std::vector<std::byte> transcoded(const Transcoding& transcoding, std::span<const std::byte> stored) {
  const auto size = static_cast<size_t>(transcoding.stored_bytes), out_size = static_cast<size_t>(transcoding.bytes());
  std::vector<std::byte> out(stored.size() / size * out_size);
  for (size_t i = 0; i < stored.size() / size; ++i) {
    transcoding.block(stored.data() + i * size, out.data() + i * out_size);
  }
  return out;
}

}  // namespace quire
