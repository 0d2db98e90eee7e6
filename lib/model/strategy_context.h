// What a strategy may know of the model and the session that it is made for.
#pragma once

#include <cstdint>

#include "lib/backend/kv_records.h"
#include "lib/format/model_config.h"
#include "lib/strategy/strategy.h"
#include "lib/support/types.h"

namespace quire {

// What of a session its strategy may depend on.
struct SessionNeeds {
  int64_t expected_tokens = 0;  // 0: unknown
  ElementType kv_type = ElementType::kF16;
  int64_t kv_budget_bytes = 0;  // 0: no limit
  int64_t prefill_block = 256;
  int64_t lower_bytes = 0;  // as KvBudget
  OldText old_text{};
};

StrategyContext strategy_context(const ModelConfig& config, const SessionNeeds& needs);

}  // namespace quire
