// config.json, and what the strategy parser makes of its RoPE scaling.
#include "lib/format/model_config.h"
#include "lib/model/strategy_context.h"
#include "lib/strategy/strategy.h"
#include "tests/fuzz/require.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire;
  const auto config = parse_model_config(std::string(reinterpret_cast<const char*>(data), size));
  if (!config.ok()) {
    FUZZ_REQUIRE(config.status().code() == Code::kBadFile || config.status().code() == Code::kUnsupported);
    return 0;
  }
  const ModelConfig& c = config.value();
  FUZZ_REQUIRE(c.n_layers > 0 && c.n_kv_heads > 0 && c.hidden_size > 0 && c.intermediate_size > 0);
  FUZZ_REQUIRE(c.head_dim > 0 && c.head_dim % 2 == 0 && c.n_query_heads % c.n_kv_heads == 0);
  FUZZ_REQUIRE(c.rms_norm_eps > 0 && c.rope_theta > 1 && c.max_position_embeddings > 0);
  FUZZ_REQUIRE(c.bos_token_ids.size() <= 1);
  for (const int32_t id : c.eos_token_ids) FUZZ_REQUIRE(id >= 0 && id < c.vocab_size);
  if (const BeaconSettings& beacon = c.beacon; beacon.window > 0) {
    FUZZ_REQUIRE(beacon.stride > 0 && beacon.stride <= beacon.window && !beacon.ratios.empty());
  }
  for (const int64_t expected : {0, 1000, 1 << 30}) {
    const StrategyContext context = strategy_context(c, {.expected_tokens = expected});
    (void)make_strategy("full", context).ok();
    (void)make_strategy("auto", context).ok();
    (void)make_strategy("beacon", context).ok();
  }
  return 0;
}
