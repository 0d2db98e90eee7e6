#include "lib/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace quire {
namespace {

std::string span_name(size_t index) { return "span " + std::to_string(index); }

Status broken(const std::string& what) { return Status(Code::kInternal, "attention plan: " + what); }

int64_t last_key(const Span& span) { return span.first_key + (span.count - 1) * span.stride; }

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

Status validate_span(const Span& span, size_t index) {
  const std::string name = span_name(index);
  if (span.kind != KvKind::kText && span.kind != KvKind::kCondensed) return broken(name + ": no such kind of keys");
  if (span.first_key < 0 || span.count < 1 || span.stride < 1 ||
      span.count - 1 > (kNoLimit - 1 - span.first_key) / span.stride) {
    return broken(name + ": first_key " + std::to_string(span.first_key) + ", count " + std::to_string(span.count) +
                  ", stride " + std::to_string(span.stride) + " is no run of keys");
  }
  if (span.min_lag < 0 || span.max_lag < span.min_lag) {
    return broken(name + ": lags " + std::to_string(span.min_lag) + " to " + std::to_string(span.max_lag) +
                  "; expected 0 <= min_lag <= max_lag");
  }
  if (span.lag_stride < 1) return broken(name + ": lag_stride " + std::to_string(span.lag_stride));
  if (!(span.q_div > 0) || !std::isfinite(span.q_div) || !std::isfinite(span.q_offset) || std::isnan(span.q_cap) ||
      span.q_cap == -std::numeric_limits<double>::infinity()) {
    return broken(name + ": the query position is not a number");
  }
  const bool divided = span.key_div != 1;
  if (span.key_div < 0 || (divided && (span.diagonal || span.ranked))) {
    return broken(name + ": key_div " + std::to_string(span.key_div));
  }
  if (span.key_period < 0 || (span.key_period > 0 && (divided || span.diagonal || span.ranked))) {
    return broken(name + ": key_period " + std::to_string(span.key_period) + (divided ? " of divided positions" : ""));
  }
  return {};
}

bool share_keys(const Span& a, const Span& b) {
  const Span& fine = a.stride <= b.stride ? a : b;
  const Span& coarse = a.stride <= b.stride ? b : a;
  const int64_t begin = std::max(a.first_key, b.first_key);
  const int64_t end = std::min(last_key(a), last_key(b));
  if (begin > end) return false;
  const int64_t skipped = (begin - coarse.first_key + coarse.stride - 1) / coarse.stride;
  int64_t key = coarse.first_key + skipped * coarse.stride;
  // Residues modulo fine.stride repeat after at most fine.stride keys.
  for (int64_t n = 0; n < fine.stride && key <= end; ++n) {
    if ((key - fine.first_key) % fine.stride == 0) return true;
    if (key > end - coarse.stride) break;
    key += coarse.stride;
  }
  return false;
}

// No key may be visible to a query through two spans; spans over the same keys must split the lags.
bool overlap(const Span& a, const Span& b) {
  return a.kind == b.kind && std::max(a.min_lag, b.min_lag) <= std::min(a.max_lag, b.max_lag) && share_keys(a, b);
}

Status validate_selected(const Plan& plan, const QueryBlock& block) {
  const ChunkSelection& s = plan.selection;
  if (s.chunk < 1 || s.n_last < 1 || s.count < s.n_last + 1 || s.n_free(0) < 0 || s.one_in < 0) {
    return broken("a selection of " + std::to_string(s.count) + " chunks of " + std::to_string(s.chunk) +
                  " keys, the last " + std::to_string(s.n_last) + " of them forced");
  }
  if (!std::ranges::is_sorted(plan.sticky) || (!plan.sticky.empty() && plan.sticky.front() < 0)) {
    return broken("sticky chunks that do not ascend from 0 on");
  }
  if (block.per_head) return broken("a block with a selection and lists per head");
  const Plan::List& list = plan.list(block, 0);
  for (int32_t index = list.begin; index < list.end; ++index) {
    const Span& span = plan.spans[static_cast<size_t>(index)];
    if (span.kind != KvKind::kText) {
      return broken(span_name(static_cast<size_t>(index)) + " cannot be selected from");
    }
  }
  return {};
}

Status validate_list(const Plan& plan, const Plan::List& list) {
  if (list.begin < 0 || list.end < list.begin || static_cast<size_t>(list.end) > plan.spans.size()) {
    return broken("a list outside the spans");
  }
  std::vector<size_t> open;  // spans that may reach into the next one
  for (auto s = static_cast<size_t>(list.begin); s < static_cast<size_t>(list.end); ++s) {
    const Span& span = plan.spans[s];
    QUIRE_TRY(validate_span(span, s));
    if (s > static_cast<size_t>(list.begin)) {
      const Span& before = plan.spans[s - 1];
      if (before.kind > span.kind || (before.kind == span.kind && before.first_key > span.first_key)) {
        return broken(span_name(s) + " does not come in ascending order of (kind, first_key)");
      }
    }
    std::erase_if(
        open, [&](size_t o) { return plan.spans[o].kind != span.kind || last_key(plan.spans[o]) < span.first_key; });
    for (size_t o : open) {
      if (overlap(plan.spans[o], span)) return broken(span_name(o) + " and " + span_name(s) + " overlap");
    }
    open.push_back(s);
  }
  return {};
}

// The rank of a chunk up to the query's own among those that query i selects when all scores are equal; -1: it is not
// selected.
int64_t rank_by_index(const ChunkSelection& selection, int64_t i, int64_t chunk) {
  const int64_t n_chunks = i / selection.chunk + 1;
  const int64_t n = selection.n_selected(i);
  const int64_t last = std::min(selection.n_last, n);
  if (chunk >= n_chunks - last) return n - (n_chunks - chunk);
  const int64_t skipped = n < n_chunks && selection.first == ChunkSelection::First::kNever ? 1 : 0;
  return chunk >= skipped && chunk - skipped < n - last ? chunk - skipped : -1;
}

void fill_selected_row(const ChunkSelection& selection, const Span& span, int64_t i, int64_t n_keys, double* row) {
  const int64_t end = std::min({last_key(span), i, n_keys - 1});
  for (int64_t j = span.first_key; j <= end; j += span.stride) {
    const int64_t rank = rank_by_index(selection, i, j / selection.chunk);
    if (rank < 0 || !span.visible(i, j)) continue;
    row[j] = span.ranked ? static_cast<double>(selection.distance(i, rank, j)) : span.distance(i, j);
  }
}

void fill_row(const Span& span, int64_t i, int64_t n_keys, double* row) {
  int64_t begin = span.first_key;
  if (span.max_lag != kNoLimit && i - span.max_lag > begin) {
    begin += (i - span.max_lag - begin + span.stride - 1) / span.stride * span.stride;
  }
  const int64_t end = std::min({last_key(span), i - span.min_lag, n_keys - 1});
  for (int64_t j = begin; j <= end; j += span.stride) {
    if ((i - j) % span.lag_stride == 0) row[j] = span.distance(i, j);
  }
}

// About how many keys of the span query i sees.
int64_t n_visible(const Span& span, int64_t i) {
  if (span.diagonal) return 1;
  const int64_t first = span.max_lag == kNoLimit ? span.first_key : std::max(span.first_key, i - span.max_lag);
  const int64_t last = std::min(last_key(span), i - span.min_lag);
  return last < first ? 0 : ceil_div(last - first + 1, std::lcm(span.stride, span.lag_stride));
}

}  // namespace

double Span::query_position(int64_t i) const {
  double position = static_cast<double>(i);
  if (q_div != 1) {
    position /= q_div;
    if (q_floor) position = std::floor(position);
  }
  return std::min(position + q_offset, q_cap);
}

int64_t Span::base_of(int64_t j) const {
  return key_period == 0 ? key_base : key_base + floor_div(j - key_base, key_period) * key_period;
}

double Span::key_position(int64_t j) const {
  const int64_t offset = j - base_of(j);
  if (key_div == 0) return 0;
  return key_floor ? static_cast<double>(floor_div(offset, key_div))
                   : static_cast<double>(offset) / static_cast<double>(key_div);
}

bool Span::as_stored(int64_t stored_div, int64_t chunk) const {
  if (key_div != stored_div) return false;
  return key_div <= 1 || (key_floor && key_base % key_div == 0 && chunk % key_div == 0);
}

bool Span::visible(int64_t i, int64_t j) const {
  const bool member = j >= first_key && (j - first_key) % stride == 0 && (j - first_key) / stride < count;
  return member && i - j >= min_lag && i - j <= max_lag && (i - j) % lag_stride == 0;
}

int64_t Plan::most_selected() const {
  int64_t most = 0;
  for (const QueryBlock& block : blocks) {
    if (block.selected) most = std::max(most, selection.most(block.first_query + block.n_queries - 1));
  }
  return most;
}

void Plan::clear() {
  blocks.clear();
  lists.clear();
  spans.clear();
  query_scale.clear();
  sticky.clear();
  selection = {};
}

void Plan::add_block(int64_t first_query, int64_t n_queries, const std::vector<Span>& block_spans, KeysSeen seen) {
  blocks.push_back({.first_query = first_query,
                    .n_queries = n_queries,
                    .first_list = static_cast<int32_t>(lists.size()),
                    .selected = seen == KeysSeen::kSelected});
  const auto begin = static_cast<int32_t>(spans.size());
  spans.insert(spans.end(), block_spans.begin(), block_spans.end());
  lists.push_back({begin, static_cast<int32_t>(spans.size())});
}

void Plan::add_block_per_head(int64_t first_query, int64_t n_queries,
                              const std::vector<std::vector<Span>>& head_spans) {
  blocks.push_back({.first_query = first_query,
                    .n_queries = n_queries,
                    .first_list = static_cast<int32_t>(lists.size()),
                    .per_head = true});
  for (const std::vector<Span>& list : head_spans) {
    const auto begin = static_cast<int32_t>(spans.size());
    spans.insert(spans.end(), list.begin(), list.end());
    lists.push_back({begin, static_cast<int32_t>(spans.size())});
  }
}

Status validate(const Plan& plan, int64_t first_query, int64_t n_queries, int n_heads) {
  int64_t next = first_query;
  for (const QueryBlock& block : plan.blocks) {
    if (block.first_query != next || block.n_queries < 1) {
      return broken("a block of " + std::to_string(block.n_queries) + " queries from " +
                    std::to_string(block.first_query) + " where query " + std::to_string(next) + " comes next");
    }
    const int64_t n_lists = block.per_head ? n_heads : 1;
    if (block.first_list < 0 || block.first_list + n_lists > static_cast<int64_t>(plan.lists.size())) {
      return broken("the block of query " + std::to_string(next) + " has fewer than " + std::to_string(n_lists) +
                    " span lists");
    }
    if (block.step < 0 || (block.step != 1 && (plan.blocks.size() > 1 || block.selected))) {
      return broken("queries " + std::to_string(block.step) + " apart");
    }
    if (block.selected) QUIRE_TRY(validate_selected(plan, block));
    next += block.n_queries;
  }
  if (next != first_query + n_queries) {
    return broken("it ends before query " + std::to_string(next) + " instead of " +
                  std::to_string(first_query + n_queries));
  }
  for (const Plan::List& list : plan.lists) QUIRE_TRY(validate_list(plan, list));
  if (!plan.query_scale.empty() && static_cast<int64_t>(plan.query_scale.size()) != n_queries) {
    return broken(std::to_string(plan.query_scale.size()) + " query scales for " + std::to_string(n_queries) +
                  " queries");
  }
  for (float scale : plan.query_scale) {
    if (!(scale > 0) || !std::isfinite(scale)) return broken("a query scale that is not a positive number");
  }
  return {};
}

std::vector<int64_t> touched_chunks(const Plan& plan, int64_t chunk, int n_heads) {
  std::vector<int64_t> chunks;
  for (const QueryBlock& block : plan.blocks) {
    if (block.selected) continue;
    const int64_t last_query = block.first_query + (block.n_queries - 1) * block.step;
    for (int head = 0; head < (block.per_head ? n_heads : 1); ++head) {
      const Plan::List& list = plan.list(block, head);
      for (int32_t s = list.begin; s < list.end; ++s) {
        const Span& span = plan.spans[static_cast<size_t>(s)];
        if (span.kind != KvKind::kText) continue;
        int64_t first = span.first_key;
        if (span.max_lag != kNoLimit) first = std::max(first, block.first_query - span.max_lag);
        const int64_t last = std::min(last_key(span), last_query - span.min_lag);
        for (int64_t c = first / chunk; first <= last && c <= last / chunk; ++c) chunks.push_back(c);
      }
    }
  }
  std::sort(chunks.begin(), chunks.end());
  chunks.erase(std::unique(chunks.begin(), chunks.end()), chunks.end());
  return chunks;
}

double visible_keys(const Plan& plan, int n_heads) {
  const int64_t l = std::max<int64_t>(1, plan.selection.chunk);  // of the last one a query sees what is before it
  double sum = 0;
  int64_t n_queries = 0;
  for (const QueryBlock& block : plan.blocks) {
    const int n_lists = block.per_head ? n_heads : 1;
    for (int64_t t = 0; t < block.n_queries; ++t) {
      const int64_t i = block.first_query + t * block.step;
      for (int head = 0; head < n_lists; ++head) {
        const Plan::List& list = plan.list(block, head);
        int64_t seen = 0;
        for (int32_t s = list.begin; s < list.end; ++s) seen += n_visible(plan.spans[static_cast<size_t>(s)], i);
        if (block.selected) seen = std::min(seen, plan.selection.n_selected(i) * l - (l - 1 - i % l));
        sum += static_cast<double>(seen) / n_lists;
      }
    }
    n_queries += block.n_queries;
  }
  return n_queries == 0 ? 0 : sum / static_cast<double>(n_queries);
}

void position_matrix(const Plan& plan, int head, int64_t n_keys, double* matrix, KvKind keys) {
  double* row = matrix;
  for (const QueryBlock& block : plan.blocks) {
    const Plan::List& list = plan.list(block, head);
    for (int64_t t = 0; t < block.n_queries; ++t, row += n_keys) {
      const int64_t i = block.first_query + t * block.step;
      std::fill_n(row, n_keys, std::numeric_limits<double>::quiet_NaN());
      for (int32_t s = list.begin; s < list.end; ++s) {
        const Span& span = plan.spans[static_cast<size_t>(s)];
        if (span.kind != keys) continue;
        if (span.diagonal) {
          if (span.first_key + t < n_keys) row[span.first_key + t] = 0;
        } else if (block.selected) {
          fill_selected_row(plan.selection, span, i, n_keys, row);
        } else {
          fill_row(span, i, n_keys, row);
        }
      }
    }
  }
}

}  // namespace quire
