#include "lib/strategy/strategy.h"

#include "lib/abi/boundary.h"
#include "lib/abi/options.h"
#include "lib/strategy/strategy_list.h"

using namespace quire;
using namespace quire::abi;

extern "C" {

quire_status quire_strategy_describe(const quire_strategy_options* options, char* buf, size_t cap, size_t* needed,
                                     quire_error* err) {
  return guard(err, [&]() -> Status {
    StrategyOptions o;
    QUIRE_TRY(read_strategy_options(options, &o));
    QUIRE_ASSIGN(const auto strategy, make_strategy(o.expression, o.context));
    return write_text(strategy->canonical(), buf, cap, needed);
  });
}

quire_status quire_strategy_get_list(const quire_strategy_options* options, char* buf, size_t cap, size_t* needed,
                                     quire_error* err) {
  return guard(err, [&]() -> Status {
    StrategyOptions o;
    QUIRE_TRY(read_strategy_options(options, &o));
    if (options->strategy) return invalid("options.strategy is given; the list is of all strategies");
    QUIRE_ASSIGN(const std::string list, list_strategies(o.context));
    return write_text(list, buf, cap, needed);
  });
}

quire_status quire_strategy_get_positions(const quire_strategy_options* options, const quire_position_view* view,
                                          double* matrix, size_t cap, size_t* needed, quire_error* err) {
  return guard(err, [&]() -> Status {
    StrategyOptions o;
    PositionView v;
    QUIRE_TRY(read_strategy_options(options, &o));
    QUIRE_TRY(read_position_view(view, o.context.n_query_heads, &v));
    QUIRE_ASSIGN(const auto strategy, make_strategy(o.expression, o.context));
    QUIRE_TRY(check_view(*strategy, v));
    return write_array(static_cast<size_t>(v.n_queries * v.n_keys), "matrix", matrix, cap, needed, [&](double* to) {
      view_positions(*strategy, v, to);
      return Status();
    });
  });
}
}
