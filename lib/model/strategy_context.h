// What a strategy may know of the model and the session that it is made for.
#pragma once

#include <cstdint>

#include "lib/backend/kv_records.h"
#include "lib/format/model_config.h"
#include "lib/kv/window_layers.h"
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
  bool keeps_behind_windows = false;  // WindowLayers::keeps_all
};

StrategyContext strategy_context(const ModelConfig& config, const SessionNeeds& needs);

// The layers of a model that have its window in a session of this strategy, where others do not.
WindowLayers window_layers(const ModelConfig& config, const Strategy& strategy, bool keeps_all);

}  // namespace quire
