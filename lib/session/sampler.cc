#include "lib/session/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/session/ranked_candidates.h"

namespace quire {
namespace {

// The finaliser of SplitMix64 (Steele, Lea and Flood 2014): a bijection that scatters nearby inputs.
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

int32_t most_probable(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::vector<TokenLogprob> most_probable(std::span<const float> logits, double log_sum, int32_t n) {
  const auto before = [](const TokenLogprob& a, const TokenLogprob& b) {
    return a.logprob != b.logprob ? a.logprob > b.logprob : a.token < b.token;
  };
  std::vector<TokenLogprob> top;  // the logits themselves at first: their order is exact
  for (size_t t = 0; t < logits.size(); ++t) {
    const TokenLogprob item{static_cast<int32_t>(t), logits[t]};
    if (top.size() == static_cast<size_t>(n) && !before(item, top.back())) continue;
    if (top.size() == static_cast<size_t>(n)) top.pop_back();
    top.insert(std::upper_bound(top.begin(), top.end(), item, before), item);
  }
  for (TokenLogprob& item : top) item.logprob = static_cast<float>(item.logprob - log_sum);
  return top;
}

}  // namespace

double counter_uniform(uint64_t seed, uint64_t index) {
  const uint64_t bits = mix(mix(seed + 0x9E3779B97F4A7C15u) + index * 0x9E3779B97F4A7C15u);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

float log_probability(std::span<const float> logits, int32_t token) {
  return static_cast<float>(logits[static_cast<size_t>(token)] - log_sum(logits));
}

void Sampler::forget_history() noexcept {
  for (TokenCounts& counts : counts_) counts.forget();
}

Sample Sampler::sample(std::span<const float> logits, int64_t index, std::span<const int32_t> history,
                       std::span<const int32_t> banned, std::span<const uint32_t> allowed) {
  const bool plain = is_plain() && banned.empty() && allowed.empty();
  Sample sample{plain ? most_probable(logits) : choose(logits, index, history, banned, allowed), 0, {}};
  const double all = log_sum(logits);
  sample.logprob = static_cast<float>(logits[static_cast<size_t>(sample.token)] - all);
  if (options_.n_top > 0) sample.top = most_probable(logits, all, options_.n_top);
  return sample;
}

int32_t Sampler::choose(std::span<const float> logits, int64_t index, std::span<const int32_t> history,
                        std::span<const int32_t> banned, std::span<const uint32_t> allowed) {
  auto& items = candidates_.items;
  items.clear();
  for (size_t t = 0; t < logits.size(); ++t) items.push_back({static_cast<int32_t>(t), logits[t]});
  for (const auto& [token, bias] : options_.logit_bias) items[static_cast<size_t>(token)].logit += bias;
  for (const int32_t token : banned) {
    items[static_cast<size_t>(token)].logit = -std::numeric_limits<double>::infinity();
  }
  const auto may = [&](size_t t) { return allowed.empty() || (allowed[t / 32] >> (t % 32) & 1) != 0; };
  for (Candidates::Item& item : items) {
    if (!may(static_cast<size_t>(item.token))) item.logit = -std::numeric_limits<double>::infinity();
  }
  const auto drop_impossible = [&] {
    std::erase_if(items, [](const auto& item) { return !(item.logit > -std::numeric_limits<double>::infinity()); });
  };
  drop_impossible();
  if (items.empty()) {
    size_t best = 0;
    while (!may(best)) ++best;
    for (size_t t = best; t < logits.size(); ++t) {
      if (may(t) && logits[t] > logits[best]) best = t;
    }
    return static_cast<int32_t>(best);
  }
  const int32_t fallback = candidates_.best().token;
  for (size_t i = 0; i < options_.steps.size(); ++i) {
    apply(options_.steps[i], history, options_.dry_breakers, counts_[i], candidates_);
    drop_impossible();
    if (items.empty()) return fallback;
  }
  return draw(index);
}

// Of what the steps left.
int32_t Sampler::draw(int64_t index) const {
  if (options_.greedy) return candidates_.best().token;
  // In the order the steps left: it is a function of the logits alone, so no sorting is needed.
  const auto& items = candidates_.items;
  const std::vector<double> p = candidates_.probabilities();
  double left = counter_uniform(options_.seed, static_cast<uint64_t>(index));
  for (size_t i = 0; i < items.size(); ++i) {
    left -= p[i];
    if (left < 0) return items[i].token;
  }
  return candidates_.best().token;  // rounding left a trifle
}

// ---- from the most probable tokens alone

int64_t Sampler::n_ranked(int64_t width, int64_t most, bool restricted) const {
  using Kind = SamplerStep::Kind;
  most = std::min(most, width);
  if (options_.n_top > most && most < width) return 0;  // not all could be reported
  if (is_plain() && !restricted) return std::min<int64_t>(most, std::max(1, options_.n_top));
  bool complete = most == width;
  for (const SamplerStep& step : options_.steps) {
    if (complete) break;
    if (step.kind == Kind::kTypical && step.value < 1) return 0;
    if (step.kind == Kind::kTopK) complete = step.n < most;
    if (step.kind == Kind::kTopP) complete = step.value < 1;
    if (step.kind == Kind::kMinP) complete = true;
  }
  return complete || options_.greedy ? most : 0;
}

std::optional<Sample> Sampler::sample(const RankedLogits& row, int64_t index, std::span<const int32_t> history,
                                      std::span<const int32_t> banned, std::span<const uint32_t> allowed) {
  if (!row.finite || row.best.empty()) return std::nullopt;
  const size_t n_top = std::min<size_t>(static_cast<size_t>(options_.n_top), static_cast<size_t>(row.width));
  if (n_top > row.best.size()) return std::nullopt;
  const bool plain = is_plain() && banned.empty() && allowed.empty();
  const std::optional<int32_t> token = plain ? row.best[0].token : choose(row, index, history, banned, allowed);
  if (!token) return std::nullopt;
  const double log_sum = row.log_sum();
  const auto logprob = [&](const RankedToken& t) { return static_cast<float>(t.logit - log_sum); };
  const auto found = std::find_if(row.best.begin(), row.best.end(), [&](const auto& t) { return t.token == *token; });
  Sample sample{*token, logprob(*found), {}};
  for (size_t i = 0; i < n_top; ++i) sample.top.push_back({row.best[i].token, logprob(row.best[i])});
  return sample;
}

std::optional<int32_t> Sampler::choose(const RankedLogits& row, int64_t index, std::span<const int32_t> history,
                                       std::span<const int32_t> banned, std::span<const uint32_t> allowed) {
  RankedCandidates candidates(row, candidates_);
  for (const auto& [token, bias] : options_.logit_bias) candidates.add_bias(token, bias);
  for (const int32_t token : banned) candidates.add_bias(token, -std::numeric_limits<double>::infinity());
  if (!allowed.empty()) candidates.ban_others(allowed);
  candidates.drop_impossible();
  const std::optional<int32_t> fallback = candidates.best();
  if (candidates_.items.empty()) return std::nullopt;
  for (size_t i = 0; i < options_.steps.size(); ++i) {
    if (!candidates.apply(options_.steps[i], history, options_.dry_breakers, counts_[i])) return std::nullopt;
    if (candidates_.items.empty()) return candidates.complete() ? fallback : std::nullopt;
  }
  if (options_.greedy) return candidates.best();
  return candidates.complete() ? std::optional(draw(index)) : std::nullopt;
}

}  // namespace quire
