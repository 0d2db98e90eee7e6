// An estimate measures a session of its own, and leaves nothing behind.

#include "lib/session/estimate.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

class Estimate : public testing::Test {
 protected:
  Result<RateEstimate> estimate(const SessionOptions& options, int64_t n_tokens) const {
    return estimate_rates(model_, options, n_tokens);
  }
  std::shared_ptr<Model> model_ = load("short_128");
};

TEST_F(Estimate, EveryKindOfStrategy) {
  for (const char* strategy : {"full", "dca", "longheads(chunk=16, chunks=4)", "streaming_llm(sinks=4, recent=60)",
                               "rerope", "dca_topk(chunk=16, chunks=6, sticky=2)"}) {
    SCOPED_TRACE(strategy);
    auto made = estimate(with_strategy(strategy), 2000);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_GT(made->rates.prefill_seconds, 0);
    EXPECT_GT(made->rates.decode_token_seconds, 0);
    EXPECT_EQ(made->rates.decode_token_cold_seconds, made->rates.decode_token_seconds);
    EXPECT_EQ(made->measured_tokens, 2000);
    EXPECT_EQ(made->tier_read_rate, 0);
  }
}

TEST(KeysSeen, AreTheMeanOverLayersWithAWindowAndWithout) {
  const auto model = load("qwen2_window_layers");  // a window of 40 in two of four layers
  const ModelConfig& config = model->llama->config();
  const auto seen = [&](const char* expression, int64_t query) {
    return keys_seen(*take(choose_strategy(*model, with_strategy(expression))), config, query, false);
  };
  EXPECT_EQ(seen("full", 99), (100 + 40) / 2.0);
  EXPECT_EQ(seen("full", 20), 21);
  EXPECT_EQ(seen("full(ignore_window=1)", 99), 100);
  EXPECT_EQ(seen("streaming_llm(sinks=2, recent=7)", 99), (10 + 40) / 2.0);
}

TEST_F(Estimate, TextsLongerThanItMeasures) {
  auto made = estimate(with_strategy("dca"), int64_t{1} << 30);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_LT(made->measured_tokens, int64_t{1} << 20);
  EXPECT_GT(made->rates.prefill_seconds, made->seconds);
}

TEST_F(Estimate, OneToken) {
  auto made = estimate(with_strategy("full"), 1);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(made->measured_tokens, 1);
}

TEST_F(Estimate, LowerTiersAreTried) {
  SessionOptions options = with_strategy("longheads(chunk=16, chunks=4)");
  options.kv_budget_bytes = 100'000;
  options.spill_directory = testing::TempDir();
  auto file = estimate(options, 5000);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_GT(file->tier_read_rate, 0);
  EXPECT_GT(file->rates.decode_token_cold_seconds, file->rates.decode_token_seconds);
  options.compressed_budget_bytes = 1 << 20;
  auto both = estimate(options, 5000);
  ASSERT_TRUE(both.ok()) << both.status().message();
  options.spill_directory.clear();
  auto compressed = estimate(options, 5000);
  ASSERT_TRUE(compressed.ok()) << compressed.status().message();
  EXPECT_GT(compressed->tier_read_rate, 0);
}

TEST_F(Estimate, RefusesWhatASessionRefuses) {
  EXPECT_EQ(estimate(with_strategy("fool"), 100).status().code(), Code::kBadStrategy);
  SessionOptions options = with_strategy("full");
  options.spill_directory = "/no such directory";
  EXPECT_EQ(estimate(options, 100).status().code(), Code::kNotFound);
}

TEST_F(Estimate, LeavesNoMemoryBehind) {
  const auto& budget = *model_->residency->budget();
  const int64_t before = budget.used();
  ASSERT_TRUE(estimate(with_strategy("full"), 300).ok());
  EXPECT_EQ(budget.used(), before);
}

TEST_F(Estimate, ARuntimeWithoutMemoryForIt) {
  RuntimeOptions tight;
  tight.kv_memory_bytes = 1000;
  auto made = estimate_rates(load("short_128", tight), with_strategy("full"), 300);
  EXPECT_EQ(made.status().code(), Code::kBudget) << made.status().message();
}

TEST_F(Estimate, AClosedRuntime) {
  model_->runtime->close();
  EXPECT_EQ(estimate(with_strategy("full"), 300).status().code(), Code::kClosed);
}

}  // namespace
}  // namespace quire::test
