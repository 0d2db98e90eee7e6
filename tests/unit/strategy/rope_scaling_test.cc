#include <gmock/gmock.h>

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

TEST(RopeScaling, OfTheCheckpointIsRefusedAsTheModelsFault) {
  for (const char* scaling : {"pi(factor=0.5)", "pi(", "warp(factor=2)", "pi(factor=2) + ntk(factor=2)"}) {
    StrategyContext context = trained_for(4096);
    context.checkpoint_scaling = scaling;
    const auto strategy = make_strategy("full", context);
    EXPECT_EQ(strategy.status().code(), Code::kBadModel) << scaling;
    EXPECT_THAT(strategy.status().message(), HasSubstr("checkpoint")) << scaling;
    EXPECT_TRUE(make_strategy("full + none", context).ok()) << scaling;
  }
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
  EXPECT_THAT(make_strategy("full + ntk(factor=4)", narrow).status().message(), HasSubstr("at least 4"));
}

}  // namespace
}  // namespace quire::test
