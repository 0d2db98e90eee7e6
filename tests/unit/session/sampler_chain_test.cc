// Whole chains against a naive reference that knows distributions only: vectors of probabilities, sorted whole.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "lib/session/sampler.h"

namespace quire {
namespace {

using Kind = SamplerStep::Kind;
constexpr double kNever = -std::numeric_limits<double>::infinity();

// Logits by token; kNever: not a candidate any more.
using Reference = std::vector<double>;

std::vector<double> probabilities(const Reference& logits) {
  double sum = 0;
  std::vector<double> p;
  for (const double x : logits) sum += p.emplace_back(std::exp(x));
  for (double& x : p) x /= sum;
  return p;
}

std::vector<size_t> ordered(size_t n, const std::vector<double>& keys) {  // ascending, then by token
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return keys[a] < keys[b]; });
  return order;
}

void keep_until(double mass, const std::vector<size_t>& order, const std::vector<double>& p, Reference& logits) {
  double sum = 0;
  for (const size_t t : order) {
    if (sum >= mass) logits[t] = kNever;
    sum += p[t];
  }
}

void filter(const SamplerStep& step, Reference& logits) {
  const auto p = probabilities(logits);
  std::vector<double> keys;
  if (step.kind == Kind::kTypical) {
    double entropy = 0;
    for (const double x : p) entropy -= x > 0 ? x * std::log(x) : 0;
    for (const double x : p) keys.push_back(x > 0 ? std::fabs(std::log(x) + entropy) : -kNever);
  } else {
    for (const double x : logits) keys.push_back(-x);
  }
  const auto order = ordered(logits.size(), keys);
  if (step.kind == Kind::kTopK) {
    for (size_t rank = static_cast<size_t>(step.n); rank < order.size(); ++rank) logits[order[rank]] = kNever;
  } else if (step.kind == Kind::kMinP) {
    for (size_t t = 0; t < p.size(); ++t) {
      if (p[t] < step.value * p[order[0]]) logits[t] = kNever;
    }
  } else {
    keep_until(step.value, order, p, logits);
  }
}

void penalise(const SamplerStep& step, std::vector<int32_t> history, Reference& logits) {
  if (step.n > 0 && static_cast<size_t>(step.n) < history.size())
    history.erase(history.begin(), history.end() - step.n);
  std::map<int32_t, int> seen;
  for (const int32_t token : history) ++seen[token];
  for (const auto& [token, count] : seen) {
    double& x = logits[static_cast<size_t>(token)];
    x = (x > 0 ? x / step.value : x * step.value) - count * step.frequency - step.presence;
  }
}

Reference reference(const std::vector<SamplerStep>& chain, const std::vector<float>& from,
                    const std::vector<int32_t>& history) {
  Reference logits(from.begin(), from.end());
  for (const SamplerStep& step : chain) {
    if (step.kind == Kind::kTemperature) {
      for (double& x : logits) x /= step.value;
    } else if (step.kind == Kind::kPenalties) {
      penalise(step, history, logits);
    } else {
      filter(step, logits);
    }
  }
  return logits;
}

SamplerStep random_step(std::mt19937& engine) {
  const auto uniform = [&](double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(engine);
  };
  SamplerStep step;
  step.kind = static_cast<Kind>(1 + engine() % 6);  // DRY has a reference of its own
  if (step.kind == Kind::kTemperature) step.value = uniform(0.3, 2.5);
  if (step.kind == Kind::kTopK) step.n = 1 + engine() % 300;
  if (step.kind == Kind::kTopP || step.kind == Kind::kTypical) step.value = uniform(0.2, 0.99);
  if (step.kind == Kind::kMinP) step.value = uniform(0.001, 0.2);
  if (step.kind == Kind::kPenalties) {
    step.n = engine() % 2 ? 20 : 0;
    step.value = uniform(0.8, 1.6);
    step.frequency = uniform(-0.3, 0.6);
    step.presence = uniform(-0.3, 0.6);
  }
  return step;
}

Candidates all_of(const std::vector<float>& logits) {
  Candidates c;
  for (size_t t = 0; t < logits.size(); ++t) c.items.push_back({static_cast<int32_t>(t), logits[t]});
  return c;
}

TEST(SamplerChain, EqualsTheReferenceOnRandomLogits) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal(0, 2.5f);
    std::vector<float> logits(seed % 3 == 0 ? 50 : 700);  // beyond the first parts that filters sort
    for (float& x : logits) x = normal(engine);
    std::vector<int32_t> history(60);
    for (int32_t& token : history) token = static_cast<int32_t>(engine() % logits.size() / 3);
    std::vector<SamplerStep> chain;
    for (size_t n = 1 + seed % 5; n > 0; --n) chain.push_back(random_step(engine));
    Candidates c = all_of(logits);
    for (const SamplerStep& step : chain) apply(step, history, {}, c);
    const auto p = c.probabilities();
    const Reference expected = reference(chain, logits, history);
    const auto wanted = probabilities(expected);
    ASSERT_EQ(static_cast<int64_t>(c.items.size()),
              std::count_if(expected.begin(), expected.end(), [](double x) { return x > kNever; }))
        << seed;
    for (size_t i = 0; i < p.size(); ++i) {
      const auto token = static_cast<size_t>(c.items[i].token);
      ASSERT_NEAR(p[i], wanted[token], 1e-12) << seed << " token " << token;
    }
  }
}

// The draw follows the distribution that the chain leaves. 99.9 % point for at most 11 degrees of freedom: 31.3.
TEST(SamplerChain, DrawsFromWhatItLeaves) {
  const std::vector<float> logits = {1.5f, -1, 0.5f, 2, 0, 1, -2, 0.25f, 1.25f, -0.5f, 0.75f, 1.75f};
  const std::vector<int32_t> history = {3, 3, 0, 8};
  SamplingOptions options;
  options.greedy = false;
  options.seed = 77;
  options.steps.resize(4);
  options.steps[0].kind = Kind::kPenalties;
  options.steps[0].value = 1.3;
  options.steps[0].frequency = 0.4;
  options.steps[1].kind = Kind::kTemperature;
  options.steps[1].value = 1.4;
  options.steps[2].kind = Kind::kTypical;
  options.steps[2].value = 0.9;
  options.steps[3].kind = Kind::kTopP;
  options.steps[3].value = 0.9;
  const auto p = probabilities(reference(options.steps, logits, history));
  ASSERT_GT(std::count(p.begin(), p.end(), 0.0), 0);
  constexpr int64_t kDraws = 30000;
  std::vector<double> n(p.size());
  Sampler sampler(options);
  for (int64_t i = 0; i < kDraws; ++i) ++n[static_cast<size_t>(sampler.sample(logits, i, history).token)];
  double chi_square = 0;
  for (size_t t = 0; t < p.size(); ++t) {
    const double expected = p[t] * kDraws;
    if (expected == 0) {
      EXPECT_EQ(n[t], 0) << t;
    } else {
      chi_square += (n[t] - expected) * (n[t] - expected) / expected;
    }
  }
  EXPECT_LT(chi_square, 31.3);
}

// Parameters at the ends of their ranges, again and again: logits overflow, and there is a token all the same.
TEST(SamplerChain, SurvivesInfiniteLogits) {
  const std::vector<float> logits = {-3, -1, 3e38f, 5, 3e38f, -3e38f};
  SamplerStep hot, cold, repeated, dry;
  hot.value = 1e-45;
  cold.value = 1e6;
  repeated.kind = Kind::kPenalties;
  repeated.value = 1e6;
  repeated.frequency = 1e6;
  dry.kind = Kind::kDry;
  dry.allowed_length = 1;
  dry.value = dry.base = 1e6;
  const std::vector<int32_t> same(200, 2);  // a long repetition of token 2
  for (Kind last : {Kind::kTopK, Kind::kTopP, Kind::kMinP, Kind::kTypical}) {
    SamplerStep filter;
    filter.kind = last;
    filter.n = 2;
    filter.value = 0.5;
    SamplingOptions options;
    options.greedy = false;
    options.steps.assign(20, hot);
    options.steps.push_back(filter);
    std::set<int32_t> drawn;  // all positive logits are infinite by now, and equally probable
    for (int64_t i = 0; i < 50; ++i) drawn.insert(Sampler(options).sample(logits, i).token);
    EXPECT_EQ(drawn, last == Kind::kMinP ? (std::set<int32_t>{2, 3, 4}) : (std::set<int32_t>{2, 3}));
    options.steps.assign(60, repeated);
    options.steps.push_back(dry);
    options.steps.push_back(cold);
    options.steps.push_back(filter);
    for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(Sampler(options).sample(logits, i, same).token, 4);
  }
}

TEST(SamplerChain, RulingOutEverythingKeepsTheBestOfWhatBansLeft) {
  const std::vector<float> logits = {4, 3, 2, 1};
  SamplingOptions options;
  SamplerStep dry;
  dry.kind = Kind::kDry;
  dry.allowed_length = 1;
  dry.value = dry.base = 1e6;
  options.steps = {dry};
  options.logit_bias = {{0, kNever}};
  std::vector<int32_t> history;  // whatever comes continues a long repetition
  for (const int32_t next : {0, 1, 2, 3}) {
    history.insert(history.end(), 100, 7);
    history.push_back(next);
  }
  history.insert(history.end(), 100, 7);
  EXPECT_EQ(Sampler(options).sample(logits, 0, history).token, 1);
  const std::vector<int32_t> rest = {1, 2, 3};
  EXPECT_EQ(Sampler(options).sample(logits, 0, history, rest).token, 0);
}

TEST(SamplerChain, EmptyHistoryPenalisesNothing) {
  const std::vector<float> logits = {1, 2};
  for (const Kind kind : {Kind::kPenalties, Kind::kDry}) {
    SamplerStep step;
    step.kind = kind;
    step.value = 3;
    step.allowed_length = 1;
    for (const int64_t n : {0, 5}) {
      step.n = n;
      Candidates c = all_of(logits);
      apply(step, {}, {}, c);
      EXPECT_EQ(c.items[0].logit, 1);
      EXPECT_EQ(c.items[1].logit, 2);
    }
  }
}

TEST(SamplerChain, EqualLogitsAreKeptByLowestId) {
  const std::vector<float> logits(1000, 0.25f);
  SamplerStep step;
  step.value = 0.1;
  step.n = 100;
  for (const Kind kind : {Kind::kTopK, Kind::kTopP, Kind::kTypical}) {
    step.kind = kind;
    Candidates c = all_of(logits);
    apply(step, {}, {}, c);
    ASSERT_GE(c.items.size(), 100u);
    ASSERT_LE(c.items.size(), 101u);  // a sum of a hundred thousandths is 0.1, but for rounding
    for (size_t i = 0; i < c.items.size(); ++i) EXPECT_EQ(c.items[i].token, static_cast<int32_t>(i));
  }
}

}  // namespace
}  // namespace quire
