#include <gmock/gmock.h>

#include "lib/plan/text_positions.h"
#include "tests/unit/strategy/strategies.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

void expect_table(const RopeTable& table, const std::vector<double>& theta, double attention_factor) {
  ASSERT_EQ(table.theta.size(), theta.size());
  for (size_t a = 0; a < theta.size(); ++a) EXPECT_NEAR(table.theta[a] / theta[a], 1, 1e-8) << "pair " << a;
  EXPECT_NEAR(table.attention_factor, attention_factor, 1e-9);
}

RopeTable rope(const std::string& scaling, int64_t train_len, double theta = 10000) {
  StrategyContext context = trained_for(train_len);
  context.rope_theta = theta;
  return make("full + " + scaling, context)->rope();
}

// Heads of 8 dimensions, base 10000, factor 4.
TEST(RopeScaling, HasTheKnownFrequencies) {
  expect_table(make("full", 4096)->rope(), {1, 0.1, 0.01, 0.001}, 1);
  expect_table(rope("none", 4096), {1, 0.1, 0.01, 0.001}, 1);
  expect_table(rope("pi(factor=4)", 4096), {0.25, 0.025, 0.0025, 0.00025}, 1);
  expect_table(rope("ntk(factor=4)", 4096), {1, 0.0629960525, 0.0039685026, 0.00025}, 1);
  for (int64_t train_len : {2048, 4096}) {
    expect_table(rope("yarn(factor=4)", train_len), {1, 0.1, 0.00625, 0.00025}, 1.1386294361);
    expect_table(rope("yarn(factor=4, variant=pose)", train_len), {1, 0.1, 0.004, 0.00025}, 1.1386294361);
  }
  expect_table(rope("yarn(factor=4, truncate=0)", 4096), {1, 0.1, 0.0065569715, 0.00025}, 1.1386294361);
  expect_table(rope("yarn(factor=4, attention_factor=1)", 4096), {1, 0.1, 0.00625, 0.00025}, 1);
  expect_table(rope("dynamic_ntk(factor=4, length=16384)", 4096), {1, 0.0425290370, 0.0018087190, 7.6923077e-5}, 1);
  expect_table(rope("dynamic_ntk(factor=1, length=16384)", 4096), {1, 0.0629960525, 0.0039685026, 0.00025}, 1);
  expect_table(rope("dynamic_ntk(factor=2, length=8192)", 4096), {1, 0.0693361274, 0.0048074986, 1.0 / 3000}, 1);
  expect_table(rope("llama3(factor=8)", 8192, 5e5), {1, 0.0376060309, 5.24846161e-4, 6.64786987e-6}, 1);
  expect_table(rope("base(theta=2e8)", 8192, 5e5), {1, 0.00840896415, 7.07106781e-5, 5.94603558e-7}, 1);
}

TEST(RopeScaling, IsTheIdentityAtFactorOne) {
  for (const char* scaling : {"pi(factor=1)", "ntk(factor=1)", "yarn(factor=1)", "llama3(factor=1)"}) {
    expect_table(rope(scaling, 4096), {1, 0.1, 0.01, 0.001}, 1);
  }
}

TEST(RopeScaling, TakesTheOriginalLengthItIsGiven) {
  const RopeTable given = rope("yarn(factor=4, original=4096, truncate=0)", 65536);
  EXPECT_EQ(given.theta, rope("yarn(factor=4, truncate=0)", 4096).theta);
  EXPECT_NE(given.theta, rope("yarn(factor=4, truncate=0)", 65536).theta);
}

TEST(RopeScaling, StacksOnAnotherBase) {
  expect_table(rope("base(theta=10000) + pi(factor=4)", 4096, 5e5), {0.25, 0.025, 0.0025, 0.00025}, 1);
  expect_table(rope("pi(factor=4) + base(theta=10000)", 4096, 5e5), {0.25, 0.025, 0.0025, 0.00025}, 1);
}

TEST(RopeScaling, ExtendsTheReach) {
  const auto reach = [](const std::string& expression) { return make(expression, 4096)->reach(); };
  EXPECT_EQ(reach("full"), 4096);
  EXPECT_EQ(reach("full + none"), 4096);
  EXPECT_EQ(reach("full + base(theta=1e6)"), 4096);
  EXPECT_EQ(reach("full + pi(factor=4)"), 16384);
  EXPECT_EQ(reach("full + ntk(factor=1.5)"), 6144);
  EXPECT_EQ(reach("full + yarn(factor=4)"), 16384);
  EXPECT_EQ(reach("full + yarn(factor=4, original=1024)"), 4096);  // what train_len already contains
  EXPECT_EQ(reach("full + llama3(factor=8)"), 32768);
  EXPECT_EQ(reach("full(train_len=9000) + pi(factor=4)"), 9000);
  EXPECT_EQ(make("full + pi(factor=1e6)", int64_t{1} << 40)->reach(), int64_t{1} << 40);
}

TEST(RopeScaling, OfTheCheckpointAppliesUnlessAnotherIsNamed) {
  StrategyContext context = trained_for(16384);
  context.checkpoint_scaling = "pi(factor=4)";
  expect_table(make("full", context)->rope(), {0.25, 0.025, 0.0025, 0.00025}, 1);
  EXPECT_EQ(make("full", context)->reach(), 16384);  // max_position_embeddings is the extended length
  expect_table(make("full + none", context)->rope(), {1, 0.1, 0.01, 0.001}, 1);
  expect_table(make("full + pi(factor=2)", context)->rope(), {0.5, 0.05, 0.005, 0.0005}, 1);
  expect_table(make("full + base(theta=1e8)", context)->rope(), {0.25, 0.0025, 0.000025, 0.00000025}, 1);
  EXPECT_THAT(make("full", context)->canonical(), HasSubstr("+ pi(factor=4)"));
}

// Who names the scaling that the checkpoint has anyway asks for no other computation, so it reaches no further.
TEST(RopeScaling, OfTheCheckpointReachesAsFarWhenItIsNamed) {
  StrategyContext context = trained_for(2048);
  for (const char* scaling : {"pi(factor=4)", "ntk(factor=4)"}) {
    context.checkpoint_scaling = scaling;
    for (const char* visibility : {"full", "dca", "auto"}) {
      const auto own = make(visibility, context), named = make(std::string(visibility) + " + " + scaling, context);
      EXPECT_EQ(named->canonical(), own->canonical());
      EXPECT_EQ(named->reach(), own->reach());
    }
  }
  context.checkpoint_scaling = "pi(factor=4)";
  EXPECT_EQ(make("full + pi(factor=2)", context)->reach(), 4096);
  context.checkpoint_scaling = "yarn(factor=4, original=2048)";
  EXPECT_EQ(make("full + yarn(factor=4)", context)->reach(), 8192);
}

// PoSE's checkpoints say max_position_embeddings 16384, original_max_position_embeddings 4096.
TEST(RopeScaling, ExtendsTheLengthBeforeTheCheckpointsOwnExtension) {
  StrategyContext context = trained_for(16384);
  context.original_len = 4096;
  context.checkpoint_scaling = "yarn(factor=4, original=4096)";
  const RopeTable pose = make("full + yarn(factor=4, variant=pose)", context)->rope();
  expect_table(pose, {1, 0.1, 0.004, 0.00025}, 0.1 * std::log(4.0) + 1);
  for (const char* scaling : {"pi(factor=4)", "ntk(factor=4)", "yarn(factor=4, variant=pose)", "pi(factor=2)"}) {
    EXPECT_EQ(make(std::string("full + ") + scaling, context)->reach(), 16384) << scaling;
  }
  EXPECT_EQ(make("full + yarn(factor=8)", context)->reach(), 32768);
  context.checkpoint_scaling = "dynamic_ntk(factor=2)";
  context.expected_tokens = 8192;
  expect_table(make("full", context)->rope(), {1, 0.1, 0.01, 0.001}, 1);  // as transformers: within 16384
  expect_table(make("full + dynamic_ntk(factor=2)", context)->rope(), {1, 0.0693361274, 0.0048074986, 1.0 / 3000}, 1);
}

// PoSE's example: a window of 8 in 32, its second chunk moved on by 10.
TEST(RopeScaling, OfPositionsWithAGapAreThoseOfTheInterpolatedOnes) {
  const auto strategy = make("full + pi(factor=4)", 8);
  const int64_t positions[] = {0, 1, 2, 13, 14, 15, 16, 17};
  const double angles[] = {0, 0.25, 0.5, 3.25, 3.5, 3.75, 4, 4.25};
  TextPositions text;
  text.append(0, positions);
  Plan plan;
  strategy->plan(0, 8, plan);
  text.apply(plan);
  const Matrix distances = rows_of(plan, 8, 8);
  for (size_t i = 0; i < 8; ++i) EXPECT_DOUBLE_EQ(distances[i][0] * strategy->rope().theta[0], angles[i]);
}

TEST(RopeScaling, OfTheCheckpointIsRefusedAsTheModelsFault) {
  for (const char* scaling : {"pi(factor=0.5)", "pi(", "warp(factor=2)", "pi(factor=2) + ntk(factor=2)"}) {
    StrategyContext context = trained_for(4096);
    context.checkpoint_scaling = scaling;
    const auto strategy = make_strategy("full", context);
    EXPECT_EQ(strategy.status().code(), Code::kBadFile) << scaling;
    EXPECT_THAT(strategy.status().message(), HasSubstr("checkpoint")) << scaling;
    EXPECT_TRUE(make_strategy("full + none", context).ok()) << scaling;
  }
}

TEST(RopeScaling, OfDynamicNtkIsPlainUpToTheOriginalLength) {
  for (const char* scaling : {"dynamic_ntk(factor=2, length=1)", "dynamic_ntk(factor=2, length=4096)"}) {
    EXPECT_EQ(rope(scaling, 4096).theta, rope("none", 4096).theta);
  }
  EXPECT_EQ(rope("dynamic_ntk(factor=2, length=3000, original=1024)", 4096).theta,
            rope("dynamic_ntk(factor=2, length=3000)", 1024).theta);
}

StrategyContext expecting(int64_t expected_tokens, const std::string& checkpoint = "", int64_t train_len = 4096) {
  StrategyContext context = trained_for(train_len);
  context.expected_tokens = expected_tokens;
  context.checkpoint_scaling = checkpoint;
  return context;
}

TEST(RopeScaling, OfDynamicNtkTakesTheLengthTheSessionExpects) {
  const auto strategy = make("full + dynamic_ntk(factor=2)", expecting(8192));
  expect_table(strategy->rope(), {1, 0.0693361274, 0.0048074986, 1.0 / 3000}, 1);
  EXPECT_EQ(strategy->canonical(),
            "full(train_len=8192, kv_chunk=256) + dynamic_ntk(factor=2, length=8192, original=4096)");
  EXPECT_EQ(strategy->reach(), 8192);  // frozen: beyond, positions were not prepared for
  EXPECT_EQ(make("full + dynamic_ntk(factor=2)", expecting(100))->reach(), 4096);
  EXPECT_EQ(make("full + dynamic_ntk(factor=2, length=9000)", expecting(8192))->reach(), 9000);
  EXPECT_EQ(make("full + dynamic_ntk(factor=1e6)", expecting(INT64_MAX))->reach(), int64_t{1} << 40);
  EXPECT_THAT(make("dca + dynamic_ntk(factor=2)", expecting(8192))->canonical(), HasSubstr("cap=8191"));
}

TEST(RopeScaling, ThatNeedsALengthIsRefusedWithoutOne) {
  const auto named = make_strategy("full + dynamic_ntk(factor=2)", expecting(0));
  EXPECT_EQ(named.status().code(), Code::kBadStrategy);
  EXPECT_EQ(named.status().offset(), 7);
  EXPECT_THAT(named.status().message(), HasSubstr("give length=, or set expected_tokens"));
  for (const char* scaling : {"dynamic_ntk(factor=2)", "longrope(original=512, attention_factor=1)"}) {
    StrategyContext context = expecting(0, scaling);
    context.longrope = {{1, 1, 1, 1}, {2, 2, 2, 2}, 512, 1};
    const auto own = make_strategy("dca", context);
    EXPECT_EQ(own.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(own.status().message(), HasSubstr(std::string(scaling).substr(0, 20)));
    EXPECT_THAT(own.status().message(), HasSubstr("set expected_tokens, or name a scaling"));
    EXPECT_TRUE(make_strategy("dca + none", context).ok());
  }
}

TEST(RopeScaling, OfADynamicCheckpointExtendsItsTrainedLength) {
  const auto strategy = make("full", expecting(16384, "dynamic_ntk(factor=4)"));
  expect_table(strategy->rope(), {1, 0.0425290370, 0.0018087190, 7.6923077e-5}, 1);
  EXPECT_EQ(strategy->reach(), 16384);
  EXPECT_EQ(make("full", expecting(16, "dynamic_ntk(factor=4)"))->reach(), 4096);
}

TEST(RopeScaling, OfLongRopeTakesTheCheckpointsFactors) {
  StrategyContext context = expecting(512, "longrope(original=512, attention_factor=1.25)");
  context.longrope = {{1, 1.25, 2, 4}, {2, 4, 8, 16}, 512, 1.25};
  const auto near = make("full", context);
  expect_table(near->rope(), {1, 0.08, 0.005, 0.00025}, 1.25);
  EXPECT_EQ(near->reach(), 512);  // what the short factors are for
  context.expected_tokens = 513;
  const auto far = make("full", context);
  expect_table(far->rope(), {0.5, 0.025, 0.00125, 0.0000625}, 1.25);
  EXPECT_EQ(far->reach(), 4096);
  EXPECT_EQ(far->canonical(),
            "full(train_len=4096, kv_chunk=256) + longrope(length=513, original=512, attention_factor=1.25)");
  EXPECT_EQ(make(far->canonical(), context)->rope().theta, far->rope().theta);
  expect_table(make("full + longrope(length=512, attention_factor=1)", context)->rope(), {1, 0.08, 0.005, 0.00025}, 1);
  expect_table(make("full + longrope(original=513)", context)->rope(), {1, 0.08, 0.005, 0.00025}, 1.25);
}

TEST(RopeScaling, OfLongRopeIsRefusedWithoutACheckpointOfThatKind) {
  const auto strategy = make_strategy("full + longrope(length=4096)", trained_for(4096));
  EXPECT_EQ(strategy.status().code(), Code::kUnsupported);
  EXPECT_EQ(strategy.status().offset(), 7);
  EXPECT_THAT(strategy.status().message(), HasSubstr("come with a checkpoint"));
}

// How GGUF files carry the scaling of Llama 3.1: divisors, for texts of any length.
// Pairs of a head that do not turn come last, and count in no formula.
TEST(RopeScaling, OfAPartOfAHeadLeavesTheOtherPairs) {
  StrategyContext part = trained_for(4096), whole = trained_for(4096);
  part.head_dim = 16;
  part.rotary_dim = whole.head_dim = 12;
  part.freq_factors = whole.freq_factors = {1, 1, 2, 2, 4, 4};
  for (const char* scaling : {"none", "pi(factor=2)", "ntk(factor=2)", "yarn(factor=4)", "llama3(factor=4)",
                              "dynamic_ntk(factor=2, length=10000)", "freq_factors"}) {
    SCOPED_TRACE(scaling);
    const std::string expression = "full + " + std::string(scaling);
    const RopeTable a = make(expression, part)->rope(), b = make(expression, whole)->rope();
    ASSERT_EQ(a.theta.size(), 8u);
    EXPECT_EQ(std::vector<double>(a.theta.begin(), a.theta.begin() + 6), b.theta);
    EXPECT_EQ(a.theta[6], 0);
    EXPECT_EQ(a.theta[7], 0);
    EXPECT_EQ(a.attention_factor, b.attention_factor);
  }
  for (const int rotary_dim : {-2, 7, 18}) {
    part.rotary_dim = rotary_dim;
    const auto refused = make_strategy("full", part);
    EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(refused.status().message(), testing::HasSubstr("rotary_dim is " + std::to_string(rotary_dim)));
  }
}

TEST(RopeScaling, OfFreqFactorsDividesByTheCheckpointsList) {
  StrategyContext context = expecting(0, "freq_factors");
  context.freq_factors = {1, 1.25, 4, 8};
  const auto strategy = make("full", context);
  expect_table(strategy->rope(), {1, 0.08, 0.0025, 0.000125}, 1);
  EXPECT_EQ(strategy->canonical(), "full(train_len=4096, kv_chunk=256) + freq_factors");
  EXPECT_EQ(strategy->reach(), 4096);
  EXPECT_EQ(make(strategy->canonical(), context)->rope().theta, strategy->rope().theta);
  expect_table(make("full + freq_factors + base(theta=16)", context)->rope(), {1, 0.4, 0.0625, 0.015625}, 1);
  EXPECT_EQ(make("full + none", context)->rope().theta[3], 0.001);
  const auto without = make_strategy("full + freq_factors", trained_for(4096));
  EXPECT_EQ(without.status().code(), Code::kUnsupported);
  EXPECT_THAT(without.status().message(), HasSubstr("come with a GGUF file"));
  context.freq_factors = {1, 1, 1};
  EXPECT_THAT(make_strategy("full", context).status().message(),
              HasSubstr("a list of 3 frequency factors; expected 4"));
}

// Qwen's files ask for YaRN beside the trained length; files that were tuned with it have the longer one.
TEST(RopeScaling, OfAYarnCheckpointReachesItsOriginalLengthTimesTheFactor) {
  EXPECT_EQ(make("full", expecting(0, "yarn(factor=4, original=4096)"))->reach(), 16384);
  EXPECT_EQ(make("full", expecting(0, "yarn(factor=4, original=3000)", 5000))->reach(), 12000);
  EXPECT_EQ(make("full", expecting(0, "yarn(factor=4, original=1024)"))->reach(), 4096);
  EXPECT_EQ(make("full", expecting(0, "yarn(factor=2, original=1024)"))->reach(), 4096);
  EXPECT_EQ(make("full + none", expecting(0, "yarn(factor=4, original=4096)"))->reach(), 4096);
  EXPECT_EQ(make("full", expecting(0, "llama3(factor=32, original=1024)"))->reach(), 4096);
  EXPECT_EQ(make("full", expecting(0, "pi(factor=4)"))->reach(), 4096);
}

TEST(RopeScaling, RefusesValuesOutsideTheirRange) {
  struct Case {
    const char* scaling;
    int64_t column;  // counted from the scaling's first byte
    const char* message;
  };
  const Case cases[] = {
      {"pi", 0, "pi needs the argument factor="},
      {"pi(factor=0.5)", 10, "factor is '0.5'; expected a number from 1 to 1000000"},
      {"pi(factor=-4)", 10, "from 1 to 1000000"},
      {"pi(factor=1e7)", 10, "from 1 to 1000000"},
      {"pi(factor=1e999)", 10, "too large or too small"},
      {"pi(factor=nan)", 10, "factor is 'nan'"},
      {"pi(factor=inf)", 10, "factor is 'inf'"},
      {"ntk(theta=4)", 4, "ntk has no argument 'theta'; it takes factor"},
      {"none(factor=4)", 5, "none takes no arguments"},
      {"yarn(factor=4, original=0)", 24, "expected an integer from 1 to"},
      {"yarn(factor=4, original=1.5)", 24, "expected an integer from 1 to"},
      {"yarn(factor=4, beta_fast=1)", 25, "beta_fast > beta_slow"},
      {"yarn(factor=4, beta_slow=32)", 25, "beta_fast > beta_slow"},
      {"yarn(factor=4, attention_factor=0)", 32, "from 0.000001"},
      {"yarn(factor=4, variant=peng)", 23, "expected one of hf, pose"},
      {"yarn(factor=4, truncate=2)", 24, "expected an integer from 0 to 1"},
      {"llama3(factor=8, low=4)", 21, "low < high"},
      {"llama3(factor=8, high=1)", 22, "low < high"},
      {"dynamic_ntk(length=9)", 0, "needs the argument factor="},
      {"dynamic_ntk(factor=0.9, length=9)", 19, "from 1 to 1000000"},
      {"dynamic_ntk(factor=2, length=0)", 29, "expected an integer from 1 to"},
      {"dynamic_ntk(factor=2, original=0, length=9)", 31, "expected an integer from 1 to"},
      {"base(theta=1)", 11, "theta is '1'"},
      {"base", 0, "base needs the argument theta="},
  };
  const std::string before = "full + ";
  for (const Case& c : cases) {
    const auto strategy = make_strategy(before + c.scaling, trained_for(4096));
    ASSERT_FALSE(strategy.ok()) << c.scaling;
    EXPECT_EQ(strategy.status().code(), Code::kBadStrategy) << c.scaling;
    EXPECT_EQ(strategy.status().offset(), c.column + static_cast<int64_t>(before.size())) << c.scaling;
    EXPECT_THAT(strategy.status().message(), HasSubstr(c.message)) << c.scaling;
  }
  StrategyContext narrow = trained_for(4096);
  narrow.head_dim = 2;
  for (const char* expression : {"full + ntk(factor=4)", "full + dynamic_ntk(factor=4, length=9)"}) {
    EXPECT_THAT(make_strategy(expression, narrow).status().message(), HasSubstr("at least 4"));
  }
}

}  // namespace
}  // namespace quire::test
