// Keys and values of kInt4 (lib/support/int4.h): what narrowing makes of numbers, and attention over it.
#include <limits>
#include <utility>

#include "lib/support/int4.h"
#include "tests/unit/kernels/kernel_test.h"

namespace quire::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

// What a code stands for, read as the format is documented: its number, and its group's scale.
struct Number {
  double number, scale;
};

Number read(const std::vector<uint8_t>& bytes, int64_t code, bool high, int64_t scale, int64_t minimum) {
  const auto byte = [&](int64_t at) { return static_cast<int>(bytes[static_cast<size_t>(at)]); };
  const auto half = [&](int64_t at) { return from_f16(static_cast<uint16_t>(byte(at) | byte(at + 1) << 8)); };
  const int c = high ? byte(code) >> 4 : byte(code) & 15;
  return {half(minimum) + static_cast<double>(half(scale)) * c, half(scale)};
}

Number key_at(const std::vector<uint8_t>& keys, int64_t j, int64_t i, int64_t d) {
  const int64_t group = j / 32 * 20 * d;
  return read(keys, group + 16 * i + j % 16, j % 32 >= 16, group + 16 * d + 2 * i, group + 18 * d + 2 * i);
}

Number value_at(const std::vector<uint8_t>& values, int64_t j, int64_t i, int64_t d) {
  const int64_t groups = (d + 31) / 32, block = j / 16 * 320 * groups, scale = block + 256 * groups;
  return read(values, block + (j % 16 * groups + i / 32) * 16 + i % 16, i % 32 >= 16,
              scale + 2 * (i / 32 * 16 + j % 16), scale + 2 * ((groups + i / 32) * 16 + j % 16));
}

class Int4Test : public KernelTest {
 protected:
  // Of x [l][d], in the order that `type` has.
  static Elements keys_of(const std::vector<float>& x, int64_t l, int64_t d, ElementType type) {
    Elements stored(type, key_elements(l, d));
    for (int64_t j = 0; j < l; ++j) store_key(x.data() + j * d, d, type, stored.data(), j);
    return stored;
  }
  static std::vector<uint8_t> narrow(ElementType type, const std::vector<float>& x, int64_t l, int64_t d, bool is_key) {
    const Elements from = is_key ? keys_of(x, l, d, type) : Elements(type, x);
    std::vector<uint8_t> narrow(is_key ? int4_key_bytes(l, d) : int4_value_bytes(l, d), 77);
    std::vector<uint8_t> expected(narrow.size(), 78);
    (is_key ? quantize_keys_int4 : quantize_values_int4)(type, from.data(), l, d, narrow.data());
    (is_key ? scalar::quantize_keys_int4 : scalar::quantize_values_int4)(type, from.data(), l, d, expected.data());
    EXPECT_EQ(narrow, expected) << element_name(type) << " d " << d << " l " << l << " " << is_key;
    return narrow;
  }
  // Each number of x is half a scale from the one that stands for it at most, where `type` rounds it.
  static void expect_near(ElementType type, const std::vector<float>& x, int64_t l, int64_t d, bool is_key) {
    const std::vector<uint8_t> bytes = narrow(type, x, l, d, is_key);
    const Elements rounded(type, x);
    for (int64_t j = 0; j < l; ++j) {
      for (int64_t i = 0; i < d; ++i) {
        double low = HUGE_VAL, high = -HUGE_VAL;
        bool all_finite = true;
        for (int64_t k = 0; k < 32; ++k) {
          const int64_t row = is_key ? j / 32 * 32 + k : j, column = is_key ? i : i / 32 * 32 + k;
          if (row >= l || column >= d) break;
          low = std::min(low, rounded.at(row * d + column));
          high = std::max(high, rounded.at(row * d + column));
          all_finite = all_finite && std::isfinite(rounded.at(row * d + column));
        }
        const auto [number, scale] = (is_key ? key_at : value_at)(bytes, j, i, d);
        if (!all_finite || low < -65504 || high > 1e6) {
          ASSERT_TRUE(std::isnan(number)) << number;
          continue;
        }
        if (low > 65000) continue;  // one or the other
        const double most = std::max(std::fabs(low), std::fabs(high));
        ASSERT_NEAR(number, rounded.at(j * d + i), scale / 2 + 1e-6 * most);
        // Rounding widens it: the minimum by an eleventh bit, or to a number below 2^-24, and itself likewise.
        ASSERT_LE(scale, (high - low) / 15 * (1 + 0x1p-9) + std::fabs(low) * 0x1p-10 / 15 + 0x1.2p-24);
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, Int4Test, testing::ValuesIn(float_targets()), kernel_target_name);

TEST_P(Int4Test, WidensAsTheScalarReference) {
  for (const int64_t d : {2, 10, 32, 48, 64, 80, 128, 300}) {
    for (const int64_t l : {1, 16, 37, 48, 256}) {
      const std::vector<float> x = normal(l * d);
      const int64_t begin = between(0, l - 1), end = between(begin + 1, l);
      SCOPED_TRACE(testing::Message() << "d " << d << " l " << l << " [" << begin << ", " << end << ")");
      std::vector<float> keys(static_cast<size_t>(key_elements(l, d)), -7.0f), expected = keys;
      const std::vector<uint8_t> narrow_keys = narrow(ElementType::kF32, x, l, d, true);
      widen_int4_keys(narrow_keys.data(), begin, end, d, keys.data());
      scalar::widen_int4_keys(narrow_keys.data(), begin, end, d, expected.data());
      for (int64_t j = begin; j < end; ++j) {
        for (int64_t i = 0; i < d; ++i) {
          const auto at = static_cast<size_t>(key_place(ElementType::kF32, j, i, d));
          ASSERT_EQ(keys[at], expected[at]);
          ASSERT_EQ(expected[at], static_cast<float>(key_at(narrow_keys, j, i, d).number));
        }
      }
      std::vector<float> values(x.size(), -7.0f), expected_values = values;
      const std::vector<uint8_t> narrow_values = narrow(ElementType::kF32, x, l, d, false);
      widen_int4_values(narrow_values.data(), begin, end, d, values.data());
      scalar::widen_int4_values(narrow_values.data(), begin, end, d, expected_values.data());
      expect_same_bits(values, expected_values, "values");
    }
  }
}

TEST_P(Int4Test, NumbersAreHalfAScaleFromTheirCodes) {
  for (const ElementType type : kTypes) {
    for (const int64_t d : {2, 10, 32, 64, 80, 96, 300}) {
      for (const int64_t l : {1, 16, 37, 40, 48, 96}) {
        std::vector<float> x = normal(l * d, 3.0f);
        // Channels away from zero, as keys have them.
        for (int64_t j = 0; j < l; ++j) x[static_cast<size_t>(j * d)] += 50.0f;
        std::fill_n(x.begin(), d, 0.0f);
        if (l == 16) std::ranges::for_each(x, [](float& v) { v *= 1e-6f; });
        if (l == 40) std::ranges::for_each(x, [](float& v) { v = -0.0f; });
        if (l == 48) std::ranges::for_each(x, [](float& v) { v = 3.14159f; });
        for (const bool is_key : {true, false}) ASSERT_NO_FATAL_FAILURE(expect_near(type, x, l, d, is_key));
      }
    }
  }
}

// A number that a group cannot have makes the group NaN, and leaves the others as they are.
TEST_P(Int4Test, WhatIsNotFiniteStaysSo) {
  for (const ElementType type : kTypes) {
    for (const float odd : {kNan, kInfinity, -kInfinity, 1e30f, -1e30f, 1e5f, -1e5f, 65519.0f, -65519.0f, 1e-42f}) {
      const int64_t l = 70, d = 80;
      std::vector<float> x = normal(l * d);
      for (int n = 0; n < 3; ++n) x[static_cast<size_t>(between(0, l * d - 1))] = odd;
      for (const bool is_key : {true, false}) ASSERT_NO_FATAL_FAILURE(expect_near(type, x, l, d, is_key)) << odd;
      std::fill(x.begin(), x.end(), odd);
      for (const bool is_key : {true, false}) ASSERT_NO_FATAL_FAILURE(expect_near(type, x, l, d, is_key)) << odd;
    }
  }
}

TEST_P(Int4Test, KeysComeBack) {
  for (const int64_t d : {2, 34, 80, 128, 300}) {
    const int64_t l = 37;
    const std::vector<uint8_t> keys = narrow(ElementType::kF32, normal(l * d), l, d, true);
    std::vector<float> key(static_cast<size_t>(d)), reference(key.size());
    for (int64_t j = 0; j < l; ++j) {
      load_key(ElementType::kInt4, keys.data(), j, d, key.data());
      scalar::load_key(ElementType::kInt4, keys.data(), j, d, reference.data());
      expect_same_bits(key, reference, "load_key");
      for (int64_t i = 0; i < d; ++i) {
        ASSERT_EQ(key[static_cast<size_t>(i)], static_cast<float>(key_at(keys, j, i, d).number));
      }
    }
  }
}

TEST_P(Int4Test, AttentionMatchesScalarBitsAndDouble) {
  for (const int64_t d : {2, 10, 32, 48, 64, 80, 96, 112, 128, 256}) {
    for (const int64_t l : {150, 16, 40, 256}) {
      const int64_t n_q = between(1, 20), begin = between(0, l * 2 / 3), end = between(begin + 1, l);
      SCOPED_TRACE(testing::Message() << "d " << d << " l " << l << " n_q " << n_q << " [" << begin << ", " << end);
      const std::vector<uint8_t> keys = narrow(ElementType::kF16, normal(l * d), l, d, true);
      const std::vector<uint8_t> values = narrow(ElementType::kF16, normal(l * d), l, d, false);
      const std::vector<float> q = normal(n_q * d), p = normal(n_q * l), start = normal(n_q * d);
      const int64_t first = begin / kKeyBlock * kKeyBlock, ld = round_up(end, kKeyBlock) - first + between(0, 3);
      std::vector<float> scores(static_cast<size_t>(n_q * ld), -7), expected = scores;
      attention_scores(q.data(), n_q, d, ElementType::kInt4, keys.data(), begin, end, scores.data(), ld);
      scalar::attention_scores(q.data(), n_q, d, ElementType::kInt4, keys.data(), begin, end, expected.data(), ld);
      expect_same_bits(scores, expected, "scores");
      std::vector<float> out = start, split = start, expected_out = start;
      accumulate_values(p.data(), l, n_q, d, ElementType::kInt4, values.data(), begin, end, out.data());
      scalar::accumulate_values(p.data(), l, n_q, d, ElementType::kInt4, values.data(), begin, end,
                                expected_out.data());
      expect_same_bits(out, expected_out, "values");
      const int64_t middle = between(begin, end);
      for (const auto& [from, to] : {std::pair{begin, middle}, std::pair{middle, end}}) {
        accumulate_values(p.data(), l, n_q, d, ElementType::kInt4, values.data(), from, to, split.data());
      }
      expect_same_bits(split, expected_out, "values of a split range");
      for (int64_t r = 0; r < n_q; ++r) {
        for (int64_t j = begin; j < end; ++j) {
          ExactSum sum;
          for (int64_t i = 0; i < d; ++i) sum.add(q[static_cast<size_t>(r * d + i)], key_at(keys, j, i, d).number);
          ASSERT_NEAR(scores[static_cast<size_t>(r * ld + j - first)], sum.sum, sum.bound());
        }
        for (int64_t i = 0; i < d; ++i) {
          ExactSum sum;
          sum.add(start[static_cast<size_t>(r * d + i)], 1);
          for (int64_t j = begin; j < end; ++j) {
            sum.add(p[static_cast<size_t>(r * l + j)], value_at(values, j, i, d).number);
          }
          ASSERT_NEAR(out[static_cast<size_t>(r * d + i)], sum.sum, sum.bound());
        }
      }
    }
  }
}

TEST_P(Int4Test, AQueryDoesNotDependOnTheOthers) {
  for (const int64_t d : {32, 48, 64, 128}) {
    const int64_t n_q = 64, l = 160, begin = 16 * between(0, 3);
    const std::vector<float> q = normal(n_q * d), start = normal(n_q * d);
    const std::vector<uint8_t> keys = narrow(ElementType::kF32, normal(l * d), l, d, true);
    const std::vector<uint8_t> values = narrow(ElementType::kF32, normal(l * d), l, d, false);
    std::vector<float> all(static_cast<size_t>(n_q * l)), out = start;
    attention_scores(q.data(), n_q, d, ElementType::kInt4, keys.data(), 0, l, all.data(), l);
    accumulate_values(all.data(), l, n_q, d, ElementType::kInt4, values.data(), 3, l, out.data());
    for (const int64_t count : {1, 2, 3, 5, 7, 8, 13}) {
      const int64_t r = between(0, n_q - count), end = l - 16 * between(0, 2), ld = end - begin;
      std::vector<float> scores(static_cast<size_t>(count * ld));
      attention_scores(q.data() + r * d, count, d, ElementType::kInt4, keys.data(), begin, end, scores.data(), ld);
      for (int64_t k = 0; k < count; ++k) {
        ASSERT_EQ(0, std::memcmp(scores.data() + k * ld, all.data() + (r + k) * l + begin,
                                 static_cast<size_t>(ld) * sizeof(float)))
            << count;
      }
      std::vector<float> part(start.begin() + r * d, start.begin() + (r + count) * d);
      accumulate_values(all.data() + r * l, l, count, d, ElementType::kInt4, values.data(), 3, l, part.data());
      ASSERT_EQ(0, std::memcmp(part.data(), out.data() + r * d, part.size() * sizeof(float))) << count;
    }
  }
}

}  // namespace
}  // namespace quire::cpu
