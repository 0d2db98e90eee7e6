#include <gmock/gmock.h>

#include "tests/unit/strategy/strategies.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

TEST(StreamingLlm, SeesSinksAndRecentKeysAtCachePositions) {
  const auto stream = make("streaming_llm(sinks=2, recent=3)", 6);
  EXPECT_EQ(text_of(positions(*stream, 9)), plain_rows(0, 6) +
                                                "5 4 . 3 2 1 0\n"
                                                "5 4 . . 3 2 1 0\n"
                                                "5 4 . . . 3 2 1 0\n");
}

TEST(StreamingLlm, EqualsPlainAttentionUntilItsWindowIsFull) {
  for (int64_t sinks = 0; sinks <= 5; ++sinks) {
    for (int64_t recent = 1; recent <= 6; ++recent) {
      const auto stream =
          make("streaming_llm(sinks=" + std::to_string(sinks) + ", recent=" + std::to_string(recent) + ")", 16);
      const int64_t full = sinks + recent + 1;
      EXPECT_EQ(text_of(positions(*stream, full)), plain_rows(0, full)) << stream->canonical();
      EXPECT_NE(text_of(positions(*stream, full + 1)), plain_rows(0, full + 1)) << stream->canonical();
    }
  }
}

TEST(StreamingLlm, SeesWhatATokenByTokenCacheHolds) {
  constexpr int64_t kSinks = 3, kRecent = 5;
  const Matrix matrix = positions(*make("streaming_llm(sinks=3, recent=5)", 16), 40);
  std::vector<int64_t> cache;  // keys before the query; a position is an index in it
  for (int64_t i = 0; i < 40; ++i) {
    cache.push_back(i);
    std::vector<double> expected(40, std::nan(""));
    for (size_t p = 0; p < cache.size(); ++p) {
      expected[static_cast<size_t>(cache[p])] = static_cast<double>(cache.size() - 1 - p);
    }
    EXPECT_EQ(text_of({expected}), text_of({matrix[static_cast<size_t>(i)]}));
    if (cache.size() > kSinks + kRecent) cache.erase(cache.begin() + kSinks);
  }
}

TEST(StreamingLlm, PlansInConstantSpaceHoweverLongTheText) {
  Plan plan;
  make("streaming_llm", 4096)->plan(int64_t{1} << 40, 256, plan);
  EXPECT_EQ(plan.spans.size(), 2u);
  EXPECT_EQ(plan.spans[1].count, 512 + 256);
  EXPECT_TRUE(validate(plan, int64_t{1} << 40, 256, 1).ok());
}

TEST(StreamingLlm, ChoosesDefaultsThatFitTheTrainedLength) {
  EXPECT_THAT(make("streaming_llm", 4096)->canonical(), HasSubstr("(sinks=4, recent=512,"));
  EXPECT_THAT(make("streaming_llm", 256)->canonical(), HasSubstr("(sinks=4, recent=251,"));
  EXPECT_THAT(make("streaming_llm", 4)->canonical(), HasSubstr("(sinks=2, recent=1,"));
  EXPECT_EQ(make("streaming_llm", 256)->reach(), kNoLimit);
}

TEST(StreamingLlm, RefusesMoreThanTheTrainedLengthHolds) {
  const auto offset = [](const char* expression) {
    const auto strategy = make_strategy(expression, trained_for(16));
    EXPECT_EQ(strategy.status().code(), Code::kBadStrategy) << expression;
    return strategy.status().offset();
  };
  EXPECT_TRUE(make_strategy("streaming_llm(sinks=4, recent=11)", trained_for(16)).ok());
  EXPECT_EQ(offset("streaming_llm(sinks=4, recent=12)"), 30);
  EXPECT_EQ(offset("streaming_llm(sinks=15)"), 20);
  EXPECT_EQ(offset("streaming_llm(sinks=-1)"), 20);
  EXPECT_EQ(offset("streaming_llm(recent=0)"), 21);
  EXPECT_EQ(offset("streaming_llm(train_len=1)"), 24);
}

TEST(StreamingLlm, RetainsSinksAndWindowOnly) {
  const auto stream = make("streaming_llm(sinks=2, recent=3)", 16);
  const auto ranges = [&](int64_t next) {
    std::string text;
    for (const KeyRange& r : stream->retained(next)) {
      text += "[" + std::to_string(r.begin) + "," + (r.end == kNoLimit ? "inf" : std::to_string(r.end)) + ")";
    }
    return text;
  };
  EXPECT_EQ(ranges(0), "[0,inf)");
  EXPECT_EQ(ranges(5), "[0,inf)");
  EXPECT_EQ(ranges(6), "[0,2)[3,inf)");
  EXPECT_EQ(ranges(100), "[0,2)[97,inf)");
}

}  // namespace
}  // namespace quire::test
