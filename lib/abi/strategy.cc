#include "lib/strategy/strategy.h"

#include "lib/abi/boundary.h"

using namespace quire;
using namespace quire::abi;

namespace {

constexpr int32_t kUsualHeads = 32;  // of a model of 7 billion parameters
constexpr int32_t kMostHeads = 65536;

Result<std::unique_ptr<const Strategy>> parse(const char* expression, size_t length, int64_t train_len,
                                              int32_t n_heads) {
  std::string_view text;
  QUIRE_TRY(read_text(expression, length, "expression", &text));
  QUIRE_TRY(check_range("train_len", train_len, 1, int64_t{1} << 40));
  QUIRE_TRY(check_range("n_heads", n_heads, 0, kMostHeads));
  StrategyContext context;
  context.train_len = train_len;
  context.n_query_heads = context.n_kv_heads = n_heads == 0 ? kUsualHeads : n_heads;
  context.beacon.emplace();  // as in the paper
  return make_strategy(text, context);
}

}  // namespace

extern "C" {

quire_status quire_strategy_describe(const char* expression, size_t expression_len, int64_t train_len, int32_t n_heads,
                                     char* buf, size_t cap, size_t* needed, quire_error* err) {
  return guard(err, [&]() -> Status {
    QUIRE_ASSIGN(const auto strategy, parse(expression, expression_len, train_len, n_heads));
    return write_text(strategy->canonical(), buf, cap, needed);
  });
}

quire_status quire_strategy_positions(const char* expression, size_t expression_len, int64_t train_len, int32_t n_heads,
                                      int32_t head, int64_t first_query, int64_t n_queries, int64_t n_keys,
                                      double* matrix, quire_error* err) {
  return guard(err, [&]() -> Status {
    if (!matrix) return invalid("matrix is NULL");
    constexpr int64_t kMost = int64_t{1} << 24;  // a plan of a query may name a span per chunk before it
    QUIRE_TRY(check_range("head", head, 0, (n_heads == 0 ? kUsualHeads : n_heads) - 1));
    QUIRE_TRY(check_range("first_query", first_query, 0, kMost));
    QUIRE_TRY(check_range("n_queries", n_queries, 1, kMost));
    QUIRE_TRY(check_range("n_keys", n_keys, 1, kMost));
    QUIRE_ASSIGN(const auto strategy, parse(expression, expression_len, train_len, n_heads));
    Plan plan;
    strategy->plan(first_query, n_queries, plan);
    position_matrix(plan, head, n_keys, matrix);
    return {};
  });
}
}
