// Single elements of the types that are not quantised: widening to f32, narrowing from f32 (round to nearest even),
// access at any alignment. Bit for bit what the vector instructions do: NaN stays NaN (quiet, upper payload kept), f16
// overflows to infinity.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "lib/support/types.h"

namespace quire {

constexpr float from_bf16(uint16_t h) { return std::bit_cast<float>(static_cast<uint32_t>(h) << 16); }

constexpr uint16_t to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

constexpr float from_f16(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 0x1fu;
  const uint32_t fraction = h & 0x3ffu;
  if (exponent == 0x1fu) {
    const uint32_t quiet = fraction ? 0x400000u : 0u;
    return std::bit_cast<float>(sign | 0x7f800000u | quiet | (fraction << 13));
  }
  if (exponent == 0) {  // zero and denormals: multiples of 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
}

constexpr uint16_t to_f16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round past the largest f16
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: the addition rounds to a multiple of 2^-24
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
  } else {
    half = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

// Of kInt8: the integer.
inline float load_element(ElementType type, const void* base, int64_t index) {
  const char* at = static_cast<const char*>(base) + index * static_cast<int64_t>(element_bytes(type));
  if (type == ElementType::kInt8) return static_cast<float>(static_cast<int8_t>(*at));
  if (type == ElementType::kF32) {
    float x;
    std::memcpy(&x, at, sizeof x);
    return x;
  }
  uint16_t h;
  std::memcpy(&h, at, sizeof h);
  return type == ElementType::kF16 ? from_f16(h) : from_bf16(h);
}

inline void store_element(ElementType type, void* base, int64_t index, float x) {
  char* at = static_cast<char*>(base) + index * static_cast<int64_t>(element_bytes(type));
  if (type == ElementType::kF32) {
    std::memcpy(at, &x, sizeof x);
    return;
  }
  const uint16_t h = type == ElementType::kF16 ? to_f16(x) : to_bf16(x);
  std::memcpy(at, &h, sizeof h);
}

}  // namespace quire
