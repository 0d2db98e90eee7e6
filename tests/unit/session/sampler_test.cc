// Sampling: distributions, filters, and random numbers that can be resumed.

#include "lib/session/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

namespace quire {
namespace {

// 1, 1/2, 1/4 ... of the most probable, in an order that is not that of the ids.
std::vector<float> halving_logits() {
  std::vector<float> logits(8);
  const int order[] = {5, 2, 7, 0, 3, 6, 1, 4};
  for (int rank = 0; rank < 8; ++rank)
    logits[static_cast<size_t>(order[rank])] = -static_cast<float>(rank) * std::log(2.0f);
  return logits;
}

std::vector<double> softmax(const std::vector<float>& logits, double temperature = 1) {
  std::vector<double> p;
  for (const float x : logits) p.push_back(std::exp(x / temperature));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

constexpr int64_t kDraws = 20000;

std::vector<int64_t> counts(const std::vector<float>& logits, const SamplingOptions& options) {
  Sampler sampler(options);
  std::vector<int64_t> n(logits.size());
  for (int64_t i = 0; i < kDraws; ++i) ++n[static_cast<size_t>(sampler.sample(logits, i).token)];
  return n;
}

// Pearson's statistic; tokens of probability 0 must not be drawn.
double chi_square(const std::vector<int64_t>& n, const std::vector<double>& p) {
  double sum = 0;
  for (size_t t = 0; t < p.size(); ++t) {
    if (p[t] == 0) {
      EXPECT_EQ(n[t], 0) << "token " << t;
      continue;
    }
    const double expected = p[t] * static_cast<double>(kDraws);
    sum += std::pow(static_cast<double>(n[t]) - expected, 2) / expected;
  }
  return sum;
}

// The 99.9 % points of chi-square with as many degrees of freedom.
constexpr double kChi7 = 24.3, kChi2 = 13.8;

TEST(Sampler, DrawsFromTheSoftmax) {
  const auto logits = halving_logits();
  for (const float temperature : {1.0f, 0.7f, 2.5f}) {
    const auto n = counts(logits, {temperature, 0, 1, 0, 11});
    EXPECT_LT(chi_square(n, softmax(logits, temperature)), kChi7) << "temperature " << temperature;
    EXPECT_GT(chi_square(n, softmax(logits, temperature * 1.2)), kChi7);  // the test sees a wrong temperature
  }
}

std::vector<double> restricted(const std::vector<float>& logits, const std::set<int>& kept) {
  auto p = softmax(logits);
  double sum = 0;
  for (size_t t = 0; t < p.size(); ++t) sum += kept.count(static_cast<int>(t)) ? p[t] : 0;
  for (size_t t = 0; t < p.size(); ++t) p[t] = kept.count(static_cast<int>(t)) ? p[t] / sum : 0;
  return p;
}

TEST(Sampler, FiltersKeepExactlyTheirSets) {
  const auto logits = halving_logits();  // probabilities 128/255, 64/255, 32/255 ... of tokens 5, 2, 7, 0, 3, 6, 1, 4
  const std::set<int> three = {5, 2, 7};
  EXPECT_LT(chi_square(counts(logits, {1, 3, 1, 0, 1}), restricted(logits, three)), kChi2);
  EXPECT_LT(chi_square(counts(logits, {1, 0, 0.8f, 0, 2}), restricted(logits, three)), kChi2);  // 192/255 < 0.8
  EXPECT_LT(chi_square(counts(logits, {1, 0, 1, 0.2f, 3}), restricted(logits, three)), kChi2);  // 1/4 >= 0.2 > 1/8
  // One after the other: of the top 4, three reach 0.9 of the rest.
  EXPECT_LT(chi_square(counts(logits, {1, 4, 0.9f, 0, 4}), restricted(logits, three)), kChi2);
  EXPECT_LT(chi_square(counts(logits, {1, 4, 0.99f, 0.2f, 5}), restricted(logits, three)), kChi2);
}

TEST(Sampler, FiltersThatKeepOneTakeTheBest) {
  const auto logits = halving_logits();
  for (const SamplingOptions& options : {SamplingOptions{1, 1, 1, 0, 1}, SamplingOptions{1, 0, 1e-6f, 0, 1},
                                         SamplingOptions{1, 0, 1, 1, 1}, SamplingOptions{0, 0, 1, 0, 1}}) {
    Sampler sampler(options);
    for (int64_t i = 0; i < 100; ++i) ASSERT_EQ(sampler.sample(logits, i).token, 5);
  }
}

TEST(Sampler, TiesGoToTheLowerId) {
  const std::vector<float> equal(10, 0.5f);
  EXPECT_EQ(Sampler({}).sample(equal, 0).token, 0);
  EXPECT_EQ(Sampler({1, 1, 1, 0, 7}).sample(equal, 3).token, 0);
  std::set<int32_t> drawn;
  Sampler three({1, 3, 1, 0, 7});
  for (int64_t i = 0; i < 200; ++i) drawn.insert(three.sample(equal, i).token);
  EXPECT_EQ(drawn, (std::set<int32_t>{0, 1, 2}));
}

TEST(Sampler, IsAFunctionOfSeedAndIndex) {
  const auto logits = halving_logits();
  std::vector<int32_t> forward;
  Sampler sampler({1, 0, 1, 0, 99});
  for (int64_t i = 0; i < 200; ++i) forward.push_back(sampler.sample(logits, i).token);
  Sampler other({1, 0, 1, 0, 99});
  for (int64_t i = 199; i >= 0; --i) ASSERT_EQ(other.sample(logits, i).token, forward[static_cast<size_t>(i)]);
  Sampler elsewhere({1, 0, 1, 0, 100});
  int same = 0;
  for (int64_t i = 0; i < 200; ++i) same += elsewhere.sample(logits, i).token == forward[static_cast<size_t>(i)];
  EXPECT_LT(same, 120);  // by chance a third
}

TEST(Sampler, UniformNumbersAreUniformAndUnrelated) {
  constexpr int kBins = 64;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
    std::vector<int64_t> n(kBins);
    double product = 0, before = 0.5;
    for (uint64_t i = 0; i < kDraws; ++i) {
      const double u = counter_uniform(seed, i);
      ASSERT_GE(u, 0);
      ASSERT_LT(u, 1);
      ++n[static_cast<size_t>(u * kBins)];
      product += (u - 0.5) * (before - 0.5);
      before = u;
    }
    EXPECT_LT(chi_square(n, std::vector<double>(kBins, 1.0 / kBins)), 110);  // 63 degrees: 99.9 % below 104
    EXPECT_LT(std::fabs(product / static_cast<double>(kDraws)), 4.0 / 12 / std::sqrt(static_cast<double>(kDraws)));
  }
}

TEST(Sampler, LogprobIsTheLogSoftmaxBeforeFilters) {
  const auto logits = halving_logits();
  const auto p = softmax(logits);
  Sampler sampler({0.5f, 2, 1, 0, 3});
  for (int64_t i = 0; i < 20; ++i) {
    const Sample sample = sampler.sample(logits, i);
    EXPECT_NEAR(sample.logprob, std::log(p[static_cast<size_t>(sample.token)]), 1e-6);
  }
  const std::vector<float> extreme = {1000, -1000, 999};
  EXPECT_NEAR(log_probability(extreme, 0), -std::log1p(std::exp(-1.0)), 1e-6);
  EXPECT_NEAR(log_probability(extreme, 1), -2000 - std::log1p(std::exp(-1.0)), 1e-3);
}

}  // namespace
}  // namespace quire
