#include "lib/strategy/far_map.h"

#include <algorithm>

namespace quire {

FarMap::FarMap(int64_t window, const Span& far) : window_(window), far_(far) {
  // So that none of the many old keys has to be turned; where they stand at fractions, all are.
  stored_div_ = far.key_floor ? far.key_div : 0;
  far_.min_lag = window;
}

void FarMap::plan(int64_t first_query, int64_t n_queries, Plan& plan) const {
  if (n_queries == 0) return;
  const int64_t end = first_query + n_queries;
  std::vector<Span> spans;
  if (end > window_) {
    spans.push_back(far_);
    spans.back().count = end - window_;
  }
  Span near;
  near.first_key = std::max<int64_t>(0, first_query - window_ + 1);
  near.count = end - near.first_key;
  near.max_lag = window_ - 1;
  spans.push_back(near);
  plan.add_block(first_query, n_queries, spans);
}

}  // namespace quire
