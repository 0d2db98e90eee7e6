#include "lib/plan/text_positions.h"

#include <algorithm>

namespace quire {

TextPositions::Run TextPositions::run_of(int64_t token) const {
  const auto after = std::upper_bound(runs_.begin(), runs_.end(), token,
                                      [](int64_t t, const Run& run) { return t < run.first_token; });
  return after == runs_.begin() ? Run() : *(after - 1);
}

int64_t TextPositions::tokens_below(int64_t position) const {
  int64_t shift = 0;
  for (const Run& run : runs_) {
    if (run.first_token + run.shift >= position) return std::min(run.first_token, position - shift);
    shift = run.shift;
  }
  return position - shift;
}

void TextPositions::append(int64_t first_token, std::span<const int64_t> positions) {
  for (size_t i = 0; i < positions.size(); ++i) {
    const int64_t token = first_token + static_cast<int64_t>(i);
    const int64_t shift = positions[i] - token;
    if (shift != run_of(token).shift) runs_.push_back({token, shift});
  }
}

void TextPositions::cut(int64_t n_tokens) {
  while (!runs_.empty() && runs_.back().first_token >= n_tokens) runs_.pop_back();
}

template <typename Part>
void TextPositions::split(int64_t begin, int64_t end, const Part& part) const {
  while (begin < end) {
    const auto next = std::upper_bound(runs_.begin(), runs_.end(), begin,
                                       [](int64_t t, const Run& run) { return t < run.first_token; });
    const int64_t stop = next == runs_.end() ? end : std::min(end, next->first_token);
    part(begin, stop, run_of(begin).shift);
    begin = stop;
  }
}

void TextPositions::apply(Plan& plan) const {
  Plan whole;
  std::swap(whole, plan);
  plan.query_scale = std::move(whole.query_scale);
  plan.selection = whole.selection;
  for (const QueryBlock& block : whole.blocks) {
    const Plan::List list = whole.list(block, 0);
    split(block.first_query, block.first_query + block.n_queries, [&](int64_t first, int64_t end, int64_t q_shift) {
      std::vector<Span> spans;
      for (int32_t s = list.begin; s < list.end; ++s) {
        const Span& span = whole.spans[static_cast<size_t>(s)];
        const int64_t seen = std::min(span.first_key + span.count, end - span.min_lag);
        split(span.first_key, seen, [&](int64_t begin, int64_t stop, int64_t key_shift) {
          Span part = span;
          part.first_key = begin;
          part.count = stop - begin;
          part.key_base -= key_shift;
          part.q_offset += static_cast<double>(q_shift);
          spans.push_back(part);
        });
      }
      plan.add_block(first, end - first, spans);
    });
  }
}

}  // namespace quire
