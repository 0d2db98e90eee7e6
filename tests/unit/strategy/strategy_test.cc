#include "lib/strategy/strategy.h"

#include <gmock/gmock.h>

#include <random>

#include "tests/unit/strategy/strategies.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

TEST(Strategy, WritesEveryDefaultIntoTheCanonicalForm) {
  const auto canonical = [](const std::string& expression) { return make(expression, 4096)->canonical(); };
  EXPECT_EQ(canonical("full"), "full(train_len=4096, kv_chunk=256) + none");
  EXPECT_EQ(canonical(" dca+pi( factor = 4.0 ) "),
            "dca(preset=paper, chunk=12288, cap=16383, logit_scale=none, train_len=16384, kv_chunk=256)"
            " + pi(factor=4)");
  EXPECT_EQ(canonical("streaming_llm(recent=100) + base(theta=2e8)"),
            "streaming_llm(sinks=4, recent=100, train_len=4096, kv_chunk=256) + none + base(theta=200000000)");
  EXPECT_EQ(canonical("full(kv_chunk=64) + base(theta=5e5) + llama3(factor=8)"),
            "full(train_len=32768, kv_chunk=64) + llama3(factor=8, low=1, high=4, original=4096)"
            " + base(theta=500000)");
  EXPECT_EQ(canonical("full + yarn(factor=2, attention_factor=1.25)"),
            "full(train_len=8192, kv_chunk=256) + yarn(factor=2, original=4096, beta_fast=32, beta_slow=1, "
            "attention_factor=1.25, variant=hf, truncate=1)");
}

// Scalings and a base without a visibility go with full attention.
TEST(Strategy, TakesFullForAMissingVisibility) {
  EXPECT_EQ(make("pi(factor=4)", 4096)->canonical(), "full(train_len=16384, kv_chunk=256) + pi(factor=4)");
  EXPECT_EQ(make("none", 4096)->canonical(), "full(train_len=4096, kv_chunk=256) + none");
  EXPECT_EQ(make("base(theta=5e5)", 4096)->canonical(),
            "full(train_len=4096, kv_chunk=256) + none + base(theta=500000)");
  StrategyContext context = trained_for(4096);
  context.longrope = {{1, 1, 1, 1}, {2, 2, 2, 2}, 1024, 1.25};
  for (const char* checkpoint : {"", "pi(factor=2)"}) {
    context.checkpoint_scaling = checkpoint;
    for (const char* alone :
         {"none", "pi(factor=4)", "ntk(factor=2)", "yarn(factor=8)", "llama3(factor=8)",
          "dynamic_ntk(factor=2, length=9000)", "longrope(length=4000)", "base(theta=1e6)",
          "base(theta=1e6) + pi(factor=4)", "pi(factor=4) + base(theta=1e6)", " none + base ( theta = 2e4 )"}) {
      const auto one = make(alone, context), two = make(std::string("full + ") + alone, context);
      EXPECT_EQ(one->canonical(), two->canonical());
      EXPECT_EQ(one->reach(), two->reach());
      EXPECT_EQ(one->rope().theta, two->rope().theta);
      EXPECT_EQ(one->names_frequencies(), two->names_frequencies()) << alone;
    }
  }
}

TEST(Strategy, ReadsItsCanonicalFormBackAsTheSame) {
  for (int64_t train_len : {2, 3, 17, 256, 4096, 131072}) {
    for (const char* checkpoint : {"", "pi(factor=4)", "yarn(factor=3.7, original=1000)"}) {
      StrategyContext context = trained_for(train_len);
      context.checkpoint_scaling = checkpoint;
      for (const char* visibility : {"full", "full(train_len=77)", "dca", "dca(chunk=2)", "dca(preset=vllm, local=0)",
                                     "dca(preset=chunkllama, logit_scale=yarn_0.1)", "streaming_llm",
                                     "streaming_llm(sinks=0)", "auto", "full(ignore_window=1)"}) {
        for (const char* scaling :
             {"", " + none", " + pi(factor=1.1)", " + ntk(factor=8)", " + yarn(factor=7.3)", " + llama3(factor=8)",
              " + dynamic_ntk(factor=2.5, length=9999)", " + base(theta=123456.789)",
              " + yarn(factor=4, variant=pose, truncate=0) + base(theta=1e6)"}) {
          const std::string expression = std::string(visibility) + scaling;
          const auto first = make_strategy(expression, context);
          if (!first.ok()) continue;  // dca(chunk=2) of a model for two tokens, say
          const Strategy& one = *first.value();
          const auto two = make(one.canonical(), context);
          EXPECT_EQ(two->canonical(), one.canonical());
          EXPECT_EQ(two->reach(), one.reach());
          EXPECT_EQ(two->kv_chunk(), one.kv_chunk());
          EXPECT_EQ(two->rope().theta, one.rope().theta);
          EXPECT_EQ(two->rope().attention_factor, one.rope().attention_factor);
          EXPECT_EQ(text_of(positions(*two, 40)), text_of(positions(one, 40)));
          // Every choice is in the text: the checkpoint's scaling no longer matters.
          EXPECT_EQ(make(one.canonical(), train_len)->canonical(), one.canonical());
        }
      }
    }
  }
}

TEST(Strategy, DerivesTheStoredChunkFromTheTrainedLength) {
  const auto chunk = [](const char* expression, int64_t train_len) { return make(expression, train_len)->kv_chunk(); };
  EXPECT_EQ(chunk("full", 1), 16);
  EXPECT_EQ(chunk("full", 64), 16);
  EXPECT_EQ(chunk("full", 256), 64);
  EXPECT_EQ(chunk("full", 300), 64);
  EXPECT_EQ(chunk("full", 1024), 256);
  EXPECT_EQ(chunk("full", 131072), 256);
  EXPECT_EQ(chunk("full + pi(factor=4)", 256), 256);
  EXPECT_EQ(chunk("full(kv_chunk=48)", 256), 48);
  EXPECT_EQ(make("full", 256)->stored_div(), 1);
  for (const char* bad : {"full(kv_chunk=0)", "full(kv_chunk=20)", "full(kv_chunk=65552)", "full(kv_chunk=big)"}) {
    const auto strategy = make_strategy(bad, trained_for(4096));
    EXPECT_EQ(strategy.status().code(), Code::kBadStrategy) << bad;
    EXPECT_EQ(strategy.status().offset(), 14) << bad;
  }
}

struct Refusal {
  const char* expression;
  Code code;
  int64_t column;
  const char* message;
};

TEST(Strategy, RefusesWhatItDoesNotKnow) {
  const Refusal cases[] = {
      {"", Code::kBadStrategy, 0, "expected the name of a method"},
      {"ful", Code::kBadStrategy, 0,
       "unknown method 'ful'; expected one of full, beacon, dca, dca_topk, lm_infinite, long_mixed, longheads, rerope, "
       "s2"},
      {"FULL", Code::kBadStrategy, 0, "unknown method 'FULL'"},
      {"full + linear(factor=2)", Code::kBadStrategy, 7,
       "unknown method 'linear'; expected one of none, pi, ntk, yarn, llama3, dynamic_ntk, longrope, freq_factors, "
       "base"},
      {"linear(factor=2)", Code::kBadStrategy, 0, "or for full attention one of none, pi, ntk, yarn, llama3"},
      {"pi(factor=2) + dca", Code::kBadStrategy, 15, "'dca' is a visibility and must come first; here expected one of"},
      {"base(theta=1e6) + none + auto", Code::kBadStrategy, 25, "'auto' is a visibility and must come first"},
      {"pi(factor=2) + linear", Code::kBadStrategy, 15, "unknown method 'linear'; expected one of none, pi"},
      {"pi(factor=0.5)", Code::kBadStrategy, 10, "factor is '0.5'; expected a number from 1"},
      {"none + base(theta=0)", Code::kBadStrategy, 18, "theta is '0'"},
      {"longrope", Code::kUnsupported, 0, "its factors come with a checkpoint"},
      {"dynamic_ntk(factor=2)", Code::kBadStrategy, 0, "give length="},
      {"pi(factor=2) + yarn(factor=2)", Code::kUnsupported, 15, "'yarn' after 'pi'"},
      {"base(theta=1e6) + base(theta=1e6)", Code::kUnsupported, 18, "'base' after 'base'"},
      {"dca(chnk=3)", Code::kBadStrategy, 4, "dca has no argument 'chnk'; it takes preset, chunk, cap"},
      {"full(sinks=3)", Code::kBadStrategy, 5, "full has no argument 'sinks'"},
      {"auto(chunk=3)", Code::kBadStrategy, 5, "auto takes no arguments, found 'chunk'"},
      {"full + auto", Code::kUnsupported, 7, "'auto' is the second visibility"},
      {"full(ignore_window=2)", Code::kBadStrategy, 19, "expected an integer from 0 to 1"},
      {"dca(chunk=3, chunk=4)", Code::kBadStrategy, 13, "'chunk' is given twice"},
      {"dca(chunk=three)", Code::kBadStrategy, 10, "chunk is 'three'; expected an integer"},
      {"dca(chunk=3.0)", Code::kBadStrategy, 10, "chunk is '3.0'; expected an integer"},
      {"dca(chunk=99999999999999999999)", Code::kBadStrategy, 10, "expected an integer from 1 to 4096"},
      {"dca(preset=7)", Code::kBadStrategy, 11, "preset is '7'; expected one of paper"},
      {"full(train_len=0)", Code::kBadStrategy, 15, "expected an integer from 1"},
      {"full(train_len=1099511627777)", Code::kBadStrategy, 15, "to 1099511627776"},
      {"full + dca", Code::kUnsupported, 7, "'dca' is the second visibility"},
      {"full + pi(factor=2) + yarn(factor=2)", Code::kUnsupported, 22, "'yarn' after 'pi'"},
      {"full + none + pi(factor=2)", Code::kUnsupported, 14, "'pi' after 'none'"},
      {"full + base(theta=1e6) + base(theta=1e6)", Code::kUnsupported, 25, "'base' after 'base'"},
  };
  for (const Refusal& c : cases) {
    const auto strategy = make_strategy(c.expression, trained_for(4096));
    ASSERT_FALSE(strategy.ok()) << c.expression;
    EXPECT_EQ(strategy.status().code(), c.code) << c.expression;
    EXPECT_EQ(strategy.status().offset(), c.column) << c.expression << ": " << strategy.status().message();
    EXPECT_THAT(strategy.status().message(), HasSubstr(c.message)) << c.expression;
    EXPECT_THAT(strategy.status().message(), HasSubstr("byte " + std::to_string(c.column))) << c.expression;
  }
}

TEST(Strategy, RefusesAContextThatIsNoModel) {
  const auto code = [](void (*damage)(StrategyContext&)) {
    StrategyContext context = trained_for(4096);
    damage(context);
    return make_strategy("full", context).status().code();
  };
  EXPECT_EQ(code([](StrategyContext& c) { c.train_len = 0; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](StrategyContext& c) { c.train_len = INT64_MAX; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](StrategyContext& c) { c.head_dim = 7; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](StrategyContext& c) { c.head_dim = 0; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](StrategyContext& c) { c.rope_theta = 1; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](StrategyContext& c) { c.rope_theta = std::nan(""); }), Code::kInvalidArgument);
  EXPECT_EQ(code([](StrategyContext& c) { c.longrope = {{1, 1, 1, 1}, {1, 1, 1}, 64, 1}; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](StrategyContext& c) {
              c.longrope = {{1, 1, 1, 1, 1}, {1, 1, 1, 1}, 64, 1};
            }),
            Code::kInvalidArgument);
}

// Pieces of real expressions in any order: always an answer, and an offset inside the text.
TEST(Strategy, AnswersAnyText) {
  const std::vector<std::string> pieces = {"full",        "dca",      "streaming_llm",
                                           "pi",          "yarn",     "auto",
                                           "dynamic_ntk", "longrope", "length",
                                           "base",        "(",        ")",
                                           ",",           "=",        "+",
                                           " ",           "chunk",    "cap",
                                           "factor",      "theta",    "train_len",
                                           "4",           "1e3",      "-1",
                                           "0.5",         "9e99",     "99999999999999999999",
                                           "nan",         "\xFF",     "local",
                                           "preset",      "vllm",     "sinks",
                                           "(factor=4)",  "(chunk=8", ", cap=9)",
                                           " + "};
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (auto n = random() % 12; n > 0; --n) text += pieces[random() % pieces.size()];
    const auto strategy = make_strategy(text, trained_for(1 + static_cast<int64_t>(random() % 40)));
    if (strategy.ok()) continue;
    const Status status = strategy.status();
    ASSERT_TRUE(status.code() == Code::kBadStrategy || status.code() == Code::kUnsupported) << text;
    ASSERT_TRUE(status.offset() >= 0 && status.offset() <= static_cast<int64_t>(text.size())) << text;
  }
}

}  // namespace
}  // namespace quire::test
