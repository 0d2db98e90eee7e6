// The executor against a naive float64 reference, and its independence of threads and of how queries come in calls.

#include <gtest/gtest.h>

#include "tests/unit/backend/attention_scene.h"
#include "tests/unit/backend/plans.h"

namespace quire::test {
namespace {

constexpr auto kF32 = ElementType::kF32;
constexpr auto kF16 = ElementType::kF16;
constexpr auto kBF16 = ElementType::kBF16;
constexpr int64_t kFirst = AttentionScene::kFirstQuery;
constexpr int64_t kQueries = AttentionScene::kQueries;

// Every group, head_dim, chunk and type, and each pair of them that has shown different code paths.
const Shape kShapes[] = {{1, 2, 64, 64, kF32},
                         {2, 1, 32, 16, kF32},
                         {4, 1, 128, 48, kF32},
                         {8, 1, 48, 256, kF32},
                         {1, 3, 80, 48, kF16},
                         {2, 2, 96, 256, kF16},
                         {4, 2, 64, 64, kF16},
                         {8, 1, 128, 16, kF16},
                         {1, 1, 24, 256, kBF16},
                         {2, 1, 128, 64, kBF16},
                         {4, 1, 80, 16, kBF16},
                         {8, 1, 64, 48, kBF16},
                         {4, 1, 32, 256, kBF16},
                         {8, 1, 96, 64, kF32},
                         {20, 1, 48, 64, kF32},
                         // Old text is narrow.
                         {4, 1, 32, 16, kF16, 0},
                         {2, 2, 48, 48, kBF16, 100},
                         {1, 3, 24, 64, kF32, 1},
                         {8, 1, 80, 16, kF32, 230},
                         {3, 2, 64, 48, kF16, 0, ElementType::kInt4},
                         {2, 1, 24, 16, kBF16, 40, ElementType::kInt4},
                         {8, 1, 80, 256, kF32, 1, ElementType::kInt4}};

TEST(Attention, MatchesTheNaiveReferenceForEveryPlanAndShape) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machine(2);
  for (const Shape& shape : kShapes) {
    AttentionScenes scenes(machine, random, shape);
    if (testing::Test::HasFatalFailure()) return;
    for (const PlanCase& plan_case : plan_cases()) {
      SCOPED_TRACE(plan_case.name + "; " + shape.name());
      const Plan plan = make_plan(plan_case, kFirst, kQueries, shape.n_query_heads());
      ASSERT_EQ("ok", message_of(validate(plan, kFirst, kQueries, shape.n_query_heads())));
      const AttentionScene& scene = scenes.stored_by(plan_case.stored_div);
      // A third of the queries, another one in each run: the reference is slow.
      const auto expected = scene.expected(plan, random.between(0, 2), 3);
      expect_reference(scene.run(machine, plan, kFirst, kQueries), expected, shape);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(Attention, NoKeysGiveZero) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machine;
  const AttentionScene scene(machine, random, {2, 2, 32, 16, kF16}, 1);
  Plan plan;
  plan.add_block(kFirst, 3, {});
  for (const float x : scene.run(machine, plan, kFirst, 3)) ASSERT_EQ(x, 0.0f);
}

// Decode steps are split over pieces, prefill over tiles, with any number of threads: the bits are the same.
TEST(Attention, BitsDependOnTheQueryAlone) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machines[] = {Machine(1), Machine(2), Machine(4)};
  const Shape shapes[] = {{1, 1, 64, 48, kF32},  {4, 1, 32, 16, kF16},     {2, 3, 48, 64, kBF16},
                          {8, 1, 64, 256, kF16}, {4, 1, 32, 16, kF16, 50}, {2, 1, 48, 48, kBF16, 0}};
  for (const Shape& shape : shapes) {
    AttentionScenes scenes(machines[0], random, shape);
    const auto width = static_cast<int64_t>(shape.n_query_heads() * shape.head_dim);
    for (const PlanCase& plan_case : plan_cases()) {
      const AttentionScene& scene = scenes.stored_by(plan_case.stored_div);
      const auto run_split = [&](Machine& machine, int64_t step) {
        std::vector<float> out;
        const int64_t all = step <= 2 ? 30 : kQueries;  // many small calls take long
        for (int64_t q = 0; q < all; q += step) {
          const int64_t n = std::min(step, all - q);
          const Plan plan = make_plan(plan_case, kFirst + q, n, shape.n_query_heads());
          const auto part = scene.run(machine, plan, kFirst + q, n);
          out.insert(out.end(), part.begin(), part.end());
        }
        return out;
      };
      const auto whole = run_split(machines[0], kQueries);
      ASSERT_EQ(static_cast<int64_t>(whole.size()), kQueries * width);
      for (Machine& machine : machines) {
        for (const int64_t step : {int64_t{1}, int64_t{2}, int64_t{7}, int64_t{64}, kQueries}) {
          const auto parts = run_split(machine, step);
          expect_same_bits({whole.begin(), whole.begin() + static_cast<int64_t>(parts.size())}, parts,
                           plan_case.name + "; " + shape.name() + "; " + std::to_string(machine.pool.n_threads()) +
                               " threads, calls of " + std::to_string(step));
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

// A question behind a long text: fewer tiles than threads, of many rows. More partial results than a slab holds.
TEST(Attention, ThreadsShareTilesOfManyRows) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machines[] = {Machine(1), Machine(2), Machine(4)};
  for (const Shape& shape : {Shape{8, 1, 128, 16, kF16}, Shape{16, 1, 128, 16, kF32}, Shape{3, 2, 32, 16, kBF16}}) {
    AttentionScenes scenes(machines[0], random, shape);
    const int64_t n_chunks = ceil_div(AttentionScene::kTextKeys, shape.chunk);
    for (const PlanCase& plan_case : plan_cases()) {
      const AttentionScene& scene = scenes.stored_by(plan_case.stored_div);
      for (const int64_t n : {7, 24}) {
        const int64_t first = kFirst + random.between(0, kQueries - n);
        const Plan plan = make_plan(plan_case, first, n, shape.n_query_heads());
        const auto whole = scene.run(machines[0], plan, first, n);
        for (Machine& machine : machines) {
          const std::string what =
              plan_case.name + "; " + shape.name() + "; " + std::to_string(machine.pool.n_threads()) + " threads";
          expect_same_bits(whole, scene.run(machine, plan, first, n), what);
          expect_same_bits(whole, scene.run(machine, plan, first, n, {.cuts = {3, n_chunks - 4}}), what);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
  // Of one tile of 63 rows.
  const AttentionScene scene(machines[0], random, {3, 1, 32, 16, kF16}, 1);
  Span span;
  span.count = AttentionScene::kTextKeys;
  Plan plan;
  plan.add_block(kFirst, 21, {span});
  for (Machine& machine : machines) {
    const int64_t before = machine.pool.tasks_started();
    (void)scene.run(machine, plan, kFirst, 21);
    const int64_t tasks = machine.pool.tasks_started() - before;
    if (machine.pool.n_threads() == 1) {
      EXPECT_EQ(tasks, 1);
    } else {
      EXPECT_GE(tasks, 4);
    }
  }
}

// One span whose key positions begin anew gives the bits of a span for each period.
TEST(Attention, APeriodIsASpanOfItsOwnToTheBit) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machines[] = {Machine(1), Machine(4)};
  const auto case_of = [](const std::string& name) {
    return *std::find_if(plan_cases().begin(), plan_cases().end(), [&](const PlanCase& c) { return c.name == name; });
  };
  for (const Shape& shape : {Shape{4, 1, 32, 16, kF16}, Shape{2, 2, 48, 64, kF32}, Shape{1, 1, 24, 112, kBF16}}) {
    const AttentionScene scene(machines[0], random, shape, 1);
    for (const int64_t n : {int64_t{1}, int64_t{7}, kQueries}) {
      const Plan spans = make_plan(case_of("dual chunk"), kFirst, n, shape.n_query_heads());
      const Plan periods = make_plan(case_of("dual chunk in periods"), kFirst, n, shape.n_query_heads());
      ASSERT_LT(periods.spans.size(), spans.spans.size());
      for (Machine& machine : machines) {
        expect_same_bits(scene.run(machine, spans, kFirst, n), scene.run(machine, periods, kFirst, n), shape.name());
      }
    }
  }
}

// Keys that come in windows of chunks: any windows give the bits that one call gives.
TEST(Attention, WindowsChangeNoBit) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machines[] = {Machine(1), Machine(2), Machine(4)};
  for (const Shape& shape : {Shape{4, 1, 32, 16, kF16}, Shape{2, 2, 48, 64, kF32}, Shape{1, 1, 24, 112, kBF16},
                             Shape{2, 2, 32, 16, kF16, 40}, Shape{2, 2, 48, 16, kF16, 40, ElementType::kInt4}}) {
    AttentionScenes scenes(machines[0], random, shape);
    const int64_t n_chunks = ceil_div(AttentionScene::kTextKeys, shape.chunk);
    std::vector<std::vector<int64_t>> all_cuts(1);
    for (int64_t c = 0; c < n_chunks; ++c) all_cuts[0].push_back(c + 1);  // each chunk alone
    for (int64_t c = 0; c <= n_chunks; ++c) all_cuts.push_back({c});
    all_cuts.push_back({n_chunks / 3, n_chunks / 3, 2 * n_chunks / 3});  // one of them empty
    for (const PlanCase& plan_case : plan_cases()) {
      const AttentionScene& scene = scenes.stored_by(plan_case.stored_div);
      for (const auto& [first, n] : {std::pair<int64_t, int64_t>{0, kQueries}, {40, 1}, {20, 7}}) {
        const Plan plan = make_plan(plan_case, kFirst + first, n, shape.n_query_heads());
        const auto whole = scene.run(machines[0], plan, kFirst + first, n);
        for (size_t c = 0; c < all_cuts.size(); ++c) {
          const auto parts = scene.run(machines[c % 3], plan, kFirst + first, n, {.cuts = all_cuts[c]});
          expect_same_bits(whole, parts, plan_case.name + "; " + shape.name() + "; cuts " + std::to_string(c));
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

// The comparison above can fail: one key more or less is far outside the tolerance.
TEST(Attention, ComparisonSeesAMissingKey) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machine;
  const AttentionScene scene(machine, random, {1, 1, 64, 64, kF32}, 1);
  Plan plan, other;
  Span span;
  span.count = 331;
  plan.add_block(kFirst, kQueries, {span});
  span.count = 331 - 90;
  other.add_block(kFirst, kQueries, {span});
  const auto actual = scene.run(machine, other, kFirst, kQueries);
  const auto expected = scene.expected(plan);
  double worst = 0;
  for (size_t e = 0; e < actual.size(); ++e) worst = std::max(worst, std::fabs(actual[e] - expected[e]));
  EXPECT_GT(worst, 1e-2);
}

TEST(Attention, CancelledCallsSayCancelled) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machines[] = {Machine(1), Machine(2)};
  const AttentionScene scene(machines[0], random, {4, 1, 32, 16, kF32}, 1);
  CancelToken cancel;
  cancel.cancel();
  for (Machine& machine : machines) {
    for (const int64_t n : {int64_t{1}, kQueries}) {
      const Plan plan = make_plan(plan_cases()[0], kFirst, n, 4);
      Status status;
      scene.run(machine, plan, kFirst, n, {.cancel = &cancel, .status = &status});
      EXPECT_EQ(status.code(), Code::kCancelled);
    }
  }
}

}  // namespace
}  // namespace quire::test
