// How often each token stands at the end of a text that grows: what penalties ask for, without reading the whole text
// again for each token.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace quire {

class TokenCounts {
 public:
  // Counts the last n tokens of the text (0: all). Only what came to the text since the call before is read: until
  // forget(), each text begins with the one before, and n stays the same.
  void follow(std::span<const int32_t> text, int64_t n);
  // The next text may be any.
  void forget() noexcept;

  int64_t of(int32_t token) const {
    return static_cast<size_t>(token) < counts_.size() ? counts_[static_cast<size_t>(token)] : 0;
  }
  int64_t n_distinct() const { return n_distinct_; }
  // No token from this one on was counted.
  int32_t end() const { return static_cast<int32_t>(counts_.size()); }

 private:
  void add(int32_t token);
  void remove(int32_t token);

  std::vector<int64_t> counts_;  // by token
  int64_t n_distinct_ = 0;       // tokens that are counted at least once
  size_t begin_ = 0, end_ = 0;   // the tokens of the text that are counted
};

}  // namespace quire
