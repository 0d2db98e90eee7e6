// auto: chooses a visibility from what is known of the checkpoint, the text and the memory.
#pragma once

#include <cstdint>
#include <string>

#include "lib/strategy/strategy.h"
#include "lib/support/status.h"

namespace quire {

struct AutoChoice {
  std::string visibility;  // a term of a strategy expression
  std::string reason;      // completes "auto chose ... because "
};

// train_len: what the weights are good for with the scaling in use; scaling_named: the expression names that scaling.
// Error: kBudget, with the bytes that the most modest method needs.
Result<AutoChoice> choose_visibility(const StrategyContext& context, int64_t train_len, bool scaling_named);

}  // namespace quire
