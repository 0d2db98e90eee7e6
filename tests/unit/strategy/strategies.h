// Makes strategies and shows what they give, for the tests of this folder.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "lib/strategy/strategy.h"

namespace quire::test {

inline StrategyContext trained_for(int64_t train_len) {
  StrategyContext context;
  context.train_len = train_len;
  context.head_dim = 8;
  return context;
}

inline std::unique_ptr<const Strategy> make(const std::string& expression, const StrategyContext& context) {
  auto strategy = make_strategy(expression, context);
  if (!strategy.ok()) throw std::runtime_error(expression + ": " + strategy.status().message());
  return std::move(*strategy);
}

inline std::unique_ptr<const Strategy> make(const std::string& expression, int64_t train_len) {
  return make(expression, trained_for(train_len));
}

// Row r: distances of query first_query + r to keys [0, n_keys), NaN where not visible.
using Matrix = std::vector<std::vector<double>>;

inline Matrix rows_of(const Plan& plan, int64_t n_rows, int64_t n_keys) {
  std::vector<double> flat(static_cast<size_t>(n_rows * n_keys));
  position_matrix(plan, 0, n_keys, flat.data());
  Matrix rows;
  for (int64_t r = 0; r < n_rows; ++r) rows.emplace_back(flat.begin() + r * n_keys, flat.begin() + (r + 1) * n_keys);
  return rows;
}

inline Matrix positions(const Strategy& strategy, int64_t first_query, int64_t n_queries) {
  Plan plan;
  strategy.plan(first_query, n_queries, plan);
  const Status valid = validate(plan, first_query, n_queries, 1);
  EXPECT_TRUE(valid.ok()) << strategy.canonical() << ": " << valid.message();
  return rows_of(plan, n_queries, first_query + n_queries);
}

inline Matrix positions(const Strategy& strategy, int64_t n) { return positions(strategy, 0, n); }

// A matrix as text: one row per line, "." for a hidden key, hidden keys at the end of a row left out.
inline std::string text_of(const Matrix& matrix) {
  std::ostringstream out;
  for (const std::vector<double>& row : matrix) {
    size_t n = row.size();
    while (n > 0 && std::isnan(row[n - 1])) --n;
    for (size_t j = 0; j < n; ++j) {
      if (j) out << ' ';
      if (std::isnan(row[j])) {
        out << '.';
      } else {
        out << row[j];
      }
    }
    out << '\n';
  }
  return out.str();
}

inline std::string plain_rows(int64_t begin, int64_t end) {
  std::ostringstream out;
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t j = 0; j <= i; ++j) out << (j ? " " : "") << i - j;
    out << '\n';
  }
  return out.str();
}

}  // namespace quire::test
