#include "lib/strategy/position_view.h"

#include <algorithm>

namespace quire {
namespace {

// Rows are planned in pieces: a plan of many queries can be larger than their matrix, and where heads differ it has a
// list of spans for each row and head.
constexpr int64_t kRowsAtOnce = 256;
constexpr int64_t kListsAtOnce = 65536;

void view_text(const Strategy& strategy, const PositionView& view, double* matrix) {
  Plan plan;
  const int64_t end = view.first_query + view.n_queries;
  const int64_t rows = std::clamp<int64_t>(kListsAtOnce / view.n_heads, 1, kRowsAtOnce);
  for (int64_t query = view.first_query; query < end; query += rows) {
    const int64_t n = std::min(rows, end - query);
    plan.clear();
    strategy.plan(query, n, plan);
    position_matrix(plan, view.head, view.n_keys, matrix, view.keys);
    matrix += n * view.n_keys;
  }
}

// The least number of tokens that makes the entry; more than kMostViewedTokens if those do not.
int64_t tokens_for(const Strategy& strategy, int64_t entry) {
  int64_t least = 0, most = kMostViewedTokens + 1;
  while (least < most) {
    const int64_t middle = least + (most - least) / 2;
    if (strategy.condensed_entries(middle) > entry) {
      most = middle;
    } else {
      least = middle + 1;
    }
  }
  return least;
}

// Of a plan of new entries: those from the skip-th on, at most n.
int64_t keep_queries(Plan& plan, int64_t skip, int64_t n) {
  QueryBlock& block = plan.blocks.front();
  block.first_query += skip * block.step;
  block.n_queries = std::min(block.n_queries - skip, n);
  for (Span& span : plan.spans) {
    if (span.diagonal) span.first_key += skip;
  }
  return block.n_queries;
}

void view_condensed(const Strategy& strategy, const PositionView& view, double* matrix) {
  const int64_t end = view.first_query + view.n_queries;
  Plan plan;
  for (int64_t entry = view.first_query; entry < end;) {
    const int64_t n_tokens = tokens_for(strategy, entry);
    plan.clear();
    strategy.plan_condensed(n_tokens, plan);
    const int64_t n = keep_queries(plan, entry - strategy.condensed_entries(n_tokens - 1), end - entry);
    position_matrix(plan, view.head, view.n_keys, matrix, view.keys);
    matrix += n * view.n_keys;
    entry += n;
  }
}

}  // namespace

Status check_view(const Strategy& strategy, const PositionView& view) {
  if (view.queries != KvKind::kCondensed) return {};
  if (!strategy.condenses()) {
    return Status(Code::kInvalidArgument,
                  "the strategy " + strategy.canonical() + " has no condensed entries to ask for");
  }
  const int64_t end = view.first_query + view.n_queries;
  const int64_t n_entries = strategy.condensed_entries(kMostViewedTokens);
  if (end <= n_entries) return {};
  return Status(Code::kInvalidArgument, "entry " + std::to_string(end - 1) + " of the condensed text is asked for; " +
                                            std::to_string(kMostViewedTokens) + " tokens make " +
                                            std::to_string(n_entries));
}

void view_positions(const Strategy& strategy, const PositionView& view, double* matrix) {
  if (view.queries == KvKind::kCondensed) return view_condensed(strategy, view, matrix);
  view_text(strategy, view, matrix);
}

}  // namespace quire
