// Old keys and values of kInt4: groups of 32 numbers that share a scale and a minimum.
//
// number = fma(code, scale, minimum) with a code of [0, 15]; scale and minimum are f16. The minimum is rounded down and
// the scale up, so that the codes reach every number of the group: none is further than half a scale from its code.
// bf16 would not overflow, but where a channel's numbers lie around 50 and 2 apart, as keys of models with biases do,
// rounding the minimum to it would widen the scale by up to an eighth, and to f16 by a 64th. Numbers beyond f16 come
// out right as long as the scale and the minimum are finite (up to 16 times 65504 above), otherwise as NaN, the whole
// group.
//
// A head's keys of a chunk, by channel: for each 32 keys [codes [d][16] | scales [d] | minima [d]]; byte b of a
// channel's codes has key b in the low half and key 16 + b in the high one. Values, by token: for each kInt4Tokens
// tokens [codes [kInt4Tokens][groups][16] | scales [groups][kInt4Tokens] | minima [groups][kInt4Tokens]], groups =
// ceil(d / 32); byte b of a group has channel b in the low half and channel 16 + b in the high one. What is missing to
// whole groups and tokens has the code 0.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "lib/support/element.h"
#include "lib/support/types.h"

namespace quire {

constexpr int64_t kInt4Group = block_format(ElementType::kInt4).elements;
constexpr int64_t kInt4CodeBytes = kInt4Group / 2;
constexpr int64_t kInt4GroupBytes = static_cast<int64_t>(block_format(ElementType::kInt4).bytes);
constexpr int64_t kInt4Tokens = 16;

constexpr size_t int4_key_bytes(int64_t l, int64_t d) {
  return static_cast<size_t>(ceil_div(l, kInt4Group) * d * kInt4GroupBytes);
}
constexpr size_t int4_value_bytes(int64_t l, int64_t d) {
  return static_cast<size_t>(round_up(l, kInt4Tokens) * ceil_div(d, kInt4Group) * kInt4GroupBytes);
}

// Bytes from the first one of a head's keys or values.
struct Int4Place {
  int64_t code = 0;
  int shift = 0;  // of the byte there
  int64_t scale = 0;
  int64_t minimum = 0;
};

constexpr Int4Place int4_key_place(int64_t j, int64_t i, int64_t d) {
  const int64_t group = j / kInt4Group * d * kInt4GroupBytes, scale = group + d * kInt4CodeBytes + 2 * i;
  const int64_t lane = j % kInt4Group;
  return {group + i * kInt4CodeBytes + lane % kInt4CodeBytes, lane < kInt4CodeBytes ? 0 : 4, scale, scale + 2 * d};
}

constexpr Int4Place int4_value_place(int64_t j, int64_t i, int64_t d) {
  const int64_t groups = ceil_div(d, kInt4Group), block = j / kInt4Tokens * kInt4Tokens * groups * kInt4GroupBytes;
  const int64_t group = i / kInt4Group, token = j % kInt4Tokens, lane = i % kInt4Group;
  const int64_t scale = block + kInt4Tokens * groups * kInt4CodeBytes + 2 * (group * kInt4Tokens + token);
  return {block + (token * groups + group) * kInt4CodeBytes + lane % kInt4CodeBytes, lane < kInt4CodeBytes ? 0 : 4,
          scale, scale + 2 * groups * kInt4Tokens};
}

inline float load_f16(const void* base, int64_t byte) {
  uint16_t h;
  std::memcpy(&h, static_cast<const char*>(base) + byte, sizeof h);
  return from_f16(h);
}

inline float load_int4(const void* base, const Int4Place& at) {
  const int code = (static_cast<const uint8_t*>(base)[at.code] >> at.shift) & 15;
  return std::fma(static_cast<float>(code), load_f16(base, at.scale), load_f16(base, at.minimum));
}

inline void store_int4(void* base, const Int4Place& at, int code, uint16_t scale, uint16_t minimum) {
  auto* const bytes = static_cast<uint8_t*>(base);
  bytes[at.code] = static_cast<uint8_t>((bytes[at.code] & (0xf0 >> at.shift)) | (code << at.shift));
  std::memcpy(bytes + at.scale, &scale, sizeof scale);
  std::memcpy(bytes + at.minimum, &minimum, sizeof minimum);
}

// What a group's numbers share, as it is stored, and how a number becomes its code.
struct Int4Scale {
  uint16_t scale = 0;
  uint16_t minimum = 0;
  float from = 0;
  float inverse = 0;

  // Of numbers of [low, high]; all_finite: they are numbers, and finite.
  static constexpr Int4Scale of(float low, float high, bool all_finite) {
    constexpr uint16_t kSign = 0x8000, kInfinity = 0x7c00, kNan = 0x7e00;
    Int4Scale s;
    s.minimum = to_f16(low + 0.0f);  // -0 becomes 0
    s.from = from_f16(s.minimum);
    if (s.from > low) {
      s.minimum = static_cast<uint16_t>((s.minimum & kSign) ? s.minimum + 1 : s.minimum - 1);
      s.from = from_f16(s.minimum);
    }
    const float exact = (high - s.from) / 15.0f + 0.0f;
    s.scale = to_f16(exact);
    if (from_f16(s.scale) < exact) ++s.scale;
    if (!all_finite || s.minimum == (kSign | kInfinity) || s.scale >= kInfinity) {
      s = {kNan, kNan, 0, 0};
    } else if (s.scale > 0) {
      s.inverse = 1.0f / from_f16(s.scale);
    }
    return s;
  }

  // To nearest even, within [0, 15].
  constexpr int code(float x) const {
    constexpr float kRound = 0x1.8p23f;  // added to a small number, it leaves no place for fractions
    x = (x - from) * inverse;
    x = x < 15.0f ? x : 15.0f;
    x = x > 0.0f ? x : 0.0f;
    return static_cast<int>((x + kRound) - kRound);
  }
};

}  // namespace quire
