// Positions with gaps: what they do to a plan, against the definition.
#include "lib/plan/text_positions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tests/seed.h"

namespace quire {
namespace {

using Positions = std::vector<int64_t>;

Plan causal(int64_t first, int64_t n) {
  Plan plan;
  Span span;
  span.count = first + n;
  plan.add_block(first, n, {span});
  return plan;
}

// The plan of queries [first, first + n) of a text at these positions has their differences as distances.
void expect_differences(const TextPositions& positions, const Positions& expected, int64_t first, int64_t n) {
  Plan plan = causal(first, n);
  positions.apply(plan);
  const Status status = validate(plan, first, n, 1);
  ASSERT_TRUE(status.ok()) << status.message();
  const auto n_keys = static_cast<int64_t>(expected.size());
  std::vector<double> matrix(static_cast<size_t>(n * n_keys));
  position_matrix(plan, 0, n_keys, matrix.data());
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t j = 0; j < n_keys; ++j) {
      const double distance = matrix[static_cast<size_t>(r * n_keys + j)];
      if (j > first + r) {
        ASSERT_TRUE(std::isnan(distance)) << first + r << " sees " << j;
      } else {
        ASSERT_EQ(distance,
                  static_cast<double>(expected[static_cast<size_t>(first + r)] - expected[static_cast<size_t>(j)]))
            << first + r << " and " << j;
      }
    }
  }
}

// Zhu et al. 2023, section 3.2, with windows of 8 for a target of 32: the second chunk skips 10.
TEST(TextPositions, PoSEsExample) {
  const Positions expected = {0, 1, 2, 13, 14, 15, 16, 17};
  TextPositions positions;
  positions.append(0, expected);
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(positions.position(i), expected[static_cast<size_t>(i)]);
  EXPECT_EQ(positions.position(8), 18);
  expect_differences(positions, expected, 0, 8);
  expect_differences(positions, expected, 2, 3);
}

TEST(TextPositions, ConsecutiveOnesAreNone) {
  TextPositions positions;
  EXPECT_TRUE(positions.consecutive());
  positions.append(0, Positions{0, 1, 2});
  positions.append(3, Positions{3, 4});
  EXPECT_TRUE(positions.consecutive());
  positions.append(5, Positions{6});
  EXPECT_FALSE(positions.consecutive());
  positions.cut(6);
  EXPECT_EQ(positions.position(6), 7);
  positions.cut(5);
  EXPECT_TRUE(positions.consecutive());
  EXPECT_EQ(positions.position(6), 6);
}

TEST(TextPositions, TokensBelowAPosition) {
  TextPositions positions;
  EXPECT_EQ(positions.tokens_below(5), 5);
  positions.append(0, Positions{2, 3, 10, 11, 20});
  const int64_t below[] = {0, 0, 0, 1, 2, 2, 2, 2, 2, 2, 2, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 5, 6, 7};
  for (int64_t p = 0; p < 24; ++p) EXPECT_EQ(positions.tokens_below(p), below[p]) << p;
}

TEST(TextPositions, DistancesAreDifferencesForAnyGapsAndBlocks) {
  SCOPED_TRACE(test::seed_trace());
  std::mt19937 engine = test::seeded_random();
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine);
  };
  for (int round = 0; round < 20; ++round) {
    constexpr int64_t kTokens = 60;
    Positions expected;
    int64_t next = 0;
    for (int64_t i = 0; i < kTokens; ++i) {
      if (draw(0, 6) == 0) next += draw(1, 50);
      expected.push_back(next++);
    }
    TextPositions positions;
    for (int64_t i = 0; i < kTokens;) {  // in several calls
      const int64_t n = draw(1, kTokens - i);
      positions.append(i, std::span(expected).subspan(static_cast<size_t>(i), static_cast<size_t>(n)));
      i += n;
    }
    for (int64_t limit = 0; limit < next; ++limit) {
      const auto below = std::lower_bound(expected.begin(), expected.end(), limit) - expected.begin();
      ASSERT_EQ(positions.tokens_below(limit), below) << limit;
    }
    for (int64_t first = 0; first < kTokens;) {
      const int64_t n = draw(1, kTokens - first);
      ASSERT_NO_FATAL_FAILURE(expect_differences(positions, expected, first, n));
      first += n;
    }
  }
}

}  // namespace
}  // namespace quire
