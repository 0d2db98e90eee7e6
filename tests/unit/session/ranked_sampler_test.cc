// Sampling from the most probable tokens of a row: what they decide is what the whole row gives, and what they do not
// decide they leave.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "lib/session/sampler.h"
#include "tests/seed.h"
#include "tests/unit/backend/rank_on_host.h"
#include "tests/unit/session/sampler_step.h"

namespace quire {
namespace {

using Kind = SamplerStep::Kind;
using test::step_of;
constexpr double kNever = -std::numeric_limits<double>::infinity();

RankedLogits rank(const std::vector<float>& logits, size_t k) { return test::rank_on_host(logits, k); }

SamplingOptions drawing(std::vector<SamplerStep> steps, uint64_t seed = 1) {
  SamplingOptions options;
  options.greedy = false;
  options.steps = std::move(steps);
  options.seed = seed;
  return options;
}

// One sample, in all that it depends on.
struct Case {
  std::vector<float> logits;
  SamplingOptions options;
  int64_t index = 0;
  std::vector<int32_t> history{}, banned{};
  std::vector<uint32_t> allowed{};

  Sample whole() const { return Sampler(options).sample(logits, index, history, banned, allowed); }
  std::optional<Sample> ranked(const RankedLogits& row) const {
    return Sampler(options).sample(row, index, history, banned, allowed);
  }
};

// Beside the sum's error, that of a float.
void expect_near(float ranked, float whole) { EXPECT_NEAR(ranked, whole, 2e-6 + 2e-7 * std::fabs(whole)); }

// Whether the tokens of the row decide the sample; if so, it is that of all.
bool decides(const Case& c, const RankedLogits& row) {
  const std::optional<Sample> sample = c.ranked(row);
  if (!sample) return false;
  const Sample whole = c.whole();
  EXPECT_EQ(sample->token, whole.token);
  expect_near(sample->logprob, whole.logprob);
  EXPECT_EQ(sample->top.size(), whole.top.size());
  for (size_t i = 0; i < std::min(sample->top.size(), whole.top.size()); ++i) {
    EXPECT_EQ(sample->top[i].token, whole.top[i].token);
    expect_near(sample->top[i].logprob, whole.top[i].logprob);
  }
  return true;
}

class RankedSampler : public testing::Test {
 protected:
  std::mt19937 random_ = test::seeded_random();
  void TearDown() override {
    if (HasFailure()) ADD_FAILURE() << test::seed_trace();
  }
  int64_t between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  double uniform(double low, double high) { return std::uniform_real_distribution<double>(low, high)(random_); }

  // As models give them if `spread` is some 3; of few different ones if `levels`.
  std::vector<float> random_logits(int64_t n, double spread, bool levels = false) {
    std::vector<float> logits(static_cast<size_t>(n));
    std::normal_distribution<double> normal(0, spread);
    for (float& x : logits) x = static_cast<float>(levels ? std::round(normal(random_)) : normal(random_));
    return logits;
  }
  std::vector<int32_t> random_tokens(int64_t n, int64_t width) {
    std::vector<int32_t> tokens(static_cast<size_t>(n));
    for (int32_t& t : tokens) t = static_cast<int32_t>(between(0, width - 1));
    return tokens;
  }
  SamplerStep random_penalties() {
    SamplerStep step = step_of(Kind::kPenalties, uniform(0.7, 1.6), between(0, 1) * 20);
    step.frequency = uniform(-0.5, 0.8);
    step.presence = uniform(-0.5, 0.8);
    return step;
  }
  SamplerStep random_step() {
    SamplerStep step;
    step.kind = static_cast<Kind>(between(1, 7));
    switch (step.kind) {
      case Kind::kTemperature:
        step.value = uniform(0.3, 2);
        break;
      case Kind::kTopK:
        step.n = between(1, 80);
        break;
      case Kind::kTopP:
      case Kind::kTypical:
        step.value = between(0, 9) == 0 ? 1 : uniform(0.1, 0.99);
        break;
      case Kind::kMinP:
        step.value = std::exp(uniform(-8, -0.5));
        break;
      case Kind::kPenalties:
        return random_penalties();
      case Kind::kDry:
        step.allowed_length = between(1, 2);
        step.value = uniform(0.1, 2);
        break;
    }
    return step;
  }
  Case random_case() {
    Case c;
    const int64_t width = between(0, 3) == 0 ? between(1, 60) : between(100, 2000);
    c.logits = random_logits(width, std::exp(uniform(-3, 2)), between(0, 3) == 0);
    if (between(0, 2) == 0) c.logits[static_cast<size_t>(between(0, width - 1))] += 8;
    c.options.greedy = between(0, 3) == 0;
    c.options.seed = static_cast<uint64_t>(between(0, 1000));
    c.options.n_top = static_cast<int32_t>(between(0, 3) == 0 ? between(1, 20) : 0);
    for (int64_t n = between(0, 4); n > 0; --n) c.options.steps.push_back(random_step());
    c.index = between(0, 1 << 20);
    c.history = random_tokens(between(0, 60), std::max<int64_t>(1, width / between(1, 40)));
    if (between(0, 3) == 0) {
      for (const int32_t t : random_tokens(between(1, 5), width)) {
        c.options.logit_bias.emplace_back(t, between(0, 4) == 0 ? kNever : uniform(-4, 4));
      }
    }
    if (between(0, 4) == 0) c.banned = random_tokens(between(1, 5), width);
    if (between(0, 4) == 0) {
      c.allowed.assign(static_cast<size_t>((width + 31) / 32), 0);
      for (const int32_t t : random_tokens(between(1, width), width)) {
        c.allowed[static_cast<size_t>(t) / 32] |= uint32_t{1} << t % 32;
      }
    }
    return c;
  }
};

TEST_F(RankedSampler, WhatItDecidesIsWhatTheWholeRowGives) {
  int n_decided = 0, n_left = 0;
  for (int i = 0; i < 20000 && !HasFailure(); ++i) {
    SCOPED_TRACE(i);
    const Case c = random_case();
    for (const size_t k : {size_t{1}, static_cast<size_t>(between(2, 60)), size_t{256}}) {
      RankedLogits row = rank(c.logits, k);
      row.sum *= 1 + uniform(-1e-6, 1e-6);  // as far off as a device's may be
      (decides(c, row) ? n_decided : n_left) += 1;
    }
  }
  EXPECT_GT(n_decided, 10000);
  EXPECT_GT(n_left, 10000);
}

// A sampler that goes on with a text chooses what a new one chooses.
TEST_F(RankedSampler, GoesOnWithATextAsIfItWereNew) {
  for (int i = 0; i < 100 && !HasFailure(); ++i) {
    SCOPED_TRACE(i);
    Case c = random_case();
    c.options.steps.insert(c.options.steps.begin(), random_penalties());
    Sampler sampler(c.options);
    for (int step = 0; step < 30; ++step) {
      const RankedLogits row = rank(c.logits, 60);
      const auto ranked = sampler.sample(row, c.index, c.history, c.banned, c.allowed);
      EXPECT_EQ(ranked.has_value(), c.ranked(row).has_value());
      const Sample whole = sampler.sample(c.logits, c.index, c.history, c.banned, c.allowed);
      EXPECT_EQ(whole.token, c.whole().token);
      if (ranked) {
        EXPECT_EQ(ranked->token, whole.token);
      }
      c.history.push_back(whole.token);
      ++c.index;
      if (between(0, 9) > 0) continue;
      c.history = random_tokens(between(0, 60), static_cast<int64_t>(c.logits.size()));
      sampler.forget_history();
    }
  }
}

// The usual chains, on rows of a vocabulary that are spread as those of models are.
TEST_F(RankedSampler, UsualChainsAreDecided) {
  const auto temperature = [](double value) { return step_of(Kind::kTemperature, value); };
  const SamplerStep top_k = step_of(Kind::kTopK, 1, 40), top_p = step_of(Kind::kTopP, 0.9);
  const SamplerStep min_p = step_of(Kind::kMinP, 0.05), typical = step_of(Kind::kTypical, 0.9);
  SamplerStep penalties = step_of(Kind::kPenalties, 1.1, 64);
  penalties.frequency = 0.1;
  const std::vector<std::vector<SamplerStep>> chains = {{top_k},
                                                        {temperature(0.8), top_k, top_p, min_p},
                                                        {temperature(0.7), top_p},
                                                        {top_p},
                                                        {top_p, temperature(1.5)},
                                                        {temperature(1.2), min_p},
                                                        {penalties, temperature(0.8), top_p},
                                                        {top_k, typical}};
  for (size_t i = 0; i < chains.size(); ++i) {
    int n_decided = 0;
    constexpr int kRows = 40;
    for (int r = 0; r < kRows; ++r) {
      Case c;
      c.logits = random_logits(32000, 1.5);
      for (int64_t n = between(1, 20); n > 0; --n) {
        c.logits[static_cast<size_t>(between(0, 31999))] = 15 - 0.3f * static_cast<float>(n);
      }
      c.history = random_tokens(300, 32000);
      c.options = drawing(chains[i], static_cast<uint64_t>(r));
      c.options.n_top = 5;
      n_decided += decides(c, rank(c.logits, 256)) ? 1 : 0;
    }
    EXPECT_GE(n_decided, kRows * 9 / 10) << i;
  }
}

// ---- what is not decided

TEST_F(RankedSampler, DrawsFromAllTokensNeedAll) {
  Case c{random_logits(500, 1), drawing({step_of(Kind::kTemperature, 0.9)})};
  EXPECT_FALSE(c.ranked(rank(c.logits, 256)));
  EXPECT_TRUE(decides(c, rank(c.logits, 500)));
  c.options.steps = {step_of(Kind::kTopP, 1)};
  EXPECT_FALSE(c.ranked(rank(c.logits, 256)));
  c.options.steps = {step_of(Kind::kTypical, 0.5), step_of(Kind::kTopK, 1, 2)};
  EXPECT_FALSE(c.ranked(rank(c.logits, 256)));
}

// The first token has nearly half of all, and half is asked for: the sum's error decides whether the second one stays.
TEST_F(RankedSampler, AMassThatMayBeReachedOrNotIsLeft) {
  Case c{std::vector<float>(100, -20), drawing({step_of(Kind::kTopP, 0.5)})};
  c.logits[7] = c.logits[40] = 0;
  EXPECT_FALSE(c.ranked(rank(c.logits, 2)));
  EXPECT_TRUE(decides(c, rank(c.logits, 20)));  // of which more than two are known to have some
  c.options.steps[0].value = 0.499;
  EXPECT_TRUE(decides(c, rank(c.logits, 2)));
}

// What is left behind the known tokens of a flat row is too much for any of them to be the last one kept.
TEST_F(RankedSampler, FlatRowsAreLeft) {
  Case c{random_logits(1000, 0.1), drawing({step_of(Kind::kTemperature, 0.8), step_of(Kind::kTopP, 0.9)})};
  EXPECT_FALSE(c.ranked(rank(c.logits, 256)));
  c.options.steps = {step_of(Kind::kMinP, 0.1)};
  EXPECT_FALSE(c.ranked(rank(c.logits, 256)));
  c.options.steps = {step_of(Kind::kTopK, 1, 300)};
  EXPECT_FALSE(c.ranked(rank(c.logits, 256)));
}

TEST_F(RankedSampler, OfEqualLogitsTheLowestIdsAreKnown) {
  Case c{std::vector<float>(100, 1.5f), drawing({step_of(Kind::kTopK, 1, 3)})};
  EXPECT_TRUE(decides(c, rank(c.logits, 4)));
  EXPECT_FALSE(c.ranked(rank(c.logits, 3)));
  c.options = {};
  EXPECT_TRUE(decides(c, rank(c.logits, 1)));
  c.options.steps = {step_of(Kind::kTemperature, 1e300)};
  EXPECT_FALSE(c.ranked(rank(c.logits, 1)));  // division may have made others equal
}

// Another token may have become the most probable one.
TEST_F(RankedSampler, RaisedTokensThatAreNotKnownAreLeft) {
  Case c{std::vector<float>(50, 0), {}};
  for (size_t t = 0; t < 10; ++t) c.logits[t] = 2 - 0.1f * static_cast<float>(t);
  const RankedLogits row = rank(c.logits, 5);
  ASSERT_TRUE(decides(c, row));
  c.options.logit_bias = {{30, 0.5}};  // at most 2.1, as far as is known
  EXPECT_FALSE(c.ranked(row));
  c.options.logit_bias = {{30, 0.3}};  // at most 1.9
  EXPECT_TRUE(decides(c, row));
  c.options.logit_bias = {{30, 2.5}};
  EXPECT_EQ(c.whole().token, 30);
  EXPECT_FALSE(c.ranked(row));
  c.options.logit_bias.clear();
  SamplerStep raise = step_of(Kind::kPenalties, 1);
  raise.frequency = -1;
  c.options.steps = {raise};
  c.history = {30, 30, 30};
  EXPECT_EQ(c.whole().token, 30);
  EXPECT_FALSE(c.ranked(row));
  c.history = {1, 1};
  EXPECT_TRUE(decides(c, row));
}

TEST_F(RankedSampler, BansAndMasksOfTheBestGoToTheNext) {
  Case c{random_logits(300, 2), {}};
  const RankedLogits row = rank(c.logits, 20);
  for (size_t i = 0; i < 19; ++i) c.banned.push_back(row.best[i].token);
  EXPECT_TRUE(decides(c, row));
  c.banned.push_back(row.best[19].token);
  EXPECT_FALSE(c.ranked(row));

  c.banned.clear();
  c.allowed.assign(10, 0);
  const auto allow = [&](int32_t t) { c.allowed[static_cast<size_t>(t) / 32] |= uint32_t{1} << t % 32; };
  const int32_t other = rank(c.logits, 25).best[24].token;
  allow(other);
  EXPECT_FALSE(c.ranked(row));
  allow(row.best[9].token);
  EXPECT_TRUE(decides(c, row));
  c.options = drawing({});
  EXPECT_FALSE(c.ranked(row));
  c.allowed.assign(10, 0);
  for (const size_t i : {3, 9, 12}) allow(row.best[i].token);
  for (c.index = 0; c.index < 20; ++c.index) EXPECT_TRUE(decides(c, row));  // no other one may be drawn
}

TEST_F(RankedSampler, RowsThatAreNotFiniteAreLeft) {
  Case c{random_logits(30, 1), {}};
  RankedLogits row = rank(c.logits, 5);
  row.finite = false;
  EXPECT_FALSE(c.ranked(row));
  EXPECT_FALSE(c.ranked(RankedLogits()));
}

// ---- how many it asks for

TEST_F(RankedSampler, AsksForWhatDecides) {
  const auto asked = [](const SamplingOptions& options, int64_t width, bool restricted = false) {
    return Sampler(options).n_ranked(width, 256, restricted);
  };
  const SamplerStep temperature = step_of(Kind::kTemperature, 0.7), top_p = step_of(Kind::kTopP, 0.9);
  SamplingOptions greedy;
  EXPECT_EQ(asked(greedy, 32000), 1);
  EXPECT_EQ(asked(greedy, 32000, true), 256);
  greedy.n_top = 20;
  EXPECT_EQ(asked(greedy, 32000), 20);
  EXPECT_EQ(asked(greedy, 10), 10);
  greedy.n_top = 300;
  EXPECT_EQ(asked(greedy, 32000), 0);
  EXPECT_EQ(asked(greedy, 100), 100);
  EXPECT_EQ(asked(drawing({}), 32000), 0);
  EXPECT_EQ(asked(drawing({temperature}), 32000), 0);
  EXPECT_EQ(asked(drawing({temperature}), 200), 200);
  EXPECT_EQ(asked(drawing({temperature, top_p}), 32000), 256);
  EXPECT_EQ(asked(drawing({step_of(Kind::kTopP, 1)}), 32000), 0);
  EXPECT_EQ(asked(drawing({step_of(Kind::kTopK, 1, 256)}), 32000), 0);
  EXPECT_EQ(asked(drawing({step_of(Kind::kTopK, 1, 255)}), 32000), 256);
  EXPECT_EQ(asked(drawing({step_of(Kind::kTypical, 0.9), top_p}), 32000), 0);
  EXPECT_EQ(asked(drawing({top_p, step_of(Kind::kTypical, 0.9)}), 32000), 256);
}

}  // namespace
}  // namespace quire
