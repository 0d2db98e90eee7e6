// SPDX-License-Identifier: MIT
//
// Strategies as data: what an expression means, which ones there are, and who sees whom at what
// distance. No model is needed. Any thread.
#pragma once

#include "quire/handle.hpp"

namespace quire {
inline namespace v0 {

// What must be known of a model that is not at hand, as quire_strategy_options.
struct StrategyOptions {
  std::optional<std::string> strategy = {};  // an expression; none: "full"
  std::int64_t train_len = 0;                // there is no default
  std::int64_t expected_tokens = 0;
  std::int32_t n_heads = 0;
};

// A part of a strategy's matrix of positions, as quire_position_view.
struct PositionView {
  std::int64_t n_queries = 0;
  std::int64_t n_keys = 0;
  std::int64_t first_query = 0;
  std::int32_t head = 0;
  KvKind query_kind = KvKind::kText;
  KvKind key_kind = KvKind::kText;
};

namespace detail {

// What it points to is the options'.
inline quire_strategy_options convert(const StrategyOptions& options) {
  auto c = initialised(quire_strategy_options_init);
  if (options.strategy) {
    c.strategy = options.strategy->data();
    c.strategy_len = options.strategy->size();
  }
  c.train_len = options.train_len;
  c.expected_tokens = options.expected_tokens;
  c.n_heads = options.n_heads;
  return c;
}

}  // namespace detail

// The expression in canonical form, with every default written out.
inline Result<std::string> describe_strategy(const StrategyOptions& options) {
  const auto c = detail::convert(options);
  return detail::copied<std::string>(quire_strategy_describe, &c);
}
// What an expression may be made of, as JSON (quire_strategy_get_list). No strategy must be given.
inline Result<std::string> list_strategies(const StrategyOptions& options) {
  const auto c = detail::convert(options);
  return detail::copied<std::string>(quire_strategy_get_list, &c);
}
// n_queries rows of n_keys distances, NaN where a key is not visible. (Experimental in quire.h.)
inline Result<std::vector<double>> strategy_positions(const StrategyOptions& options,
                                                      const PositionView& view) {
  const auto c = detail::convert(options);
  auto v = detail::initialised(quire_position_view_init);
  v.n_queries = view.n_queries;
  v.n_keys = view.n_keys;
  v.first_query = view.first_query;
  v.head = view.head;
  v.query_kind = static_cast<std::int32_t>(view.query_kind);
  v.key_kind = static_cast<std::int32_t>(view.key_kind);
  return detail::copied<std::vector<double>>(quire_strategy_get_positions, &c, &v);
}

}  // namespace v0
}  // namespace quire
