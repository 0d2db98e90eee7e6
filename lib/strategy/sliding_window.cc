// The sliding window a model was trained with (Mistral): in every layer query i sees key j only if i - j < W.
//
// Idea        Layers stack: a model of n layers still hears of tokens n * (W - 1) back. The window is the model's, not
// a
//             method of extension, so it cuts what any strategy shows, and keys behind it are dropped.
// Paper       Jiang et al. 2023, "Mistral 7B", section 2.
// Invariants  Distances are the strategy's own and at most i - j < W, so RoPE stays within W - 1 however long the text.
// Complexity  At most W keys per token. Memory: keys and values of W tokens and what chunks round up to.
#include "lib/strategy/sliding_window.h"

#include <algorithm>
#include <utility>

namespace quire {
namespace {

// What is left of `span` for queries from first_query on; false: nothing.
bool clip(Span& span, int64_t first_query, int64_t max_lag) {
  span.max_lag = std::min(span.max_lag, max_lag);
  if (span.max_lag < span.min_lag) return false;
  // Keys behind the first query's window may be gone from the store. The same bound for all spans keeps their order.
  const int64_t behind = first_query - max_lag - span.first_key;
  if (behind <= 0) return true;
  const int64_t skipped = (behind - 1) / span.stride + 1;
  if (skipped >= span.count) return false;
  span.first_key += skipped * span.stride;
  span.count -= skipped;
  return true;
}

class Windowed final : public Strategy {
 public:
  Windowed(std::unique_ptr<const Strategy> inner, int64_t window, int64_t train_len)
      : inner_(std::move(inner)), window_(window) {
    reach_ = window <= train_len ? kNoLimit : inner_->reach();
    reach_with_gaps_ = inner_->reach();  // there may be one inside any window
    stored_div_ = inner_->stored_div();
    takes_positions_ = inner_->takes_positions();
  }

  void plan(int64_t first_query, int64_t n_queries, Plan& plan) const override {
    Plan whole;
    inner_->plan(first_query, n_queries, whole);
    for (size_t b = 0; b < whole.blocks.size(); ++b) {
      QueryBlock block = whole.blocks[b];
      const bool last = b + 1 == whole.blocks.size();
      const auto end = last ? whole.lists.size() : static_cast<size_t>(whole.blocks[b + 1].first_list);
      const auto begin = static_cast<size_t>(std::exchange(block.first_list, static_cast<int32_t>(plan.lists.size())));
      plan.blocks.push_back(block);
      for (size_t l = begin; l < end; ++l) {
        const Plan::List list = whole.lists[l];
        const auto first_span = static_cast<int32_t>(plan.spans.size());
        for (int32_t s = list.begin; s < list.end; ++s) {
          Span span = whole.spans[static_cast<size_t>(s)];
          if (clip(span, block.first_query, window_ - 1)) plan.spans.push_back(span);
        }
        plan.lists.push_back({first_span, static_cast<int32_t>(plan.spans.size())});
      }
    }
    plan.query_scale.insert(plan.query_scale.end(), whole.query_scale.begin(), whole.query_scale.end());
  }

  std::vector<KeyRange> retained(int64_t next_query) const override {
    const int64_t first = std::max<int64_t>(0, next_query - (window_ - 1));
    std::vector<KeyRange> ranges;
    for (KeyRange range : inner_->retained(next_query)) {
      range.begin = std::max(range.begin, first);
      if (range.begin < range.end) ranges.push_back(range);
    }
    return ranges;
  }

 private:
  std::unique_ptr<const Strategy> inner_;
  int64_t window_;
};

}  // namespace

std::unique_ptr<Strategy> make_windowed(std::unique_ptr<Strategy> inner, int64_t window, int64_t train_len) {
  return std::make_unique<Windowed>(std::move(inner), window, train_len);
}

}  // namespace quire
