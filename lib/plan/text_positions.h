// Positions that a caller gives tokens: strictly increasing, with gaps (PoSE: Zhu et al. 2023, section 3.2).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/plan/plan.h"

namespace quire {

// Tokens stand at 0, 1, 2 ... but for the gaps: kept as the tokens before which there is one, and by how much positions
// exceed indexes from there on.
class TextPositions {
 public:
  // Most gaps of a text: a plan has a span for each pair of what lies between them.
  static constexpr int64_t kMaxGaps = 1024;

  // Positions of tokens from first_token on exceed their indexes by `shift`, up to the next run.
  struct Run {
    int64_t first_token = 0;
    int64_t shift = 0;
  };

  bool consecutive() const { return runs_.empty(); }
  std::span<const Run> runs() const { return runs_; }  // ascending in both; before the first one there is no shift
  int64_t n_gaps() const { return static_cast<int64_t>(runs_.size()); }
  int64_t position(int64_t token) const { return token + run_of(token).shift; }
  // The least number of tokens n for which a text that goes on without further gaps has its n-th at `position` or
  // beyond.
  int64_t tokens_below(int64_t position) const;

  // Tokens [first_token, ...) stand at `positions`, which increase from position(first_token) or more.
  void append(int64_t first_token, std::span<const int64_t> positions);
  // Forgets the gaps before token n_tokens and later ones.
  void cut(int64_t n_tokens);

  // Cuts the blocks and spans of a plan of true distances at the gaps, and makes the distances those of the positions.
  // What a query sees stays: indexes decide that.
  void apply(Plan& plan) const;

 private:
  Run run_of(int64_t token) const;
  // Calls part(begin, end, shift) for each run's part of [begin, end).
  template <typename Part>
  void split(int64_t begin, int64_t end, const Part& part) const;

  std::vector<Run> runs_;  // ascending in both
};

}  // namespace quire
