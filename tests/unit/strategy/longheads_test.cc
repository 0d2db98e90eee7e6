#include <gmock/gmock.h>

#include <set>

#include "tests/unit/strategy/strategies.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

// G-LH-1: chunks 0, 1, 4 and 6 of 4 keys, seen from query 25 (chunk 6, offset 1).
TEST(LongHeads, PacksChosenChunksToConsecutivePositions) {
  const ChunkSelection selection{.chunk = 4, .count = 4};
  ASSERT_EQ(selection.n_selected(25), 4);
  const int64_t chosen[] = {0, 1, 4, 6};
  const int64_t query_position = 13;
  for (int64_t rank = 0; rank < 4; ++rank) {
    for (int64_t t = 0; t < 4; ++t) {
      const int64_t key = chosen[rank] * 4 + t;
      if (key > 25) continue;
      EXPECT_EQ(selection.distance(25, rank, key), query_position - (4 * rank + t)) << "key " << key;
    }
  }
  EXPECT_EQ(selection.distance(25, 2, 17), 4);
  EXPECT_EQ(selection.distance(25, 0, 0), 13);
}

TEST(LongHeads, SelectsNoMoreChunksThanThereAre) {
  const ChunkSelection selection{.chunk = 4, .count = 4};
  EXPECT_EQ(selection.n_selected(0), 1);
  EXPECT_EQ(selection.n_selected(3), 1);
  EXPECT_EQ(selection.n_selected(4), 2);
  EXPECT_EQ(selection.n_selected(15), 4);
  EXPECT_EQ(selection.n_selected(16), 4);
}

TEST(LongHeads, WritesOutItsDefaults) {
  EXPECT_EQ(make("longheads", 4096)->canonical(),
            "longheads(chunk=256, chunks=16, begin=4096, forced=code, select=head, init=none, train_len=4096) + none");
  EXPECT_EQ(make("longheads", 2048)->canonical(),
            "longheads(chunk=256, chunks=8, begin=2048, forced=code, select=head, init=none, train_len=2048) + none");
  EXPECT_EQ(make("longheads", 256)->canonical(),
            "longheads(chunk=32, chunks=8, begin=256, forced=code, select=head, init=none, train_len=256) + none");
  EXPECT_EQ(make("longheads", 128)->canonical(),
            "longheads(chunk=16, chunks=8, begin=128, forced=code, select=head, init=none, train_len=128) + none");
  EXPECT_EQ(make("longheads", 48)->canonical(),
            "longheads(chunk=16, chunks=3, begin=48, forced=code, select=head, init=none, train_len=48) + none");
  EXPECT_EQ(make("longheads(chunk=100000, train_len=300000, begin=300000)", 4096)->kv_chunk(), 100000);
  EXPECT_THAT(make("longheads + pi(factor=4)", 1024)->canonical(), HasSubstr("train_len=4096) + pi(factor=4)"));
}

TEST(LongHeads, KeepsVectorsInTheTypeItIsTold) {
  EXPECT_EQ(make("longheads", 256)->selection().vector_type(ElementType::kF16), ElementType::kF32);
  const auto narrow = make("longheads(vectors=bf16)", 256);
  EXPECT_EQ(narrow->selection().vector_type(ElementType::kF16), ElementType::kBF16);
  EXPECT_THAT(narrow->canonical(), HasSubstr("init=none, vectors=bf16"));
}

TEST(LongHeads, ItsCanonicalFormMeansTheSame) {
  for (const char* expression :
       {"longheads", "longheads(forced=paper, select=group)", "longheads(chunk=32, chunks=5, begin=200, init=full)",
        "longheads(chunk=48) + ntk(factor=2)", "longheads(vectors=bf16)"}) {
    const std::string canonical = make(expression, 256)->canonical();
    EXPECT_EQ(make(canonical, 256)->canonical(), canonical) << expression;
  }
}

TEST(LongHeads, RefusesWhatDoesNotFit) {
  const auto offset = [](const std::string& expression, const std::string& message) {
    const auto strategy = make_strategy(expression, trained_for(256));
    EXPECT_EQ(strategy.status().code(), Code::kBadStrategy) << expression;
    EXPECT_THAT(strategy.status().message(), HasSubstr(message)) << expression;
    return strategy.status().offset();
  };
  EXPECT_EQ(offset("longheads(chunk=40)", "multiple of 16"), 16);
  EXPECT_EQ(offset("longheads(chunk=0)", "chunk"), 16);
  EXPECT_EQ(offset("longheads(chunk=-16)", "chunk"), 16);
  EXPECT_EQ(offset("longheads(chunk=96)", "chunk"), 16);   // three of them are more than 256
  EXPECT_EQ(offset("longheads(chunks=9)", "chunks"), 17);  // of 32
  EXPECT_EQ(offset("longheads(chunks=2)", "chunks"), 17);
  EXPECT_EQ(offset("longheads(chunk=64, chunks=5)", "chunks"), 27);
  EXPECT_EQ(offset("longheads(chunks=4, begin=127)", "begin"), 26);
  EXPECT_EQ(offset("longheads(begin=257)", "begin"), 16);
  EXPECT_EQ(offset("longheads(train_len=47)", "3 chunks of 16"), 20);
  EXPECT_EQ(offset("longheads(kv_chunk=32)", "kv_chunk"), 10);
  EXPECT_EQ(offset("longheads(forced=first)", "code"), 17);
  EXPECT_EQ(offset("longheads(select=both)", "group"), 17);
  EXPECT_EQ(offset("longheads(init=half)", "full"), 15);
  EXPECT_TRUE(make_strategy("longheads(chunk=64, chunks=4)", trained_for(256)).ok());
  EXPECT_TRUE(make_strategy("longheads(chunks=4, begin=128)", trained_for(256)).ok());
}

TEST(LongHeads, RefusesModelsTrainedForTooFewTokens) {
  const auto strategy = make_strategy("longheads", trained_for(47));
  EXPECT_EQ(strategy.status().code(), Code::kBadStrategy);
  EXPECT_THAT(strategy.status().message(), HasSubstr("train_len is 47"));
}

TEST(LongHeads, PlansPlainAttentionBeforeBeginAndSelectionAfter) {
  const auto strategy = make("longheads(chunk=16, chunks=4, begin=70, forced=paper, select=group)", 128);
  Plan plan;
  strategy->plan(60, 30, plan);
  ASSERT_TRUE(validate(plan, 60, 30, 4).ok());
  ASSERT_EQ(plan.blocks.size(), 2u);
  EXPECT_EQ(plan.blocks[0].first_query, 60);
  EXPECT_EQ(plan.blocks[0].n_queries, 10);
  EXPECT_FALSE(plan.blocks[0].selected);
  EXPECT_EQ(plan.blocks[1].first_query, 70);
  EXPECT_EQ(plan.blocks[1].n_queries, 20);
  EXPECT_TRUE(plan.blocks[1].selected);
  ASSERT_EQ(plan.spans.size(), 2u);
  EXPECT_FALSE(plan.spans[0].ranked);
  EXPECT_TRUE(plan.spans[1].ranked);
  EXPECT_EQ(plan.selection.chunk, 16);
  EXPECT_EQ(plan.selection.count, 4);
  EXPECT_EQ(plan.selection.n_last, 1);
  EXPECT_EQ(plan.selection.sharing, ChunkSelection::Sharing::kGroup);
  EXPECT_EQ(touched_chunks(plan, 16, 4), (std::vector<int64_t>{0, 1, 2, 3, 4}));  // of queries up to 69 alone

  plan.clear();
  make("longheads(chunk=16, chunks=4)", 128)->plan(64, 1, plan);
  ASSERT_EQ(plan.blocks.size(), 1u);
  EXPECT_TRUE(plan.blocks[0].selected);
  EXPECT_EQ(plan.selection.n_last, 2);
  EXPECT_EQ(plan.selection.sharing, ChunkSelection::Sharing::kHead);
}

TEST(LongHeads, InitFullLetsGeneratedTokensAloneSelect) {
  const auto strategy = make("longheads(chunk=16, chunks=3, init=full)", 64);
  EXPECT_TRUE(strategy->plans_generated_apart());
  EXPECT_EQ(strategy->reach(), 64);  // given tokens see plain distances
  Plan given, generated;
  strategy->plan(0, 200, given);
  ASSERT_EQ(given.blocks.size(), 1u);
  EXPECT_FALSE(given.blocks[0].selected);
  EXPECT_EQ(text_of(rows_of(given, 200, 200)), plain_rows(0, 200));
  strategy->plan_generated(40, 20, generated);
  ASSERT_EQ(generated.blocks.size(), 2u);
  EXPECT_EQ(generated.blocks[1].first_query, 48);
  EXPECT_TRUE(generated.blocks[1].selected);

  const auto plain = make("longheads(chunk=16, chunks=3)", 64);
  EXPECT_FALSE(plain->plans_generated_apart());
  EXPECT_EQ(plain->reach(), kNoLimit);
}

TEST(LongHeads, StoresItsChunksAndKeepsEverything) {
  const auto strategy = make("longheads(chunk=48)", 256);
  EXPECT_EQ(strategy->kv_chunk(), 48);
  EXPECT_TRUE(strategy->selects_chunks());
  EXPECT_EQ(strategy->stored_div(), 1);
  const auto ranges = strategy->retained(100000);
  ASSERT_EQ(ranges.size(), 1u);
  EXPECT_EQ(ranges[0].begin, 0);
  EXPECT_EQ(ranges[0].end, kNoLimit);
}

// Where all scores are equal the chosen chunks are the first ones: the definition written out.
double expected_distance(int64_t l, int64_t count, int64_t n_last, int64_t begin, int64_t i, int64_t j) {
  if (j > i) return std::nan("");
  if (i < begin) return static_cast<double>(i - j);
  const int64_t own = i / l;
  std::set<int64_t> chosen;
  for (int64_t c = own; c > own - n_last && c >= 0; --c) chosen.insert(c);
  for (int64_t c = 0; c <= own && static_cast<int64_t>(chosen.size()) < std::min(count, own + 1); ++c) chosen.insert(c);
  const auto at = chosen.find(j / l);
  if (at == chosen.end()) return std::nan("");
  const int64_t rank = std::distance(chosen.begin(), at);
  return static_cast<double>((static_cast<int64_t>(chosen.size()) - 1) * l + i % l - (rank * l + j % l));
}

TEST(LongHeads, ShowsTheFirstChunksWhereAllScoresAreEqual) {
  const struct {
    const char* expression;
    int64_t count, n_last, begin;
  } cases[] = {{"longheads(chunk=16, chunks=3)", 3, 2, 48},
               {"longheads(chunk=16, chunks=3, forced=paper)", 3, 1, 48},
               {"longheads(chunk=16, chunks=5)", 5, 2, 80},
               {"longheads(chunk=16, chunks=4, begin=75, forced=paper)", 4, 1, 75}};
  constexpr int64_t kLength = 180;
  for (const auto& c : cases) {
    const Matrix matrix = positions(*make(c.expression, 80), kLength);
    for (int64_t i = 0; i < kLength; ++i) {
      std::vector<double> expected;
      for (int64_t j = 0; j < kLength; ++j) expected.push_back(expected_distance(16, c.count, c.n_last, c.begin, i, j));
      ASSERT_EQ(text_of({matrix[static_cast<size_t>(i)]}), text_of({expected})) << c.expression << ", query " << i;
    }
  }
}

TEST(LongHeads, EqualsPlainAttentionUpToBegin) {
  for (const char* expression : {"longheads(chunk=16, chunks=3)", "longheads(chunk=16, chunks=3, begin=64)"}) {
    const int64_t begin = std::string(expression).find("begin") == std::string::npos ? 48 : 64;
    EXPECT_EQ(text_of(positions(*make(expression, 64), begin)), plain_rows(0, begin));
    EXPECT_NE(text_of(positions(*make(expression, 64), begin + 17)), plain_rows(0, begin + 17));
  }
}

}  // namespace
}  // namespace quire::test
