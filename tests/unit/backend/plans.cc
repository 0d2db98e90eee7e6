#include "tests/unit/backend/plans.h"

#include <algorithm>

namespace quire::test {
namespace {

Span run_of(int64_t first, int64_t count, int64_t stride = 1) {
  Span span;
  span.first_key = first;
  span.count = count;
  span.stride = stride;
  return span;
}

Span band(int64_t min_lag, int64_t max_lag, int64_t end, int64_t first = 0) {
  Span span = run_of(first, end - first);
  span.min_lag = min_lag;
  span.max_lag = max_lag;
  return span;
}

Span divided_band(int64_t min_lag, int64_t max_lag, int64_t end, int64_t key_div) {
  Span span = band(min_lag, max_lag, end);
  span.key_div = key_div;
  return span;
}

// Calls block(begin, end) for [first, first + n) cut at the multiples of `length`.
template <typename Block>
void cut(int64_t first, int64_t n, int64_t length, const Block& block) {
  for (int64_t begin = first; begin < first + n;) {
    const int64_t end = std::min(first + n, (begin / length + 1) * length);
    block(begin, end);
    begin = end;
  }
}

void causal(int64_t first, int64_t n, int, Plan& plan) { plan.add_block(first, n, {run_of(0, first + n)}); }

// No boundary falls on a chunk's edge; several spans share a chunk, each with its own map.
void unaligned(int64_t first, int64_t n, int, Plan& plan) {
  std::vector<Span> spans = {run_of(3, 7),  run_of(10, 1),   run_of(11, 50),
                             run_of(70, 5), run_of(75, 180), run_of(257, 74)};
  spans[1].q_offset = -17;
  spans[2].key_base = 40;
  spans[3].q_cap = 33;
  spans[4].key_base = -5, spans[4].q_offset = 2, spans[4].q_cap = 300;
  plan.add_block(first, n, spans);
}

void strided(int64_t first, int64_t n, int, Plan& plan) {
  std::vector<Span> spans = {run_of(1, 99, 3), run_of(2, 90, 3), run_of(3, 2, 150), run_of(299, 32)};
  spans[0].min_lag = 20;
  spans[1].max_lag = 150, spans[1].q_cap = 100;
  plan.add_block(first, n, spans);
}

// The same keys through three windows of lags.
void bands(int64_t first, int64_t n, int, Plan& plan) {
  std::vector<Span> spans = {band(0, 7, first + n), band(8, 63, first + n), band(64, kNoLimit, first + n)};
  spans[1].q_offset = 3;
  spans[2].q_cap = 120;
  plan.add_block(first, n, spans);
}

// Some queries see nothing although their list is not empty.
void late_keys(int64_t first, int64_t n, int, Plan& plan) {
  plan.add_block(first, n, {band(270, 280, 301), run_of(301, 30)});
}

void dual_chunk(int64_t first, int64_t n, int, Plan& plan) {
  cut(first, n, 48, [&](int64_t begin, int64_t end) {
    std::vector<Span> spans;
    for (int64_t c = 0; c * 48 < end; ++c) {
      spans.push_back(run_of(c * 48, std::min<int64_t>(48, end - c * 48)));
      spans.back().key_base = c * 48;
      spans.back().q_cap = 70;
      if (c >= begin / 48 - 1) spans.back().q_offset = static_cast<double>(-c * 48);
    }
    plan.add_block(begin, end - begin, spans);
  });
}

// Key positions that begin anew every 21, 5 and 200 keys: inside chunks and across them, and one span's periods count
// from a base before its first key, another's from one after it.
void periodic(int64_t first, int64_t n, int, Plan& plan) {
  std::vector<Span> spans = {run_of(3, 90), run_of(93, 41, 2), run_of(180, 60), run_of(250, 81)};
  spans[0].key_period = 21, spans[0].q_cap = 40;
  spans[1].key_period = 5, spans[1].key_base = 100, spans[1].q_cap = 9, spans[1].max_lag = 200;
  spans[2].key_period = 200, spans[2].key_base = -7, spans[2].q_offset = -3;
  plan.add_block(first, n, spans);
}

// The same keys with spans for each period, as DCA's chunks of the past.
void dual_chunk_periods(int64_t first, int64_t n, int, Plan& plan) {
  cut(first, n, 48, [&](int64_t begin, int64_t end) {
    const int64_t own = begin / 48;
    std::vector<Span> spans;
    if (own > 1) spans.push_back(run_of(0, (own - 1) * 48));
    if (own > 1) spans.back().key_period = 48;
    for (int64_t c = std::max<int64_t>(0, own - 1); c <= own; ++c) {
      spans.push_back(run_of(c * 48, std::min<int64_t>(48, end - c * 48)));
      spans.back().key_base = c * 48;
      spans.back().q_offset = static_cast<double>(-c * 48);
    }
    for (Span& span : spans) span.q_cap = 70;
    plan.add_block(begin, end - begin, spans);
  });
}

// Query positions divided, floored (grouped) and real (leaky).
void divided(int64_t first, int64_t n, int, Plan& plan) {
  std::vector<Span> spans = {band(128, kNoLimit, first + n), band(30, 127, first + n), band(0, 29, first + n)};
  spans[0].q_div = 4, spans[0].q_offset = 90;
  spans[1].q_div = 2.5, spans[1].q_floor = false, spans[1].q_offset = 0.75, spans[1].key_base = 12;
  plan.add_block(first, n, spans);
}

// ReRoPE: distances clipped at a window.
void clipped(int64_t first, int64_t n, int, Plan& plan) {
  std::vector<Span> spans = {divided_band(0, 39, first + n, 1), divided_band(40, kNoLimit, first + n, 0)};
  spans[1].q_cap = 40;
  plan.add_block(first, n, spans);
}

// Self-Extend: beyond a window, positions of queries and keys in groups of 4.
void grouped(int64_t first, int64_t n, int, Plan& plan) {
  std::vector<Span> spans = {divided_band(0, 31, first + n, 1), divided_band(32, kNoLimit, first + n, 4)};
  spans[1].q_div = 4, spans[1].q_offset = 24;
  plan.add_block(first, n, spans);
}

// The same, and distances that grow a third as fast beyond another window.
void two_groups(int64_t first, int64_t n, int, Plan& plan) {
  std::vector<Span> spans = {divided_band(0, 31, first + n, 1), divided_band(32, 119, first + n, 4),
                             divided_band(120, kNoLimit, first + n, 3)};
  spans[1].q_div = 4, spans[1].q_offset = 24;
  spans[2].q_div = 3, spans[2].q_offset = 14, spans[2].q_floor = spans[2].key_floor = false, spans[2].key_base = -11;
  plan.add_block(first, n, spans);
}

// Leaky ReRoPE, and LM-Infinite: first keys at one distance.
void leaky(int64_t first, int64_t n, int, Plan& plan) {
  std::vector<Span> spans = {divided_band(0, 39, first + n, 1), divided_band(40, kNoLimit, first + n, 8)};
  spans[1].q_div = 8, spans[1].q_offset = 35, spans[1].q_floor = spans[1].key_floor = false;
  plan.add_block(first, n, spans);
}

void lambda_shape(int64_t first, int64_t n, int, Plan& plan) {
  std::vector<Span> spans = {divided_band(61, kNoLimit, 23, 0), band(0, 60, first + n)};
  spans[0].q_cap = 61;
  plan.add_block(first, n, spans);
}

// Each head sees, and computes, one class of positions.
void dilated(int64_t first, int64_t n, int n_heads, Plan& plan) {
  std::vector<std::vector<Span>> lists;
  for (int head = 0; head < n_heads; ++head) {
    lists.push_back({run_of(head % 3, (first + n - head % 3 + 2) / 3, 3)});
    lists.back()[0].lag_stride = 3;
  }
  plan.add_block_per_head(first, n, lists);
}

// Divided positions that are negative (floored) and of strided keys.
void divided_negative(int64_t first, int64_t n, int, Plan& plan) {
  std::vector<Span> spans = {divided_band(0, kNoLimit, 100, 3), run_of(100, 60, 2), run_of(221, 110)};
  spans[0].key_base = 101;
  spans[1].key_div = 7, spans[1].key_base = 333;
  plan.add_block(first, n, spans);
}

void per_head(int64_t first, int64_t n, int n_heads, Plan& plan) {
  cut(first, n, 20, [&](int64_t begin, int64_t end) {
    std::vector<std::vector<Span>> lists;
    for (int head = 0; head < n_heads; ++head) {
      lists.emplace_back();
      if (head % 3 == 1) continue;  // no keys at all: output 0
      lists.back().push_back(run_of(5 * (head % 12), 37));
      lists.back().back().q_cap = 50 + head;
      lists.back().push_back(band(0, 25 + head, end, 100));
    }
    plan.add_block_per_head(begin, end - begin, lists);
  });
}

// Blocks of different kinds: empty for all heads, shared, per head.
void mixed_blocks(int64_t first, int64_t n, int n_heads, Plan& plan) {
  cut(first, n, 12, [&](int64_t begin, int64_t end) {
    const int64_t kind = begin / 12 % 3;
    if (kind == 0) return plan.add_block(begin, end - begin, {});
    if (kind == 1) return plan.add_block(begin, end - begin, {run_of(17, 200)});
    std::vector<std::vector<Span>> lists(static_cast<size_t>(n_heads), {run_of(33, 90)});
    lists[0] = {band(0, 5, end)};
    plan.add_block_per_head(begin, end - begin, lists);
  });
}

void two_streams(int64_t first, int64_t n, int, Plan& plan) {
  cut(first, n, 40, [&](int64_t begin, int64_t end) {
    Span memory = run_of(5, 96);
    memory.kind = KvKind::kCondensed;
    memory.q_cap = 110;
    if (begin / 40 % 2 == 0) return plan.add_block(begin, end - begin, {memory});
    plan.add_block(begin, end - begin, {band(0, 60, end), memory});
  });
}

void scaled(int64_t first, int64_t n, int, Plan& plan) {
  cut(first, n, 30, [&](int64_t begin, int64_t end) { plan.add_block(begin, end - begin, {run_of(0, end)}); });
  for (int64_t i = first; i < first + n; ++i) plan.query_scale.push_back(0.5f + static_cast<float>(i) / 100);
}

}  // namespace

const std::vector<PlanCase>& plan_cases() {
  static const std::vector<PlanCase> cases = {{"causal", 1, causal},
                                              {"unaligned", 1, unaligned},
                                              {"strided", 1, strided},
                                              {"bands", 1, bands},
                                              {"late keys", 1, late_keys},
                                              {"dual chunk", 1, dual_chunk},
                                              {"periodic", 1, periodic},
                                              {"dual chunk in periods", 1, dual_chunk_periods},
                                              {"divided", 1, divided},
                                              {"clipped", 0, clipped},
                                              {"grouped unrotated", 0, grouped},
                                              {"grouped at offsets", 1, two_groups},
                                              {"grouped", 4, grouped},
                                              {"grouped otherwise", 4, two_groups},
                                              {"grouped beyond chunks", 3, two_groups},
                                              {"leaky", 0, leaky},
                                              {"lambda shape", 1, lambda_shape},
                                              {"dilated", 1, dilated},
                                              {"divided negative", 0, divided_negative},
                                              {"per head", 1, per_head},
                                              {"mixed blocks", 1, mixed_blocks},
                                              {"two streams", 1, two_streams},
                                              {"scaled", 1, scaled}};
  return cases;
}

}  // namespace quire::test
