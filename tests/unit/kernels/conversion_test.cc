#include <limits>

#include "tests/unit/kernels/kernel_test.h"

namespace quire::cpu {
namespace {

class ConversionTest : public KernelTest {
 protected:
  std::vector<uint16_t> narrow(const std::vector<float>& x, ElementType type) {
    std::vector<uint16_t> out(x.size());
    convert(ElementType::kF32, x.data(), type, out.data(), static_cast<int64_t>(x.size()));
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, ConversionTest, testing::ValuesIn(float_targets()), kernel_target_name);

// What the format's definition says, in double.
double value_of(uint16_t h, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (h >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = h & ((1 << fraction_bits) - 1);
  const double sign = h & 0x8000 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  const double significand = exponent ? fraction + (1 << fraction_bits) : fraction;
  return sign * std::ldexp(significand, (exponent ? exponent : 1) - bias - fraction_bits);
}

int exponent_bits(ElementType type) { return type == ElementType::kF16 ? 5 : 8; }

TEST_P(ConversionTest, WideningIsExactForAllValues) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const ElementType type : {ElementType::kF16, ElementType::kBF16}) {
    std::vector<float> wide(all.size()), back_wide(all.size());
    convert(type, all.data(), ElementType::kF32, wide.data(), 65536);
    for (size_t i = 0; i < all.size(); ++i) {
      const double expected = value_of(all[i], exponent_bits(type));
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(wide[i])) << i;
      } else {
        ASSERT_EQ(wide[i], expected) << i;
        ASSERT_EQ(std::signbit(wide[i]), std::signbit(expected)) << i;
      }
    }
    std::vector<float> reference(all.size());
    scalar::convert(type, all.data(), ElementType::kF32, reference.data(), 65536);
    expect_same_bits(wide, reference, element_name(type));
    const std::vector<uint16_t> back = narrow(wide, type);
    for (size_t i = 0; i < all.size(); ++i) {
      if (!std::isnan(wide[i])) {
        ASSERT_EQ(back[i], all[i]);
      } else {
        ASSERT_TRUE(std::isnan(value_of(back[i], exponent_bits(type)))) << i;
      }
    }
  }
}

// Finite, non-negative x: its neighbours h - 1 and h + 1 are no nearer, and a tie went to the even one.
void expect_nearest(float x, uint16_t h, int bits) {
  const uint16_t infinity = static_cast<uint16_t>(((1 << bits) - 1) << (15 - bits));
  // The overflow threshold is where the next value would have been, were the exponent unbounded.
  const auto finite = [&](int code) {
    return code == infinity ? std::ldexp(1.0, 1 << (bits - 1)) : value_of(static_cast<uint16_t>(code), bits);
  };
  ASSERT_LE(h, infinity) << x;
  const double error = std::fabs(x - finite(h));
  if (h > 0) {
    const double below = std::fabs(x - finite(h - 1));
    ASSERT_TRUE(error < below || (error == below && h % 2 == 0) || (h == infinity && x > finite(h))) << x << " " << h;
  }
  if (h < infinity) {
    const double above = std::fabs(x - finite(h + 1));
    ASSERT_TRUE(error < above || (error == above && h % 2 == 0)) << x << " " << h;
  }
}

TEST_P(ConversionTest, NarrowingRoundsToNearestEven) {
  for (const ElementType type : {ElementType::kF16, ElementType::kBF16}) {
    const int bits = exponent_bits(type);
    const int infinity = ((1 << bits) - 1) << (15 - bits);
    std::vector<float> x;
    for (int h = 0; h < infinity; ++h) {  // each value, each midpoint, and the floats beside both
      const double low = value_of(static_cast<uint16_t>(h), bits);
      const double high =
          h + 1 < infinity ? value_of(static_cast<uint16_t>(h + 1), bits) : std::ldexp(1.0, 1 << (bits - 1));
      for (const double v : {low, (low + high) / 2}) {
        const auto f = static_cast<float>(v);
        for (const float near : {std::nextafterf(f, 0.0f), f, std::nextafterf(f, HUGE_VALF)}) {
          if (std::isfinite(near)) x.push_back(near);
        }
      }
    }
    for (int i = 0; i < 20000; ++i) {
      const float f = std::fabs(std::bit_cast<float>(static_cast<uint32_t>(random_())));
      if (std::isfinite(f)) x.push_back(f);
    }
    const std::vector<uint16_t> h = narrow(x, type);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_NO_FATAL_FAILURE(expect_nearest(x[i], h[i], bits));
      ASSERT_EQ(h[i], type == ElementType::kF16 ? to_f16(x[i]) : to_bf16(x[i])) << x[i];
    }
    std::vector<float> negative = x;
    for (float& v : negative) v = -v;
    const std::vector<uint16_t> minus = narrow(negative, type);
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(minus[i], h[i] | 0x8000) << x[i];
  }
}

TEST_P(ConversionTest, SpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float low_payload_nan = std::bit_cast<float>(0xff800001u);
  std::vector<float> x(40, 1.0f);  // longer than a vector, so that both it and its rest are met
  for (const size_t at : {size_t{0}, size_t{33}}) {
    x[at] = infinity;
    x[at + 1] = -infinity;
    x[at + 2] = low_payload_nan;
    x[at + 3] = 65519.996f;
    x[at + 4] = 65520.0f;
    x[at + 5] = 0x1p-25f;
  }
  const std::vector<uint16_t> f16 = narrow(x, ElementType::kF16), bf16 = narrow(x, ElementType::kBF16);
  for (const size_t at : {size_t{0}, size_t{33}}) {
    EXPECT_EQ(f16[at], 0x7c00);
    EXPECT_EQ(f16[at + 1], 0xfc00);
    EXPECT_GT(f16[at + 2], 0xfc00);
    EXPECT_EQ(f16[at + 3], 0x7bff);
    EXPECT_EQ(f16[at + 4], 0x7c00);
    EXPECT_EQ(f16[at + 5], 0);
    EXPECT_EQ(bf16[at], 0x7f80);
    EXPECT_EQ(bf16[at + 1], 0xff80);
    EXPECT_GT(bf16[at + 2], 0xff80);
  }
}

TEST_P(ConversionTest, AllPairsMatchScalarAtAnyLengthAndAlignment) {
  for (const ElementType from : kTypes) {
    for (const ElementType to : kTypes) {
      for (int64_t n = 0; n < 70; ++n) {
        const Elements source(from, normal(n, 100.0f));
        Elements out(to, n), expected(to, n);
        convert(from, source.data(), to, out.data(), n);
        scalar::convert(from, source.data(), to, expected.data(), n);
        ASSERT_TRUE(out == expected) << element_name(from) << " to " << element_name(to) << ", n " << n;
      }
    }
  }
}

}  // namespace
}  // namespace quire::cpu
