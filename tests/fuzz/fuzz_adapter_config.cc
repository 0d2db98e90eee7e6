// adapter_config.json of a LoRA adapter, and what it says of a module.
#include <cmath>

#include "lib/format/adapter_config.h"
#include "tests/fuzz/require.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire;
  const auto config =
      parse_adapter_config(std::string(reinterpret_cast<const char*>(data), size), "adapter_config.json");
  if (!config.ok()) {
    FUZZ_REQUIRE(config.status().code() == Code::kBadFile || config.status().code() == Code::kUnsupported);
    return 0;
  }
  const AdapterConfig& c = config.value();
  for (const char* module : {"model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj", "lm_head", "q_proj"}) {
    const auto rank = c.rank_of(module);
    const auto scale = c.scale_of(module);
    FUZZ_REQUIRE(rank.ok() ? rank.value() >= 1 : rank.status().code() == Code::kUnsupported);
    FUZZ_REQUIRE(scale.ok() ? std::isfinite(scale.value()) && scale.value() >= 0
                            : scale.status().code() == Code::kUnsupported);
    FUZZ_REQUIRE(!scale.ok() || rank.ok());
    (void)c.targets(module);
    (void)c.saves(module);
  }
  return 0;
}
