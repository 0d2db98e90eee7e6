#include <cmath>
#include <limits>
#include <numeric>

#include "tests/unit/kernels/kernel_test.h"

namespace quire::cpu {
namespace {

class AttentionTest : public KernelTest {
 protected:
  Elements make_keys(const std::vector<float>& keys, int64_t l, int64_t d, ElementType type) {
    Elements stored(type, key_elements(l, d));
    for (int64_t j = 0; j < l; ++j) store_key(keys.data() + j * d, d, type, stored.data(), j);
    return stored;
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, AttentionTest, testing::ValuesIn(float_targets()), kernel_target_name);

constexpr int64_t kHeadDims[] = {2, 10, 32, 48, 64, 80, 96, 112, 128, 256};

TEST_P(AttentionTest, KeysComeBack) {
  for (const ElementType type : kTypes) {
    for (const int64_t d : {2, 34, 80, 128, 256, 300}) {
      const int64_t l = 37;
      const std::vector<float> keys = normal(l * d);
      const Elements stored = make_keys(keys, l, d, type);
      Elements expected(type, key_elements(l, d));
      for (int64_t j = 0; j < l; ++j) scalar::store_key(keys.data() + j * d, d, type, expected.data(), j);
      ASSERT_TRUE(stored == expected);
      const Elements rounded(type, keys);
      std::vector<float> key(static_cast<size_t>(d)), reference(key.size());
      for (int64_t j = 0; j < l; ++j) {
        load_key(type, stored.data(), j, d, key.data());
        scalar::load_key(type, stored.data(), j, d, reference.data());
        expect_same_bits(key, reference, "load_key");
        for (int64_t i = 0; i < d; ++i) ASSERT_EQ(key[static_cast<size_t>(i)], rounded.at(j * d + i));
      }
    }
  }
}

TEST_P(AttentionTest, TurnsEachKeyByItsOwnAngles) {
  for (const ElementType type : {ElementType::kF32, ElementType::kF16, ElementType::kBF16}) {
    for (const int64_t d : {2, 10, 48, 64, 128}) {
      const int64_t l = 75, begin = between(0, 40), end = between(begin + 1, l), half = d / 2;
      SCOPED_TRACE(testing::Message() << element_name(type) << " d " << d << " [" << begin << ", " << end << ")");
      const std::vector<float> keys = normal(l * d), angles = normal(l * half);
      const Elements stored = make_keys(keys, l, d, type), rounded(type, keys);
      std::vector<float> turns(static_cast<size_t>(key_elements(l, d))), out(turns.size(), -7.0f), expected = out;
      for (int64_t j = 0; j < l; ++j) {
        for (int64_t a = 0; a < half; ++a) {
          const int64_t at = (j / kKeyBlock * half + a) * 2 * kKeyBlock + j % kKeyBlock;
          turns[static_cast<size_t>(at)] = std::cos(angles[static_cast<size_t>(j * half + a)]);
          turns[static_cast<size_t>(at + kKeyBlock)] = std::sin(angles[static_cast<size_t>(j * half + a)]);
        }
      }
      turn_keys(type, stored.data(), begin, end, d, turns.data(), out.data());
      scalar::turn_keys(type, stored.data(), begin, end, d, turns.data(), expected.data());
      expect_same_bits(out, expected, "scalar");
      std::vector<float> key(static_cast<size_t>(d));
      for (int64_t j = begin; j < end; ++j) {
        load_key(ElementType::kF32, out.data(), j, d, key.data());
        for (int64_t a = 0; a < half; ++a) {
          const double x = rounded.at(j * d + a), y = rounded.at(j * d + half + a);
          const double angle = angles[static_cast<size_t>(j * half + a)], most = 1e-6 * (std::fabs(x) + std::fabs(y));
          ASSERT_NEAR(key[static_cast<size_t>(a)], x * std::cos(angle) - y * std::sin(angle), most) << j;
          ASSERT_NEAR(key[static_cast<size_t>(half + a)], y * std::cos(angle) + x * std::sin(angle), most) << j;
        }
      }
      if (type != ElementType::kF32) continue;
      std::vector<float> in_place(turns.size());
      for (size_t at = 0; at < in_place.size(); ++at) in_place[at] = stored.at(static_cast<int64_t>(at));
      turn_keys(type, in_place.data(), begin, end, d, turns.data(), in_place.data());
      for (int64_t j = begin / kKeyBlock * kKeyBlock; j < round_up(end, kKeyBlock); ++j) {
        for (int64_t i = 0; i < d; ++i) {
          const int64_t at = (j / kKeyBlock * d + i) * kKeyBlock + j % kKeyBlock;
          ASSERT_EQ(in_place[static_cast<size_t>(at)], out[static_cast<size_t>(at)]) << j;
        }
      }
    }
  }
}

TEST_P(AttentionTest, ScoresMatchScalarBitsAndDouble) {
  for (const ElementType type : kTypes) {
    for (const int64_t d : kHeadDims) {
      const int64_t l = 203, n_q = between(1, 30), begin = between(0, 100), end = between(begin + 1, l);
      SCOPED_TRACE(testing::Message() << element_name(type) << " d " << d << " n_q " << n_q << " [" << begin << ", "
                                      << end << ")");
      const std::vector<float> q = normal(n_q * d), keys = normal(l * d);
      const Elements stored = make_keys(keys, l, d, type), rounded(type, keys);
      const int64_t first = begin / kKeyBlock * kKeyBlock, ld = round_up(end, kKeyBlock) - first + 3;
      std::vector<float> scores(static_cast<size_t>(n_q * ld), -7.0f), expected = scores;
      attention_scores(q.data(), n_q, d, type, stored.data(), begin, end, scores.data(), ld);
      scalar::attention_scores(q.data(), n_q, d, type, stored.data(), begin, end, expected.data(), ld);
      expect_same_bits(scores, expected, "scalar");
      for (int64_t r = 0; r < n_q; ++r) {
        for (int64_t j = begin; j < end; ++j) {
          ExactSum sum;
          for (int64_t i = 0; i < d; ++i) sum.add(q[static_cast<size_t>(r * d + i)], rounded.at(j * d + i));
          ASSERT_NEAR(scores[static_cast<size_t>(r * ld + j - first)], sum.sum, sum.bound()) << r << ", " << j;
        }
      }
    }
  }
}

TEST_P(AttentionTest, AQueryDoesNotDependOnTheOthers) {
  for (const ElementType type : kTypes) {
    for (const int64_t d : {32, 48, 128}) {
      const int64_t n_q = 128, l = 160, ld = l;
      const std::vector<float> q = normal(n_q * d), start = normal(n_q * d), values = normal(l * d);
      const Elements keys = make_keys(normal(l * d), l, d, type), stored(type, values);
      std::vector<float> all(static_cast<size_t>(n_q * ld)), out = start;
      attention_scores(q.data(), n_q, d, type, keys.data(), 0, l, all.data(), ld);
      accumulate_values(all.data(), ld, n_q, d, type, stored.data(), 3, l, out.data());
      for (const int64_t count : {1, 2, 3, 5, 7, 8, 13, 64}) {
        const int64_t r = between(0, n_q - count);
        const auto at = static_cast<size_t>(r * d), size = static_cast<size_t>(count * d);
        std::vector<float> scores(static_cast<size_t>(count * ld));
        attention_scores(q.data() + at, count, d, type, keys.data(), 0, l, scores.data(), ld);
        ASSERT_EQ(0, std::memcmp(scores.data(), all.data() + r * ld, scores.size() * sizeof(float))) << count;
        std::vector<float> part(start.begin() + r * d, start.begin() + r * d + static_cast<int64_t>(size));
        accumulate_values(scores.data(), ld, count, d, type, stored.data(), 3, l, part.data());
        ASSERT_EQ(0, std::memcmp(part.data(), out.data() + at, size * sizeof(float))) << count;
      }
    }
  }
}

TEST_P(AttentionTest, ValuesMatchScalarBitsAndDouble) {
  for (const ElementType type : kTypes) {
    for (const int64_t d : kHeadDims) {
      const int64_t l = 150, n_q = between(1, 20), begin = between(0, 100), end = between(begin, l), ld = l + 1;
      SCOPED_TRACE(testing::Message() << element_name(type) << " d " << d << " n_q " << n_q << " [" << begin << ", "
                                      << end << ")");
      const std::vector<float> p = normal(n_q * ld), start = normal(n_q * d);
      const Elements values(type, normal(l * d));
      std::vector<float> out = start, expected = start, split = start;
      accumulate_values(p.data(), ld, n_q, d, type, values.data(), begin, end, out.data());
      scalar::accumulate_values(p.data(), ld, n_q, d, type, values.data(), begin, end, expected.data());
      expect_same_bits(out, expected, "scalar");
      const int64_t middle = between(begin, end);
      accumulate_values(p.data(), ld, n_q, d, type, values.data(), begin, middle, split.data());
      accumulate_values(p.data(), ld, n_q, d, type, values.data(), middle, end, split.data());
      expect_same_bits(split, expected, "split range");
      for (int64_t r = 0; r < n_q; ++r) {
        for (int64_t i = 0; i < d; ++i) {
          ExactSum sum;
          sum.add(start[static_cast<size_t>(r * d + i)], 1);
          for (int64_t j = begin; j < end; ++j) sum.add(p[static_cast<size_t>(r * ld + j)], values.at(j * d + i));
          ASSERT_NEAR(out[static_cast<size_t>(r * d + i)], sum.sum, sum.bound());
        }
      }
    }
  }
}

// Of integers of [-127, 127].
std::vector<int8_t> integers(int64_t n, std::mt19937& random) {
  std::vector<int8_t> all(static_cast<size_t>(n));
  for (int8_t& x : all) x = static_cast<int8_t>(std::uniform_int_distribution<int>(-127, 127)(random));
  return all;
}

// Rows of any 16 bits, and their scales.
struct Codes {
  std::vector<int16_t> codes;
  std::vector<float> scales;
};
Codes codes(int64_t n, int64_t width, std::mt19937& random) {
  Codes all{std::vector<int16_t>(static_cast<size_t>(n * width)), std::vector<float>(static_cast<size_t>(n))};
  std::uniform_int_distribution<int> code(-32767, 32767);
  for (int16_t& x : all.codes) x = static_cast<int16_t>(code(random));
  for (float& x : all.scales) x = std::uniform_real_distribution<float>(1e-6f, 1e-3f)(random);
  return all;
}

TEST_P(AttentionTest, IntegersMatchScalarBitsAndDouble) {
  for (const int64_t d : {2, 10, 32, 48, 64, 80, 96, 112, 128, 256, 1040}) {
    const int64_t l = 1111, n_q = between(1, 30), begin = between(0, 600), end = between(begin + 1, l);
    SCOPED_TRACE(testing::Message() << "d " << d << " n_q " << n_q << " [" << begin << ", " << end << ")");
    const std::vector<int8_t> keys = integers(key_elements(l, d), random_);
    const std::vector<int8_t> values = integers(value_elements(ElementType::kInt8, l, d), random_);
    const int64_t first = begin / kKeyBlock * kKeyBlock, ld = round_up(end, kKeyBlock) - first, p_ld = round_up(l, 2);
    const Codes q = codes(n_q, d, random_);
    Codes p = codes(n_q, p_ld, random_);
    for (int64_t r = 0; r < n_q; ++r) {
      if (begin % 2 == 1) p.codes[static_cast<size_t>(r * p_ld + begin - 1)] = 0;
      if (end % 2 == 1) p.codes[static_cast<size_t>(r * p_ld + end)] = 0;
    }
    const std::vector<float> start = normal(n_q * d);
    std::vector<float> scores(static_cast<size_t>(n_q * ld), -7.0f), expected = scores, out = start, other = start;
    attention_scores_int8(q.codes.data(), q.scales.data(), n_q, d, keys.data(), begin, end, scores.data(), ld);
    scalar::attention_scores_int8(q.codes.data(), q.scales.data(), n_q, d, keys.data(), begin, end, expected.data(),
                                  ld);
    expect_same_bits(scores, expected, "scores");
    accumulate_values_int8(p.codes.data(), p_ld, p.scales.data(), n_q, d, values.data(), begin, end, out.data());
    scalar::accumulate_values_int8(p.codes.data(), p_ld, p.scales.data(), n_q, d, values.data(), begin, end,
                                   other.data());
    expect_same_bits(out, other, "values");
    for (int64_t r = 0; r < n_q; ++r) {
      const double q_scale = q.scales[static_cast<size_t>(r)], p_scale = p.scales[static_cast<size_t>(r)];
      for (int64_t j = begin; j < end; j += 1 + j % 7) {
        double sum = 0, most = 0;
        for (int64_t i = 0; i < d; ++i) {
          const double term = q_scale * q.codes[static_cast<size_t>(r * d + i)] *
                              keys[static_cast<size_t>(key_place(ElementType::kInt8, j, i, d))];
          sum += term;
          most += std::fabs(term);
        }
        ASSERT_NEAR(scores[static_cast<size_t>(r * ld + j - first)], sum, 1e-6 * most);
      }
      for (int64_t i = 0; i < d; i += 1 + i % 5) {
        double sum = start[static_cast<size_t>(r * d + i)], most = std::fabs(sum);
        for (int64_t j = begin; j < end; ++j) {
          const double term = p_scale * p.codes[static_cast<size_t>(r * p_ld + j)] *
                              values[static_cast<size_t>(value_place(ElementType::kInt8, j, i, d))];
          sum += term;
          most += std::fabs(term);
        }
        ASSERT_NEAR(out[static_cast<size_t>(r * d + i)], sum, 1e-6 * most);
      }
    }
  }
}

// The greatest sums that 32 bits must hold.
TEST_P(AttentionTest, SumsOfIntegersDoNotOverflow) {
  const int64_t d = kInt8Products, l = kInt8Products;
  const std::vector<int8_t> numbers(static_cast<size_t>(l * d), -127);
  const std::vector<int16_t> row(static_cast<size_t>(kInt8Products), 32767);
  const float scale = 1;
  std::vector<float> scores(static_cast<size_t>(l)), out(static_cast<size_t>(d));
  attention_scores_int8(row.data(), &scale, 1, d, numbers.data(), 0, l, scores.data(), l);
  accumulate_values_int8(row.data(), l, &scale, 1, d, numbers.data(), 0, l, out.data());
  const auto expected = static_cast<float>(-127.0 * 32767 * kInt8Products);
  EXPECT_EQ(scores, std::vector<float>(static_cast<size_t>(l), expected));
  EXPECT_EQ(out, std::vector<float>(static_cast<size_t>(d), expected));
}

TEST_P(AttentionTest, IntegersOfAQueryDoNotDependOnTheOthers) {
  for (const int64_t d : {32, 48, 128}) {
    const int64_t n_q = 64, l = 96;
    const std::vector<int8_t> keys = integers(l * d, random_), values = integers(l * d, random_);
    const Codes q = codes(n_q, d, random_), p = codes(n_q, l, random_);
    std::vector<float> scores(static_cast<size_t>(n_q * l)), out(static_cast<size_t>(n_q * d));
    attention_scores_int8(q.codes.data(), q.scales.data(), n_q, d, keys.data(), 0, l, scores.data(), l);
    accumulate_values_int8(p.codes.data(), l, p.scales.data(), n_q, d, values.data(), 0, l, out.data());
    for (const int64_t count : {1, 2, 3, 5, 7, 13}) {
      const int64_t r = between(0, n_q - count);
      std::vector<float> own(static_cast<size_t>(count * l)), own_out(static_cast<size_t>(count * d));
      attention_scores_int8(q.codes.data() + r * d, q.scales.data() + r, count, d, keys.data(), 0, l, own.data(), l);
      accumulate_values_int8(p.codes.data() + r * l, l, p.scales.data() + r, count, d, values.data(), 0, l,
                             own_out.data());
      ASSERT_EQ(0, std::memcmp(own.data(), scores.data() + r * l, own.size() * sizeof(float))) << count;
      ASSERT_EQ(0, std::memcmp(own_out.data(), out.data() + r * d, own_out.size() * sizeof(float))) << count;
    }
  }
}

TEST_P(AttentionTest, RoundsRowsTo16BitsAsTheScalarReference) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  for (const int64_t n : {1, 2, 15, 16, 17, 64, 203, 256}) {
    const std::vector<float> factors = normal(n);
    for (const float magnitude : {1.0f, 1e-42f, 1e30f, kInfinity, kNan}) {
      std::vector<float> x = normal(n);
      float& one = x[static_cast<size_t>(between(0, n - 1))];
      if (magnitude == magnitude && magnitude < kInfinity) {
        for (float& each : x) each *= magnitude;
      } else {
        one = magnitude;
      }
      std::vector<int16_t> row(static_cast<size_t>(n + 1), 77), expected = row;
      float scale = -1, expected_scale = -2;
      quantize_row_int16(x.data(), factors.data(), n, row.data(), &scale);
      scalar::quantize_row_int16(x.data(), factors.data(), n, expected.data(), &expected_scale);
      ASSERT_EQ(row, expected) << n << ", " << magnitude;
      ASSERT_EQ(0, std::memcmp(&scale, &expected_scale, sizeof scale)) << n << ", " << magnitude;
      ASSERT_EQ(row.back(), 77);
      if (magnitude == 1) {
        for (size_t j = 0; j < x.size(); ++j) {
          ASSERT_NEAR(row[j] * static_cast<double>(scale), static_cast<double>(x[j]) * factors[j], 0.501 * scale);
        }
      }
    }
  }
}

TEST_P(AttentionTest, RoundsWeightsTo16BitsAsTheScalarReference) {
  for (const int64_t n : {1, 2, 15, 16, 17, 64, 203, 256}) {
    for (const float greatest : {0.5f, 0.0f, 1e-35f, std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> p(static_cast<size_t>(n)), scales = p, factors(p.size()), expected_factors = factors;
      for (float& x : p) x = std::uniform_real_distribution<float>(0, 1)(random_);
      for (float& x : scales) x = greatest * std::uniform_real_distribution<float>(0, 1)(random_);
      const auto peak = static_cast<size_t>(between(0, n - 1));
      p[peak] = 1;
      scales[peak] = greatest;
      std::vector<int16_t> row(p.size() + 1, 77), expected = row;
      const float unit = weight_factors_int16(scales.data(), n, factors.data());
      const float expected_unit = scalar::weight_factors_int16(scales.data(), n, expected_factors.data());
      ASSERT_EQ(0, std::memcmp(&unit, &expected_unit, sizeof unit)) << n << ", " << greatest;
      expect_same_bits(factors, expected_factors, "factors");
      round_weights_int16(p.data(), factors.data(), n, row.data());
      scalar::round_weights_int16(p.data(), factors.data(), n, expected.data());
      ASSERT_EQ(row, expected) << n << ", " << greatest;
      ASSERT_EQ(row.back(), 77);
      EXPECT_EQ(row[peak], greatest == 0.5f ? 32767 : 0);
      for (size_t j = 0; greatest == 0.5f && j < p.size(); ++j) {
        ASSERT_NEAR(row[j] * static_cast<double>(unit), static_cast<double>(p[j]) * scales[j], 0.501 * unit);
      }
    }
  }
}

TEST_P(AttentionTest, NarrowsAsTheScalarReference) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  for (const ElementType type : kTypes) {
    for (const int64_t d : {2, 10, 80, 128, 300}) {
      for (const int64_t l : {1, 16, 37, 256}) {
        std::vector<float> x = normal(l * d, 3.0f);
        std::fill_n(x.begin(), d, 0.0f);                                    // zeros: a token's, all of them
        if (l == 37) x[static_cast<size_t>(between(0, l * d - 1))] = kNan;  // no failure, whatever they are
        if (l == 37) x[static_cast<size_t>(between(0, l * d - 1))] = kInfinity;
        if (l == 16) std::ranges::for_each(x, [](float& v) { v *= 1e-42f; });
        const Elements keys = make_keys(x, l, d, type), values(type, x);
        for (const bool is_key : {true, false}) {
          const auto n = static_cast<size_t>(is_key ? key_elements(l, d) : value_elements(ElementType::kInt8, l, d));
          std::vector<int8_t> narrow(n, 77), expected(n, 78);
          std::vector<float> scales(static_cast<size_t>(is_key ? d : l), -7), expected_scales = scales;
          (is_key ? quantize_keys : quantize_values)(type, (is_key ? keys : values).data(), l, d, narrow.data(),
                                                     scales.data());
          (is_key ? scalar::quantize_keys : scalar::quantize_values)(type, (is_key ? keys : values).data(), l, d,
                                                                     expected.data(), expected_scales.data());
          ASSERT_EQ(narrow, expected) << element_name(type) << " d " << d << " l " << l;
          for (size_t s = 0; s < scales.size(); ++s) {
            if (!std::isnan(scales[s]) || !std::isnan(expected_scales[s])) {
              ASSERT_EQ(scales[s], expected_scales[s]);
            }
          }
        }
      }
    }
  }
}

TEST_P(AttentionTest, SoftmaxPartial) {
  for (int round = 0; round < 200; ++round) {
    const int64_t begin = between(0, 40), end = begin + between(1, 300);
    std::vector<float> scores = normal(end + 5, 20.0f), expected = scores;
    if (round % 3 == 0) scores[static_cast<size_t>(begin)] = expected[static_cast<size_t>(begin)] = -HUGE_VALF;
    const std::vector<float> before = scores;
    float max = 0, sum = 0, scalar_max = 0, scalar_sum = 0;
    std::vector<float> sums(static_cast<size_t>(end / kKeyBlock + 2), -7.0f), expected_sums = sums;
    float* const block_sums = round % 2 == 0 ? sums.data() : nullptr;
    if (block_sums) scores.resize(static_cast<size_t>(round_up(end, kKeyBlock)) + 5);  // they need the whole last block
    expected.resize(scores.size());
    softmax_partial(scores.data(), begin, end, &max, &sum, block_sums);
    scalar::softmax_partial(expected.data(), begin, end, &scalar_max, &scalar_sum);
    expect_same_bits(scores, expected, "scalar");  // includes: nothing outside the range is touched
    if (block_sums) scalar::sum_blocks(expected.data(), begin, end, expected_sums.data());
    expect_same_bits(sums, expected_sums, "sums of blocks");
    ASSERT_EQ(max, scalar_max);
    expect_same_bits({sum}, {scalar_sum}, "sum");
    const auto from = before.begin() + begin, to = before.begin() + end;
    ASSERT_EQ(max, *std::max_element(from, to));
    if (max == -HUGE_VALF) continue;
    double exact = 0;
    for (int64_t j = begin; j < end; ++j) {
      const auto at = static_cast<size_t>(j);
      const double e = std::exp(static_cast<double>(before[at] - max));
      exact += e;
      ASSERT_NEAR(scores[at], e, 4e-7 * e + 0x1p-149);
    }
    ASSERT_NEAR(sum, exact, 3e-6 * exact);
  }
}

TEST_P(AttentionTest, SumsOfBlocks) {
  for (int round = 0; round < 200; ++round) {
    const int64_t begin = between(0, 40), end = begin + between(1, 300), first = begin / kKeyBlock;
    std::vector<float> p = normal(round_up(end, kKeyBlock));
    for (float& x : p) x = std::fabs(x);
    for (int64_t j = 0; j < begin; ++j) p[static_cast<size_t>(j)] = std::numeric_limits<float>::quiet_NaN();
    for (size_t j = static_cast<size_t>(end); j < p.size(); ++j) p[j] = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> sums(static_cast<size_t>(ceil_div(end, kKeyBlock) - first + 1), -7.0f), expected = sums;
    sum_blocks(p.data(), begin, end, sums.data());
    scalar::sum_blocks(p.data(), begin, end, expected.data());
    expect_same_bits(sums, expected, "scalar");
    ASSERT_EQ(sums.back(), -7.0f);  // written is what the blocks need
    for (size_t b = 0; b + 1 < sums.size(); ++b) {
      const int64_t block = (first + static_cast<int64_t>(b)) * kKeyBlock;
      double exact = 0;
      for (int64_t j = std::max(begin, block); j < std::min(end, block + kKeyBlock); ++j)
        exact += p[static_cast<size_t>(j)];
      ASSERT_NEAR(sums[b], exact, 1e-6 * exact);
    }
  }
}

TEST_P(AttentionTest, NothingVisibleIsAnEmptyPart) {
  std::vector<float> scores(20, -HUGE_VALF), out(4, 1.0f), running_out(4, 2.0f);
  float max = 0, sum = 1, running_max = 0.5f, running_sum = 3;
  softmax_partial(scores.data(), 0, 20, &max, &sum);
  EXPECT_EQ(max, -HUGE_VALF);
  EXPECT_EQ(sum, 0.0f);
  EXPECT_EQ(scores, std::vector<float>(20, 0.0f));
  merge_partial(max, sum, out.data(), 4, &running_max, &running_sum, running_out.data());
  EXPECT_EQ(running_max, 0.5f);
  EXPECT_EQ(running_sum, 3.0f);
  EXPECT_EQ(running_out, std::vector<float>(4, 2.0f));
}

TEST_P(AttentionTest, ScoresThatAreNoNumbersAreNoEmptyPart) {
  for (const int64_t n : {1, 3, 16, 40, 100}) {
    for (const bool all : {true, false}) {
      std::vector<float> scores(128, NAN);
      if (!all) {
        const std::vector<float> x = normal(n);
        std::copy(x.begin(), x.end(), scores.begin());
        scores[static_cast<size_t>(between(0, n - 1))] = NAN;
      }
      float max, sum;
      softmax_partial(scores.data(), 0, n, &max, &sum);
      EXPECT_TRUE(std::isnan(max));
      EXPECT_TRUE(std::isnan(sum));
      const float out[] = {1, 2}, number[] = {3, 4};
      float running_max = -std::numeric_limits<float>::infinity(), running_sum = 0, running_out[2] = {};
      merge_partial(0, 1, number, 2, &running_max, &running_sum, running_out);
      merge_partial(max, sum, out, 2, &running_max, &running_sum, running_out);
      merge_partial(0, 1, number, 2, &running_max, &running_sum, running_out);
      EXPECT_TRUE(std::isnan(running_sum));
      EXPECT_TRUE(std::isnan(running_out[0]));
    }
  }
}

TEST_P(AttentionTest, MergeGolden) {  // logits (1, 2), values (1,0), (0,1); then logit 0.5, value (2,2)
  std::vector<float> scores = {1.0f, 2.0f}, part(2, 0.0f), running(2, std::numeric_limits<float>::quiet_NaN());
  const std::vector<float> values = {1.0f, 0.0f, 0.0f, 1.0f}, last = {2.0f, 2.0f};
  float max = 0, sum = 0, running_max = -HUGE_VALF, running_sum = std::numeric_limits<float>::quiet_NaN();
  softmax_partial(scores.data(), 0, 2, &max, &sum);
  EXPECT_NEAR(max + std::log(sum), 2.313262, 1e-6);
  accumulate_values(scores.data(), 2, 1, 2, ElementType::kF32, values.data(), 0, 2, part.data());
  merge_partial(max, sum, part.data(), 2, &running_max, &running_sum, running.data());
  EXPECT_NEAR(running[0] / running_sum, 0.268941, 1e-6);
  EXPECT_NEAR(running[1] / running_sum, 0.731059, 1e-6);
  merge_partial(0.5f, 1.0f, last.data(), 2, &running_max, &running_sum, running.data());
  EXPECT_NEAR(running[0] / running_sum, 0.511713, 1e-6);
  EXPECT_NEAR(running[1] / running_sum, 0.909020, 1e-6);
  EXPECT_NEAR(running_max + std::log(running_sum), 2.464369, 1e-6);
}

TEST_P(AttentionTest, MergeMatchesScalarBits) {
  for (const int64_t d : {2, 18, 64, 80}) {
    const std::vector<float> first = normal(d);
    std::vector<float> running = first, expected = first;
    float max = 0.3f, sum = 2, scalar_max = max, scalar_sum = sum;
    for (const float part_max : {-4.0f, 0.3f, 9.0f, -200.0f, 300.0f}) {
      const std::vector<float> part = normal(d);
      const float part_sum = std::fabs(normal(1)[0]) + 1;
      merge_partial(part_max, part_sum, part.data(), d, &max, &sum, running.data());
      scalar::merge_partial(part_max, part_sum, part.data(), d, &scalar_max, &scalar_sum, expected.data());
      expect_same_bits(running, expected, "out");
      expect_same_bits({max, sum}, {scalar_max, scalar_sum}, "max and sum");
    }
  }
}

TEST_P(AttentionTest, BlocksAreScaledAndTheGreatestKept) {
  for (const int64_t n : {1, 3, 16, 37, 64}) {
    const std::vector<float> blocks = normal(n), before = normal(n);
    std::vector<float> scaled = blocks, peaks = before;
    scaled.push_back(-7);
    peaks.push_back(-7);
    scale_blocks(0.37f, scaled.data(), n);
    keep_peaks(blocks.data(), n, peaks.data());
    for (size_t b = 0; b < blocks.size(); ++b) {
      ASSERT_EQ(scaled[b], blocks[b] * 0.37f);
      ASSERT_EQ(peaks[b], std::max(blocks[b], before[b]));
    }
    ASSERT_EQ(scaled.back(), -7.0f);
    ASSERT_EQ(peaks.back(), -7.0f);
  }
}

// Maxima far apart, in any order, and parts that see nothing: against the definition in double.
TEST_P(AttentionTest, BlocksOfMergedPartsHaveTheirShares) {
  for (int round = 0; round < 200; ++round) {
    const int64_t n_running = between(1, 40), n_parts = between(1, 12);
    const float center = normal(1, round % 4 == 0 ? 3e4f : 3.0f)[0], spread = round % 2 == 0 ? 3.0f : 60.0f;
    std::vector<float> running(static_cast<size_t>(n_running + 1), 0.0f), out(4), running_out(4), scalar_out(4);
    running.back() = -7;
    std::vector<float> expected = running;
    std::vector<double> exact(static_cast<size_t>(n_running));
    float max = -HUGE_VALF, sum = 0, scalar_max = max, scalar_sum = 0;
    double total = 0;  // relative to exp(center), as `exact`
    for (int64_t part = 0; part < n_parts; ++part) {
      const int64_t first = between(0, n_running - 1), n = between(1, n_running - first);
      const float part_max = between(0, 5) == 0 ? -HUGE_VALF : center + normal(1, spread)[0];
      std::vector<float> sums = normal(n);
      double part_sum = 0;
      for (float& x : sums) part_sum += x = std::fabs(x);
      const auto part_sum_f32 = static_cast<float>(part_sum);
      const BlockShares blocks{sums.data(), first, n, running.data(), n_running};
      const BlockShares scalar_blocks{sums.data(), first, n, expected.data(), n_running};
      merge_partial(part_max, part_sum_f32, out.data(), 4, &max, &sum, running_out.data(), &blocks);
      scalar::merge_partial(part_max, part_sum_f32, out.data(), 4, &scalar_max, &scalar_sum, scalar_out.data(),
                            &scalar_blocks);
      expect_same_bits(running, expected, "scalar");
      const double scale = std::exp(static_cast<double>(part_max) - static_cast<double>(center));
      for (int64_t b = 0; b < n; ++b) {
        exact[static_cast<size_t>(first + b)] += scale * static_cast<double>(sums[static_cast<size_t>(b)]);
      }
      total += scale * part_sum;
    }
    ASSERT_EQ(running.back(), -7.0f);
    for (int64_t b = 0; total > 0 && b < n_running; ++b) {
      const double share = exact[static_cast<size_t>(b)] / total;
      ASSERT_NEAR(running[static_cast<size_t>(b)] / sum, share, 5e-6 * share + 0x1p-130);
    }
  }
}

// Attention over spans merged in any cut, against softmax in double.
TEST_P(AttentionTest, MergedSpansAreTheWholeSoftmax) {
  const int64_t d = 48, l = 230;
  for (const ElementType type : kTypes) {
    const std::vector<float> q = normal(d, 0.5f), key_rows = normal(l * d), value_rows = normal(l * d);
    const Elements keys = make_keys(key_rows, l, d, type), values(type, value_rows), rounded_keys(type, key_rows);
    std::vector<float> running(static_cast<size_t>(d)), scores(static_cast<size_t>(l + kKeyBlock));
    float running_max = -HUGE_VALF, running_sum = 0;
    for (int64_t begin = 0; begin < l;) {
      const int64_t end = std::min(l, begin + between(1, 90)), first = begin / kKeyBlock * kKeyBlock;
      float max = 0, sum = 0;
      std::vector<float> part(running.size(), 0.0f);
      attention_scores(q.data(), 1, d, type, keys.data(), begin, end, scores.data(), l + kKeyBlock);
      softmax_partial(scores.data(), begin - first, end - first, &max, &sum);
      const auto* at = static_cast<const char*>(values.data()) + first * d * static_cast<int64_t>(element_bytes(type));
      accumulate_values(scores.data(), l, 1, d, type, at, begin - first, end - first, part.data());
      merge_partial(max, sum, part.data(), d, &running_max, &running_sum, running.data());
      begin = end;
    }
    std::vector<double> weight(static_cast<size_t>(l));
    for (int64_t j = 0; j < l; ++j) {
      double score = 0;
      for (int64_t i = 0; i < d; ++i) score += q[static_cast<size_t>(i)] * rounded_keys.at(j * d + i);
      weight[static_cast<size_t>(j)] = std::exp(score);
    }
    const double total = std::accumulate(weight.begin(), weight.end(), 0.0);
    for (int64_t i = 0; i < d; ++i) {
      double exact = 0;
      for (int64_t j = 0; j < l; ++j) exact += weight[static_cast<size_t>(j)] / total * values.at(j * d + i);
      ASSERT_NEAR(running[static_cast<size_t>(i)] / running_sum, exact, 5e-6) << element_name(type) << " " << i;
    }
  }
}

}  // namespace
}  // namespace quire::cpu
