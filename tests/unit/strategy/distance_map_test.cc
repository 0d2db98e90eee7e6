// rerope, self_extend and lm_infinite: distances that stop growing, or grow slowly.
#include <gmock/gmock.h>

#include "tests/unit/strategy/strategies.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

TEST(ReRope, ClipsDistancesAtItsWindow) {  // G-RR
  const Matrix matrix = positions(*make("rerope(window=3)", 16), 8);
  EXPECT_EQ(text_of({matrix[7]}), "3 3 3 3 3 2 1 0\n");
  EXPECT_EQ(text_of({matrix[4]}), "3 3 2 1 0\n");
}

TEST(ReRope, LetsDistancesLeak) {
  const auto strategy = make("rerope(window=4, leaky=2)", 8);
  EXPECT_EQ(text_of({positions(*strategy, 11)[10]}), "7 6.5 6 5.5 5 4.5 4 3 2 1 0\n");
  EXPECT_EQ(strategy->reach(), 11);  // where the largest distance is L - 1
}

TEST(ReRope, ScalesLogitsWithTheLogarithmOfTheLength) {
  Plan plan;
  make("rerope(window=4)", 16)->plan(14, 6, plan);
  ASSERT_EQ(plan.query_scale.size(), 6u);
  EXPECT_EQ(plan.query_scale[0], 1);
  EXPECT_EQ(plan.query_scale[1], 1);  // i + 1 = L
  EXPECT_FLOAT_EQ(plan.query_scale[5], static_cast<float>(std::log(20.0) / std::log(16.0)));
  plan.clear();
  make("rerope(window=4, log_n=0)", 16)->plan(14, 6, plan);
  EXPECT_TRUE(plan.query_scale.empty());
}

TEST(ReRope, EqualsPlainAttentionUpToItsWindow) {
  for (int64_t window = 1; window < 16; ++window) {
    const auto strategy = make("rerope(window=" + std::to_string(window) + ")", 16);
    EXPECT_EQ(text_of(positions(*strategy, window + 1)), plain_rows(0, window + 1));
    EXPECT_NE(text_of(positions(*strategy, window + 2)), plain_rows(0, window + 2));
  }
}

TEST(SelfExtend, GroupsPositionsBehindItsWindow) {
  const auto strategy = make("self_extend(group=3, window=4)", 16);
  const Matrix matrix = positions(*strategy, 12);
  for (int64_t i = 0; i < 12; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      const int64_t expected = i - j < 4 ? i - j : i / 3 + 4 - 4 / 3 - j / 3;
      EXPECT_EQ(matrix[static_cast<size_t>(i)][static_cast<size_t>(j)], expected) << i << " " << j;
    }
  }
  EXPECT_EQ(text_of({matrix[11]}), "6 6 6 5 5 5 4 4 3 2 1 0\n");
}

TEST(SelfExtend, EndsWhereGroupedDistancesWouldLeaveTheTrainedOnes) {
  for (int64_t group = 2; group < 6; ++group) {
    for (int64_t window = 1; window < 16; ++window) {
      const auto strategy =
          make("self_extend(group=" + std::to_string(group) + ", window=" + std::to_string(window) + ")", 16);
      const int64_t reach = strategy->reach();
      const auto largest = [&](int64_t i) { return positions(*strategy, i, 1)[0][0]; };
      EXPECT_LE(largest(reach - 1), 15) << strategy->canonical();
      EXPECT_GT(largest(reach), 15) << strategy->canonical();
      EXPECT_EQ(text_of(positions(*strategy, window)), plain_rows(0, window));
    }
  }
}

TEST(DistanceMaps, StoreKeysWhereMostAreShown) {
  const auto stored = [](const char* expression) {
    const auto strategy = make(expression, 4096);
    return std::pair(strategy->stored_div(), strategy->kv_chunk());
  };
  using Stored = std::pair<int64_t, int64_t>;
  EXPECT_EQ(stored("self_extend"), Stored(8, 256));
  EXPECT_EQ(stored("self_extend(group=6)"), Stored(6, 240));  // chunks of whole groups
  EXPECT_EQ(stored("self_extend(group=6, kv_chunk=96)"), Stored(6, 96));
  EXPECT_EQ(stored("self_extend(group=6, kv_chunk=64)"), Stored(0, 64));
  EXPECT_EQ(stored("self_extend(group=24)"), Stored(24, 240));
  EXPECT_EQ(stored("self_extend(group=300)"), Stored(0, 256));
  EXPECT_EQ(stored("rerope"), Stored(0, 256));
  EXPECT_EQ(stored("rerope(leaky=4)"), Stored(0, 256));
  EXPECT_EQ(stored("lm_infinite"), Stored(1, 256));

  // No more keys are turned than those of the window.
  for (const char* expression : {"self_extend(group=6, window=100)", "rerope(window=100)"}) {
    const auto strategy = make(expression, 4096);
    Plan plan;
    strategy->plan(20000, 1, plan);
    int64_t n_turned = 0, n_as_stored = 0;
    for (const Span& span : plan.spans) {
      (span.as_stored(strategy->stored_div(), strategy->kv_chunk()) ? n_as_stored : n_turned) += span.count;
    }
    EXPECT_EQ(n_turned, 100) << expression;
    EXPECT_EQ(n_as_stored, 20001 - 100) << expression;
  }
}

TEST(LmInfinite, CapsTheDistanceOfTheFirstKeys) {  // G-LI
  const Matrix matrix = positions(*make("lm_infinite(sinks=2, recent=4)", 16), 8);
  EXPECT_EQ(text_of({matrix[4]}), "4 3 2 1 0\n");
  EXPECT_EQ(text_of({matrix[5]}), "4 4 3 2 1 0\n");
  EXPECT_EQ(text_of({matrix[6]}), "4 4 . 3 2 1 0\n");
  EXPECT_EQ(text_of({matrix[7]}), "4 4 . . 3 2 1 0\n");
}

TEST(LmInfinite, EqualsPlainAttentionUpToItsWindow) {
  for (int64_t recent = 2; recent <= 16; ++recent) {
    const auto strategy = make("lm_infinite(sinks=3, recent=" + std::to_string(recent) + ")", 16);
    EXPECT_EQ(text_of(positions(*strategy, recent)), plain_rows(0, recent));
  }
}

TEST(DistanceMaps, WriteOutTheirDefaults) {
  EXPECT_EQ(make("rerope", 4096)->canonical(),
            "rerope(window=512, leaky=0, log_n=1, train_len=4096, kv_chunk=256) + none");
  EXPECT_THAT(make("rerope", 256)->canonical(), HasSubstr("(window=128,"));
  EXPECT_EQ(make("self_extend", 4096)->canonical(),
            "self_extend(group=8, window=1024, train_len=4096, kv_chunk=256) + none");
  EXPECT_EQ(make("lm_infinite", 4096)->canonical(),
            "lm_infinite(sinks=10, recent=4095, train_len=4096, kv_chunk=256) + none");
  for (const char* expression : {"rerope(leaky=8, log_n=0)", "self_extend(group=3)", "lm_infinite(sinks=0)"}) {
    const std::string canonical = make(expression, 256)->canonical();
    EXPECT_EQ(make(canonical, 256)->canonical(), canonical);
  }
}

TEST(DistanceMaps, RefuseWhatDoesNotFit) {
  const auto offset = [](const std::string& expression, const std::string& message) {
    const auto strategy = make_strategy(expression, trained_for(16));
    EXPECT_EQ(strategy.status().code(), Code::kBadStrategy) << expression;
    EXPECT_THAT(strategy.status().message(), HasSubstr(message)) << expression;
    return strategy.status().offset();
  };
  EXPECT_EQ(offset("rerope(window=16)", "window"), 14);
  EXPECT_EQ(offset("rerope(window=0)", "window"), 14);
  EXPECT_EQ(offset("rerope(leaky=-1)", "leaky"), 13);
  EXPECT_EQ(offset("rerope(log_n=2)", "log_n"), 13);
  EXPECT_EQ(offset("rerope(train_len=1)", "at least 2"), 17);
  EXPECT_EQ(offset("self_extend(group=1)", "group"), 18);
  EXPECT_EQ(offset("self_extend(window=16)", "window"), 19);
  EXPECT_EQ(offset("self_extend(sinks=1)", "sinks"), 12);
  EXPECT_EQ(offset("lm_infinite(recent=17)", "recent"), 19);
  EXPECT_EQ(offset("lm_infinite(sinks=17)", "sinks"), 18);
}

}  // namespace
}  // namespace quire::test
