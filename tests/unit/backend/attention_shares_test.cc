// Where rows look (AttentionShares): against the definition in float64, and the same bits however a call is made.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/unit/backend/attention_scene.h"
#include "tests/unit/backend/plans.h"

namespace quire::test {
namespace {

constexpr auto kF32 = ElementType::kF32;
constexpr auto kF16 = ElementType::kF16;
constexpr auto kBF16 = ElementType::kBF16;
constexpr int64_t kFirst = AttentionScene::kFirstQuery;
constexpr int64_t kQueries = AttentionScene::kQueries;
constexpr int64_t kKeys = AttentionScene::kTextKeys;

const Shape kShapes[] = {{1, 2, 64, 64, kF32}, {4, 1, 32, 16, kF16}, {2, 2, 48, 256, kBF16}};

TEST(AttentionShares, AreTheDefinitionForEveryPlan) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machine(2);
  for (const Shape& shape : kShapes) {
    AttentionScenes scenes(machine, random, shape);
    for (const PlanCase& plan_case : plan_cases()) {
      SCOPED_TRACE(plan_case.name + "; " + shape.name());
      const AttentionScene& scene = scenes.stored_by(plan_case.stored_div);
      const Plan plan = make_plan(plan_case, kFirst, kQueries, shape.n_query_heads());
      const int64_t first_row = random.between(0, 5), first_key = random.between(0, 40);
      SharesAsked asked{first_row, first_key, random.between(first_key, kKeys)};
      (void)scene.run(machine, plan, kFirst, kQueries, {.shares = &asked});
      const auto expected = scene.expected_shares(plan, asked, random.between(0, 2), 3);
      const size_t hidden = expected.size() - asked.values.size();  // of the rows before first_row
      for (size_t e = hidden; e < expected.size(); ++e) {
        if (std::isnan(expected[e])) continue;  // not computed
        ASSERT_NEAR(asked.values[e - hidden], expected[e], 4e-6) << e;
      }
    }
  }
}

// If no key is left out, all of a row's attention is somewhere.
TEST(AttentionShares, OfAllKeysAddUpToOne) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machine(2);
  AttentionScenes scenes(machine, random, kShapes[0]);
  for (const PlanCase& plan_case : plan_cases()) {
    SCOPED_TRACE(plan_case.name);
    const Plan plan = make_plan(plan_case, kFirst, kQueries, kShapes[0].n_query_heads());
    SharesAsked asked{0, 0, kKeys};
    (void)scenes.stored_by(plan_case.stored_div).run(machine, plan, kFirst, kQueries, {.shares = &asked});
    const auto expected = scenes.stored_by(plan_case.stored_div).expected_shares(plan, asked, 0, 1);
    const size_t n_cells = asked.values.size() / static_cast<size_t>(kQueries * kShapes[0].n_query_heads());
    for (size_t at = 0; at < asked.values.size(); at += n_cells) {
      const auto row = asked.values.begin() + static_cast<int64_t>(at);
      const auto reference = expected.begin() + static_cast<int64_t>(at);
      const double all = std::accumulate(reference, reference + static_cast<int64_t>(n_cells), 0.0);
      ASSERT_TRUE(all == 0 || std::fabs(all - 1) < 1e-9) << all;  // a head may see nothing
      ASSERT_NEAR(std::accumulate(row, row + static_cast<int64_t>(n_cells), 0.0), all, 1e-5) << at / n_cells;
    }
  }
}

// Asking changes no output; threads, calls and windows of chunks change no share.
TEST(AttentionShares, BitsDependOnTheQueryAlone) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machines[] = {Machine(1), Machine(2), Machine(4)};
  for (const Shape& shape : kShapes) {
    AttentionScenes scenes(machines[0], random, shape);
    const int64_t n_chunks = ceil_div(kKeys, shape.chunk);
    std::vector<int64_t> each;
    for (int64_t c = 0; c < n_chunks; ++c) each.push_back(c + 1);
    const std::vector<int64_t> cuts[] = {{}, each, {n_chunks / 3, 2 * n_chunks / 3}};
    for (const PlanCase& plan_case : plan_cases()) {
      SCOPED_TRACE(plan_case.name + "; " + shape.name());
      const AttentionScene& scene = scenes.stored_by(plan_case.stored_div);
      const Plan plan = make_plan(plan_case, kFirst, kQueries, shape.n_query_heads());
      const auto plain = scene.run(machines[0], plan, kFirst, kQueries);
      SharesAsked all{0, 5, kKeys - 7};
      expect_same_bits(plain, scene.run(machines[0], plan, kFirst, kQueries, {.shares = &all}), "output");
      const size_t n_shares = all.values.size() / kQueries, n_out = plain.size() / kQueries;
      for (const auto& [first, n] : {std::pair<int64_t, int64_t>{0, kQueries}, {40, 1}, {20, 7}}) {
        const Plan part = make_plan(plan_case, kFirst + first, n, shape.n_query_heads());
        for (size_t m = 0; m < 3; ++m) {
          SharesAsked asked{n - 1, 5, kKeys - 7};
          const auto out = scene.run(machines[m], part, kFirst + first, n, {.shares = &asked, .cuts = cuts[m]});
          const auto row = [&](const std::vector<float>& v, int64_t at, size_t width) {
            const auto begin = v.begin() + at * static_cast<int64_t>(width);
            return std::vector<float>(begin, begin + static_cast<int64_t>(width));
          };
          expect_same_bits(row(plain, first + n - 1, n_out), row(out, n - 1, n_out), "output");
          expect_same_bits(row(all.values, first + n - 1, n_shares), asked.values, "shares");
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

// Each (row, head) picks its chunks: only those have a share, and together all.
TEST(AttentionShares, OfSelectedChunks) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machine(2);
  const Shape shape{2, 2, 32, 64, kF16};
  AttentionScene scene(machine, random, shape, 1);
  scene.select(random, 32, 4);
  Plan plan;
  plan.selection = {.chunk = 32, .count = 4};
  Span span;
  span.count = kKeys;
  span.ranked = true;
  plan.add_block(kFirst, kQueries, {span}, KeysSeen::kSelected);
  SharesAsked asked{0, 0, kKeys};
  (void)scene.run(machine, plan, kFirst, kQueries, {.shares = &asked});
  const auto expected = scene.expected_shares(plan, asked, 0, 1);
  ASSERT_EQ(asked.values.size(), expected.size());
  for (size_t e = 0; e < expected.size(); ++e) ASSERT_NEAR(asked.values[e], expected[e], 4e-6) << e;
}

TEST(AttentionShares, PeaksAreTheGreatestOfHeadsAndLayers) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machine(2);
  constexpr int64_t kRows = 3, kCells = 2500;  // more than a task has
  constexpr int kHeads = 5;
  std::vector<float> expected(kRows * kCells, 0.0f);
  const auto peaks = machine.buffer(std::vector<float>(expected.size(), std::nanf("")));
  for (int layer = 0; layer < 3; ++layer) {
    const auto shares = random.normal(kRows * kHeads * kCells);
    for (int64_t at = 0; at < kRows * kHeads * kCells; ++at) {
      float& to = expected[static_cast<size_t>(at / (kHeads * kCells) * kCells + at % kCells)];
      to = std::max(to, shares[static_cast<size_t>(at)]);
    }
    const auto given = machine.buffer(shares);
    ASSERT_TRUE(machine.backend->keep_peaks(machine.exec(), *given, kRows, kHeads, kCells, layer == 0, *peaks).ok());
  }
  expect_same_bits(machine.values(*peaks), expected, "peaks");
}

}  // namespace
}  // namespace quire::test
