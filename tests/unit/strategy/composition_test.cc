// Which terms go together: every visibility takes every RoPE scaling, which changes its frequencies and its lengths
// and nothing else; two of a kind are refused.
#include <gmock/gmock.h>

#include "tests/unit/strategy/strategies.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

constexpr int64_t kTrainLen = 64;

const std::string kVisibilities[] = {"full",
                                     "beacon(ratio=2",
                                     "dca",
                                     "lm_infinite(sinks=2, recent=20",
                                     "long_mixed(heads=sda2x2.localx2",
                                     "longheads",
                                     "dca_topk",
                                     "longheads(positions=dca, dca_chunk=40",
                                     "rerope",
                                     "s2",
                                     "scca_fixed",
                                     "scca_flow(chunks=4",
                                     "sda",
                                     "self_extend",
                                     "streaming_llm(sinks=2, recent=20",
                                     "auto"};
const std::string kScalings[] = {"none",
                                 "pi(factor=2)",
                                 "ntk(factor=2)",
                                 "yarn(factor=2)",
                                 "llama3(factor=2)",
                                 "dynamic_ntk(factor=2, length=128)",
                                 "longrope(length=128)",
                                 "freq_factors"};

StrategyContext model() {
  StrategyContext context = trained_for(kTrainLen);
  context.n_query_heads = context.n_kv_heads = 4;
  context.beacon.emplace().window = 16;
  context.beacon->stride = 16;
  context.longrope = {{1, 1, 1, 1}, {1, 2, 3, 4}, 32, 1.1};
  context.freq_factors = {1, 1.5, 2, 3};
  return context;
}

std::string closed(const std::string& visibility) {
  return visibility + (visibility.find('(') == std::string::npos ? "" : ")");
}

std::string name_of(const std::string& term) { return term.substr(0, term.find('(')); }

// Its distances in each head (-1: hidden) and factors, also beyond all lengths of these tests.
std::vector<double> seen(const Strategy& strategy) {
  constexpr int64_t kQueries = 150;
  Plan plan;
  strategy.plan(0, kQueries, plan);
  const Status valid = validate(plan, 0, kQueries, 4);
  EXPECT_TRUE(valid.ok()) << strategy.canonical() << ": " << valid.message();
  std::vector<double> matrix(kQueries * kQueries), all(plan.query_scale.begin(), plan.query_scale.end());
  for (int head = 0; head < 4; ++head) {
    position_matrix(plan, head, kQueries, matrix.data());
    for (const double distance : matrix) all.push_back(std::isnan(distance) ? -1 : distance);
  }
  return all;
}

TEST(Composition, EveryVisibilityTakesEveryScaling) {
  for (const std::string& visibility : kVisibilities) {
    if (visibility == "auto") continue;
    for (const std::string& scaling : kScalings) {
      for (const char* base : {"", " + base(theta=500000)"}) {
        const std::string suffix = " + " + scaling + base;
        SCOPED_TRACE(closed(visibility) + suffix);
        const auto combined = make(closed(visibility) + suffix, model());
        const auto plain = make("full" + suffix, model());
        EXPECT_EQ(combined->rope().theta, plain->rope().theta);
        EXPECT_EQ(combined->rope().attention_factor, plain->rope().attention_factor);
        // The extended length is the one that the visibility derives its own lengths from.
        const std::string length = "train_len=" + std::to_string(plain->reach());
        const std::string own = visibility + (visibility == closed(visibility) ? "(" : ", ") + length + ")";
        const auto longer = make(own + " + none", model());
        EXPECT_TRUE(seen(*combined) == seen(*longer));
        EXPECT_EQ(combined->reach(), longer->reach());
        EXPECT_THAT(combined->canonical(), HasSubstr(length));
      }
    }
  }
}

TEST(Composition, AutoChoosesForTheScaledLength) {
  for (const std::string& scaling : kScalings) {
    const auto chosen = make("auto + " + scaling, model());
    EXPECT_EQ(chosen->rope().theta, make("full + " + scaling, model())->rope().theta) << scaling;
  }
}

TEST(Composition, RefusesASecondVisibility) {
  for (const std::string& first : kVisibilities) {
    for (const std::string& second : kVisibilities) {
      const auto both = make_strategy(closed(first) + " + " + closed(second), model());
      ASSERT_EQ(both.status().code(), Code::kUnsupported) << first << " " << second;
      EXPECT_EQ(both.status().offset(), static_cast<int64_t>(closed(first).size()) + 3);
      EXPECT_THAT(both.status().message(), HasSubstr("'" + name_of(second) + "' is the second visibility"));
    }
  }
}

TEST(Composition, RefusesASecondScaling) {
  for (const std::string& first : kScalings) {
    for (const std::string& second : kScalings) {
      const auto both = make_strategy("dca + " + first + " + base(theta=1e6) + " + second, model());
      ASSERT_EQ(both.status().code(), Code::kUnsupported) << first << " " << second;
      EXPECT_THAT(both.status().message(), HasSubstr("'" + name_of(second) + "' after '" + name_of(first) + "'"));
    }
  }
  const auto bases = make_strategy("full + base(theta=1e6) + base(theta=1e6)", model());
  EXPECT_EQ(bases.status().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace quire::test
