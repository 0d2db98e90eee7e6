#include "lib/strategy/head_patterns.h"

#include <algorithm>
#include <cmath>

namespace quire {
namespace {

using Kind = HeadPattern::Kind;

class HeadPatterns final : public Strategy {
 public:
  HeadPatterns(std::vector<HeadPattern> heads, const HeadPatternOptions& options, int64_t train_len)
      : heads_(std::move(heads)), options_(options) {
    for (const HeadPattern& head : heads_) {
      if (head.kind == Kind::kDilated) {
        reach_ = train_len;
        keeps_all_ = true;
      }
    }
  }

  void plan(int64_t first_query, int64_t n_queries, Plan& plan) const override {
    int64_t end = first_query + n_queries;
    if (first_query < options_.full_below && n_queries > 0) {
      Span all;
      all.count = std::min(end, options_.full_below);
      plan.add_block(first_query, all.count - first_query, {all});
      first_query = all.count;
    }
    // What a head sees changes its form at halves of a chunk.
    const int64_t half = options_.chunk > 0 ? options_.chunk / 2 : kNoLimit;
    while (first_query < end) {
      const int64_t next = half >= end ? end : std::min(end, (first_query / half + 1) * half);
      std::vector<std::vector<Span>> lists;
      for (const HeadPattern& head : heads_) lists.push_back(list(head, first_query, next));
      plan.add_block_per_head(first_query, next - first_query, lists);
      first_query = next;
    }
  }

  std::vector<KeyRange> retained(int64_t next_query) const override {
    if (keeps_all_ || next_query < options_.full_below) return {{0, kNoLimit}};
    int64_t first = next_query;
    for (const HeadPattern& head : heads_) first = std::min(first, first_key(head, next_query));
    return {{first, kNoLimit}};
  }

 private:
  // The first key that query i or a later one sees, of a pattern in chunks.
  int64_t first_key(const HeadPattern& head, int64_t i) const {
    const int64_t w = options_.chunk;
    const int64_t offset = head.shifted ? w / 2 : 0;
    if (head.kind == Kind::kLocal) return i < offset ? 0 : (i - offset) / w * w + offset;
    const int64_t chunk = i / w * w;
    return std::max<int64_t>(0, head.kind == Kind::kRolled ? chunk - w / 2 : chunk - head.shift * w);
  }

  // Keys [begin, end), of them those at least min_lag before the query.
  static void add_run(int64_t begin, int64_t end, int64_t min_lag, std::vector<Span>& spans) {
    Span span;
    span.first_key = std::max<int64_t>(0, begin);
    span.count = end - span.first_key;
    span.min_lag = min_lag;
    if (span.count > 0) spans.push_back(span);
  }

  // Every query's own key.
  static void add_self(int64_t begin, int64_t end, std::vector<Span>& spans) {
    add_run(begin, end, 0, spans);
    spans.back().max_lag = 0;
  }

  // What queries [begin, end), which lie in one half of a chunk, see in one head.
  std::vector<Span> list(const HeadPattern& head, int64_t begin, int64_t end) const {
    std::vector<Span> spans;
    const int64_t w = options_.chunk;
    switch (head.kind) {
      case Kind::kLocal:
        add_run(first_key(head, begin), end, 0, spans);
        break;
      case Kind::kRolled: {
        const int64_t middle = begin / w * w + w / 2;  // where the keys of the chunk's slots end
        if (options_.by_slot) {
          add_run(middle - w, std::min(middle, end - w / 2), w / 2, spans);
        } else {
          add_run(middle - w, std::min(middle, end), 0, spans);
          if (begin >= middle) add_self(begin, end, spans);
        }
        break;
      }
      case Kind::kEarlier: {
        const int64_t back = head.shift * w;
        const int64_t chunk = begin / w * w - back;
        if (chunk < 0 && head.wraps_local) {
          add_run(begin / w * w, end, 0, spans);
          break;
        }
        if (chunk >= 0 && options_.by_slot) add_run(chunk, end - back, back, spans);
        if (chunk >= 0 && !options_.by_slot) add_run(chunk, chunk + w, 0, spans);
        if (!options_.by_slot) add_self(begin, end, spans);
        break;
      }
      case Kind::kDilated: {
        Span span;
        span.first_key = head.residue;
        span.stride = head.dilation;
        span.count = end > head.residue ? (end - 1 - head.residue) / head.dilation + 1 : 0;
        if (head.computes_all) {
          span.min_lag = 1;
        } else {
          span.lag_stride = head.dilation;
        }
        if (span.count > 0) spans.push_back(span);
        if (head.computes_all) add_self(begin, end, spans);
        break;
      }
    }
    std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.first_key < b.first_key; });
    return spans;
  }

  std::vector<HeadPattern> heads_;
  HeadPatternOptions options_;
  bool keeps_all_ = false;
};

constexpr std::string_view kMasks[] = {"absolute", "slot"};

}  // namespace

std::unique_ptr<Strategy> make_head_patterns(std::vector<HeadPattern> heads, const HeadPatternOptions& options,
                                             int64_t train_len) {
  return std::make_unique<HeadPatterns>(std::move(heads), options, train_len);
}

Result<HeadPatternOptions> read_chunk(const Arguments& arguments, std::string_view name, int64_t train_len,
                                      int64_t parts, double span, CanonicalTerm& canonical) {
  const auto most = static_cast<int64_t>(static_cast<double>(train_len) / span);
  if (most < 2) {
    return arguments.refuse("train_len", "train_len is " + std::to_string(train_len) + "; " + arguments.name() +
                                             " needs at least " + number_text(std::ceil(2 * span)));
  }
  HeadPatternOptions options;
  const int64_t usual = std::clamp<int64_t>(train_len / parts / 2 * 2, 2, most / 2 * 2);
  QUIRE_ASSIGN(options.chunk, arguments.integer(name, 2, most, usual, 2));  // half of it is shifted by
  QUIRE_ASSIGN(options.full_below, arguments.integer("full_below", 0, train_len, 0));
  canonical.add_integer(name, options.chunk).add_integer("full_below", options.full_below);
  return options;
}

Status read_mask(const Arguments& arguments, HeadPatternOptions* options, CanonicalTerm& canonical) {
  QUIRE_ASSIGN(const size_t mask, arguments.choice("mask", kMasks));
  options->by_slot = mask == 1;
  canonical.add("mask", kMasks[mask]);
  return {};
}

}  // namespace quire
