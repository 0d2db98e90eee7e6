// Rounding to quantised types. For each group of elements that has a scale, some scales near the one that just covers
// the values are tried; each is refined by least squares for the numbers it gives, and the best one stays.
//
// Where only scales are tried (not offsets), a vector holds four of them, and each sum runs over the elements in their
// order: the bits are those of plain loops over one scale after the other, whatever the vectors of the machine.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>

#include "lib/support/element.h"
#include "lib/support/quantization.h"

namespace quire {
namespace {

using Values = std::span<const float>;

float rounded_to_f16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7fffffffu;
  // Numbers that f16 holds with all bits of its fraction.
  if (magnitude >= 0x38800000u && magnitude < 0x477ff000u) {
    return std::bit_cast<float>((bits + 0xfffu + (bits >> 13 & 1u)) & ~0x1fffu);
  }
  return from_f16(to_f16(x));
}

constexpr float kWhole = 0x1.8p23f;  // what is below 2^22 loses its fraction when this is added, to the nearest even

int nearest(float x, int low, int high) {
  // x may be out of the range of int, or no number: of a scale that f16 cannot hold.
  x = x > static_cast<float>(low) ? x : static_cast<float>(low);
  x = x < static_cast<float>(high) ? x : static_cast<float>(high);
  return static_cast<int>((x + kWhole) - kWhole);
}

// ---- several scales at a time

constexpr size_t kLanes = 4;
using Lanes [[gnu::vector_size(kLanes * sizeof(float))]] = float;

// nearest() of each lane.
Lanes nearest(Lanes x, float low, float high) {
  const Lanes lows = low - Lanes{}, highs = high - Lanes{}, whole = kWhole - Lanes{};
  x = x > lows ? x : lows;
  x = x < highs ? x : highs;
  return (x + whole) - whole;
}

Lanes inverse_of(Lanes scale) { return scale == Lanes{} ? Lanes{} : 1 / scale; }

// x ~ scale q, q in [low, high]: the sum of squared errors.
Lanes error_of(Values x, Lanes scale, float low, float high) {
  const Lanes inverse = inverse_of(scale);
  Lanes sum{};
  for (const float v : x) {
    const Lanes difference = v - scale * nearest(v * inverse, low, high);
    sum += difference * difference;
  }
  return sum;
}

// The scale that is best for the numbers that `scale` rounds to.
Lanes refit(Values x, Lanes scale, float low, float high) {
  const Lanes inverse = inverse_of(scale);
  Lanes products{}, squares{};
  for (const float v : x) {
    const Lanes q = nearest(v * inverse, low, high);
    products += v * q;
    squares += q * q;
  }
  return squares > Lanes{} ? products / squares : scale;
}

// The first of the values that are farthest from 0.
float extreme_of(Values x) {
  int32_t top = 0;  // of numbers, the order of their magnitudes is that of the bits
  for (const float v : x) top = std::max(top, std::bit_cast<int32_t>(v) & 0x7fffffff);
  if (top == 0) return 0;
  return *std::find_if(x.begin(), x.end(), [&](float v) { return (std::bit_cast<int32_t>(v) & 0x7fffffff) == top; });
}

// ---- one scale

// The scale that is best for the numbers that `scale` rounds to.
float refit(Values x, float scale, int low, int high) {
  const float inverse = scale == 0 ? 0 : 1 / scale;
  float products = 0, squares = 0;
  for (const float v : x) {
    const auto q = static_cast<float>(nearest(v * inverse, low, high));
    products += v * q;
    squares += q * q;
  }
  return squares > 0 ? products / squares : scale;
}

// The scale for x ~ scale q, q in [low, high]. `store` rounds a scale to what can be stored.
template <typename Store>
float fit_symmetric(Values x, int low, int high, const Store& store) {
  const float extreme = extreme_of(x);
  const float whole = store(extreme / static_cast<float>(low));
  if (extreme == 0) return whole;
  constexpr int kSteps = 8;
  constexpr size_t kTried = size_t{2} * (kSteps + 1), kVectors = (kTried + kLanes - 1) / kLanes;
  const auto least = static_cast<float>(low), most = static_cast<float>(high);
  // The last lanes are not used; a scale of 0 does no harm there.
  std::array<float, kVectors * kLanes> tried{};
  for (size_t i = 0; i < kTried; ++i) {
    const int sign = i <= kSteps ? -1 : 1, step = static_cast<int>(i % (kSteps + 1));
    // From a scale that covers the largest value to one that cuts it by a number and a half.
    const float reach = static_cast<float>(-low) - 1.5f + 2.0f * static_cast<float>(step) / kSteps;
    tried[i] = static_cast<float>(sign) * extreme / std::max(reach, 0.5f);
  }
  // The scales that can be stored: the first one, then those tried, each before what it is refined to.
  std::array<float, (1 + 2 * kTried + kLanes - 1) / kLanes * kLanes> stored{}, errors;
  stored[0] = whole;
  for (size_t i = 0; i < tried.size(); i += kLanes) {
    Lanes scale;
    std::memcpy(&scale, &tried[i], sizeof scale);
    const Lanes refined = refit(x, scale, least, most);
    for (size_t lane = 0; lane < kLanes && i + lane < kTried; ++lane) {
      stored[1 + 2 * (i + lane)] = store(scale[lane]);
      stored[2 + 2 * (i + lane)] = store(refined[lane]);
    }
  }
  for (size_t i = 0; i < stored.size(); i += kLanes) {
    Lanes scale;
    std::memcpy(&scale, &stored[i], sizeof scale);
    const Lanes error = error_of(x, scale, least, most);
    std::memcpy(&errors[i], &error, sizeof error);
  }
  size_t best = 0;
  for (size_t i = 1; i <= 2 * kTried; ++i) {
    if (errors[i] < errors[best]) best = i;
  }
  return stored[best];
}

// x ~ scale q + offset, q in [0, high].
struct Affine {
  float scale = 0;
  float offset = 0;
  float error = 0;
};

float error_of(Values x, float scale, float offset, int high) {
  const float inverse = scale == 0 ? 0 : 1 / scale;
  float sum = 0;
  for (const float v : x) {
    const float value = scale * static_cast<float>(nearest((v - offset) * inverse, 0, high)) + offset;
    sum += (v - value) * (v - value);
  }
  return sum;
}

// The scale and offset that are best for the numbers that these round to.
Affine refit(Values x, float scale, float offset, int high) {
  const float inverse = scale == 0 ? 0 : 1 / scale;
  float n = 0, q1 = 0, q2 = 0, x1 = 0, xq = 0;
  for (const float v : x) {
    const auto q = static_cast<float>(nearest((v - offset) * inverse, 0, high));
    n += 1, q1 += q, q2 += q * q, x1 += v, xq += v * q;
  }
  const float determinant = n * q2 - q1 * q1;
  if (determinant <= 0) return {scale, offset};
  return {(n * xq - q1 * x1) / determinant, (q2 * x1 - q1 * xq) / determinant};
}

// The best scale for an offset of zero.
float refit_without_offset(Values x, float scale, int high) { return refit(x, scale, 0, high); }

enum class Offset { kAny, kNotPositive };

// `store` rounds scale and offset to what can be stored.
template <typename Store>
Affine fit_affine(Values x, int high, Offset allowed, const Store& store) {
  float low = x[0], top = x[0];
  for (const float v : x) {
    low = std::min(low, v), top = std::max(top, v);
  }
  const auto within = [&](float offset) { return allowed == Offset::kNotPositive ? std::min(offset, 0.0f) : offset; };
  low = within(low), top = std::max(top, low);
  const auto whole = store((top - low) / static_cast<float>(high), low);
  Affine best{whole.scale, whole.offset, error_of(x, whole.scale, whole.offset, high)};
  const auto consider = [&](float scale, float offset) {
    const Affine stored = store(scale, within(offset));
    const float error = error_of(x, stored.scale, stored.offset, high);
    if (error < best.error) best = {stored.scale, stored.offset, error};
  };
  constexpr int kSteps = 10;
  for (int step = 0; step <= kSteps && top > low; ++step) {
    const float cut = 0.02f * static_cast<float>(step) * (top - low);  // from each end
    float scale = (top - low - 2 * cut) / static_cast<float>(high), offset = within(low + cut);
    for (int round = 0; round < 2; ++round) {
      const Affine refined = refit(x, scale, offset, high);
      if (refined.scale <= 0) break;
      scale = refined.scale, offset = refined.offset;
      if (offset != within(offset)) {
        offset = within(offset);
        scale = refit_without_offset(x, scale, high);
      }
      consider(scale, offset);
    }
  }
  return best;
}

// ---- blocks: bytes as in quantization.cc

void put_f16(uint8_t* at, float x) {
  const uint16_t h = to_f16(x);
  at[0] = static_cast<uint8_t>(h), at[1] = static_cast<uint8_t>(h >> 8);
}

using Numbers = std::array<int, kMostBlockElements>;

// What the block's elements round to with a scale and an offset.
void round_all(Values x, float scale, float offset, int low, int high, int* q) {
  const float inverse = scale == 0 ? 0 : 1 / scale;
  for (const float v : x) *q++ = nearest((v - offset) * inverse, low, high);
}

void put_nibbles(const int* q, uint8_t* at) {
  for (int j = 0; j < 16; ++j) at[j] = static_cast<uint8_t>((q[j] & 15) | (q[j + 16] & 15) << 4);
}

void put_fifth_bits(const int* q, uint8_t* at) {
  std::memset(at, 0, 4);
  for (int j = 0; j < 32; ++j) at[j / 8] = static_cast<uint8_t>(at[j / 8] | (q[j] >> 4 & 1) << j % 8);
}

float fit_f16(Values x, int low, int high) { return fit_symmetric(x, low, high, rounded_to_f16); }

Affine fit_f16_affine(Values x, int high) {
  return fit_affine(x, high, Offset::kAny, [](float scale, float offset) {
    return Affine{rounded_to_f16(scale), rounded_to_f16(offset)};
  });
}

void quantize_q8_0(Values x, uint8_t* block) {
  Numbers q;
  // 8 bits are fine enough that the scale which covers the largest value is as good as any.
  const float d = rounded_to_f16(std::fabs(extreme_of(x)) / 127);
  round_all(x, d, 0, -127, 127, q.data());
  put_f16(block, d);
  for (int j = 0; j < 32; ++j) block[2 + j] = static_cast<uint8_t>(q[static_cast<size_t>(j)]);
}

void quantize_q4_0(Values x, uint8_t* block) {
  Numbers q;
  const float d = fit_f16(x, -8, 7);
  round_all(x, d, 0, -8, 7, q.data());
  for (size_t j = 0; j < 32; ++j) q[j] += 8;
  put_f16(block, d);
  put_nibbles(q.data(), block + 2);
}

void quantize_q4_1(Values x, uint8_t* block) {
  Numbers q;
  const Affine fit = fit_f16_affine(x, 15);
  round_all(x, fit.scale, fit.offset, 0, 15, q.data());
  put_f16(block, fit.scale), put_f16(block + 2, fit.offset);
  put_nibbles(q.data(), block + 4);
}

void quantize_q5_0(Values x, uint8_t* block) {
  Numbers q;
  const float d = fit_f16(x, -16, 15);
  round_all(x, d, 0, -16, 15, q.data());
  for (size_t j = 0; j < 32; ++j) q[j] += 16;
  put_f16(block, d);
  put_fifth_bits(q.data(), block + 2);
  put_nibbles(q.data(), block + 6);
}

void quantize_q5_1(Values x, uint8_t* block) {
  Numbers q;
  const Affine fit = fit_f16_affine(x, 31);
  round_all(x, fit.scale, fit.offset, 0, 31, q.data());
  put_f16(block, fit.scale), put_f16(block + 2, fit.offset);
  put_fifth_bits(q.data(), block + 4);
  put_nibbles(q.data(), block + 8);
}

// q4_k and q5_k: each group of 32 is fitted alone; then scales and offsets are rounded to 6 bits of the largest, and
// the elements to what they give.
void quantize_groups(Values x, int high, uint8_t* block, Numbers& q) {
  Affine fits[8];
  float top_scale = 0, top_offset = 0;
  for (size_t g = 0; g < 8; ++g) {
    fits[g] = fit_affine(x.subspan(g * 32, 32), high, Offset::kNotPositive, [](float scale, float offset) {
      return Affine{scale, offset};
    });
    top_scale = std::max(top_scale, fits[g].scale);
    top_offset = std::max(top_offset, -fits[g].offset);
  }
  const float d = rounded_to_f16(top_scale / 63), e = rounded_to_f16(top_offset / 63);
  put_f16(block, d), put_f16(block + 2, e);
  int scales[8], offsets[8];
  for (size_t g = 0; g < 8; ++g) {
    const Values group = x.subspan(g * 32, 32);
    const int s0 = nearest(d == 0 ? 0 : fits[g].scale / d, 0, 63);
    const int t0 = nearest(e == 0 ? 0 : -fits[g].offset / e, 0, 63);
    float best = INFINITY;
    scales[g] = s0, offsets[g] = t0;
    for (int s = std::max(0, s0 - 1); s <= std::min(63, s0 + 1); ++s) {
      for (int t = std::max(0, t0 - 1); t <= std::min(63, t0 + 1); ++t) {
        const float error = error_of(group, d * static_cast<float>(s), -e * static_cast<float>(t), high);
        if (error < best) best = error, scales[g] = s, offsets[g] = t;
      }
    }
    round_all(group, d * static_cast<float>(scales[g]), -e * static_cast<float>(offsets[g]), 0, high, &q[g * 32]);
  }
  for (int g = 0; g < 4; ++g) {
    block[4 + g] = static_cast<uint8_t>(scales[g] | (scales[g + 4] >> 4) << 6);
    block[8 + g] = static_cast<uint8_t>(offsets[g] | (offsets[g + 4] >> 4) << 6);
    block[12 + g] = static_cast<uint8_t>((scales[g + 4] & 15) | (offsets[g + 4] & 15) << 4);
  }
}

void put_group_nibbles(const Numbers& q, uint8_t* at) {
  for (size_t pair = 0; pair < 4; ++pair) {
    for (size_t j = 0; j < 32; ++j) {
      at[pair * 32 + j] = static_cast<uint8_t>((q[pair * 64 + j] & 15) | (q[pair * 64 + 32 + j] & 15) << 4);
    }
  }
}

void quantize_q4_k(Values x, uint8_t* block) {
  Numbers q;
  quantize_groups(x, 15, block, q);
  put_group_nibbles(q, block + 16);
}

void quantize_q5_k(Values x, uint8_t* block) {
  Numbers q;
  quantize_groups(x, 31, block, q);
  for (size_t j = 0; j < 32; ++j) {
    int bits = 0;
    for (size_t g = 0; g < 8; ++g) bits |= (q[g * 32 + j] >> 4 & 1) << g;
    block[16 + j] = static_cast<uint8_t>(bits);
  }
  put_group_nibbles(q, block + 48);
}

void quantize_q6_k(Values x, uint8_t* block) {
  float scales[16];
  float extreme = 0;
  for (size_t g = 0; g < 16; ++g) {
    scales[g] = fit_symmetric(x.subspan(g * 16, 16), -32, 31, [](float scale) { return scale; });
    if (std::fabs(scales[g]) > std::fabs(extreme)) extreme = scales[g];
  }
  const float d = rounded_to_f16(extreme / -128);
  Numbers q;
  for (size_t g = 0; g < 16; ++g) {
    const int s = nearest(d == 0 ? 0 : scales[g] / d, -128, 127);
    block[192 + g] = static_cast<uint8_t>(s);
    round_all(x.subspan(g * 16, 16), d * static_cast<float>(s), 0, -32, 31, &q[g * 16]);
  }
  put_f16(block + 208, d);
  for (int& number : q) number += 32;
  for (size_t half = 0; half < 2; ++half) {
    const int* h = &q[half * 128];
    for (size_t j = 0; j < 64; ++j) {
      block[half * 64 + j] = static_cast<uint8_t>((h[j] & 15) | (h[j + 64] & 15) << 4);
    }
    for (size_t j = 0; j < 32; ++j) {
      block[128 + half * 32 + j] =
          static_cast<uint8_t>(h[j] >> 4 | (h[j + 32] >> 4) << 2 | (h[j + 64] >> 4) << 4 | (h[j + 96] >> 4) << 6);
    }
  }
}

using QuantizeBlock = void (*)(Values x, uint8_t* block);

QuantizeBlock block_function(ElementType type) {
  switch (type) {
    case ElementType::kQ8_0:
      return quantize_q8_0;
    case ElementType::kQ4_0:
      return quantize_q4_0;
    case ElementType::kQ4_1:
      return quantize_q4_1;
    case ElementType::kQ5_0:
      return quantize_q5_0;
    case ElementType::kQ5_1:
      return quantize_q5_1;
    case ElementType::kQ4_K:
      return quantize_q4_k;
    case ElementType::kQ5_K:
      return quantize_q5_k;
    case ElementType::kQ6_K:
      return quantize_q6_k;
    case ElementType::kF32:
    case ElementType::kF16:
    case ElementType::kBF16:
    case ElementType::kInt8:
    case ElementType::kInt4:
      break;
  }
  return nullptr;
}

bool is_finite_f16(const uint8_t* at) { return (at[1] & 0x7c) != 0x7c; }

bool all_finite(Values x) {
  int32_t top = 0;
  for (const float v : x) top = std::max(top, std::bit_cast<int32_t>(v) & 0x7fffffff);
  return top < 0x7f800000;
}

}  // namespace

bool quantize(const float* source, int64_t n, ElementType type, void* out) {
  const QuantizeBlock function = block_function(type);
  const BlockFormat format = block_format(type);
  const size_t scale_at = type == ElementType::kQ6_K ? 208 : 0;
  auto* block = static_cast<uint8_t*>(out);
  bool finite = true;
  for (int64_t i = 0; i < n; i += format.elements, block += format.bytes) {
    const Values x{source + i, static_cast<size_t>(format.elements)};
    if (all_finite(x)) {
      function(x, block);
    } else {
      std::memset(block, 0, format.bytes);
      put_f16(block + scale_at, NAN);
    }
    finite = finite && is_finite_f16(block + scale_at) && (!has_offset(type) || is_finite_f16(block + 2));
  }
  return finite;
}

}  // namespace quire
