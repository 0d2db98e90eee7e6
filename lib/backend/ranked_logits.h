// What a device says of rows of logits that stay in its memory: as much as most samplers need.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace quire {

struct RankedToken {
  int32_t token;
  float logit;
};

// Of one row.
struct RankedLogits {
  int64_t width = 0;              // logits of the row; 0: nothing is known
  std::vector<RankedToken> best;  // the most probable tokens, in this order; of equal ones the lower id first
  double sum = 0;                 // of exp(logit - the greatest) over the whole row, within a millionth
  bool finite = false;            // all logits are; otherwise nothing else means anything

  // Natural logarithm of the sum of exp(logit).
  double log_sum() const { return best[0].logit + std::log(sum); }
};

// Natural logarithm of the sum of exp(logit) of a row on the host, of which some logits may be -infinity. Where all are
// finite: to the bit what RankedLogits::log_sum() is if the CPU ranked the row.
double log_sum(std::span<const float> logits);

// Where Backend::rank_logits leaves what it found in n rows: arrays, one behind the other.
struct RankedRows {
  int64_t n = 0;
  int64_t k = 0;

  // f64 [n]: the sum of exp(logit - the greatest).
  size_t sums() const { return 0; }
  // int32 [n]: 1 where all logits are finite, else 0.
  size_t finite() const { return static_cast<size_t>(n) * sizeof(double); }
  // int32 [n][k]: the most probable first; -1 where a row has less than k logits.
  size_t tokens() const { return finite() + static_cast<size_t>(n) * sizeof(int32_t); }
  // f32 [n][k]: their logits.
  size_t values() const { return tokens() + static_cast<size_t>(n * k) * sizeof(int32_t); }
  size_t bytes() const { return values() + static_cast<size_t>(n * k) * sizeof(float); }

  // A row of `width` logits, of memory with this layout.
  RankedLogits row(const std::byte* memory, int64_t index, int64_t width) const;
};

}  // namespace quire
