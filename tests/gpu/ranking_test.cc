// The greatest logits of rows and their sums, against sorting and sums in double.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/rank_logits.h"
#include "tests/gpu/schedules.h"
#include "tests/gpu/test_device.h"
#include "tests/seed.h"

namespace quire::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

// Rows of logits, and what the kernel says of them. What lies between rows is NaN.
struct Ranking {
  Ranking(int64_t n_, int64_t width_, int k_)
      : n(n_),
        width(width_),
        stride(width_ + 3),
        k(k_),
        logits(static_cast<size_t>(n_ * stride), NAN),
        workspace(cuda::rank_logits_bytes(n_, width_, k_)),
        tokens(static_cast<size_t>(n_ * k_), -7),
        values(static_cast<size_t>(n_ * k_), NAN),
        sums(static_cast<size_t>(n_), NAN),
        finite(static_cast<size_t>(n_), -7) {}

  float& at(int64_t row, int64_t i) { return logits[static_cast<size_t>(row * stride + i)]; }
  cuda::RankLogits args() {
    return {.logits = logits.data(),
            .stride = stride,
            .n = n,
            .width = width,
            .k = k,
            .workspace = workspace.data(),
            .tokens = tokens.data(),
            .values = values.data(),
            .sums = sums.data(),
            .finite = finite.data()};
  }
  int run_kernel() { return run(&cuda::DeviceApi::rank_logits, args()); }

  int64_t n, width, stride;
  int k;
  Shared<float> logits;
  Shared<char> workspace;
  Shared<int32_t> tokens;
  Shared<float> values;
  Shared<double> sums;
  Shared<int32_t> finite;
};

void expect_row(Ranking& r, int64_t row) {
  SCOPED_TRACE("row " + std::to_string(row));
  std::vector<int32_t> order(static_cast<size_t>(r.width));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return r.at(row, a) > r.at(row, b); });
  const double greatest = r.at(row, order[0]);
  double sum = 0;
  for (const int32_t i : order) sum += std::exp(r.at(row, i) - greatest);
  const auto own = static_cast<size_t>(row);
  EXPECT_EQ(r.finite[own], 1);
  // A float's rounding is 6e-8, and the kernel forms exponentials as floats.
  EXPECT_NEAR(std::log(r.sums[own]), std::log(sum), 3e-7);
  for (int64_t i = 0; i < r.k; ++i) {
    const auto at = static_cast<size_t>(row * r.k + i);
    if (i < r.width) {
      ASSERT_EQ(r.tokens[at], order[static_cast<size_t>(i)]) << i;
      ASSERT_EQ(r.values[at], r.at(row, order[static_cast<size_t>(i)])) << i;
    } else {
      ASSERT_EQ(r.tokens[at], -1) << i;
      ASSERT_EQ(r.values[at], -kInfinity) << i;
    }
  }
}

class RankingKernel : public OnEverySchedule {
 protected:
  std::mt19937 random_ = seeded_random();
  void TearDown() override {
    if (HasFailure()) ADD_FAILURE() << seed_trace();
  }
  int64_t between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  float normal(float spread) { return std::normal_distribution<float>(0, spread)(random_); }

  // Of one of several kinds: spread wide or not at all, with many equal ones, at the ends of the range.
  void fill(Ranking& r, int64_t row, int64_t kind) {
    const float level = normal(5), spread = std::exp(normal(1.5f));
    // One above all others, which are equal. The difference is rounded by nearly half of what separates two floats.
    constexpr float kOthers = -8, kAbove = 0.25f + 0x1p-21f - 0x1p-25f;
    for (int64_t i = 0; i < r.width; ++i) {
      float& logit = r.at(row, i);
      switch (kind) {
        case 0:
          logit = level + normal(spread);
          break;
        case 1:
          logit = static_cast<float>(between(-3, 3)) / 4;
          break;
        case 2:
          logit = level;
          break;
        case 3:
          logit = between(0, 1) == 0 ? 0.0f : -0.0f;
          break;
        case 4:
          logit = between(0, 2) == 0 ? (between(0, 1) == 0 ? kLargest : -kLargest) : normal(1e30f);
          break;
        default:
          logit = i == r.width / 2 ? kAbove : kOthers;
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Orders, RankingKernel, kSchedules, schedule_name);

TEST_P(RankingKernel, RanksRowsOfAnyWidth) {
  constexpr int64_t kSlice = cuda::kRankedSlice;
  const int64_t widths[] = {1,
                            2,
                            between(3, 63),
                            512,
                            513,
                            between(600, 5000),
                            kSlice - 1,
                            kSlice,
                            kSlice + 1,
                            between(3 * kSlice, 5 * kSlice)};
  for (const int64_t width : widths) {
    for (const int k : {1, static_cast<int>(between(2, cuda::kMostRanked - 1)), cuda::kMostRanked}) {
      SCOPED_TRACE("width " + std::to_string(width) + ", k " + std::to_string(k));
      Ranking r(width > 5000 ? 2 : 3, width, k);
      for (int64_t row = 0; row < r.n; ++row) fill(r, row, between(0, 5));
      ASSERT_EQ(r.run_kernel(), 0);
      for (int64_t row = 0; row < r.n; ++row) expect_row(r, row);
      if (HasFailure()) return;
    }
  }
}

TEST_P(RankingKernel, RanksRowsOfEveryKind) {
  for (int64_t kind = 0; kind < 6; ++kind) {
    SCOPED_TRACE(kind);
    Ranking r(1, between(2 * cuda::kRankedSlice, 3 * cuda::kRankedSlice), static_cast<int>(between(1, 100)));
    fill(r, 0, kind);
    ASSERT_EQ(r.run_kernel(), 0);
    expect_row(r, 0);
  }
}

TEST_P(RankingKernel, SaysWhichRowsAreNotFinite) {
  for (const int64_t width : {int64_t{1}, int64_t{100}, cuda::kRankedSlice + between(1, 100)}) {
    for (const float what : {kInfinity, -kInfinity, std::nanf("")}) {
      SCOPED_TRACE(std::to_string(width) + " with " + std::to_string(what));
      Ranking r(3, width, 20);
      for (int64_t row = 0; row < r.n; ++row) fill(r, row, 0);
      r.at(1, between(0, width - 1)) = what;
      ASSERT_EQ(r.run_kernel(), 0);
      EXPECT_EQ(r.finite[1], 0);
      expect_row(r, 0);
      expect_row(r, 2);
    }
  }
}

TEST_P(RankingKernel, GivesTheSameBitsAgain) {
  Ranking r(2, cuda::kRankedSlice + 700, 50);
  for (int64_t row = 0; row < r.n; ++row) fill(r, row, 0);
  ASSERT_EQ(r.run_kernel(), 0);
  Ranking again = r;
  emulation::set_launch_options({.schedule = emulation::Schedule::kReverse, .n_threads = 1});
  ASSERT_EQ(again.run_kernel(), 0);
  EXPECT_EQ(std::memcmp(r.sums.data(), again.sums.data(), 2 * sizeof(double)), 0);
  EXPECT_EQ(r.tokens, again.tokens);
}

TEST(RankingKernel, RefusesWhatItCannot) {
  for (const auto& [width, k] :
       {std::pair<int64_t, int>{0, 1}, {cuda::kMostRankedWidth + 1, 1}, {100, 0}, {100, cuda::kMostRanked + 1}}) {
    cuda::Stream own = nullptr;  // it is good for nothing afterwards
    ASSERT_EQ(test_device().create_stream(&own), 0);
    const int queued = test_device().rank_logits(own, {.n = 1, .width = width, .k = k});
    EXPECT_NE(queued != 0 ? queued : test_device().finish_stream(own), 0) << width << " " << k;
    test_device().destroy_stream(own);
  }
}

}  // namespace
}  // namespace quire::test
