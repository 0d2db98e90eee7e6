// beacon: what tokens and beacons see of memory and window, at which distances, and how far ratios reach.
#include <gmock/gmock.h>

#include <map>

#include "tests/unit/strategy/strategies.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

StrategyContext with_beacons(int64_t train_len, int64_t window, int64_t expected = 0) {
  StrategyContext context = trained_for(train_len);
  context.beacon.emplace();
  context.beacon->window = context.beacon->stride = window;
  context.expected_tokens = expected;
  return context;
}

std::unique_ptr<const Strategy> beacon(const std::string& arguments, int64_t train_len, int64_t window,
                                       int64_t expected = 0) {
  return make("beacon(" + arguments + ")", with_beacons(train_len, window, expected));
}

// (stream, key) -> distance, of the t-th query of a plan.
using Seen = std::map<std::pair<KvKind, int64_t>, double>;

Seen seen(const Plan& plan, int64_t t) {
  int64_t in_block = t;
  for (const QueryBlock& block : plan.blocks) {
    if (in_block >= block.n_queries) {
      in_block -= block.n_queries;
      continue;
    }
    const int64_t i = block.first_query + in_block * block.step;
    Seen all;
    const Plan::List& list = plan.list(block, 0);
    for (int32_t s = list.begin; s < list.end; ++s) {
      const Span& span = plan.spans[static_cast<size_t>(s)];
      if (span.diagonal) {
        EXPECT_LT(in_block, span.count);
        all[{span.kind, span.first_key + in_block}] = 0;
        continue;
      }
      for (int64_t j = span.first_key; j < span.first_key + span.count; ++j) {
        if (span.visible(i, j)) all[{span.kind, j}] = span.distance(i, j);
      }
    }
    return all;
  }
  return {};
}

Seen seen_by_token(const Strategy& strategy, int64_t i) {
  Plan plan;
  strategy.plan(i, 1, plan);
  EXPECT_TRUE(validate(plan, i, 1, 1).ok());
  return seen(plan, 0);
}

Plan memory_plan(const Strategy& strategy, int64_t n_tokens) {
  Plan plan;
  strategy.plan_condensed(n_tokens, plan);
  const int64_t n = strategy.condensed_entries(n_tokens) - strategy.condensed_entries(n_tokens - 1);
  const Status valid = validate(plan, plan.blocks.at(0).first_query, n, 1);
  EXPECT_TRUE(valid.ok()) << valid.message();
  return plan;
}

constexpr KvKind kText = KvKind::kText, kCondensed = KvKind::kCondensed;

// G-BCN-2, small: W = 4, ratio 2, two windows condensed.
TEST(Beacon, SeesMemoryAndWindow) {
  const auto strategy = beacon("ratio=2", 16, 4);
  EXPECT_EQ(strategy->condensed_entries(7), 2);
  EXPECT_EQ(strategy->condensed_entries(8), 4);
  EXPECT_EQ(strategy->window_end(8), 12);
  // Tokens 8 to 11 stand at 4 to 7.
  EXPECT_EQ(
      seen_by_token(*strategy, 8),
      (Seen{{{kCondensed, 0}, 4}, {{kCondensed, 1}, 3}, {{kCondensed, 2}, 2}, {{kCondensed, 3}, 1}, {{kText, 8}, 0}}));
  EXPECT_EQ(seen_by_token(*strategy, 10), (Seen{{{kCondensed, 0}, 6},
                                                {{kCondensed, 1}, 5},
                                                {{kCondensed, 2}, 4},
                                                {{kCondensed, 3}, 3},
                                                {{kText, 8}, 2},
                                                {{kText, 9}, 1},
                                                {{kText, 10}, 0}}));
  // The beacons stand at 6 and 8.
  const Plan plan = memory_plan(*strategy, 12);
  EXPECT_EQ(seen(plan, 0), (Seen{{{kCondensed, 0}, 6},
                                 {{kCondensed, 1}, 5},
                                 {{kCondensed, 2}, 4},
                                 {{kCondensed, 3}, 3},
                                 {{kText, 8}, 2},
                                 {{kText, 9}, 1},
                                 {{kCondensed, 4}, 0}}));
  EXPECT_EQ(seen(plan, 1), (Seen{{{kCondensed, 0}, 8},
                                 {{kCondensed, 1}, 7},
                                 {{kCondensed, 2}, 6},
                                 {{kCondensed, 3}, 5},
                                 {{kText, 8}, 4},
                                 {{kText, 9}, 3},
                                 {{kText, 10}, 2},
                                 {{kText, 11}, 1},
                                 {{kCondensed, 5}, 0}}));
}

TEST(Beacon, PlacesTheBeaconsOfThePaper) {  // G-BCN-2
  const auto strategy = beacon("ratio=8", 4096, 1024);
  EXPECT_EQ(strategy->condensed_entries(3 * 1024), 384);
  const Plan plan = memory_plan(*strategy, 4 * 1024);
  EXPECT_EQ(strategy->condensed_entries(4 * 1024), 512);
  const auto first = seen(plan, 0), last = seen(plan, 127);
  EXPECT_EQ(first.size(), 393u);
  EXPECT_EQ(first.at({kCondensed, 0}), 392);
  EXPECT_EQ(last.size(), 1409u);
  EXPECT_EQ(last.at({kCondensed, 0}), 1408);
  const auto token = seen_by_token(*strategy, 4 * 1024 - 1);
  EXPECT_EQ(token.size(), 1408u);
  EXPECT_EQ(token.at({kCondensed, 0}), 1407);
}

TEST(Beacon, HasOtherSchemesOfAttention) {
  const auto segmentation = beacon("ratio=2, attn=segmentation", 16, 4);
  Plan plan = memory_plan(*segmentation, 8);
  EXPECT_EQ(seen(plan, 0),
            (Seen{{{kCondensed, 0}, 4}, {{kCondensed, 1}, 3}, {{kText, 4}, 2}, {{kText, 5}, 1}, {{kCondensed, 2}, 0}}));
  EXPECT_EQ(
      seen(plan, 1),
      (Seen{{{kCondensed, 0}, 4}, {{kCondensed, 1}, 3}, {{kText, 6}, 0}, {{kText, 7}, -1}, {{kCondensed, 3}, 0}}));
  const auto full = beacon("ratio=2, attn=full_coverage", 16, 4);
  plan = memory_plan(*full, 8);
  for (int64_t t = 0; t < 2; ++t) {
    EXPECT_EQ(seen(plan, t), (Seen{{{kCondensed, 0}, 6},
                                   {{kCondensed, 1}, 5},
                                   {{kText, 4}, 4},
                                   {{kText, 5}, 3},
                                   {{kText, 6}, 2},
                                   {{kText, 7}, 1},
                                   {{kCondensed, 2 + t}, 0}}));
  }
}

TEST(Beacon, KeepsRawWindowsAmongTheMemory) {
  const auto strategy = beacon("sequence=x0.x2.x0.x4", 32, 4);
  EXPECT_EQ(strategy->condensed_entries(4), 0);
  EXPECT_EQ(strategy->condensed_entries(8), 2);
  EXPECT_EQ(strategy->condensed_entries(12), 2);
  EXPECT_EQ(strategy->condensed_entries(16), 3);
  // Before window 4: 4 raw, 2 entries, 4 raw, 1 entry; token 16 stands at 11.
  Seen expected = {{{kCondensed, 0}, 7}, {{kCondensed, 1}, 6}, {{kCondensed, 2}, 1}, {{kText, 16}, 0}};
  for (int64_t j = 0; j < 4; ++j) {
    expected[{kText, j}] = static_cast<double>(11 - j);
    expected[{kText, 8 + j}] = static_cast<double>(5 - j);
  }
  EXPECT_EQ(seen_by_token(*strategy, 16), expected);
  const auto kept = strategy->retained(16);
  ASSERT_EQ(kept.size(), 3u);
  EXPECT_EQ(kept[0].end, 4);
  EXPECT_EQ(kept[1].begin, 8);
  EXPECT_EQ(kept[1].end, 12);
  EXPECT_EQ(kept[2].begin, 16);
}

TEST(Beacon, OverlapsWindowsWhereTheStrideIsShorter) {
  const auto strategy = beacon("ratio=2, window=6, stride=4", 32, 6);
  EXPECT_EQ(strategy->window_end(0), 6);
  EXPECT_EQ(strategy->window_end(6), 10);
  EXPECT_EQ(strategy->condensed_entries(5), 0);
  EXPECT_EQ(strategy->condensed_entries(6), 2);
  EXPECT_EQ(strategy->condensed_entries(10), 4);
  // Tokens 4 and 5 stay raw behind two entries; token 6 stands at 4.
  EXPECT_EQ(seen_by_token(*strategy, 6),
            (Seen{{{kCondensed, 0}, 4}, {{kCondensed, 1}, 3}, {{kText, 4}, 2}, {{kText, 5}, 1}, {{kText, 6}, 0}}));
  const Plan plan = memory_plan(*strategy, 6);
  EXPECT_EQ(seen(plan, 1),
            (Seen{{{kText, 0}, 4}, {{kText, 1}, 3}, {{kText, 2}, 2}, {{kText, 3}, 1}, {{kCondensed, 1}, 0}}));
}

TEST(Beacon, EqualsPlainAttentionWithinAWindowAndWithRatioZero) {
  EXPECT_EQ(text_of(positions(*beacon("ratio=2", 16, 8), 8)), plain_rows(0, 8));
  EXPECT_EQ(text_of(positions(*beacon("ratio=0", 16, 4), 16)), plain_rows(0, 16));
}

TEST(Beacon, ReachesAsFarAsItsRatiosCapacity) {  // G-BCN-1
  const std::pair<int64_t, int64_t> capacities[] = {{0, 4096},   {2, 7168},   {4, 13312},   {8, 25600},
                                                    {16, 50176}, {32, 99328}, {64, 197632}, {128, 394240}};
  for (const auto& [ratio, capacity] : capacities) {
    const auto strategy = beacon("growth=stop, ratio=" + std::to_string(ratio), 4096, 1024);
    // Whole windows, and behind the last one as many tokens as the memory leaves positions for.
    EXPECT_EQ(strategy->reach(), capacity + 4096 - (ratio == 0 ? 4096 : capacity / ratio)) << ratio;
    // Each ratio is chosen for the lengths that the one before cannot hold.
    const auto adapted = beacon("reserve=0", 4096, 1024, capacity);
    EXPECT_THAT(adapted->canonical(), HasSubstr("ratio=" + std::to_string(ratio) + ","));
    if (capacity == 394240) continue;
    EXPECT_THAT(beacon("reserve=0", 4096, 1024, capacity + 1)->canonical(),
                testing::Not(HasSubstr("ratio=" + std::to_string(ratio) + ",")));
  }
  EXPECT_THAT(beacon("", 4096, 1024, 100000)->canonical(), HasSubstr("ratio=64,"));  // 101,024 with the reserve
  EXPECT_THAT(beacon("", 4096, 1024, 1000000)->canonical(), HasSubstr("ratio=128,"));
  // The paper's settings: 100,000 tokens just fit (97 windows, of which the last has 672 tokens), 400,000 do not.
  EXPECT_GE(beacon("ratio=32, growth=stop", 4096, 1024)->reach(), 100000);
  EXPECT_LT(beacon("ratio=128, growth=stop", 4096, 1024)->reach(), 400000);
}

// A window of 500 tokens cannot be condensed by 8, nor one of 501 by 2: the others of the list remain.
TEST(Beacon, ChoosesAmongTheRatiosThatDivideItsStride) {
  EXPECT_THAT(beacon("", 1000, 500, 100000)->canonical(), HasSubstr("ratio=4,"));
  EXPECT_THAT(beacon("", 1000, 501, 100000)->canonical(), HasSubstr("ratio=0,"));
  EXPECT_THAT(beacon("reserve=0", 1000, 500, 1200)->canonical(), HasSubstr("ratio=2,"));
}

TEST(Beacon, RaisesTheRatioOfLaterWindowsRatherThanLeaveTheTrainedRange) {
  const auto strategy = beacon("ratio=2", 20, 8);  // 12 entries fit: three windows of 4
  EXPECT_EQ(beacon("ratio=2, growth=stop", 20, 8)->reach(), 36);
  EXPECT_EQ(strategy->reach(), 36);           // nothing is left to be raised: 16 entries and 4 tokens
  const auto odd = beacon("ratio=2", 19, 8);  // 11: windows of 4, 4, 2, 1, and the last one with 7 tokens
  EXPECT_EQ(odd->reach(), 47);
  EXPECT_EQ(odd->condensed_entries(16), 8);
  EXPECT_EQ(odd->condensed_entries(24), 10);
  EXPECT_EQ(odd->condensed_entries(32), 11);
  for (int64_t i = 0; i < odd->reach(); ++i) {
    for (const auto& [key, distance] : seen_by_token(*odd, i)) EXPECT_LT(distance, 19) << i;
  }
}

// Looking for the next ratio takes the root of the stride, not the stride.
TEST(Beacon, TakesLongStrides) {
  constexpr int64_t kPrime = (int64_t{1} << 39) - 7;
  const auto strategy = beacon("ratio=1", 2 * kPrime + 1, kPrime);  // room for kPrime + 1 entries
  EXPECT_EQ(strategy->condensed_entries(kPrime), kPrime);
  EXPECT_EQ(strategy->condensed_entries(2 * kPrime), kPrime + 1);
}

TEST(Beacon, SaysHowManyEntriesAWindowMakesAtMost) {
  EXPECT_EQ(beacon("ratio=2", 19, 8)->most_new_entries(), 4);
  EXPECT_EQ(beacon("ratio=0, growth=stop", 19, 8)->most_new_entries(), 0);  // tokens keep their own
  const auto beyond = beacon("ratio=2", 8, 8);
  EXPECT_EQ(beyond->reach(), 12);
  EXPECT_EQ(beyond->condensed_entries(8), 4);
  EXPECT_EQ(beyond->most_new_entries(), 4);
}

TEST(Beacon, PlansTheSameHoweverQueriesAreGrouped) {
  for (const char* arguments : {"ratio=2", "ratio=4, window=6, stride=4", "sequence=x0.x4.x2", "ratio=0"}) {
    const auto strategy = beacon(arguments, 40, 8);
    Plan whole;
    strategy->plan(0, 60, whole);
    ASSERT_TRUE(validate(whole, 0, 60, 1).ok());
    for (int64_t i = 0; i < 60; ++i) EXPECT_EQ(seen(whole, i), seen_by_token(*strategy, i)) << arguments << " " << i;
  }
}

TEST(Beacon, RetainsWhatLaterQueriesSee) {
  constexpr int64_t kLength = 60;
  for (const char* arguments : {"ratio=2", "ratio=4, window=6, stride=4", "sequence=x0.x4.x2"}) {
    const auto strategy = beacon(arguments, 40, 8);
    for (int64_t next = 0; next < kLength / 2; ++next) {
      std::vector<bool> needed(kLength);
      for (int64_t i = next; i < kLength; ++i) {
        for (const auto& [key, distance] : seen_by_token(*strategy, i)) {
          if (key.first == kText) needed[static_cast<size_t>(key.second)] = true;
        }
      }
      const auto kept = strategy->retained(next);
      EXPECT_EQ(kept.back().end, kNoLimit);
      for (int64_t j = 0; j < next; ++j) {
        const bool is_kept =
            std::any_of(kept.begin(), kept.end(), [&](KeyRange r) { return r.begin <= j && j < r.end; });
        EXPECT_EQ(is_kept, needed[static_cast<size_t>(j)]) << arguments << " key " << j << " before " << next;
      }
    }
  }
}

TEST(Beacon, WritesOutItsDefaults) {
  EXPECT_EQ(
      beacon("ratio=8", 4096, 1024)->canonical(),
      "beacon(window=1024, stride=1024, attn=step_expansion, ratio=8, growth=raise, train_len=4096, kv_chunk=256) "
      "+ none");
  for (const char* arguments : {"sequence=x2.x8", "ratio=4, attn=segmentation, growth=stop"}) {
    const std::string canonical = beacon(arguments, 4096, 1024)->canonical();
    EXPECT_EQ(make(canonical, with_beacons(4096, 1024))->canonical(), canonical);
  }
  StrategyContext context = with_beacons(4096, 1024);
  context.beacon->mix = BeaconConfig::Mix::kSequence;
  context.beacon->ratios = {2, 4};
  EXPECT_THAT(make("beacon", context)->canonical(), HasSubstr("sequence=x2.x4"));
  context.beacon->ratios = {16};
  EXPECT_THAT(make("beacon", context)->canonical(), HasSubstr("ratio=16"));
}

TEST(Beacon, RefusesWhatDoesNotFit) {
  const auto offset = [](const std::string& arguments, const std::string& message) {
    const auto strategy = make_strategy("beacon(" + arguments + ")", with_beacons(4096, 1024));
    EXPECT_EQ(strategy.status().code(), Code::kBadStrategy) << arguments;
    EXPECT_THAT(strategy.status().message(), HasSubstr(message)) << arguments;
    return strategy.status().offset();
  };
  EXPECT_EQ(offset("ratio=3", "divisor of the stride"), 13);
  EXPECT_EQ(offset("ratio=2048", "ratio"), 13);
  EXPECT_EQ(offset("sequence=x2.x3", "divisor of the stride"), 16);
  EXPECT_EQ(offset("sequence=x2.4", "successi"), 16);
  EXPECT_EQ(offset("sequence=x2.", "successi"), 16);
  EXPECT_EQ(offset("window=5000", "window"), 14);
  EXPECT_EQ(offset("window=512, stride=513", "stride"), 26);
  EXPECT_EQ(offset("attn=step", "step_expansion"), 12);
  EXPECT_EQ(offset("ratio=2, growth=never", "raise"), 23);
  EXPECT_EQ(offset("ratio=2, reserve=5", "exclude"), 24);
  EXPECT_EQ(offset("", "set expected_tokens"), 0);
  const auto without = make_strategy("beacon(ratio=2)", trained_for(4096));
  EXPECT_EQ(without.status().code(), Code::kUnsupported);
  EXPECT_THAT(without.status().message(), HasSubstr("no beacon weights"));
}

}  // namespace
}  // namespace quire::test
