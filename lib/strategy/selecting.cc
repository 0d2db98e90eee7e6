#include "lib/strategy/selecting.h"

#include <algorithm>

namespace quire {

SelectingStrategy::SelectingStrategy(const ChunkSelection& selection, std::optional<DualChunkMap> dual_chunk,
                                     int64_t begin, bool dense_reading, int64_t train_len)
    : dual_chunk_(dual_chunk), begin_(begin), dense_reading_(dense_reading) {
  selection_ = selection;
  if (selection.keeps_queries()) kv_chunk_ = selection.chunk;  // stored chunks are chosen whole
  if (dense_reading && !dual_chunk) reach_ = train_len;
}

void SelectingStrategy::plan(int64_t first_query, int64_t n_queries, Plan& plan) const {
  append(first_query, n_queries, dense_reading_ ? kNoLimit : begin_, plan);
}

void SelectingStrategy::plan_generated(int64_t first_query, int64_t n_queries, Plan& plan) const {
  append(first_query, n_queries, begin_, plan);
}

int64_t SelectingStrategy::chunks_selected(int64_t query) const {
  return dense_reading_ || query < begin_ ? 0 : selection_.most(query);
}

// Queries before `dense_end` see everything.
void SelectingStrategy::append(int64_t first_query, int64_t n_queries, int64_t dense_end, Plan& plan) const {
  const int64_t end = first_query + n_queries;
  const int64_t middle = std::clamp(dense_end, first_query, end);
  if (middle > first_query) add(first_query, middle, KeysSeen::kAll, plan);
  if (end > middle) add(middle, end, KeysSeen::kSelected, plan);
  plan.selection = selection_;
}

void SelectingStrategy::add(int64_t begin, int64_t end, KeysSeen seen, Plan& plan) const {
  if (dual_chunk_) return dual_chunk_->plan(begin, end - begin, seen, plan);
  Span span;
  span.count = end;
  span.ranked = seen == KeysSeen::kSelected;
  plan.add_block(begin, end - begin, {span}, seen);
}

Result<DualChunkMap> read_dual_chunk(const Arguments& arguments, int64_t train_len, int64_t step) {
  DualChunkMap map;
  const int64_t usual = std::max<int64_t>(3 * train_len / 4 / step, 1) * step;
  QUIRE_ASSIGN(map.chunk, arguments.integer("dca_chunk", step, train_len - 1, usual, step));
  const int64_t most = std::min(train_len - 1, 2 * map.chunk - 1);
  QUIRE_ASSIGN(map.cap, arguments.integer("dca_cap", map.chunk, most, most));
  return map;
}

}  // namespace quire
