#include "lib/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace quire {
namespace {

using testing::HasSubstr;

Span run(int64_t first_key, int64_t count, int64_t stride = 1) {
  Span span;
  span.first_key = first_key;
  span.count = count;
  span.stride = stride;
  return span;
}

TEST(Span, MapsQueriesAndKeysToPositions) {
  Span span = run(0, 100);
  span.q_offset = -6;
  span.q_cap = 9;
  span.key_base = 6;
  EXPECT_EQ(span.query_position(10), 4);
  EXPECT_EQ(span.query_position(40), 9);
  EXPECT_EQ(span.key_position(8), 2);
  EXPECT_EQ(span.key_position(4), -2);
  EXPECT_EQ(span.distance(10, 8), 2);
}

TEST(Span, DividesQueryIndexesFlooredOrReal) {
  Span span = run(0, 100);
  span.q_div = 4;
  span.q_offset = 1;
  EXPECT_EQ(span.query_position(11), 3);
  span.q_floor = false;
  EXPECT_EQ(span.query_position(11), 3.75);
}

TEST(Span, HasKeysAtGroupedOrFixedPositions) {
  Span span = run(0, 100);
  span.key_div = 4;
  span.key_base = 2;
  EXPECT_EQ(span.key_position(10), 2);
  EXPECT_EQ(span.key_position(1), -1);  // floored, not cut towards zero
  EXPECT_EQ(span.key_position(2), 0);
  span.key_div = 0;
  EXPECT_EQ(span.key_position(10), 0);
}

TEST(Span, KnowsWhetherKeysStandAsStored) {
  Span span = run(0, 100);
  EXPECT_TRUE(span.as_stored(1, 48));
  EXPECT_FALSE(span.as_stored(0, 48));
  EXPECT_FALSE(span.as_stored(8, 48));
  span.key_base = 3;
  EXPECT_TRUE(span.as_stored(1, 48));  // a shift of all keys is the query's
  span.key_div = 8;
  EXPECT_FALSE(span.as_stored(8, 48));  // groups begin elsewhere
  span.key_base = -16;
  EXPECT_TRUE(span.as_stored(8, 48));
  EXPECT_FALSE(span.as_stored(8, 44));  // a group lies in two chunks
  EXPECT_FALSE(span.as_stored(4, 48));
  span.key_floor = false;
  EXPECT_FALSE(span.as_stored(8, 48));  // each key of a group stands at a place of its own
  span.key_div = 0;
  EXPECT_TRUE(span.as_stored(0, 44));
}

TEST(Span, BeginsKeyPositionsAnewWithEachPeriod) {
  Span span = run(0, 100);
  span.key_base = 3;
  span.key_period = 10;
  EXPECT_EQ(span.key_position(3), 0);
  EXPECT_EQ(span.key_position(12), 9);
  EXPECT_EQ(span.key_position(13), 0);
  EXPECT_EQ(span.key_position(0), 7);  // of the period before the base
  EXPECT_EQ(span.base_of(12), 3);
  EXPECT_EQ(span.base_of(13), 13);
  EXPECT_EQ(span.base_of(0), -7);
  EXPECT_EQ(span.distance(20, 14), 19);
}

TEST(Span, ShowsMembersWithinTheLags) {
  Span span = run(3, 4, 5);  // 3 8 13 18
  span.min_lag = 2;
  span.max_lag = 10;
  EXPECT_TRUE(span.visible(18, 8));
  EXPECT_FALSE(span.visible(18, 9));   // between members
  EXPECT_FALSE(span.visible(19, 18));  // too near
  EXPECT_FALSE(span.visible(19, 8));   // too far
  EXPECT_FALSE(span.visible(30, 23));  // after the last
  EXPECT_FALSE(span.visible(2, -2));   // before the first
}

TEST(Plan, GivesEachHeadItsList) {
  Plan plan;
  plan.add_block(0, 2, {run(0, 2)});
  plan.add_block_per_head(2, 1, {{run(0, 1)}, {run(1, 2)}});
  EXPECT_TRUE(validate(plan, 0, 3, 2).ok());
  EXPECT_EQ(&plan.list(plan.blocks[0], 0), &plan.list(plan.blocks[0], 1));
  EXPECT_EQ(plan.list(plan.blocks[1], 1).begin, 2);
  EXPECT_EQ(plan.list(plan.blocks[1], 1).end, 3);
  plan.clear();
  EXPECT_TRUE(validate(plan, 7, 0, 2).ok());
  EXPECT_TRUE(plan.blocks.empty() && plan.lists.empty() && plan.spans.empty() && plan.query_scale.empty());
}

TEST(PositionMatrix, HoldsDistancesAndNanElsewhere) {
  Plan plan;
  Span band = run(0, 6, 2);  // 0 2 4 6 8 10
  band.max_lag = 3;
  plan.add_block_per_head(5, 2, {{band}, {}});
  Span memory = run(0, 4);
  memory.kind = KvKind::kCondensed;
  plan.add_block(7, 1, {run(6, 2), memory});
  ASSERT_TRUE(validate(plan, 5, 3, 2).ok());
  const double dot = std::nan("");
  const std::vector<double> expected = {dot, dot, 3,   dot, 1,   dot, dot,  //
                                        dot, dot, dot, dot, 2,   dot, 0,    //
                                        dot, dot, dot, dot, dot, dot, 1};
  std::vector<double> matrix(21, -1);
  position_matrix(plan, 0, 7, matrix.data());
  EXPECT_THAT(matrix, testing::Pointwise(testing::NanSensitiveDoubleEq(), expected));
  position_matrix(plan, 1, 7, matrix.data());
  for (size_t c = 0; c < 14; ++c) EXPECT_TRUE(std::isnan(matrix[c])) << c;
  position_matrix(plan, 0, 5, matrix.data(), KvKind::kCondensed);
  matrix.resize(15);
  const std::vector<double> of_memory = {dot, dot, dot, dot, dot, dot, dot, dot, dot, dot, 7, 6, 5, 4, dot};
  EXPECT_THAT(matrix, testing::Pointwise(testing::NanSensitiveDoubleEq(), of_memory));
}

// New entries of memory: queries that stand apart, each of which sees itself.
TEST(PositionMatrix, FollowsStepsAndDiagonals) {
  Plan plan;
  Span self = run(2, 2);
  self.kind = KvKind::kCondensed;
  self.diagonal = true;
  Span text = run(4, 4);
  text.min_lag = 1;
  plan.add_block(6, 2, {text, self});
  plan.blocks.back().step = 2;
  ASSERT_TRUE(validate(plan, 6, 2, 1).ok());
  const double dot = std::nan("");
  std::vector<double> matrix(16);
  position_matrix(plan, 0, 8, matrix.data());
  const std::vector<double> of_text = {dot, dot, dot, dot, 2, 1, dot, dot, dot, dot, dot, dot, 4, 3, 2, 1};
  EXPECT_THAT(matrix, testing::Pointwise(testing::NanSensitiveDoubleEq(), of_text));
  matrix.resize(6);
  position_matrix(plan, 0, 3, matrix.data(), KvKind::kCondensed);
  EXPECT_THAT(matrix,
              testing::Pointwise(testing::NanSensitiveDoubleEq(), std::vector<double>{dot, dot, 0, dot, dot, dot}));
}

std::string failure(const std::function<void(Plan&)>& damage) {
  Plan plan;
  plan.add_block(4, 2, {run(0, 3), run(3, 3)});
  plan.add_block(6, 1, {run(0, 7)});
  damage(plan);
  const Status status = validate(plan, 4, 3, 1);
  if (status.ok()) return "valid";
  EXPECT_EQ(status.code(), Code::kInternal);
  return status.message();
}

TEST(Validate, NamesTheBrokenInvariant) {
  EXPECT_EQ(failure([](Plan&) {}), "valid");
  EXPECT_THAT(failure([](Plan& p) { p.blocks[1].first_query = 7; }), HasSubstr("query 6 comes next"));
  EXPECT_THAT(failure([](Plan& p) { p.blocks[0].n_queries = 0; }), HasSubstr("block of 0 queries"));
  EXPECT_THAT(failure([](Plan& p) { p.blocks.pop_back(); }), HasSubstr("ends before query 6"));
  EXPECT_THAT(failure([](Plan& p) { p.blocks[1].first_list = 2; }), HasSubstr("fewer than 1 span lists"));
  EXPECT_THAT(failure([](Plan& p) { p.blocks[1].first_list = -1; }), HasSubstr("fewer than 1 span lists"));
  EXPECT_THAT(failure([](Plan& p) { p.lists[1].end = 4; }), HasSubstr("outside the spans"));
  EXPECT_THAT(failure([](Plan& p) { p.lists[1].begin = -1; }), HasSubstr("outside the spans"));
  EXPECT_THAT(failure([](Plan& p) { p.lists[0] = {2, 1}; }), HasSubstr("outside the spans"));
  EXPECT_THAT(failure([](Plan& p) { std::swap(p.spans[0], p.spans[1]); }), HasSubstr("span 1 does not come"));
  EXPECT_THAT(failure([](Plan& p) { p.spans[0].kind = KvKind::kCondensed; }), HasSubstr("span 1 does not come"));
  EXPECT_THAT(failure([](Plan& p) { p.spans[1].kind = static_cast<KvKind>(7); }), HasSubstr("span 1: no such kind"));
  EXPECT_THAT(failure([](Plan& p) { p.spans[0].count = 4; }), HasSubstr("span 0 and span 1 overlap"));
  EXPECT_THAT(failure([](Plan& p) { p.spans[0].count = 0; }), HasSubstr("no run of keys"));
  EXPECT_THAT(failure([](Plan& p) { p.spans[0].stride = 0; }), HasSubstr("no run of keys"));
  EXPECT_THAT(failure([](Plan& p) { p.spans[0].first_key = -1; }), HasSubstr("no run of keys"));
  EXPECT_THAT(failure([](Plan& p) { p.spans[2].first_key = 1, p.spans[2].count = kNoLimit; }),
              HasSubstr("no run of keys"));
  EXPECT_THAT(failure([](Plan& p) { p.spans[1].min_lag = -1; }), HasSubstr("span 1: lags"));
  EXPECT_THAT(failure([](Plan& p) { p.spans[1].min_lag = 3, p.spans[1].max_lag = 2; }), HasSubstr("span 1: lags"));
  EXPECT_THAT(failure([](Plan& p) { p.spans[1].q_div = 0; }), HasSubstr("query position"));
  EXPECT_THAT(failure([](Plan& p) { p.spans[1].q_cap = std::nan(""); }), HasSubstr("query position"));
  EXPECT_THAT(failure([](Plan& p) { p.spans[1].q_cap = -HUGE_VAL; }), HasSubstr("query position"));
  EXPECT_THAT(failure([](Plan& p) { p.spans[1].q_div = HUGE_VAL; }), HasSubstr("query position"));
  EXPECT_THAT(failure([](Plan& p) { p.spans[1].q_offset = HUGE_VAL; }), HasSubstr("query position"));
  EXPECT_THAT(failure([](Plan& p) { p.spans[1].lag_stride = 0; }), HasSubstr("span 1: lag_stride 0"));
  EXPECT_THAT(failure([](Plan& p) { p.spans[1].key_div = 2, p.spans[1].diagonal = true; }),
              HasSubstr("span 1: key_div 2"));
  EXPECT_THAT(failure([](Plan& p) { p.spans[1].key_div = 2, p.spans[1].ranked = true; }),
              HasSubstr("span 1: key_div 2"));
  EXPECT_THAT(failure([](Plan& p) { p.spans[1].key_div = -1; }), HasSubstr("span 1: key_div -1"));
  EXPECT_THAT(failure([](Plan& p) { p.spans[1].key_period = -1; }), HasSubstr("span 1: key_period -1"));
  EXPECT_THAT(failure([](Plan& p) { p.spans[1].key_period = 4, p.spans[1].diagonal = true; }),
              HasSubstr("span 1: key_period 4"));
  EXPECT_THAT(failure([](Plan& p) { p.spans[1].key_period = 4, p.spans[1].ranked = true; }),
              HasSubstr("span 1: key_period 4"));
  EXPECT_THAT(failure([](Plan& p) {
                p.spans[1].key_period = 4;
                p.spans[1].key_div = 0;
              }),
              HasSubstr("key_period 4 of divided positions"));
  EXPECT_THAT(failure([](Plan& p) { p.blocks[1].step = 2; }), HasSubstr("queries 2 apart"));
  EXPECT_THAT(failure([](Plan& p) { p.blocks[0].step = -1; }), HasSubstr("queries -1 apart"));
  EXPECT_THAT(failure([](Plan& p) { p.blocks[0].selected = true; }), HasSubstr("a selection of"));
  EXPECT_THAT(failure([](Plan& p) {
                p.selection.chunk = 2, p.selection.n_last = 2, p.selection.count = 2;
                p.blocks[0].selected = true;
              }),
              HasSubstr("a selection of 2 chunks of 2 keys, the last 2 of them forced"));
  EXPECT_THAT(failure([](Plan& p) {
                p.selection.chunk = 2, p.selection.n_last = 0, p.selection.count = 3;
                p.blocks[0].selected = true;
              }),
              HasSubstr("the last 0 of them forced"));
  EXPECT_THAT(failure([](Plan& p) {
                p.selection.chunk = 2, p.selection.n_last = 1, p.selection.count = 3;
                p.blocks[0].selected = true;
                p.spans[1].kind = KvKind::kCondensed;
              }),
              HasSubstr("span 1 cannot be selected from"));
  EXPECT_THAT(failure([](Plan& p) {
                p.selection.chunk = 2, p.selection.n_last = 1, p.selection.count = 3;
                p.blocks[0].selected = p.blocks[0].per_head = true;
              }),
              HasSubstr("a selection and lists per head"));
  EXPECT_THAT(failure([](Plan& p) { p.query_scale = {1, 1}; }), HasSubstr("2 query scales"));
  EXPECT_THAT(failure([](Plan& p) { p.query_scale = {1, -1, 1}; }), HasSubstr("positive"));
  EXPECT_THAT(failure([](Plan& p) { p.query_scale = {1, 1, HUGE_VALF}; }), HasSubstr("positive"));
}

TEST(Validate, AllowsSpansOverTheSameKeysThatNoQuerySeesTwice) {
  Span near = run(0, 10), far = run(0, 10);
  near.max_lag = 4;
  far.min_lag = 5;
  Plan plan;
  plan.add_block(9, 1, {near, far});
  plan.add_block(10, 1, {run(0, 5, 2), run(1, 5, 2)});
  plan.add_block(11, 1, {run(0, 5, 4), run(2, 3, 6)});  // 0 4 8 12 16 and 2 8 14
  EXPECT_THAT(validate(plan, 9, 3, 1).message(), HasSubstr("span 4 and span 5 overlap"));
  plan.spans[5].count = 1;
  EXPECT_TRUE(validate(plan, 9, 3, 1).ok());
  plan.spans[1].min_lag = 4;
  EXPECT_THAT(validate(plan, 9, 3, 1).message(), HasSubstr("span 0 and span 1 overlap"));
}

}  // namespace
}  // namespace quire
