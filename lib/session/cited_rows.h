// Where the tokens of an answer looked: a row of cells for each token that was processed to choose the next one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/support/types.h"

namespace quire {

// The tokens of the text that an answer may cite: [first, end). Cells are those of AttentionShares.
struct CiteRange {
  static constexpr int64_t kCell = 16;
  int64_t first = 0;
  int64_t end = 0;  // 0: nothing is asked for

  int64_t n_cells() const { return ceil_div(end, kCell); }
};

// A value without locks.
class CitedRows {
 public:
  // Of tokens from `from` on.
  void begin(CiteRange range, int64_t from) {
    range_ = range;
    from_ = first_ = next_ = from;
    rows_.clear();
  }
  const CiteRange& range() const { return range_; }
  // The last token before the answer.
  int64_t from() const { return from_; }
  // The first token with a row, or that would have it.
  int64_t first() const { return first_; }
  // Rows are wanted of tokens from here on.
  int64_t next() const { return next_; }
  // Room for so many floats more, so that adding them cannot fail.
  void reserve(size_t n);
  // Rows of the tokens before `end`, of which those are known that come before next().
  void add(std::span<const float> rows, int64_t end);
  // Tokens from n_tokens on are forgotten.
  void cut(int64_t n_tokens);
  // Of a token; empty: not known.
  std::span<const float> row(int64_t token) const;

 private:
  CiteRange range_;
  int64_t from_ = 0;
  int64_t first_ = 0;        // the token of the first row
  int64_t next_ = 0;         // behind the last one
  std::vector<float> rows_;  // [next_ - first_][n_cells]
};

}  // namespace quire
