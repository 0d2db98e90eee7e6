// The methods and scalings as data, for settings dialogs: what each argument takes, by what its reader asks for.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/strategy/arguments.h"
#include "lib/strategy/strategy.h"
#include "lib/support/status.h"

namespace quire {

// A name that an expression may have.
struct ListedTerm {
  std::string_view kind;  // "visibility", "rope_scaling", "base"
  std::string_view name;
  std::string_view text;
  std::vector<ArgumentDoc> arguments;
};
std::vector<ListedTerm> listed_terms();

// make_strategy that adds to *log (may be null) every argument that was asked for. With a log missing arguments are not
// refused.
Result<std::unique_ptr<const Strategy>> make_logged_strategy(std::string_view expression,
                                                             const StrategyContext& context, ArgumentLog* log);

// JSON, as quire_strategy_get_list describes it. The context's train_len, expected_tokens and heads count.
Result<std::string> list_strategies(const StrategyContext& context);

}  // namespace quire
