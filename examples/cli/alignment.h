// Documents that end at different places in a method's chunks, and right answers by these places: a method that cuts a
// text into chunks may read well at one place and badly at another.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "document.h"

namespace cli {

// The longest chunk that a canonical strategy cuts text into: of a method (dca, longheads, s2, scca, beacon), or of the
// KV cache.
int64_t longest_chunk(const std::string& canonical);

// By how many tokens the document of a trial is made shorter than its length allows: at most a chunk, and an eighth of
// the length. Depends on (seed, trial), on the length and on the chunk alone.
int64_t shortening(int64_t length, int64_t chunk, uint64_t seed, uint64_t trial);

// Of the flag --same-length.
inline constexpr const char* kSameLengthHelp =
    "documents as long as whole lines make them, which often all end at one place in a method's chunks";

// The share of right answers that n answers speak for, with 95 % confidence (Wilson 1927).
std::pair<double, double> confidence(int64_t n_right, int64_t n);

// Right answers by the quarter of a chunk in which the document ended.
class ByAlignment {
 public:
  explicit ByAlignment(int64_t chunk) : chunk_(chunk) {}
  int64_t chunk() const { return chunk_; }
  void add(int64_t n_tokens, int64_t n_right, int64_t n_asked);
  // The least and the greatest share of right answers of a quarter; {0, 0} where nothing was asked.
  std::pair<double, double> spread() const;
  Json to_json() const;

 private:
  static constexpr int64_t kQuarters = 4;
  int64_t chunk_;
  std::array<int64_t, kQuarters> right_{}, asked_{};
};

}  // namespace cli
