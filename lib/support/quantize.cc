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

// The numbers that a value may become, as a multiple of its scale. Here: the integers from low to high.
struct Integers {
  float low, high;
  static constexpr float kStep = 1;  // from the lowest number to the next one, about
  Lanes nearest_to(Lanes x) const { return nearest(x, low, high); }
};

// Here: kLevels.
struct Levels {
  static constexpr float low = kLevels[0];
  static constexpr float kStep = 20;

  // The level of each value of 2 x that is rounded down to an integer. Two levels are equally near where 2 x is an
  // integer, so between two integers the nearest one is the same.
  static constexpr int kFirst = 2 * kLevels[0] - 1, kNumbers = 2 * (kLevels[15] - kLevels[0]) + 2;
  static constexpr std::array<uint8_t, kNumbers> kNearest = [] {
    std::array<uint8_t, kNumbers> nearest{};
    for (int i = 0; i < kNumbers; ++i) {
      const int twice = 2 * (kFirst + i) + 1;  // 4 x in the middle between two integers
      int code = 0;
      while (code < 15 && twice > 2 * (kLevels[code] + kLevels[code + 1])) ++code;
      nearest[static_cast<size_t>(i)] = static_cast<uint8_t>(code);
    }
    return nearest;
  }();

  static int code_of(float x) {
    return kNearest[static_cast<size_t>(nearest(2 * x - 0.5f, kFirst, kFirst + kNumbers - 1) - kFirst)];
  }
  Lanes nearest_to(Lanes x) const {
    const Lanes number = nearest(2 * x - 0.5f, kFirst, kFirst + kNumbers - 1) - static_cast<float>(kFirst);
    Lanes levels;
    for (size_t i = 0; i < kLanes; ++i) {
      levels[i] = kLevels[kNearest[static_cast<size_t>(static_cast<int>(number[i]))]];
    }
    return levels;
  }
};

Lanes inverse_of(Lanes scale) { return scale == Lanes{} ? Lanes{} : 1 / scale; }

// x ~ scale q, q of the numbers: the sum of squared errors.
template <typename Of>
Lanes error_of(Values x, Lanes scale, Of numbers) {
  const Lanes inverse = inverse_of(scale);
  Lanes sum{};
  for (const float v : x) {
    const Lanes difference = v - scale * numbers.nearest_to(v * inverse);
    sum += difference * difference;
  }
  return sum;
}

// The scale that is best for the numbers that `scale` rounds to.
template <typename Of>
Lanes refit(Values x, Lanes scale, Of numbers) {
  const Lanes inverse = inverse_of(scale);
  Lanes products{}, squares{};
  for (const float v : x) {
    const Lanes q = numbers.nearest_to(v * inverse);
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

// The scale for x ~ scale q, q of the numbers. `store` rounds a scale to what can be stored.
template <typename Of, typename Store>
float fit_symmetric(Values x, Of numbers, const Store& store) {
  const float extreme = extreme_of(x);
  const float whole = store(extreme / numbers.low);
  if (extreme == 0) return whole;
  constexpr int kSteps = 8;
  constexpr size_t kTried = size_t{2} * (kSteps + 1), kVectors = (kTried + kLanes - 1) / kLanes;
  // The last lanes are not used; a scale of 0 does no harm there.
  std::array<float, kVectors * kLanes> tried{};
  for (size_t i = 0; i < kTried; ++i) {
    const int sign = i <= kSteps ? -1 : 1, step = static_cast<int>(i % (kSteps + 1));
    // From a scale that covers the largest value to one that cuts it by a number and a half.
    const float reach = -numbers.low + Of::kStep * (2.0f * static_cast<float>(step) / kSteps - 1.5f);
    tried[i] = static_cast<float>(sign) * extreme / std::max(reach, 0.5f);
  }
  // The scales that can be stored: the first one, then those tried, each before what it is refined to.
  std::array<float, (1 + 2 * kTried + kLanes - 1) / kLanes * kLanes> stored{}, errors;
  stored[0] = whole;
  for (size_t i = 0; i < tried.size(); i += kLanes) {
    Lanes scale;
    std::memcpy(&scale, &tried[i], sizeof scale);
    const Lanes refined = refit(x, scale, numbers);
    for (size_t lane = 0; lane < kLanes && i + lane < kTried; ++lane) {
      stored[1 + 2 * (i + lane)] = store(scale[lane]);
      stored[2 + 2 * (i + lane)] = store(refined[lane]);
    }
  }
  for (size_t i = 0; i < stored.size(); i += kLanes) {
    Lanes scale;
    std::memcpy(&scale, &stored[i], sizeof scale);
    const Lanes error = error_of(x, scale, numbers);
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

float fit_f16(Values x, int low, int high) {
  return fit_symmetric(x, Integers{static_cast<float>(low), static_cast<float>(high)}, rounded_to_f16);
}

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

// Groups of a block that have a scale and an offset each.
template <size_t kGroups>
struct AffineGroups {
  float d, e;  // f16: what the scales and what the offsets are multiples of
  int scales[kGroups], offsets[kGroups];
  Numbers q;
};

// q2_k, q4_k and q5_k: each group is fitted alone; then scales and offsets are rounded to integers up to `most`, which
// is for the largest, and the elements to what they give.
template <size_t kGroups>
AffineGroups<kGroups> quantize_groups(Values x, int high, int most) {
  constexpr size_t kElements = kMostBlockElements / kGroups;
  AffineGroups<kGroups> of;
  Affine fits[kGroups];
  float top_scale = 0, top_offset = 0;
  for (size_t g = 0; g < kGroups; ++g) {
    fits[g] =
        fit_affine(x.subspan(g * kElements, kElements), high, Offset::kNotPositive, [](float scale, float offset) {
          return Affine{scale, offset};
        });
    top_scale = std::max(top_scale, fits[g].scale);
    top_offset = std::max(top_offset, -fits[g].offset);
  }
  of.d = rounded_to_f16(top_scale / static_cast<float>(most));
  of.e = rounded_to_f16(top_offset / static_cast<float>(most));
  for (size_t g = 0; g < kGroups; ++g) {
    const Values group = x.subspan(g * kElements, kElements);
    const int s0 = nearest(of.d == 0 ? 0 : fits[g].scale / of.d, 0, most);
    const int t0 = nearest(of.e == 0 ? 0 : -fits[g].offset / of.e, 0, most);
    float best = INFINITY;
    of.scales[g] = s0, of.offsets[g] = t0;
    for (int s = std::max(0, s0 - 1); s <= std::min(most, s0 + 1); ++s) {
      for (int t = std::max(0, t0 - 1); t <= std::min(most, t0 + 1); ++t) {
        const float error = error_of(group, of.d * static_cast<float>(s), -of.e * static_cast<float>(t), high);
        if (error < best) best = error, of.scales[g] = s, of.offsets[g] = t;
      }
    }
    round_all(group, of.d * static_cast<float>(of.scales[g]), -of.e * static_cast<float>(of.offsets[g]), 0, high,
              &of.q[g * kElements]);
  }
  return of;
}

// The head of a block of q4_k or q5_k.
void put_groups(const AffineGroups<8>& of, uint8_t* block) {
  put_f16(block, of.d), put_f16(block + 2, of.e);
  for (int g = 0; g < 4; ++g) {
    block[4 + g] = static_cast<uint8_t>(of.scales[g] | (of.scales[g + 4] >> 4) << 6);
    block[8 + g] = static_cast<uint8_t>(of.offsets[g] | (of.offsets[g + 4] >> 4) << 6);
    block[12 + g] = static_cast<uint8_t>((of.scales[g + 4] & 15) | (of.offsets[g + 4] & 15) << 4);
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
  const auto of = quantize_groups<8>(x, 15, 63);
  put_groups(of, block);
  put_group_nibbles(of.q, block + 16);
}

// Bit `bit` of the 32 numbers of each group: bit g of a byte is of group g.
void put_group_bits(const Numbers& q, int bit, uint8_t* at) {
  for (size_t j = 0; j < 32; ++j) {
    int bits = 0;
    for (size_t g = 0; g < 8; ++g) bits |= (q[g * 32 + j] >> bit & 1) << g;
    at[j] = static_cast<uint8_t>(bits);
  }
}

void quantize_q5_k(Values x, uint8_t* block) {
  const auto of = quantize_groups<8>(x, 31, 63);
  put_groups(of, block);
  put_group_bits(of.q, 4, block + 16);
  put_group_nibbles(of.q, block + 48);
}

// The low two bits of the numbers, of runs of 32 in halves of the block.
void put_two_bits(const Numbers& q, uint8_t* at) {
  std::memset(at, 0, 64);
  for (size_t j = 0; j < 256; ++j) {
    uint8_t& byte = at[j / 128 * 32 + j % 32];
    byte = static_cast<uint8_t>(byte | (q[j] & 3) << j / 32 % 4 * 2);
  }
}

void quantize_q2_k(Values x, uint8_t* block) {
  const auto of = quantize_groups<16>(x, 3, 15);
  for (size_t g = 0; g < 16; ++g) block[g] = static_cast<uint8_t>(of.scales[g] | of.offsets[g] << 4);
  put_two_bits(of.q, block + 16);
  put_f16(block + 80, of.d), put_f16(block + 82, of.e);
}

// Groups of a block that have a scale each, of six bits.
template <size_t kGroups>
struct ScaledGroups {
  float d;               // f16: what the scales are multiples of
  int numbers[kGroups];  // how often: from -32 to 31

  float scale(size_t g) const { return d * static_cast<float>(numbers[g]); }
};

// q3_k and iq4_xs: each group is fitted alone; of the multiples next to its scale the one of the least error stays.
template <size_t kGroups, typename Of>
ScaledGroups<kGroups> fit_scaled_groups(Values x, Of numbers) {
  constexpr size_t kElements = kMostBlockElements / kGroups;
  ScaledGroups<kGroups> of;
  float fits[kGroups], extreme = 0;
  for (size_t g = 0; g < kGroups; ++g) {
    fits[g] = fit_symmetric(x.subspan(g * kElements, kElements), numbers, [](float scale) { return scale; });
    if (std::fabs(fits[g]) > std::fabs(extreme)) extreme = fits[g];
  }
  of.d = rounded_to_f16(extreme / -32);
  for (size_t g = 0; g < kGroups; ++g) {
    const int first = nearest(of.d == 0 ? 0 : fits[g] / of.d, -31, 29) - 1;
    Lanes scale;
    for (size_t i = 0; i < kLanes; ++i) scale[i] = of.d * static_cast<float>(first + static_cast<int>(i));
    const Lanes errors = error_of(x.subspan(g * kElements, kElements), scale, numbers);
    size_t best = 0;
    for (size_t i = 1; i < kLanes; ++i) {
      if (errors[i] < errors[best]) best = i;
    }
    of.numbers[g] = first + static_cast<int>(best);
  }
  return of;
}

void quantize_q3_k(Values x, uint8_t* block) {
  const auto of = fit_scaled_groups<16>(x, Integers{-4, 3});
  Numbers q;
  for (size_t g = 0; g < 16; ++g) round_all(x.subspan(g * 16, 16), of.scale(g), 0, -4, 3, &q[g * 16]);
  for (int& number : q) number += 4;
  put_group_bits(q, 2, block);
  put_two_bits(q, block + 32);
  std::memset(block + 96, 0, 12);
  for (size_t g = 0; g < 16; ++g) {
    const int scale = of.numbers[g] + 32;
    uint8_t &low = block[96 + g % 8], &high = block[104 + g % 4];
    low = static_cast<uint8_t>(low | (scale & 15) << g / 8 * 4);
    high = static_cast<uint8_t>(high | scale >> 4 << g / 4 * 2);
  }
  put_f16(block + 108, of.d);
}

// The codes of 32 elements.
void put_levels(Values x, float scale, uint8_t* at) {
  const float inverse = scale == 0 ? 0 : 1 / scale;
  int codes[32];
  for (size_t j = 0; j < 32; ++j) codes[j] = Levels::code_of(x[j] * inverse);
  put_nibbles(codes, at);
}

void quantize_iq4_nl(Values x, uint8_t* block) {
  const float d = fit_symmetric(x, Levels(), rounded_to_f16);
  put_f16(block, d);
  put_levels(x, d, block + 2);
}

void quantize_iq4_xs(Values x, uint8_t* block) {
  const auto of = fit_scaled_groups<8>(x, Levels());
  put_f16(block, of.d);
  std::memset(block + 2, 0, 6);
  for (size_t g = 0; g < 8; ++g) {
    const int scale = of.numbers[g] + 32;
    uint8_t &high = block[2 + g / 4], &low = block[4 + g / 2];
    high = static_cast<uint8_t>(high | scale >> 4 << g % 4 * 2);
    low = static_cast<uint8_t>(low | (scale & 15) << g % 2 * 4);
    put_levels(x.subspan(g * 32, 32), of.scale(g), block + 8 + 16 * g);
  }
}

void quantize_q6_k(Values x, uint8_t* block) {
  float scales[16];
  float extreme = 0;
  for (size_t g = 0; g < 16; ++g) {
    scales[g] = fit_symmetric(x.subspan(g * 16, 16), Integers{-32, 31}, [](float scale) { return scale; });
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
    case ElementType::kQ2_K:
      return quantize_q2_k;
    case ElementType::kQ3_K:
      return quantize_q3_k;
    case ElementType::kIQ4_NL:
      return quantize_iq4_nl;
    case ElementType::kIQ4_XS:
      return quantize_iq4_xs;
    case ElementType::kF32:
    case ElementType::kF16:
    case ElementType::kBF16:
    case ElementType::kInt8:
    case ElementType::kInt4:
      break;
  }
  return nullptr;
}

// Where a block has its f16 scale; where it has offsets, their f16 number follows.
size_t scale_of_block(ElementType type) {
  switch (type) {
    case ElementType::kQ6_K:
      return 208;
    case ElementType::kQ2_K:
      return 80;
    case ElementType::kQ3_K:
      return 108;
    default:
      return 0;
  }
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
  const size_t scale_at = scale_of_block(type);
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
    finite = finite && is_finite_f16(block + scale_at) && (!has_offset(type) || is_finite_f16(block + scale_at + 2));
  }
  return finite;
}

}  // namespace quire
