#include "lib/session/token_counts.h"

namespace quire {

void TokenCounts::follow(std::span<const int32_t> text, int64_t n) {
  const size_t end = text.size();
  const size_t begin = n == 0 || static_cast<size_t>(n) >= end ? 0 : end - static_cast<size_t>(n);
  if (begin >= end_ || begin < begin_ || end < end_) {
    forget();
    begin_ = end_ = begin;
  }
  for (; end_ < end; ++end_) add(text[end_]);
  for (; begin_ < begin; ++begin_) remove(text[begin_]);
}

void TokenCounts::forget() noexcept {
  std::fill(counts_.begin(), counts_.end(), 0);
  n_distinct_ = 0;
  begin_ = end_ = 0;
}

void TokenCounts::add(int32_t token) {
  const auto t = static_cast<size_t>(token);
  if (t >= counts_.size()) counts_.resize(t + 1);
  n_distinct_ += counts_[t]++ == 0 ? 1 : 0;
}

void TokenCounts::remove(int32_t token) { n_distinct_ -= --counts_[static_cast<size_t>(token)] == 0 ? 1 : 0; }

}  // namespace quire
