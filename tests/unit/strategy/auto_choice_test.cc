#include <gmock/gmock.h>

#include "tests/unit/strategy/strategies.h"

namespace quire::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// A model of 2 kB a token, trained at 4096.
StrategyContext expecting(int64_t expected_tokens, int64_t budget_tokens = 0) {
  StrategyContext context = trained_for(4096);
  context.expected_tokens = expected_tokens;
  context.kv_budget = {budget_tokens * 2048, 2048, 256};
  return context;
}

void expect_choice(const StrategyContext& context, const std::string& visibility, const std::string& reason,
                   const std::string& expression = "auto") {
  const auto strategy = make(expression, context);
  EXPECT_THAT(strategy->canonical(), StartsWith(visibility));
  EXPECT_THAT(strategy->notice(),
              AllOf(StartsWith("auto chose " + strategy->canonical() + " because "), HasSubstr(reason)));
  // The canonical form says it all: no choice is left.
  const auto again = make(strategy->canonical(), context);
  EXPECT_EQ(again->canonical(), strategy->canonical());
  EXPECT_EQ(again->notice(), "");
}

TEST(Auto, ReadsShortTextsWithPlainAttention) {
  expect_choice(expecting(4096), "full(train_len=4096", "expected 4096 tokens are within the 4096 positions");
  expect_choice(expecting(1), "full(", "expected 1 tokens");
}

TEST(Auto, ReadsLongTextsWithDualChunkAttention) {
  expect_choice(expecting(4097), "dca(preset=paper, chunk=3072, cap=4095", "exceed the 4096 positions");
  expect_choice(expecting(INT64_MAX), "dca(", "exceed");
}

TEST(Auto, PreparesForTextsOfUnknownLength) {
  expect_choice(expecting(0), "dca(", "length of the text is not known");
  EXPECT_EQ(text_of(positions(*make("auto", 16), 16)), plain_rows(0, 16));
  EXPECT_EQ(make("auto", 16)->reach(), kNoLimit);
}

TEST(Auto, CountsTheScalingOfCheckpointAndExpression) {
  StrategyContext extended = expecting(4096);
  extended.checkpoint_scaling = "yarn(factor=4, original=1024)";
  expect_choice(extended, "full(train_len=4096, kv_chunk=256) + yarn(factor=4", "within the 4096");
  expect_choice(expecting(16384), "full(train_len=16384", "within the 16384", "auto + pi(factor=4)");
  expect_choice(expecting(16385), "dca(preset=paper, chunk=12288", "exceed the 16384",
                "auto + pi(factor=4) + base(theta=1e6)");
}

// Old text takes less in a narrower type; near text, and some chunks that became old, are kept in the other one.
TEST(Auto, CountsOldTextInItsType) {
  StrategyContext narrowing = expecting(100'000, 40'000);
  expect_choice(narrowing, "streaming_llm(", "exceed the KV budget");
  narrowing.kv_budget.old_after = 4096;
  narrowing.kv_budget.old_bytes_per_token = 640;
  narrowing.kv_budget.spare_chunks = 4;
  expect_choice(narrowing, "dca(", "exceed the 4096 positions");
  narrowing.kv_budget.bytes = 30'000 * 2048;  // less than old_bytes_per_token for each of them
  expect_choice(narrowing, "streaming_llm(", "exceed the KV budget");
  narrowing = expecting(3000, 3072);
  narrowing.kv_budget.old_after = 1024;
  narrowing.kv_budget.old_bytes_per_token = 640;
  narrowing.kv_budget.spare_chunks = 4;
  expect_choice(narrowing, "streaming_llm(", "exceed the KV budget");  // some are kept in both types
}

TEST(Auto, ChoosesChunksWhereMemoryMaySpill) {
  StrategyContext spilling = expecting(100'000, 10'000);
  expect_choice(spilling, "streaming_llm(", "exceed the KV budget");
  spilling.kv_budget.lower_bytes = kNoLimit;
  expect_choice(spilling, "longheads(chunk=256, chunks=16", "may go to a slower tier");
  spilling.kv_budget.lower_bytes = 90'112 * 2048;  // 100'096 tokens are whole chunks
  expect_choice(spilling, "longheads(chunk=256, chunks=16", "may go to a slower tier");
  spilling.kv_budget.lower_bytes = 90'000 * 2048;
  expect_choice(spilling, "streaming_llm(", "exceed the KV budget");
  spilling.kv_budget.lower_bytes = kNoLimit;
  spilling.sliding_window = 1024;  // and then it fits
  expect_choice(spilling, "full(", "sliding window");
}

TEST(Auto, LetsADynamicCheckpointExtendOrStop) {
  StrategyContext dynamic = expecting(9000);
  dynamic.checkpoint_scaling = "dynamic_ntk(factor=2)";
  expect_choice(dynamic, "full(train_len=9000, kv_chunk=256) + dynamic_ntk(factor=2, length=9000", "within the 9000");
  dynamic.expected_tokens = 0;  // plain RoPE, and dca beyond it
  expect_choice(dynamic, "dca(", "not known");
  EXPECT_EQ(make("auto", dynamic)->rope().theta, make("full + none", dynamic)->rope().theta);
  EXPECT_EQ(make_strategy("auto + dynamic_ntk(factor=2)", dynamic).status().code(), Code::kBadStrategy);
  StrategyContext longrope = expecting(0);
  longrope.checkpoint_scaling = "longrope(original=512, attention_factor=1)";
  longrope.longrope = {{1, 1, 1, 1}, {2, 2, 2, 2}, 512, 1};
  expect_choice(longrope, "dca(preset=paper, chunk=3072, cap=4095", "not known");
  EXPECT_EQ(make("auto", longrope)->rope().theta[0], 0.5);
}

TEST(Auto, CondensesWhereTheModelHasBeacons) {
  StrategyContext context = trained_for(4096);
  context.beacon.emplace();
  context.expected_tokens = 20000;
  EXPECT_THAT(make("auto", context)->canonical(),
              StartsWith("beacon(window=1024, stride=1024, attn=step_expansion, ratio=8"));
  context.sliding_window = 32;
  context.some_layers_slide = true;  // which beacon refuses
  EXPECT_THAT(make("auto", context)->canonical(), StartsWith("dca("));
  context.some_layers_slide = false;
  context.sliding_window = 0;
  context.beacon_only_by_name = true;
  EXPECT_THAT(make("auto", context)->canonical(), StartsWith("dca("));
  EXPECT_THAT(make("beacon", context)->canonical(), StartsWith("beacon("));
  context.beacon_only_by_name = false;
  context.expected_tokens = 4096;
  EXPECT_THAT(make("auto", context)->canonical(), StartsWith("full("));
  context.expected_tokens = 0;  // no ratio can be chosen
  EXPECT_THAT(make("auto", context)->canonical(), StartsWith("dca("));
}

TEST(Auto, DoesAsTheCheckpointAsks) {
  StrategyContext context = expecting(1000);
  context.train_len = 1010000;
  context.dual_chunk = {262144, 8192, 262144};
  expect_choice(context,
                "dca(preset=vllm, chunk=253952, cap=262144, logit_scale=yarn_0.1, train_len=262144, kv_chunk=256)",
                "dual_chunk_attention_config");
  context.dual_chunk.original = 0;
  expect_choice(context, "dca(preset=vllm, chunk=253952, cap=262144, logit_scale=none, train_len=262144",
                "dual_chunk_attention_config");
  expect_choice(context, "full(", "within", "auto + pi(factor=2)");  // the caller knows better
  context.dual_chunk = {10, 9, 0};
  const auto nonsense = make_strategy(" auto", context);
  EXPECT_EQ(nonsense.status().code(), Code::kBadStrategy);
  EXPECT_EQ(nonsense.status().offset(), 1);
  EXPECT_THAT(nonsense.status().message(), HasSubstr("the checkpoint asks for it"));
}

TEST(Auto, LeavesAWindowedModelItsWindow) {
  StrategyContext mistral = expecting(0);
  mistral.sliding_window = 1024;
  expect_choice(mistral, "full(", "own sliding window of 1024 tokens");
  mistral.expected_tokens = 1 << 20;
  expect_choice(mistral, "full(", "own sliding window");
  mistral.sliding_window = 100000;  // longer than the model was trained for
  expect_choice(mistral, "streaming_llm(", "exceed the 4096");
  mistral.expected_tokens = 4000;
  expect_choice(mistral, "full(", "within the 4096");
}

TEST(Auto, KeepsWithinTheBudget) {
  expect_choice(expecting(8192, 8192), "dca(", "exceed the 4096");
  expect_choice(expecting(8192, 8191), "streaming_llm(sinks=4, recent=4091", "tokens exceed the KV budget of 16775168");
  expect_choice(expecting(3000, 2999), "streaming_llm(sinks=4, recent=1975", "3000 tokens exceed");
  expect_choice(expecting(8192, 800), "streaming_llm(sinks=4, recent=496", "8192 tokens exceed");
  EXPECT_THAT(make("auto", expecting(8192, 800))->canonical(), HasSubstr("kv_chunk=16"));
  expect_choice(expecting(0, 4096), "dca(", "not known");  // the text may turn out to fit
  const auto none = make_strategy("auto", expecting(8192, 304));
  EXPECT_EQ(none.status().code(), Code::kBudget);
  EXPECT_THAT(none.status().message(), AllOf(HasSubstr("622592 bytes"), HasSubstr(std::to_string(305 * 2048))));
  EXPECT_TRUE(make_strategy("auto", expecting(8192, 305)).ok());
}

TEST(Auto, KeepsAWindowedModelWithinTheBudget) {
  StrategyContext mistral = expecting(0, 2000);
  mistral.sliding_window = 2048;
  expect_choice(mistral, "streaming_llm(sinks=4, recent=976", "KV budget");
  EXPECT_THAT(make("auto", mistral)->canonical(), HasSubstr("ignore_window=1"));
  mistral.kv_budget.bytes = 2816 * 2048;  // the window, a block and two chunk edges
  expect_choice(mistral, "full(", "own sliding window");
}

// Layers with a window take what it needs, however long the text; the others have the rest of the budget.
TEST(Auto, CountsLayersThatDropWhatLiesBehindTheirWindowApart) {
  StrategyContext gemma = expecting(8192, 8192);
  gemma.sliding_window = 512;
  gemma.some_layers_slide = true;
  gemma.kv_budget.windowed_bytes_per_token = 5 * 2048;
  const auto windowed = [](int64_t chunk) { return (512 + 256 + 2 * chunk) * 5 * 2048; };  // a block, two chunk edges
  gemma.kv_budget.bytes = 8192 * 2048 + windowed(256);
  expect_choice(gemma, "dca(", "exceed the 4096");
  StrategyContext endless = gemma;
  endless.expected_tokens = INT64_MAX;
  expect_choice(endless, "streaming_llm(sinks=4, recent=4091", "tokens exceed the KV budget");
  endless.sliding_window = int64_t{1} << 50;
  EXPECT_EQ(make_strategy("auto", endless).status().code(), Code::kBudget);
  --gemma.kv_budget.bytes;
  expect_choice(gemma, "streaming_llm(sinks=4, recent=4091", "tokens exceed the KV budget");
  gemma.kv_budget.bytes = 305 * 2048 + windowed(16);
  expect_choice(gemma, "streaming_llm(sinks=4, recent=1,", "tokens exceed the KV budget");
  --gemma.kv_budget.bytes;
  const auto none = make_strategy("auto", gemma);
  EXPECT_EQ(none.status().code(), Code::kBudget);
  EXPECT_THAT(none.status().message(), HasSubstr(std::to_string(305 * 2048 + windowed(16))));
}

TEST(Auto, HasAnAnswerForTheSmallestModels) {
  for (int64_t train_len : {1, 2, 3, 5}) {
    for (int64_t expected : {0, 1, 2, 100}) {
      StrategyContext context = expecting(expected);
      context.train_len = train_len;
      EXPECT_NE(make("auto", context)->notice(), "") << train_len;
    }
  }
}

TEST(Auto, IsTheOnlyOneToGiveNotice) {
  for (const char* expression : {"full", "dca", "streaming_llm"}) EXPECT_EQ(make(expression, 4096)->notice(), "");
}

}  // namespace
}  // namespace quire::test
