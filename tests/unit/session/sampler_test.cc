// Sampling: distributions, filters, and random numbers that can be resumed.

#include "lib/session/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "tests/unit/session/sampler_step.h"

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

using Kind = SamplerStep::Kind;
using test::step_of;

SamplingOptions chain(std::vector<SamplerStep> steps, uint64_t seed) {
  SamplingOptions options;
  options.steps = std::move(steps);
  options.greedy = false;
  options.seed = seed;
  return options;
}

// Temperature, top-k, top-p and min-p in this order.
SamplingOptions drawing(double temperature, int64_t top_k, double top_p, double min_p, uint64_t seed) {
  SamplingOptions options = chain({step_of(Kind::kTemperature, temperature)}, seed);
  if (top_k > 0) options.steps.push_back(step_of(Kind::kTopK, 0, top_k));
  options.steps.push_back(step_of(Kind::kTopP, top_p));
  if (min_p > 0) options.steps.push_back(step_of(Kind::kMinP, min_p));
  return options;
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
    const auto n = counts(logits, drawing(temperature, 0, 1, 0, 11));
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
  EXPECT_LT(chi_square(counts(logits, drawing(1, 3, 1, 0, 1)), restricted(logits, three)), kChi2);
  EXPECT_LT(chi_square(counts(logits, drawing(1, 0, 0.8f, 0, 2)), restricted(logits, three)), kChi2);  // 192/255 < 0.8
  EXPECT_LT(chi_square(counts(logits, drawing(1, 0, 1, 0.2f, 3)), restricted(logits, three)),
            kChi2);  // 1/4 >= 0.2 > 1/8
  // One after the other: of the top 4, three reach 0.9 of the rest.
  EXPECT_LT(chi_square(counts(logits, drawing(1, 4, 0.9f, 0, 4)), restricted(logits, three)), kChi2);
  EXPECT_LT(chi_square(counts(logits, drawing(1, 4, 0.99f, 0.2f, 5)), restricted(logits, three)), kChi2);
}

TEST(Sampler, FiltersThatKeepOneTakeTheBest) {
  const auto logits = halving_logits();
  for (const SamplingOptions& options :
       {drawing(1, 1, 1, 0, 1), drawing(1, 0, 1e-6, 0, 1), drawing(1, 0, 1, 1, 1), SamplingOptions()}) {
    Sampler sampler(options);
    for (int64_t i = 0; i < 100; ++i) ASSERT_EQ(sampler.sample(logits, i).token, 5);
  }
}

TEST(Sampler, TiesGoToTheLowerId) {
  const std::vector<float> equal(10, 0.5f);
  EXPECT_EQ(Sampler(SamplingOptions()).sample(equal, 0).token, 0);
  EXPECT_EQ(Sampler(drawing(1, 1, 1, 0, 7)).sample(equal, 3).token, 0);
  std::set<int32_t> drawn;
  Sampler three(drawing(1, 3, 1, 0, 7));
  for (int64_t i = 0; i < 200; ++i) drawn.insert(three.sample(equal, i).token);
  EXPECT_EQ(drawn, (std::set<int32_t>{0, 1, 2}));
}

TEST(Sampler, IsAFunctionOfSeedAndIndex) {
  const auto logits = halving_logits();
  std::vector<int32_t> forward;
  Sampler sampler(drawing(1, 0, 1, 0, 99));
  for (int64_t i = 0; i < 200; ++i) forward.push_back(sampler.sample(logits, i).token);
  Sampler other(drawing(1, 0, 1, 0, 99));
  for (int64_t i = 199; i >= 0; --i) ASSERT_EQ(other.sample(logits, i).token, forward[static_cast<size_t>(i)]);
  Sampler elsewhere(drawing(1, 0, 1, 0, 100));
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
  Sampler sampler(drawing(0.5f, 2, 1, 0, 3));
  for (int64_t i = 0; i < 20; ++i) {
    const Sample sample = sampler.sample(logits, i);
    EXPECT_NEAR(sample.logprob, std::log(p[static_cast<size_t>(sample.token)]), 1e-6);
  }
  const std::vector<float> extreme = {1000, -1000, 999};
  EXPECT_NEAR(log_probability(extreme, 0), -std::log1p(std::exp(-1.0)), 1e-6);
  EXPECT_NEAR(log_probability(extreme, 1), -2000 - std::log1p(std::exp(-1.0)), 1e-3);
}

// ---- steps against naive references on random logits

std::vector<float> random_logits(size_t n, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(n);
  for (float& x : logits) x = normal(engine);
  return logits;
}

Candidates candidates_of(const std::vector<float>& logits) {
  Candidates c;
  for (size_t t = 0; t < logits.size(); ++t) c.items.push_back({static_cast<int32_t>(t), logits[t]});
  return c;
}

std::set<int> tokens_of(const Candidates& c) {
  std::set<int> tokens;
  for (const auto& item : c.items) tokens.insert(item.token);
  return tokens;
}

TEST(SamplerSteps, TypicalKeepsTheTokensNearestToTheEntropy) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const auto logits = random_logits(40, seed);
    const auto p = softmax(logits);
    double entropy = 0;
    for (const double x : p) entropy -= x * std::log(x);
    std::vector<size_t> order(p.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return std::fabs(-std::log(p[a]) - entropy) < std::fabs(-std::log(p[b]) - entropy);
    });
    for (const double mass : {0.05, 0.3, 0.9}) {
      std::set<int> expected;
      double sum = 0;
      for (size_t i = 0; i < order.size() && sum < mass; ++i) {
        expected.insert(static_cast<int>(order[i]));
        sum += p[order[i]];
      }
      Candidates c = candidates_of(logits);
      apply(step_of(Kind::kTypical, mass), {}, {}, c);
      EXPECT_EQ(tokens_of(c), expected) << seed << " " << mass;
    }
  }
}

TEST(SamplerSteps, PenaltiesCountTheLastTokens) {
  const std::vector<float> logits = {2, -2, 3, 0.5f, 1};
  const std::vector<int32_t> history = {4, 0, 0, 1, 2, 0};
  SamplerStep step = step_of(Kind::kPenalties, 2, 5);  // token 4 is out of range
  step.frequency = 0.25;
  step.presence = 0.5;
  Candidates c = candidates_of(logits);
  apply(step, history, {}, c);
  const double expected[] = {2.0 / 2 - 3 * 0.25 - 0.5, -2.0 * 2 - 0.25 - 0.5, 3.0 / 2 - 0.25 - 0.5, 0.5, 1};
  for (size_t t = 0; t < 5; ++t) EXPECT_DOUBLE_EQ(c.items[t].logit, expected[t]) << t;
  step.n = 0;
  c = candidates_of(logits);
  apply(step, history, {}, c);
  EXPECT_DOUBLE_EQ(c.items[4].logit, 1.0 / 2 - 0.25 - 0.5);
}

TEST(TokenCounts, FollowATextAndItsWindow) {
  std::mt19937 engine(11);
  for (const int64_t window : {0, 1, 7, 100}) {
    TokenCounts counts;
    std::vector<int32_t> text;
    for (int round = 0; round < 200; ++round) {
      for (size_t more = engine() % 12; more > 0; --more) text.push_back(static_cast<int32_t>(engine() % 20));
      if (round % 20 == 19) {  // another text
        text.resize(engine() % (text.size() + 1));
        for (int32_t& token : text) token = static_cast<int32_t>(engine() % 20);
        counts.forget();
      }
      counts.follow(text, window);
      std::map<int32_t, int64_t> expected;
      for (const int32_t token : last_tokens(text, window)) ++expected[token];
      ASSERT_EQ(counts.n_distinct(), static_cast<int64_t>(expected.size())) << window << " " << round;
      for (int32_t token = 0; token < 25; ++token) ASSERT_EQ(counts.of(token), expected[token]) << window;
      for (int32_t token = counts.end(); token < 25; ++token) ASSERT_EQ(expected[token], 0) << window;
    }
  }
}

TEST(TokenCounts, ReadWhatCameToATextAlone) {
  TokenCounts counts;
  std::vector<int32_t> text = {1, 1, 2};
  counts.follow(text, 0);
  text = {9, 9, 9, 1};  // whose first tokens are not looked at
  counts.follow(text, 0);
  EXPECT_EQ(counts.of(1), 3);
  EXPECT_EQ(counts.of(9), 0);
  counts.forget();
  counts.follow(text, 0);
  EXPECT_EQ(counts.of(1), 1);
  EXPECT_EQ(counts.of(9), 3);
  text.resize(2);  // a shorter text is another one
  counts.follow(text, 0);
  EXPECT_EQ(counts.of(1), 0);
  EXPECT_EQ(counts.n_distinct(), 1);
}

// The longest repetition that each token would continue, by comparing every pair of places.
double naive_dry(const SamplerStep& step, std::span<const int32_t> text, const std::vector<bool>& breakers,
                 int32_t token) {
  int64_t longest = 0;
  const auto n = static_cast<int64_t>(text.size());
  for (int64_t end = 0; end + 1 < n; ++end) {  // the repetition's earlier place ends here, `token` follows
    if (text[static_cast<size_t>(end + 1)] != token || breakers[static_cast<size_t>(token)]) continue;
    int64_t length = 0;
    while (end - length >= 0) {
      const int32_t a = text[static_cast<size_t>(end - length)], b = text[static_cast<size_t>(n - 1 - length)];
      if (a != b || breakers[static_cast<size_t>(a)]) break;
      ++length;
    }
    longest = std::max(longest, length);
  }
  if (longest < step.allowed_length) return 0;
  return step.value * std::pow(step.base, static_cast<double>(longest - step.allowed_length));
}

TEST(SamplerSteps, DryFindsWhatWouldContinueARepetition) {
  std::mt19937 engine(5);
  for (int round = 0; round < 200; ++round) {
    const int32_t alphabet = 2 + round % 4;  // few tokens: many repetitions
    std::vector<int32_t> history;
    for (int i = 0; i < 1 + round % 60; ++i)
      history.push_back(static_cast<int32_t>(engine() % static_cast<uint32_t>(alphabet)));
    std::vector<bool> breakers(6, false);
    if (round % 3 == 0) breakers[0] = true;
    SamplerStep step = step_of(Kind::kDry, 0.8, round % 5 == 0 ? 10 : 0);
    step.base = 1.5;
    step.allowed_length = 1 + round % 3;
    const std::vector<float> logits(6, 1);
    Candidates c = candidates_of(logits);
    apply(step, history, breakers, c);
    const size_t from = step.n > 0 && history.size() > 10 ? history.size() - 10 : 0;
    for (int32_t t = 0; t < 6; ++t) {
      const double penalty = naive_dry(step, std::span(history).subspan(from), breakers, t);
      EXPECT_NEAR(c.items[static_cast<size_t>(t)].logit, 1 - penalty, 1e-12) << round << " " << t;
    }
  }
}

// Of texts longer than what is looked through at once. Few of the tokens that differ: what is compared grows beyond the
// text's length, and is given up.
TEST(SamplerSteps, DryFindsThemInLongTexts) {
  std::mt19937 engine(6);
  for (int round = 0; round < 120; ++round) {
    const size_t period = 1 + engine() % 90, n_other = engine() % 8;
    std::vector<int32_t> history(100 + engine() % 300);
    for (size_t i = 0; i < history.size(); ++i) {
      history[i] = i < period ? static_cast<int32_t>(engine() % 40) : history[i - period];
    }
    for (size_t i = 0; i < n_other; ++i) history[engine() % history.size()] = static_cast<int32_t>(engine() % 40);
    std::vector<bool> breakers(40, false);
    if (round % 3 == 0) breakers[engine() % 40] = true;
    SamplerStep step = step_of(Kind::kDry, 0.8);
    step.base = 1.01;
    step.allowed_length = 1 + round % 4;
    const std::vector<float> logits(40, 1);
    Candidates c = candidates_of(logits);
    apply(step, history, breakers, c);
    for (int32_t t = 0; t < 40; ++t) {
      const double penalty = naive_dry(step, history, breakers, t);
      ASSERT_NEAR(c.items[static_cast<size_t>(t)].logit, 1 - penalty, 1e-12) << round << " " << t;
    }
  }
}

TEST(Sampler, StepsWorkInTheOrderGiven) {
  const auto logits = halving_logits();
  // Of the two best, the second is typical; of the typical ones, others are the two best.
  Candidates a = candidates_of(logits), b = candidates_of(logits);
  const SamplerStep two = step_of(Kind::kTopK, 0, 2), typical = step_of(Kind::kTypical, 0.3);
  apply(two, {}, {}, a), apply(typical, {}, {}, a);
  apply(typical, {}, {}, b), apply(two, {}, {}, b);
  EXPECT_NE(tokens_of(a), tokens_of(b));
}

TEST(Sampler, BiasAndBansChooseAmongTheRest) {
  const auto logits = halving_logits();
  SamplingOptions options;
  options.logit_bias = {{4, 100}};
  EXPECT_EQ(Sampler(options).sample(logits, 0).token, 4);
  options.logit_bias = {{5, -std::numeric_limits<double>::infinity()}};
  EXPECT_EQ(Sampler(options).sample(logits, 0).token, 2);
  const std::vector<int32_t> banned = {2, 7};
  EXPECT_EQ(Sampler(options).sample(logits, 0, {}, banned).token, 0);
  std::vector<int32_t> all(8);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(Sampler(options).sample(logits, 0, {}, all).token, 5);  // nothing is left: the model's own choice
  SamplingOptions drawn = drawing(1, 0, 1, 0, 3);
  drawn.logit_bias = options.logit_bias;
  for (int64_t i = 0; i < 300; ++i) EXPECT_NE(Sampler(drawn).sample(logits, i).token, 5);
}

TEST(Sampler, ReportsTheMostProbableTokens) {
  SamplingOptions options = drawing(3, 0, 1, 0, 3);
  options.n_top = 5;
  for (uint32_t seed = 0; seed < 10; ++seed) {
    auto logits = random_logits(50, seed);
    logits[7] = logits[9];  // a tie
    const Sample sample = Sampler(options).sample(logits, 1);
    ASSERT_EQ(sample.top.size(), 5u);
    std::vector<int32_t> order(50);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(sample.top[i].token, order[i]);
      EXPECT_FLOAT_EQ(sample.top[i].logprob, log_probability(logits, order[i]));
    }
  }
}

}  // namespace
}  // namespace quire
