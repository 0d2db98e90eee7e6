#include "lib/model/strategy_context.h"

#include <algorithm>

#include "lib/kv/chunk_store.h"
#include "lib/strategy/methods.h"

namespace quire {

StrategyContext strategy_context(const ModelConfig& config, const SessionNeeds& needs) {
  StrategyContext context;
  context.train_len = config.max_position_embeddings;
  context.original_len = config.rope_original;
  context.head_dim = config.head_dim;
  context.rotary_dim = config.rotary_dim;
  context.n_query_heads = config.n_query_heads;
  context.n_kv_heads = config.n_kv_heads;
  context.rope_theta = config.rope_theta;
  context.checkpoint_scaling = config.rope_scaling;
  const LongRopeSettings& longrope = config.longrope;
  if (!longrope.long_factors.empty()) {
    context.longrope = {longrope.short_factors, longrope.long_factors, longrope.original, longrope.attention_factor};
  }
  context.freq_factors = config.freq_factors;
  context.dual_chunk = {config.dual_chunk.chunk_size, config.dual_chunk.local_size, config.dual_chunk.original};
  if (const BeaconSettings& beacon = config.beacon; beacon.window > 0) {
    context.beacon = {beacon.window,
                      beacon.stride,
                      static_cast<BeaconAttention>(beacon.attention),
                      beacon.ratios,
                      static_cast<BeaconConfig::Mix>(beacon.mix),
                      beacon.reserve};
  }
  context.sliding_window = config.sliding_window;
  context.some_layers_slide = !config.window_layers.empty();
  context.window_rope_theta = config.window_rope_theta;
  context.expected_tokens = needs.expected_tokens;
  // Layers with a window keep little, whatever the method.
  const bool drops = context.some_layers_slide && !needs.keeps_behind_windows;
  const int64_t n_windowed = drops ? std::ranges::count(config.window_layers, true) : 0;
  const int64_t n_layers = config.n_layers - n_windowed;
  const auto bytes_of = [&](int64_t n) {
    return static_cast<int64_t>(row_bytes(needs.kv_type, 2 * n * config.n_kv_heads * config.head_dim));
  };
  context.kv_budget = {.bytes = needs.kv_budget_bytes,
                       .bytes_per_token = bytes_of(n_layers),
                       .block = needs.prefill_block,
                       .lower_bytes = needs.lower_bytes,
                       .windowed_bytes_per_token = bytes_of(n_windowed)};
  if (needs.old_text.narrows()) {
    const int64_t chunk = default_kv_chunk(context.train_len);
    const KvGeometry narrow =
        narrow_geometry({config.n_kv_heads, config.head_dim, chunk, needs.kv_type}, needs.old_text);
    context.kv_budget.old_after = needs.old_text.after;
    context.kv_budget.old_bytes_per_token = ceil_div(n_layers * static_cast<int64_t>(kv_neutral_bytes(narrow)), chunk);
    context.kv_budget.spare_chunks = ChunkStore::kSpareChunks;
  }
  return context;
}

WindowLayers window_layers(const ModelConfig& config, const Strategy& strategy, bool keeps_all) {
  if (!strategy.window_layers()) return {};
  return {config.window_layers, config.sliding_window, keeps_all};
}

}  // namespace quire
