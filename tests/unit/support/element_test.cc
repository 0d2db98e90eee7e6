// Stored elements as float32: every float16 and bfloat16.

#include "lib/support/element.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace quire {
namespace {

// Both have a sign, `exponent_bits` of exponent and the rest of fraction (IEEE 754).
void expect_loaded(ElementType type, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto stored = static_cast<uint16_t>(bits);
    const float loaded = load_element(type, &stored, 0);
    const int exponent = static_cast<int>(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    const int fraction = static_cast<int>(bits) & ((1 << fraction_bits) - 1);
    ASSERT_EQ(std::signbit(loaded), bits >> 15 == 1) << bits;
    if (exponent == (1 << exponent_bits) - 1) {
      ASSERT_EQ(std::isinf(loaded), fraction == 0) << bits;
      ASSERT_EQ(std::isnan(loaded), fraction != 0) << bits;
      continue;
    }
    const int whole = exponent > 0 ? 1 << fraction_bits : 0;
    const double value = std::ldexp(whole + fraction, std::max(exponent, 1) - bias - fraction_bits);
    ASSERT_EQ(std::fabs(loaded), value) << bits;
  }
}

TEST(LoadElement, EveryFloat16) { expect_loaded(ElementType::kF16, 5); }

TEST(LoadElement, EveryBfloat16) { expect_loaded(ElementType::kBF16, 8); }

TEST(LoadElement, TakesTheElementOfTheIndex) {
  const float wide[] = {1.5f, -2.25f};
  EXPECT_EQ(load_element(ElementType::kF32, wide, 1), -2.25f);
  const uint16_t half[] = {0x3c00, 0xc100};
  EXPECT_EQ(load_element(ElementType::kF16, half, 1), -2.5f);
  const uint16_t brain[] = {0x3f80, 0xc020};
  EXPECT_EQ(load_element(ElementType::kBF16, brain, 1), -2.5f);
}

}  // namespace
}  // namespace quire
