#include <gmock/gmock.h>

#include "tests/unit/strategy/strategies.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

TEST(DcaTopK, WritesOutItsDefaults) {
  EXPECT_EQ(make("dca_topk", 8192)->canonical(),
            "dca_topk(chunk=32, chunks=40, one_in=12, begin=1280, select=group, represent=mean, reading=dense, "
            "sticky=8, dca_chunk=6144, dca_cap=8191, train_len=8192, kv_chunk=256) + none");
  EXPECT_EQ(make("dca_topk", 256)->canonical(),
            "dca_topk(chunk=16, chunks=40, one_in=12, begin=640, select=group, represent=mean, reading=dense, "
            "sticky=8, dca_chunk=192, dca_cap=255, train_len=256, kv_chunk=64) + none");
  // The distances begin anew at the edge of a chunk.
  EXPECT_THAT(make("dca_topk(chunk=80)", 256)->canonical(), HasSubstr("dca_chunk=160, dca_cap=255"));
  // A stored chunk holds whole chunks.
  EXPECT_THAT(make("dca_topk(chunk=80)", 256)->canonical(), HasSubstr("kv_chunk=80"));
  EXPECT_THAT(make("dca_topk(chunk=48)", 8192)->canonical(), HasSubstr("kv_chunk=240"));
  for (const char* expression : {"dca_topk", "dca_topk(chunk=64, chunks=5, one_in=0, begin=500, select=layer)",
                                 "dca_topk(represent=minmax, reading=selected, dca_chunk=64) + ntk(factor=2)"}) {
    const std::string canonical = make(expression, 256)->canonical();
    EXPECT_EQ(make(canonical, 256)->canonical(), canonical) << expression;
  }
}

TEST(DcaTopK, GivenTokensSeeEveryKeyAndGeneratedOnesTheChunksTheyChoose) {
  const auto strategy = make("dca_topk(chunk=16, chunks=4, one_in=5)", 256);
  EXPECT_TRUE(strategy->plans_generated_apart());
  EXPECT_EQ(strategy->reach(), kNoLimit);
  EXPECT_EQ(strategy->kv_chunk(), 64);
  EXPECT_EQ(strategy->chunks_selected(500), 0);
  Plan given, generated, early;
  strategy->plan(500, 1, given);
  strategy->plan_generated(500, 1, generated);
  strategy->plan_generated(63, 1, early);
  EXPECT_EQ(given.most_selected(), 0);
  EXPECT_EQ(generated.most_selected(), 6);  // a fifth of 32
  EXPECT_EQ(early.most_selected(), 0);      // before 4 chunks of 16
  EXPECT_EQ(generated.selection.representation, ChunkSelection::Representation::kMean);
  EXPECT_EQ(generated.selection.key_period, 192);
  // The distances are those of dca.
  Plan dca;
  make("dca", 256)->plan(500, 1, dca);
  std::vector<double> expected(501), actual(501);
  position_matrix(dca, 0, 501, expected.data());
  position_matrix(given, 0, 501, actual.data());
  EXPECT_EQ(actual, expected);
  position_matrix(generated, 0, 501, actual.data());
  int64_t n_seen = 0;
  for (size_t j = 0; j < actual.size(); ++j) {
    if (std::isnan(actual[j])) continue;
    EXPECT_EQ(actual[j], expected[j]) << "key " << j;
    ++n_seen;
  }
  EXPECT_EQ(n_seen, 5 * 16 + 500 % 16 + 1);
}

TEST(DcaTopK, ReadsWhatItChoosesIfAsked) {
  const auto strategy = make("dca_topk(chunk=16, chunks=4, one_in=5, reading=selected, represent=minmax)", 256);
  EXPECT_EQ(strategy->selection().n_sticky, 0);
  EXPECT_FALSE(strategy->plans_generated_apart());
  EXPECT_TRUE(make("dca_topk(reading=selected)", 256)->plans_generated_apart());  // generated ones see sticky chunks
  EXPECT_EQ(strategy->chunks_selected(63), 0);
  EXPECT_EQ(strategy->chunks_selected(64), 4);
  EXPECT_EQ(strategy->chunks_selected(500), 6);
  Plan plan;
  strategy->plan(460, 60, plan);
  EXPECT_EQ(plan.most_selected(), 6);
  EXPECT_EQ(plan.selection.most(460), 5);  // a query's choice does not hang on the others of its call
  EXPECT_EQ(plan.selection.representation, ChunkSelection::Representation::kBounds);
}

TEST(DcaTopK, RefusesWhatDoesNotFit) {
  const auto refused = [](const std::string& expression, const std::string& message, int64_t train_len = 256) {
    const auto strategy = make_strategy(expression, trained_for(train_len));
    EXPECT_EQ(strategy.status().code(), Code::kBadStrategy) << expression;
    EXPECT_THAT(strategy.status().message(), HasSubstr(message)) << expression;
    return strategy.status().offset();
  };
  EXPECT_EQ(refused("dca_topk(chunk=40)", "multiple of 16"), 15);
  EXPECT_EQ(refused("dca_topk(chunk=144)", "chunk"), 15);  // two of them are more than 256
  EXPECT_EQ(refused("dca_topk(chunks=2)", "chunks"), 16);
  EXPECT_EQ(refused("dca_topk(one_in=-1)", "one_in"), 16);
  EXPECT_EQ(refused("dca_topk(chunk=16, chunks=4, begin=63)", "begin"), 35);
  EXPECT_EQ(refused("dca_topk(represent=max)", "minmax"), 19);
  EXPECT_EQ(refused("dca_topk(reading=half)", "selected"), 17);
  EXPECT_EQ(refused("dca_topk(chunks=9, sticky=7)", "sticky"), 26);  // six chunks can be chosen
  EXPECT_EQ(refused("dca_topk(chunk=32, dca_chunk=100)", "multiple of 32"), 29);
  EXPECT_EQ(refused("dca_topk(chunk=48, kv_chunk=64)", "multiple of 48"), 28);
  refused("dca_topk", "train_len is 31", 31);
}

}  // namespace
}  // namespace quire::test
