#include "lib/session/sampler.h"

#include <algorithm>
#include <cmath>

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

}  // namespace

double counter_uniform(uint64_t seed, uint64_t index) {
  const uint64_t bits = mix(mix(seed + 0x9E3779B97F4A7C15u) + index * 0x9E3779B97F4A7C15u);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

float log_probability(std::span<const float> logits, int32_t token) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - most);
  return static_cast<float>(logits[static_cast<size_t>(token)] - most - std::log(sum));
}

Sample Sampler::sample(std::span<const float> logits, int64_t index) {
  const int32_t token = options_.temperature > 0 ? draw(logits, index) : most_probable(logits);
  return {token, log_probability(logits, token)};
}

int32_t Sampler::draw(std::span<const float> logits, int64_t index) {
  const double most = *std::max_element(logits.begin(), logits.end());
  candidates_.clear();
  for (size_t t = 0; t < logits.size(); ++t) {
    candidates_.push_back({static_cast<int32_t>(t), std::exp((logits[t] - most) / options_.temperature)});
  }
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
  };
  if (options_.top_k > 0 && static_cast<size_t>(options_.top_k) < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + options_.top_k, candidates_.end(), before);
    candidates_.resize(static_cast<size_t>(options_.top_k));
  }
  std::sort(candidates_.begin(), candidates_.end(), before);
  const auto total = [&] {
    double sum = 0;
    for (const Candidate& c : candidates_) sum += c.weight;
    return sum;
  };
  if (options_.top_p < 1) {
    const double enough = options_.top_p * total();
    double sum = 0;
    size_t keep = 0;
    while (keep < candidates_.size() && sum < enough) sum += candidates_[keep++].weight;
    candidates_.resize(std::max<size_t>(keep, 1));
  }
  if (options_.min_p > 0) {
    const double least = options_.min_p * candidates_[0].weight;
    while (candidates_.back().weight < least) candidates_.pop_back();
  }
  double left = counter_uniform(options_.seed, static_cast<uint64_t>(index)) * total();
  for (const Candidate& c : candidates_) {
    left -= c.weight;
    if (left < 0) return c.token;
  }
  return candidates_.back().token;
}

}  // namespace quire
