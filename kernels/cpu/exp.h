// exp in f32, relative error below 4e-7 where the result is normal; gradual underflow; exp(-inf) = 0; no table.
// exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln 2 / 2, exp(r) = 1 + r + r^2 Q(r), Q of degree 4 fitted for the
// smallest largest relative error (3e-9). simd-inl.h has the same operations on vectors, so the bits agree.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace quire::cpu {

struct ExpConstants {
  static constexpr float kLowest = -104.0f;  // gives 0
  static constexpr float kHighest = 89.0f;   // gives infinity
  static constexpr float kLog2E = 0x1.715476p+0f;
  static constexpr float kRound = 0x1.8p+23f;  // adding it leaves round(x) in the low bits
  static constexpr float kLn2High = 0x1.62e4p-1f;
  static constexpr float kLn2Low = 0x1.7f7d1cp-20f;
  static constexpr float kQ0 = 0x1.fffffcp-2f;
  static constexpr float kQ1 = 0x1.555490p-3f;
  static constexpr float kQ2 = 0x1.5558f4p-5f;
  static constexpr float kQ3 = 0x1.123a6cp-7f;
  static constexpr float kQ4 = 0x1.6a2352p-10f;
};

inline float exp_f32(float x) {
  using C = ExpConstants;
  x = x < C::kLowest ? C::kLowest : x;  // written so that NaN passes through
  x = x > C::kHighest ? C::kHighest : x;
  const float rounded = std::fma(x, C::kLog2E, C::kRound);
  const float n = rounded - C::kRound;
  float r = std::fma(n, -C::kLn2High, x);
  r = std::fma(n, -C::kLn2Low, r);
  float q = std::fma(r, C::kQ4, C::kQ3);
  q = std::fma(r, q, C::kQ2);
  q = std::fma(r, q, C::kQ1);
  q = std::fma(r, q, C::kQ0);
  const float p = std::fma(r * r, q, r) + 1.0f;
  // 2^n in two factors: n reaches 128 and -150, beyond one exponent field.
  const uint32_t exponent = std::bit_cast<uint32_t>(rounded) - std::bit_cast<uint32_t>(C::kRound);
  const uint32_t half = static_cast<uint32_t>(static_cast<int32_t>(exponent) >> 1);
  const float scale_1 = std::bit_cast<float>((half + 127u) << 23);
  const float scale_2 = std::bit_cast<float>((exponent - half + 127u) << 23);
  return p * scale_1 * scale_2;
}

// GELU in its tanh form is z / (1 + exp(-gelu_argument(z))): 2 sqrt(2 / pi) (z + 0.044715 z^3).
constexpr float kGeluLinear = 1.5957691216f, kGeluCubic = 0.0713548163f;

inline float gelu_argument(float z) { return std::fma(z * z, kGeluCubic, kGeluLinear) * z; }

}  // namespace quire::cpu
