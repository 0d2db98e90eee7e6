#include "lib/session/cited_rows.h"

#include <algorithm>

#include "lib/support/make_room.h"

namespace quire {

void CitedRows::reserve(size_t n) { make_room(rows_, n); }

void CitedRows::add(std::span<const float> rows, int64_t end) {
  const int64_t width = range_.n_cells();
  if (width == 0 || rows.empty()) return;
  const int64_t first = end - static_cast<int64_t>(rows.size()) / width;
  // Before the first row nothing is known: the stream may have begun behind a computed token.
  if (rows_.empty()) first_ = next_ = std::max(first, next_);
  const int64_t known = std::clamp<int64_t>(next_ - first, 0, end - first);
  rows_.insert(rows_.end(), rows.begin() + known * width, rows.end());
  next_ = std::max(next_, end);
}

void CitedRows::cut(int64_t n_tokens) {
  if (n_tokens >= next_) return;
  next_ = std::max(first_, n_tokens);
  rows_.resize(static_cast<size_t>((next_ - first_) * range_.n_cells()));
}

std::span<const float> CitedRows::row(int64_t token) const {
  if (token < first_ || token >= next_ || rows_.empty()) return {};
  const auto width = static_cast<size_t>(range_.n_cells());
  return std::span(rows_).subspan(static_cast<size_t>(token - first_) * width, width);
}

}  // namespace quire
