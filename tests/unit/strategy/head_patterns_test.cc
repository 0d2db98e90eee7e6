// s2, scca_fixed, scca_flow, sda and long_mixed: which keys each head sees.
#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "tests/unit/strategy/strategies.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

std::unique_ptr<const Strategy> make_for(const std::string& expression, int n_heads, int64_t train_len = 16) {
  StrategyContext context = trained_for(train_len);
  context.n_query_heads = context.n_kv_heads = n_heads;
  return make(expression, context);
}

// Keys that query i sees in a head; distances are true ones.
std::set<int64_t> seen(const Strategy& strategy, int n_heads, int head, int64_t i) {
  Plan plan;
  strategy.plan(i, 1, plan);
  EXPECT_TRUE(validate(plan, i, 1, n_heads).ok()) << validate(plan, i, 1, n_heads).message();
  std::vector<double> row(static_cast<size_t>(i + 1));
  position_matrix(plan, head, i + 1, row.data());
  std::set<int64_t> keys;
  for (int64_t j = 0; j <= i; ++j) {
    if (std::isnan(row[static_cast<size_t>(j)])) continue;
    EXPECT_EQ(row[static_cast<size_t>(j)], i - j);
    keys.insert(j);
  }
  return keys;
}

using Keys = std::set<int64_t>;

TEST(S2, ShiftsTheGroupsOfTheSecondHalf) {  // G-S2
  const auto s2 = make_for("s2(group=4)", 2);
  EXPECT_EQ(seen(*s2, 2, 0, 5), (Keys{4, 5}));
  EXPECT_EQ(seen(*s2, 2, 0, 15), (Keys{12, 13, 14, 15}));
  const std::pair<int64_t, Keys> shifted[] = {{0, {0}},    {1, {0, 1}},       {2, {2}},
                                              {3, {2, 3}}, {4, {2, 3, 4}},    {5, {2, 3, 4, 5}},
                                              {6, {6}},    {9, {6, 7, 8, 9}}, {13, {10, 11, 12, 13}},
                                              {14, {14}},  {15, {14, 15}}};
  for (const auto& [i, keys] : shifted) EXPECT_EQ(seen(*s2, 2, 1, i), keys) << i;
}

TEST(SccaFixed, RollsKeysInTheFirstHalf) {  // G-SCCA-2
  const auto fixed = make_for("scca_fixed(chunk=4)", 2);
  const std::pair<int64_t, Keys> rolled[] = {{0, {0}},
                                             {1, {0, 1}},
                                             {2, {0, 1, 2}},
                                             {3, {0, 1, 3}},
                                             {4, {2, 3, 4}},
                                             {5, {2, 3, 4, 5}},
                                             {6, {2, 3, 4, 5, 6}},
                                             {7, {2, 3, 4, 5, 7}},
                                             {8, {6, 7, 8}},
                                             {11, {6, 7, 8, 9, 11}},
                                             {15, {10, 11, 12, 13, 15}}};
  for (const auto& [i, keys] : rolled) EXPECT_EQ(seen(*fixed, 2, 0, i), keys) << i;
  EXPECT_EQ(seen(*fixed, 2, 1, 6), (Keys{4, 5, 6}));
}

TEST(SccaFixed, MasksBySlotAsAnUnchangedProgramWould) {
  const auto fixed = make_for("scca_fixed(chunk=4, mask=slot)", 2);
  EXPECT_EQ(seen(*fixed, 2, 0, 4), (Keys{2}));
  EXPECT_EQ(seen(*fixed, 2, 0, 5), (Keys{2, 3}));
  EXPECT_EQ(seen(*fixed, 2, 0, 6), (Keys{2, 3, 4}));
  EXPECT_EQ(seen(*fixed, 2, 0, 7), (Keys{2, 3, 4, 5}));
  EXPECT_EQ(seen(*fixed, 2, 0, 0), Keys{});  // slots 0 and 1 hold the end of the text
  EXPECT_EQ(seen(*fixed, 2, 0, 3), (Keys{0, 1}));
}

TEST(SccaFlow, MeetsEarlierChunks) {  // G-SCCA-1
  const auto flow = make_for("scca_flow(chunk=4)", 8);
  const std::pair<int64_t, Keys> shift1[] = {
      {0, {0}}, {3, {3}}, {4, {0, 1, 2, 3, 4}}, {7, {0, 1, 2, 3, 7}}, {8, {4, 5, 6, 7, 8}}, {15, {8, 9, 10, 11, 15}}};
  for (const auto& [i, keys] : shift1) {
    EXPECT_EQ(seen(*flow, 8, 2, i), keys) << i;
    EXPECT_EQ(seen(*flow, 8, 3, i), keys) << i;
  }
  EXPECT_EQ(seen(*flow, 8, 7, 11), (Keys{11}));
  EXPECT_EQ(seen(*flow, 8, 7, 12), (Keys{0, 1, 2, 3, 12}));
  EXPECT_EQ(seen(*flow, 8, 0, 6), (Keys{4, 5, 6}));
}

TEST(SccaFlow, RollsEitherWay) {
  const auto right = make_for("scca_flow(chunk=4)", 4), left = make_for("scca_flow(chunk=4, roll=left)", 4);
  for (int64_t i = 0; i < 16; ++i) {
    for (int e = 0; e < 4; ++e) EXPECT_EQ(seen(*left, 4, e, i), seen(*right, 4, (4 - e) % 4, i)) << e << " " << i;
  }
}

TEST(SccaFlow, ShowsTheOwnChunkWhereThereIsNoEarlierOne) {
  const auto flow = make_for("scca_flow(chunk=4, wrap=local)", 4);
  EXPECT_EQ(seen(*flow, 4, 3, 11), (Keys{8, 9, 10, 11}));
  EXPECT_EQ(seen(*flow, 4, 3, 12), (Keys{0, 1, 2, 3, 12}));
  const auto slot = make_for("scca_flow(chunk=4, mask=slot)", 4);
  EXPECT_EQ(seen(*slot, 4, 1, 6), (Keys{0, 1, 2}));
  EXPECT_EQ(seen(*slot, 4, 1, 3), Keys{});
}

TEST(Sda, KeepsToResidueClasses) {  // G-SDA
  const auto by_residue = make_for("sda(dilation=2)", 4, 8);
  EXPECT_EQ(seen(*by_residue, 4, 0, 5), Keys{});
  EXPECT_EQ(seen(*by_residue, 4, 1, 5), (Keys{1, 3, 5}));
  EXPECT_EQ(seen(*by_residue, 4, 2, 6), (Keys{0, 2, 4, 6}));
  const auto two = make_for("sda(dilation=2, reading=kv)", 4, 8), four = make_for("sda(dilation=4, reading=kv)", 4, 8);
  EXPECT_EQ(seen(*two, 4, 0, 5), (Keys{0, 2, 4, 5}));
  EXPECT_EQ(seen(*two, 4, 1, 5), (Keys{1, 3, 5}));
  EXPECT_EQ(seen(*four, 4, 0, 5), (Keys{0, 4, 5}));
  EXPECT_EQ(seen(*four, 4, 1, 5), (Keys{1, 5}));
  EXPECT_EQ(seen(*four, 4, 2, 5), (Keys{2, 5}));
  EXPECT_EQ(seen(*four, 4, 3, 5), (Keys{3, 5}));
  EXPECT_EQ(seen(*four, 4, 3, 0), (Keys{0}));
  EXPECT_EQ(two->reach(), 8);
}

TEST(LongMixed, GivesEachHeadItsRow) {
  const auto mixed = make_for("long_mixed(heads=sda2x2.rolled.local.shift1.full, chunk=4)", 6);
  const auto fixed = make_for("scca_fixed(chunk=4)", 2), flow = make_for("scca_flow(chunk=4)", 4);
  const auto dilated = make_for("sda(dilation=2)", 2);
  for (int64_t i = 0; i < 16; ++i) {
    EXPECT_EQ(seen(*mixed, 6, 0, i), seen(*dilated, 2, 0, i));
    EXPECT_EQ(seen(*mixed, 6, 1, i), seen(*dilated, 2, 1, i));
    EXPECT_EQ(seen(*mixed, 6, 2, i), seen(*fixed, 2, 0, i));
    EXPECT_EQ(seen(*mixed, 6, 3, i), seen(*fixed, 2, 1, i));
    EXPECT_EQ(seen(*mixed, 6, 4, i), seen(*flow, 4, 1, i));
    EXPECT_EQ(seen(*mixed, 6, 5, i).size(), static_cast<size_t>(i + 1));
  }
}

TEST(LongMixed, HasThePapersTable) {
  EXPECT_THAT(make_for("long_mixed", 32, 8192)->canonical(),
              HasSubstr("(heads=sda2x8.sda4x16.rolledx4.localx4, chunk=2048,"));
  EXPECT_THAT(make_for("long_mixed", 4, 8192)->canonical(), HasSubstr("(heads=sda2x1.sda4x2.rolledx1,"));
  EXPECT_THAT(make_for("long_mixed(heads=shift5x4)", 4, 2048)->canonical(), HasSubstr("chunk=340,"));
}

TEST(HeadPatterns, ShowTheBeginningWhole) {
  for (const char* expression :
       {"s2(group=4, full_below=6)", "scca_fixed(chunk=4, full_below=6)", "scca_flow(chunk=4, full_below=6)",
        "sda(full_below=6)", "long_mixed(chunk=4, full_below=6)"}) {
    const auto strategy = make_for(expression, 4);
    for (int head = 0; head < 4; ++head) {
      EXPECT_EQ(seen(*strategy, 4, head, 5), (Keys{0, 1, 2, 3, 4, 5})) << expression;
      EXPECT_NE(seen(*strategy, 4, head, 6).size(), 7u) << expression;
    }
  }
}

constexpr const char* kAll[] = {"s2(group=4)",
                                "s2(group=6, full_below=9)",
                                "scca_fixed(chunk=4)",
                                "scca_fixed(chunk=6, mask=slot)",
                                "scca_flow(chunk=4)",
                                "scca_flow(chunk=4, wrap=local, roll=left)",
                                "scca_flow(chunk=2, chunks=2, mask=slot)",
                                "sda(dilation=4)",
                                "sda(reading=kv)",
                                "long_mixed(heads=sda2x2.rolled.local, chunk=4)",
                                "long_mixed(heads=localx2.shift2.rolled, chunk=4)"};

TEST(HeadPatterns, PlanTheSameHoweverQueriesAreGrouped) {
  for (const char* expression : kAll) {
    const auto strategy = make_for(expression, 4);
    for (int64_t first = 0; first < 20; ++first) {
      for (int64_t n = 1; n < 20; ++n) {
        Plan plan;
        strategy->plan(first, n, plan);
        const Status valid = validate(plan, first, n, 4);
        ASSERT_TRUE(valid.ok()) << expression << ": " << valid.message();
        for (int head = 0; head < 4; ++head) {
          const auto n_keys = first + n;
          std::vector<double> matrix(static_cast<size_t>(n * n_keys));
          position_matrix(plan, head, n_keys, matrix.data());
          for (int64_t r = 0; r < n; ++r) {
            const Keys keys = seen(*strategy, 4, head, first + r);
            for (int64_t j = 0; j < n_keys; ++j) {
              EXPECT_EQ(!std::isnan(matrix[static_cast<size_t>(r * n_keys + j)]), keys.count(j) == 1)
                  << expression << " query " << first + r << " key " << j;
            }
          }
        }
      }
    }
  }
}

TEST(HeadPatterns, RetainWhatSomeHeadWillSee) {
  constexpr int64_t kLength = 40;
  for (const char* expression : kAll) {
    const auto strategy = make_for(expression, 4);
    std::vector<Keys> by_query(kLength);
    for (int64_t i = 0; i < kLength; ++i) {
      for (int head = 0; head < 4; ++head) by_query[static_cast<size_t>(i)].merge(seen(*strategy, 4, head, i));
    }
    for (int64_t next = 0; next < kLength / 2; ++next) {
      const auto ranges = strategy->retained(next);
      ASSERT_EQ(ranges.size(), 1u);
      for (int64_t j = 0; j < next; ++j) {
        bool needed = false;
        for (int64_t i = next; i < kLength; ++i) needed = needed || by_query[static_cast<size_t>(i)].count(j) == 1;
        EXPECT_EQ(ranges[0].begin <= j, needed) << expression << " key " << j << " before " << next;
      }
    }
  }
}

TEST(HeadPatterns, WriteOutTheirDefaults) {
  EXPECT_EQ(make_for("s2", 32, 8192)->canonical(), "s2(group=2048, full_below=0, train_len=8192, kv_chunk=256) + none");
  EXPECT_EQ(make_for("scca_fixed", 32, 8192)->canonical(),
            "scca_fixed(chunk=2048, full_below=0, mask=absolute, train_len=8192, kv_chunk=256) + none");
  EXPECT_EQ(make_for("scca_flow", 32, 8192)->canonical(),
            "scca_flow(chunks=4, chunk=2048, full_below=0, roll=right, wrap=self, mask=absolute, train_len=8192, "
            "kv_chunk=256) + none");
  EXPECT_EQ(make_for("sda", 32, 8192)->canonical(),
            "sda(dilation=2, reading=residue, full_below=0, train_len=8192, kv_chunk=256) + none");
  for (const char* expression : kAll) {
    const std::string canonical = make_for(expression, 4)->canonical();
    EXPECT_EQ(make_for(canonical, 4)->canonical(), canonical);
  }
}

TEST(HeadPatterns, RefuseWhatDoesNotFit) {
  const auto offset = [](const std::string& expression, int n_heads, const std::string& message) {
    StrategyContext context = trained_for(16);
    context.n_query_heads = n_heads;
    const auto strategy = make_strategy(expression, context);
    EXPECT_EQ(strategy.status().code(), Code::kBadStrategy) << expression;
    EXPECT_THAT(strategy.status().message(), HasSubstr(message)) << expression;
    return strategy.status().offset();
  };
  EXPECT_EQ(offset("s2(group=5)", 4, "multiple of 2"), 9);
  EXPECT_EQ(offset("s2(group=18)", 4, "group"), 9);
  EXPECT_EQ(offset("scca_fixed(chunk=12)", 4, "chunk"), 17);  // 18 positions
  EXPECT_EQ(offset("scca_flow(chunk=6)", 4, "chunk"), 16);    // 24 positions
  EXPECT_EQ(offset("scca_flow(chunks=3)", 4, "divisor"), 17);
  EXPECT_EQ(offset("scca_flow(roll=up)", 4, "right"), 15);
  EXPECT_EQ(offset("sda(dilation=3)", 4, "divisor"), 13);
  EXPECT_EQ(offset("sda(reading=b)", 4, "residue"), 12);
  EXPECT_EQ(offset("sda(full_below=17)", 4, "full_below"), 15);
  EXPECT_EQ(offset("long_mixed(heads=sda2x2)", 4, "the table has 2 heads"), 17);
  EXPECT_EQ(offset("long_mixed(heads=sda2x2.turnedx2)", 4, "turnedx2"), 17);
  EXPECT_EQ(offset("long_mixed(heads=sda1x4)", 4, "sda1x4"), 17);
  EXPECT_EQ(offset("long_mixed(heads=localx0)", 4, "localx0"), 17);
  EXPECT_EQ(offset("long_mixed(heads=local.)", 4, "expected sdaD"), 17);
  EXPECT_EQ(offset("long_mixed(heads=4)", 4, "expected a word"), 17);
  EXPECT_EQ(offset("long_mixed(heads=shift3x4, chunk=6)", 4, "chunk"), 33);
  EXPECT_EQ(offset("long_mixed(heads=full)", 4, "1 heads; the model has 4"), 17);
}

TEST(HeadPatterns, RefuseModelsWithAnOddNumberOfHeads) {
  StrategyContext context = trained_for(16);
  context.n_query_heads = context.n_kv_heads = 3;
  for (const char* expression : {"s2", "scca_fixed"}) {
    EXPECT_EQ(make_strategy(expression, context).status().code(), Code::kUnsupported);
    EXPECT_THAT(make_strategy(expression, context).status().message(), HasSubstr("3 query heads"));
  }
}

TEST(HeadPatterns, RefuseToShiftTheOnlyHead) {
  StrategyContext context = trained_for(16);
  const auto flow = make_strategy("scca_flow", context);
  EXPECT_EQ(flow.status().code(), Code::kUnsupported);
  EXPECT_THAT(flow.status().message(), HasSubstr("1 query head;"));
}

}  // namespace
}  // namespace quire::test
