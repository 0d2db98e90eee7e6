#include <limits>
#include <numbers>

#include "kernels/cpu/exp.h"
#include "tests/unit/kernels/kernel_test.h"

namespace quire::cpu {
namespace {

class RowsTest : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(Targets, RowsTest, testing::ValuesIn(float_targets()), kernel_target_name);

constexpr int64_t kSizes[] = {1, 2, 7, 16, 31, 64, 100, 768, 2049};

TEST_P(RowsTest, RmsNorm) {
  for (const int64_t n : kSizes) {
    const std::vector<float> x = normal(n), weight = normal(n);
    std::vector<float> out(x.size()), expected(x.size()), in_place = x;
    rms_norm(x.data(), weight.data(), 1e-5f, n, out.data());
    scalar::rms_norm(x.data(), weight.data(), 1e-5f, n, expected.data());
    expect_same_bits(out, expected, "scalar");
    rms_norm(in_place.data(), weight.data(), 1e-5f, n, in_place.data());
    expect_same_bits(in_place, expected, "in place");
    std::vector<float> sum = weight, expected_sum = weight;
    add_rms_norm(x.data(), weight.data(), 1e-5f, n, sum.data());
    scalar::add_rms_norm(x.data(), weight.data(), 1e-5f, n, expected_sum.data());
    expect_same_bits(sum, expected_sum, "scalar, added");
    double squares = 0;
    for (const float v : x) squares += static_cast<double>(v) * v;
    const double inverse = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-5f);
    for (size_t j = 0; j < x.size(); ++j) {
      const double exact = x[j] * inverse * weight[j];
      ASSERT_NEAR(out[j], exact, 2e-6 * std::fabs(exact)) << n;
      ASSERT_NEAR(sum[j], exact + weight[j], 2e-6 * (std::fabs(exact) + std::fabs(weight[j]))) << n;
    }
  }
}

TEST_P(RowsTest, LookAtLogits) {
  for (const int64_t n : kSizes) {
    for (const float scale : {0.1f, 5.0f, 30.0f}) {
      const std::vector<float> x = normal(n, scale);
      std::vector<float> maxima(static_cast<size_t>(ceil_div(n, kLogitsBlock))), expected_maxima = maxima;
      const LogitsPart part = look_at_logits(x.data(), n, maxima.data());
      const LogitsPart expected = scalar::look_at_logits(x.data(), n, expected_maxima.data());
      expect_same_bits(maxima, expected_maxima, "maxima");
      EXPECT_TRUE(part.finite);
      EXPECT_EQ(part.max, expected.max);
      EXPECT_EQ(part.sum, expected.sum);
      for (int64_t begin = 0; begin < n; begin += kLogitsBlock) {
        EXPECT_EQ(maxima[static_cast<size_t>(begin / kLogitsBlock)],
                  *std::max_element(x.begin() + begin, x.begin() + std::min(n, begin + kLogitsBlock)));
      }
      const double most = *std::max_element(x.begin(), x.end());
      double sum = 0;
      for (const float v : x) sum += std::exp(v - most);
      ASSERT_NEAR(part.sum, sum, 1e-6 * sum) << n;
      for (const float bad : {NAN, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
        std::vector<float> with_bad = x;
        with_bad[static_cast<size_t>(between(0, n - 1))] = bad;
        EXPECT_FALSE(look_at_logits(with_bad.data(), n, maxima.data()).finite);
      }
    }
  }
}

TEST_P(RowsTest, Swiglu) {
  for (const int64_t n : kSizes) {
    std::vector<float> x = normal(2 * n, 8.0f);
    x[0] = -200.0f;  // exp(200) overflows: silu is -0, not NaN
    std::vector<float> out(static_cast<size_t>(n)), expected(out.size()), in_place = x;
    swiglu(x.data(), n, out.data());
    scalar::swiglu(x.data(), n, expected.data());
    expect_same_bits(out, expected, "scalar");
    swiglu(in_place.data(), n, in_place.data());
    in_place.resize(out.size());
    expect_same_bits(in_place, expected, "in place");
    EXPECT_EQ(out[0], 0.0f);
    for (size_t j = 1; j < out.size(); ++j) {
      const double z = x[j], exact = z / (1 + std::exp(-z)) * x[out.size() + j];
      ASSERT_NEAR(out[j], exact, 1e-6 * std::fabs(exact)) << z;
    }
  }
}

TEST_P(RowsTest, Geglu) {
  for (const int64_t n : kSizes) {
    std::vector<float> x = normal(2 * n, 4.0f);
    x[0] = -1e25f;  // its square overflows: gelu is -0, not NaN
    std::vector<float> out(static_cast<size_t>(n)), expected(out.size()), in_place = x;
    geglu(x.data(), n, out.data());
    scalar::geglu(x.data(), n, expected.data());
    expect_same_bits(out, expected, "scalar");
    geglu(in_place.data(), n, in_place.data());
    in_place.resize(out.size());
    expect_same_bits(in_place, expected, "in place");
    EXPECT_EQ(out[0], 0.0f);
    for (size_t j = 1; j < out.size(); ++j) {
      const double z = x[j], up = x[out.size() + j];
      const double argument = std::sqrt(2 / std::numbers::pi) * (z + 0.044715 * z * z * z);
      const double exact = z / (1 + std::exp(-2 * argument)) * up;
      // exp overflows where the result is hardly a float any more.
      ASSERT_NEAR(out[j], exact, 1e-6 * (1 + std::fabs(argument)) * std::fabs(exact) + 1e-36) << z;
    }
  }
}

TEST_P(RowsTest, Rotate) {
  for (const int64_t d : {2, 6, 32, 34, 48, 64, 80, 96, 128, 256}) {
    const std::vector<float> x = normal(d);
    std::vector<float> cosines(static_cast<size_t>(d / 2)), sines(cosines.size());
    for (size_t a = 0; a < cosines.size(); ++a) {
      const float angle = static_cast<float>(between(-1000, 1000)) * 0.01f;
      cosines[a] = std::cos(angle);
      sines[a] = std::sin(angle);
    }
    std::vector<float> out(x.size()), expected(x.size()), in_place = x;
    rotate(x.data(), cosines.data(), sines.data(), 0.125f, d, out.data());
    scalar::rotate(x.data(), cosines.data(), sines.data(), 0.125f, d, expected.data());
    expect_same_bits(out, expected, "scalar");
    rotate(in_place.data(), cosines.data(), sines.data(), 0.125f, d, in_place.data());
    expect_same_bits(in_place, expected, "in place");
    for (size_t a = 0; a < cosines.size(); ++a) {
      const double x1 = x[a], x2 = x[a + cosines.size()], c = cosines[a], s = sines[a];
      ASSERT_NEAR(out[a], (x1 * c - x2 * s) * 0.125, 1e-6 * (std::fabs(x1) + std::fabs(x2))) << d;
      ASSERT_NEAR(out[a + cosines.size()], (x2 * c + x1 * s) * 0.125, 1e-6 * (std::fabs(x1) + std::fabs(x2))) << d;
    }
  }
}

TEST_P(RowsTest, AddScaled) {
  for (const int64_t n : {1, 15, 16, 33, 70, 1024}) {
    const std::vector<float> x = normal(n), before = normal(n);
    std::vector<float> y = before, expected = before;
    add_scaled(x.data(), 0.3f, n, y.data());
    scalar::add_scaled(x.data(), 0.3f, n, expected.data());
    expect_same_bits(y, expected, "scalar");
    for (size_t j = 0; j < y.size(); ++j) {
      const double product = static_cast<double>(x[j]) * 0.3f;
      ASSERT_NEAR(y[j], product + before[j], 1e-7 * (std::fabs(product) + std::fabs(before[j]))) << j;
    }
  }
}

TEST_P(RowsTest, AllFiniteFindsEveryPlace) {
  for (const int64_t n : {1, 15, 16, 33, 70}) {
    std::vector<float> x = normal(n);
    EXPECT_TRUE(all_finite(x.data(), n));
    for (float& v : x) {
      for (const float bad : {HUGE_VALF, -HUGE_VALF, std::numeric_limits<float>::quiet_NaN()}) {
        const float kept = std::exchange(v, bad);
        EXPECT_FALSE(all_finite(x.data(), n));
        EXPECT_FALSE(scalar::all_finite(x.data(), n));
        v = kept;
      }
    }
    x[0] = std::numeric_limits<float>::max();
    EXPECT_TRUE(all_finite(x.data(), n));
  }
  EXPECT_TRUE(all_finite(nullptr, 0));
}

TEST(Exp, RelativeErrorAndEnds) {
  SCOPED_TRACE(test::seed_trace());
  std::mt19937 random = test::seeded_random();
  double worst = 0;
  for (int i = 0; i < 400000; ++i) {
    const float x = std::uniform_real_distribution<float>(-87.3f, 88.7f)(random) * (i % 2 ? 1.0f : 0.02f);
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::fabs(exp_f32(x) - exact) / exact);
  }
  EXPECT_LT(worst, 4e-7);
  EXPECT_EQ(exp_f32(0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-HUGE_VALF), 0.0f);
  EXPECT_EQ(exp_f32(-3e38f), 0.0f);
  EXPECT_EQ(exp_f32(HUGE_VALF), HUGE_VALF);
  EXPECT_EQ(exp_f32(88.8f), HUGE_VALF);
  EXPECT_TRUE(std::isfinite(exp_f32(88.7f)));
  EXPECT_NEAR(exp_f32(-95.0f), std::exp(-95.0), 0x1p-149);  // denormal
  EXPECT_TRUE(std::isnan(exp_f32(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace quire::cpu
