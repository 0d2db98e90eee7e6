#include <gmock/gmock.h>

#include "tests/unit/strategy/strategies.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

StrategyContext windowed(int64_t window, int64_t train_len) {
  StrategyContext context = trained_for(train_len);
  context.sliding_window = window;
  return context;
}

TEST(SlidingWindow, ShowsTheLastKeysOnly) {
  EXPECT_EQ(text_of(positions(*make("full", windowed(3, 8)), 6)),
            "0\n"
            "1 0\n"
            "2 1 0\n"
            ". 2 1 0\n"
            ". . 2 1 0\n"
            ". . . 2 1 0\n");
}

TEST(SlidingWindow, CutsTheSinksOfStreamingLlmWhenTheyLeaveIt) {
  EXPECT_EQ(text_of(positions(*make("streaming_llm(sinks=1, recent=2)", windowed(5, 8)), 7)),
            "0\n"
            "1 0\n"
            "2 1 0\n"
            "3 2 1 0\n"
            "3 . 2 1 0\n"
            ". . . 2 1 0\n"
            ". . . . 2 1 0\n");
}

TEST(SlidingWindow, IsIgnoredOnRequest) {
  for (const char* name : {"full", "streaming_llm(sinks=1, recent=2", "dca(chunk=4, cap=7"}) {
    const std::string begin = name;
    const std::string separator = begin.find('(') == std::string::npos ? "(" : ", ";
    const auto ignoring = make(begin + separator + "ignore_window=1)", windowed(5, 8));
    const auto plain = make(begin + (separator == "(" ? "" : ")"), 8);
    EXPECT_EQ(text_of(positions(*ignoring, 20)), text_of(positions(*plain, 20)));
    EXPECT_EQ(ignoring->reach(), plain->reach());
    EXPECT_THAT(ignoring->canonical(), HasSubstr("ignore_window=1"));
    EXPECT_THAT(plain->canonical(), testing::Not(HasSubstr("ignore_window")));
  }
}

TEST(SlidingWindow, RefusesMethodsThatNeedFarKeys) {
  const auto strategy = make_strategy(" dca(chunk=4)", windowed(5, 8));
  EXPECT_EQ(strategy.status().code(), Code::kUnsupported);
  EXPECT_EQ(strategy.status().offset(), 1);
  EXPECT_THAT(strategy.status().message(), HasSubstr("only 5 tokens back"));
  EXPECT_THAT(strategy.status().message(), HasSubstr("ignore_window=1"));
}

// Distances below the window are all trained, so that the text may be of any length.
TEST(SlidingWindow, InsideTheTrainedLengthHasNoEnd) {
  EXPECT_EQ(make("full", windowed(8, 8))->reach(), kNoLimit);
  EXPECT_EQ(make("full", windowed(9, 8))->reach(), 8);
  EXPECT_EQ(make("full + pi(factor=2)", windowed(9, 8))->reach(), kNoLimit);
}

TEST(SlidingWindow, LetsGoOfTheKeysBehindIt) {
  const auto full = make("full", windowed(5, 8));
  const auto first_kept = [&](int64_t next) { return full->retained(next).front().begin; };
  EXPECT_EQ(first_kept(0), 0);
  EXPECT_EQ(first_kept(4), 0);
  EXPECT_EQ(first_kept(5), 1);
  EXPECT_EQ(first_kept(100), 96);
  // Keys that the store may have dropped are not named either.
  Plan plan;
  full->plan(100, 10, plan);
  ASSERT_EQ(plan.spans.size(), 1u);
  EXPECT_EQ(plan.spans[0].first_key, 96);
  EXPECT_EQ(plan.spans[0].max_lag, 4);
  EXPECT_EQ(plan.spans[0].distance(100, 97), 3);
}

TEST(SlidingWindow, AddsToAPlanThatHasBlocksAlready) {
  const auto strategy = make("streaming_llm(sinks=2, recent=9)", windowed(5, 16));
  Plan plan;
  strategy->plan(0, 20, plan);
  strategy->plan(20, 20, plan);
  EXPECT_TRUE(validate(plan, 0, 40, 1).ok());
  EXPECT_EQ(text_of(rows_of(plan, 40, 40)), text_of(positions(*strategy, 40)));
}

// ---- in some layers

StrategyContext windowed_in_some(int64_t window, int64_t train_len) {
  StrategyContext context = windowed(window, train_len);
  context.some_layers_slide = true;
  return context;
}

std::vector<std::pair<int64_t, int64_t>> ranges_of(const std::vector<KeyRange>& ranges) {
  std::vector<std::pair<int64_t, int64_t>> all;
  for (const KeyRange& range : ranges) all.emplace_back(range.begin, range.end);
  return all;
}

TEST(SlidingWindowOfSomeLayers, HasAPlanOfItsOwn) {
  for (const char* name : {"full", "dca(chunk=4, cap=7)", "rerope(window=4)", "self_extend(group=2, window=3)"}) {
    const auto strategy = make(name, windowed_in_some(3, 8));
    const auto plain = make(name, 8);
    EXPECT_EQ(text_of(positions(*strategy, 20)), text_of(positions(*plain, 20))) << name;
    EXPECT_EQ(strategy->canonical(), plain->canonical());
    EXPECT_EQ(strategy->reach(), plain->reach());
    EXPECT_EQ(plain->window_layers(), nullptr);
    const Strategy* const windowed = strategy->window_layers();
    ASSERT_NE(windowed, nullptr) << name;
    EXPECT_EQ(text_of(positions(*windowed, 20)), text_of(positions(*make("full", test::windowed(3, 8)), 20))) << name;
    // Their keys are stored by the same rule.
    EXPECT_EQ(windowed->rope().theta, strategy->rope().theta);
    EXPECT_EQ(windowed->kv_chunk(), strategy->kv_chunk());
    EXPECT_EQ(windowed->stored_div(), strategy->stored_div());
  }
}

TEST(SlidingWindowOfSomeLayers, KeepsWhatEachLayerSees) {
  using Ranges = std::vector<std::pair<int64_t, int64_t>>;
  const auto retained = [](const char* name, int64_t next_query) {
    const auto strategy = make(name, windowed_in_some(5, 64));
    return std::pair(ranges_of(strategy->retained(next_query)),
                     ranges_of(strategy->window_layers()->retained(next_query)));
  };
  EXPECT_EQ(retained("streaming_llm(sinks=2, recent=2)", 20),
            std::pair(Ranges{{0, 2}, {18, kNoLimit}}, Ranges{{16, kNoLimit}}));
  EXPECT_EQ(retained("streaming_llm(sinks=0, recent=9)", 20),
            std::pair(Ranges{{11, kNoLimit}}, Ranges{{16, kNoLimit}}));
  EXPECT_EQ(retained("full", 20), std::pair(Ranges{{0, kNoLimit}}, Ranges{{16, kNoLimit}}));
  EXPECT_EQ(retained("full", 4), std::pair(Ranges{{0, kNoLimit}}, Ranges{{0, kNoLimit}}));
}

TEST(SlidingWindowOfSomeLayers, IsIgnoredOnRequest) {
  EXPECT_EQ(make("dca(chunk=4, cap=7, ignore_window=1)", windowed_in_some(3, 8))->window_layers(), nullptr);
}

TEST(SlidingWindowOfSomeLayers, RefusesCondensedText) {
  StrategyContext context = windowed_in_some(32, 256);
  context.beacon = BeaconConfig{.window = 64, .stride = 64};
  const Status refused = make_strategy("beacon(ratio=4)", context).status();
  EXPECT_EQ(refused.code(), Code::kUnsupported);
  EXPECT_THAT(refused.message(), HasSubstr("only 32 tokens back"));
}

}  // namespace
}  // namespace quire::test
