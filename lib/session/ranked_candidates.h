// The candidates of a sampling chain where only the most probable tokens of a row are known: of the others there are
// bounds, which say whether a step could take any of them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/backend/ranked_logits.h"
#include "lib/session/sampler.h"

namespace quire {

// Where a function succeeds, the known candidates are what the whole row would have left of these tokens, in the same
// order and with the same logits, bit for bit; and while others may be candidates too, they stand by their ids, as in
// the whole row before its first filter.
class RankedCandidates {
 public:
  // The row is finite. known: is filled with the row's most probable tokens.
  RankedCandidates(const RankedLogits& row, Candidates& known);

  // What comes before the steps; -infinity bans.
  void add_bias(int32_t token, double bias);
  // allowed: a bit for each token.
  void ban_others(std::span<const uint32_t> allowed);
  void drop_impossible();

  // False: what is known does not decide what the step leaves.
  // `counts`: as in quire::apply.
  bool apply(const SamplerStep& step, std::span<const int32_t> history, const std::vector<bool>& dry_breakers,
             TokenCounts& counts);
  // No other tokens are candidates.
  bool complete() const { return others_.n == 0; }
  // The most probable candidate; none: it may be another token, or there is none.
  std::optional<int32_t> best() const;

 private:
  // The tokens that are not known.
  struct Others {
    int64_t n = 0;  // at most so many are candidates
    // No logit is above this one; one that is equal to it is of a token with an id above `tie`.
    double upper = 0;
    int32_t tie = -1;
    // Bounds of the sum of exp(logit - origin).
    double origin = 0, least_mass = 0, most_mass = 0;
  };

  bool is_known(int32_t token) const;
  // Whether no other token is as probable, or is and has a lower id.
  bool precedes_others(const Candidates::Item& item) const;
  // The logit of one of the other tokens changes, and is not above `upper` then. lowers: it is not above what it was.
  void change_other(double upper, bool lowers);
  void divide_others(double by);
  void lower_others(int64_t n);
  void change_seen_others(const SamplerStep& step, const TokenCounts& seen);
  bool keep_most_probable(const SamplerStep& step);
  bool keep_probable_mass(double mass);
  bool keep_near_most_probable(const SamplerStep& step);

  Candidates& known_;
  std::vector<int32_t> known_tokens_;  // ascending; those that were dropped too
  Others others_;
};

}  // namespace quire
