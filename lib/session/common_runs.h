// Runs of tokens that stand in two texts, at different places.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quire {

// Tokens [from, from + n) of the old text are tokens [to, to + n) of the new one.
struct CommonRun {
  int64_t from = 0;
  int64_t to = 0;
  int64_t n = 0;
  bool operator==(const CommonRun&) const = default;
};

// Finds runs of at least `least` > 0 tokens, ascending by `to`, which do not overlap in the new text nor in the old
// one. From left to right, each run is taken as far as it goes; where it stands several times in the old text, at the
// first place behind the run before, else at the first of all. Work: n log n for texts of n tokens, whatever they
// repeat. n_compared: how often two tokens were compared; may be null.
std::vector<CommonRun> find_common_runs(std::span<const int32_t> old_text, std::span<const int32_t> new_text,
                                        int64_t least, int64_t* n_compared = nullptr);

}  // namespace quire
