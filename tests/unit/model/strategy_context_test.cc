// What a strategy knows of a model that came in a GGUF file.
#include "lib/model/strategy_context.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "lib/format/gguf_config.h"

namespace quire {
namespace {

// A Llama 3.1 of heads of 16, and what a session of 100 tokens runs it with.
struct Llama31 {
  Llama31() {
    header.metadata["general.architecture"] = GgufValue(std::string("llama"));
    const std::pair<const char*, int64_t> numbers[] = {{"block_count", 1},          {"context_length", 131072},
                                                       {"embedding_length", 64},    {"feed_forward_length", 64},
                                                       {"attention.head_count", 4}, {"vocab_size", 100}};
    for (const auto& [key, number] : numbers) header.metadata["llama." + std::string(key)] = GgufValue(number);
    header.metadata["llama.attention.layer_norm_rms_epsilon"] = GgufValue(1e-5);
    header.metadata["llama.rope.freq_base"] = GgufValue(500000.0);
  }
  std::unique_ptr<const Strategy> strategy(const std::string& expression, const std::vector<float>& factors) const {
    const auto config =
        gguf_model_config(header, factors.empty() ? GgufRopeTensors() : GgufRopeTensors{{kGgufRopeFreqs, factors}});
    EXPECT_TRUE(config.ok()) << config.status().message();
    auto made = make_strategy(expression, strategy_context(config.value(), {.expected_tokens = 100}));
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(made.value());
  }
  GgufHeader header;
};

// Converters compute the divisors of Llama 3.1's scaling by its formula and store them as f32.
TEST(StrategyContext, RopeFreqsOfGgufAreTheScalingOfLlama31) {
  std::vector<float> factors;
  for (int a = 0; a < 8; ++a) {
    const double wavelength = 2 * std::numbers::pi * std::pow(500000.0, a / 8.0);
    const double smooth = std::clamp((8192 / wavelength - 1) / (4 - 1), 0.0, 1.0);
    factors.push_back(static_cast<float>(1 / ((1 - smooth) / 8 + smooth)));
  }
  const Llama31 model;
  const auto stored = model.strategy("full", factors);
  const auto formula = model.strategy("full + llama3(factor=8, low=1, high=4, original=8192)", factors);
  const auto plain = model.strategy("full", {});
  EXPECT_EQ(stored->canonical(), "full(train_len=131072, kv_chunk=256) + freq_factors");
  for (size_t a = 0; a < 8; ++a) {
    EXPECT_NEAR(stored->rope().theta[a], formula->rope().theta[a], 1e-7 * formula->rope().theta[a]) << a;
  }
  EXPECT_NE(stored->rope().theta, plain->rope().theta);
  EXPECT_EQ(stored->rope().attention_factor, 1);
  EXPECT_EQ(stored->reach(), 131072);
}

TEST(StrategyContext, YarnOfGgufReachesFurtherThanTheContextLength) {
  Llama31 model;
  model.header.metadata["llama.context_length"] = GgufValue(int64_t{32768});
  model.header.metadata["llama.rope.scaling.type"] = GgufValue(std::string("yarn"));
  model.header.metadata["llama.rope.scaling.factor"] = GgufValue(4.0);
  const auto strategy = model.strategy("full", {});
  EXPECT_EQ(strategy->reach(), 131072);
  EXPECT_NEAR(strategy->rope().attention_factor, 0.1 * std::log(4) + 1, 1e-12);
}

}  // namespace
}  // namespace quire
