// What a strategy makes of distances, for people and tests: a part of its relative-position matrix.
#pragma once

#include <cstdint>

#include "lib/strategy/strategy.h"

namespace quire {

struct PositionView {
  int head = 0;
  // Condensed queries are entries, each as it was when it was made.
  KvKind queries = KvKind::kText;
  KvKind keys = KvKind::kText;
  int64_t first_query = 0;
  int64_t n_queries = 0;
  int64_t n_keys = 0;
  int n_heads = 1;  // of the model
};

// Entries are looked for in texts of so many tokens.
constexpr int64_t kMostViewedTokens = int64_t{1} << 24;

// kInvalidArgument for condensed queries where the strategy makes no such entries.
Status check_view(const Strategy& strategy, const PositionView& view);
// matrix[r * n_keys + j] = distance between query first_query + r and key j, NaN where not visible; of a view that was
// checked.
void view_positions(const Strategy& strategy, const PositionView& view, double* matrix);

}  // namespace quire
