// From logits to a token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quire {

struct SamplingOptions {
  float temperature = 0;  // 0: greedy
  int32_t top_k = 0;      // 0: all
  float top_p = 1;
  float min_p = 0;
  uint64_t seed = 0;
};

struct Sample {
  int32_t token;
  float logprob;  // log softmax of the unmodified logits
};

// Natural logarithm of the probability of `token` under softmax(logits). float64 inside.
float log_probability(std::span<const float> logits, int32_t token);

// Filters in this order: temperature, top-k, top-p, min-p; then draws. The uniform number is a function of (seed,
// index) alone, so that generation can be resumed anywhere. Ties in order are broken by the lower id. Logits must be
// finite.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options) : options_(options) {}
  Sample sample(std::span<const float> logits, int64_t index);

 private:
  struct Candidate {
    int32_t token;
    double weight;
  };
  int32_t draw(std::span<const float> logits, int64_t index);

  SamplingOptions options_;
  std::vector<Candidate> candidates_;
};

// A uniform number in [0, 1) from a counter.
double counter_uniform(uint64_t seed, uint64_t index);

}  // namespace quire
