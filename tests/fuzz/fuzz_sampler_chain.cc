// Sampling chains over any logits. Input: numbers in bytes, in the order in which they are taken below; 0 behind the
// end.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "lib/session/sampler.h"
#include "tests/fuzz/require.h"

namespace {

using namespace quire;
using Kind = SamplerStep::Kind;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kLarge = 1e6;  // of the interface's ranges (lib/abi/sampling_options.cc)

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), end_(data + size) {}
  uint32_t byte() { return data_ == end_ ? 0 : *data_++; }
  uint32_t below(uint32_t n) { return (byte() | byte() << 8) % n; }
  float bits() {
    uint32_t word = 0;
    for (int b = 0; b < 4; ++b) word |= byte() << (8 * b);
    float value = 0;
    std::memcpy(&value, &word, sizeof value);
    return value;
  }

 private:
  const uint8_t* data_;
  const uint8_t* end_;
};

// Any float but NaN and +infinity; most often a small one, of which many are equal.
float take_logit(Bytes& in) {
  const uint32_t choice = in.byte();
  constexpr float kSpecial[] = {0,      -0.0f,   1,     -kInfinity, 3.4028235e38f, -3.4028235e38f,
                                1e-45f, -1e-45f, 1e30f, -1e30f,     88.8f,         -103.0f};
  if (choice < 12) return kSpecial[choice];
  if (choice < 200) return (static_cast<float>(choice) - 100) / 8;
  const float any = in.bits();
  return std::isnan(any) || any == kInfinity ? 0.5f : any;
}

// More than 0 and at most `most`.
double take_positive(Bytes& in, double most) {
  const uint32_t choice = in.byte();
  const double values[] = {most, 1e-6, 1e-300, 0.5, 0.9, 1, 1e-3, 3};
  if (choice < 8) return std::min(values[choice], most);
  return std::min(most, most == 1 ? choice / 256.0 : choice / 100.0);
}

double take_signed(Bytes& in) {
  const double value = take_positive(in, kLarge);
  return in.byte() & 1 ? value : -value;
}

SamplerStep take_step(Bytes& in) {
  SamplerStep step;
  step.kind = static_cast<Kind>(1 + in.byte() % 7);
  const bool share = step.kind == Kind::kTopP || step.kind == Kind::kMinP || step.kind == Kind::kTypical;
  step.value = take_positive(in, share ? 1 : kLarge);
  step.n = in.below(70);
  if (step.kind == Kind::kTopK) step.n += 1;
  if (step.kind == Kind::kPenalties) {
    step.frequency = take_signed(in);
    step.presence = take_signed(in);
  }
  if (step.kind == Kind::kDry) {
    step.base = std::max(1.0, take_positive(in, kLarge));
    step.allowed_length = 1 + in.below(10);
  }
  return step;
}

bool is_filter(Kind kind) {
  return kind == Kind::kTopK || kind == Kind::kTopP || kind == Kind::kMinP || kind == Kind::kTypical;
}

struct Case {
  std::vector<float> logits;
  SamplingOptions options;
  std::vector<int32_t> history, banned;
  int64_t index = 0;

  int32_t vocab() const { return static_cast<int32_t>(logits.size()); }
  // Bias and bans leave the token no chance.
  bool impossible(int32_t token) const {
    if (std::find(banned.begin(), banned.end(), token) != banned.end()) return true;
    double logit = logits[static_cast<size_t>(token)];
    for (const auto& [biased, bias] : options.logit_bias) logit += biased == token ? bias : 0;
    return logit == -std::numeric_limits<double>::infinity();
  }
};

Case take_case(Bytes& in) {
  Case c;
  const uint32_t vocab = 1 + in.byte();
  const uint32_t shape = in.byte();
  c.options.greedy = shape & 1;
  c.options.seed = in.byte();
  c.options.n_top = static_cast<int32_t>(in.byte() % 65);
  c.index = in.byte();
  for (uint32_t n = in.byte() % 12; n > 0; --n) c.options.steps.push_back(take_step(in));
  const auto token = [&] { return static_cast<int32_t>(in.below(vocab)); };
  for (uint32_t n = shape & 2 ? in.byte() % 8 : 0; n > 0; --n) {
    const int32_t biased = token();
    const float bias = take_logit(in);
    c.options.logit_bias.emplace_back(biased, bias);
  }
  for (uint32_t n = shape & 4 ? in.byte() : 0; n > 0; --n) c.banned.push_back(token());
  for (uint32_t n = shape & 8 ? in.byte() : 0; n > 0; --n) c.history.push_back(token());
  if (shape & 16) {
    for (uint32_t t = 0; t < vocab; ++t) c.options.dry_breakers.push_back(in.byte() % 4 == 0);
  }
  for (uint32_t t = 0; t < vocab; ++t) c.logits.push_back(take_logit(in));
  // A session passes finite logits; here some may be -infinity, not all.
  if (*std::max_element(c.logits.begin(), c.logits.end()) == -kInfinity) c.logits[0] = 0;
  return c;
}

// Filters keep at least one of what they get, and change none.
void check_filters(const Case& c) {
  Candidates candidates;
  for (int32_t t = 0; t < c.vocab(); ++t) {
    const double logit = c.logits[static_cast<size_t>(t)];
    if (logit > -std::numeric_limits<double>::infinity()) candidates.items.push_back({t, logit});
  }
  for (const SamplerStep& step : c.options.steps) {
    if (!is_filter(step.kind)) continue;
    apply(step, c.history, c.options.dry_breakers, candidates);
    FUZZ_REQUIRE(!candidates.items.empty());
    FUZZ_REQUIRE(step.kind != Kind::kTopK || candidates.items.size() <= static_cast<size_t>(step.n));
    std::vector<bool> seen(c.logits.size());
    for (const auto& [token, logit] : candidates.items) {
      FUZZ_REQUIRE(token >= 0 && token < c.vocab() && !seen[static_cast<size_t>(token)]);
      FUZZ_REQUIRE(logit == static_cast<double>(c.logits[static_cast<size_t>(token)]));
      seen[static_cast<size_t>(token)] = true;
    }
    double sum = 0;
    for (const double p : candidates.probabilities()) {
      FUZZ_REQUIRE(p >= 0 && p <= 1);
      sum += p;
    }
    FUZZ_REQUIRE(std::fabs(sum - 1) < 1e-9);
  }
}

void check_top(const Case& c, const std::vector<TokenLogprob>& top) {
  FUZZ_REQUIRE(top.size() == static_cast<size_t>(std::min(c.options.n_top, c.vocab())));
  for (size_t i = 0; i < top.size(); ++i) {
    FUZZ_REQUIRE(top[i].token >= 0 && top[i].token < c.vocab() && top[i].logprob <= 0);
    if (i == 0) continue;
    const float before = c.logits[static_cast<size_t>(top[i - 1].token)];
    const float logit = c.logits[static_cast<size_t>(top[i].token)];
    FUZZ_REQUIRE(before > logit || (before == logit && top[i - 1].token < top[i].token));
  }
}

// What the row's most probable tokens decide is what the whole row gives.
void check_ranked(const Case& c, const Sample& whole, uint32_t n_known) {
  if (std::any_of(c.logits.begin(), c.logits.end(), [](float x) { return !std::isfinite(x); })) return;
  RankedLogits row;
  row.width = c.vocab();
  row.finite = true;
  for (int32_t t = 0; t < c.vocab(); ++t) row.best.push_back({t, c.logits[static_cast<size_t>(t)]});
  std::stable_sort(row.best.begin(), row.best.end(), [](const auto& a, const auto& b) { return a.logit > b.logit; });
  for (const RankedToken& t : row.best) row.sum += std::exp(static_cast<double>(t.logit) - row.best[0].logit);
  row.best.resize(std::min<size_t>(row.best.size(), n_known));
  const auto sample = Sampler(c.options).sample(row, c.index, c.history, c.banned);
  if (!sample) return;
  FUZZ_REQUIRE(sample->token == whole.token);
  const bool same_logprob = sample->logprob == whole.logprob ||  // also if both are beyond floats
                            std::fabs(sample->logprob - whole.logprob) <= 1e-6f * (1 + std::fabs(whole.logprob));
  FUZZ_REQUIRE(same_logprob);
  FUZZ_REQUIRE(sample->top.size() == whole.top.size());
  for (size_t i = 0; i < whole.top.size(); ++i) FUZZ_REQUIRE(sample->top[i].token == whole.top[i].token);
}

// Whether the chain leaves the most probable token where it is: no step but those that keep the order and the first.
bool keeps_order(const Case& c) {
  int temperatures = 0;  // more of them can make any two logits equal
  for (const SamplerStep& step : c.options.steps) {
    temperatures += step.kind == Kind::kTemperature ? 1 : 0;
    if (step.kind == Kind::kTypical || step.kind == Kind::kPenalties || step.kind == Kind::kDry) return false;
    if (step.kind == Kind::kTemperature && step.value < 1e-6) return false;
  }
  return temperatures <= 2 && c.options.logit_bias.empty();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes in(data, size);
  const Case c = take_case(in);
  check_filters(c);
  Sampler sampler(c.options);
  const Sample sample = sampler.sample(c.logits, c.index, c.history, c.banned);
  FUZZ_REQUIRE(sample.token >= 0 && sample.token < c.vocab());
  FUZZ_REQUIRE(sample.logprob <= 0);
  check_top(c, sample.top);
  for (const uint32_t n_known : {1u, 1 + in.byte() % 40, 256u}) check_ranked(c, sample, n_known);

  int32_t best = -1;  // of those that bias and bans leave
  for (int32_t t = c.vocab() - 1; t >= 0; --t) {
    if (c.impossible(t)) continue;
    if (best < 0 || c.logits[static_cast<size_t>(t)] >= c.logits[static_cast<size_t>(best)]) best = t;
  }
  if (best >= 0) {
    FUZZ_REQUIRE(!c.impossible(sample.token));
    FUZZ_REQUIRE(!c.options.greedy || !keeps_order(c) || sample.token == best);
  } else {
    const auto most = std::max_element(c.logits.begin(), c.logits.end());
    FUZZ_REQUIRE(sample.token == static_cast<int32_t>(most - c.logits.begin()));
  }

  // The same again, from the same object and from another one.
  Sampler other(c.options);
  for (Sampler* again : {&sampler, &other}) {
    const Sample repeated = again->sample(c.logits, c.index, c.history, c.banned);
    FUZZ_REQUIRE(repeated.token == sample.token);
    FUZZ_REQUIRE(std::memcmp(&repeated.logprob, &sample.logprob, sizeof(float)) == 0);
  }
  return 0;
}
