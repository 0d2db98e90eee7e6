// Attention over selected chunks: every query and head has its own.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/backend/attention_scene.h"

namespace quire::test {
namespace {

constexpr auto kF32 = ElementType::kF32;
constexpr auto kF16 = ElementType::kF16;
constexpr auto kBF16 = ElementType::kBF16;
constexpr int64_t kFirst = AttentionScene::kFirstQuery;
constexpr int64_t kQueries = AttentionScene::kQueries;

Span run_of(int64_t first, int64_t count, bool ranked) {
  Span span;
  span.first_key = first;
  span.count = count;
  span.ranked = ranked;
  return span;
}

struct SelectedCase {
  const char* name;
  int64_t stored_div;  // for text keys that are stored so
  void (*append)(int64_t first, int64_t n, Plan& plan);
};

void ranked(int64_t first, int64_t n, Plan& plan) {
  plan.add_block(first, n, {run_of(0, first + n, true)}, KeysSeen::kSelected);
}

void not_ranked(int64_t first, int64_t n, Plan& plan) {
  plan.add_block(first, n, {run_of(0, first + n, false)}, KeysSeen::kSelected);
}

// Boundaries inside chunks, lags, strides, and keys that no span covers.
void several_spans(int64_t first, int64_t n, Plan& plan) {
  std::vector<Span> spans = {run_of(0, 37, true), run_of(40, 30, false), run_of(75, 256, false), run_of(75, 256, true)};
  spans[1].stride = 3, spans[1].count = 10;
  spans[2].min_lag = 91, spans[2].q_cap = 200, spans[2].key_base = 20;
  spans[3].max_lag = 90;
  plan.add_block(first, n, spans, KeysSeen::kSelected);
}

// Periods that end inside chunks and reach across them.
void periodic(int64_t first, int64_t n, Plan& plan) {
  std::vector<Span> spans = {run_of(2, 100, false), run_of(110, 221, false)};
  spans[0].key_period = 23, spans[0].q_cap = 50;
  spans[1].key_period = 90, spans[1].key_base = 7;
  plan.add_block(first, n, spans, KeysSeen::kSelected);
}

void divided(int64_t first, int64_t n, Plan& plan) {
  Span span = run_of(5, first + n - 5, false);
  span.key_div = 3, span.q_div = 3;
  plan.add_block(first, n, {span}, KeysSeen::kSelected);
}

// Blocks with and without a selection, and a scale for each query.
void mixed_blocks(int64_t first, int64_t n, Plan& plan) {
  for (int64_t i = first; i < first + n;) {
    const int64_t end = std::min(first + n, (i / 11 + 1) * 11);
    plan.add_block(i, end - i, {run_of(0, end, i / 11 % 2 == 0)},
                   i / 11 % 2 == 0 ? KeysSeen::kSelected : KeysSeen::kAll);
    i = end;
  }
  for (int64_t i = first; i < first + n; ++i) plan.query_scale.push_back(0.5f + static_cast<float>(i) / 300);
}

const SelectedCase kCases[] = {{"ranked", 1, ranked},
                               {"not ranked", 1, not_ranked},
                               {"several spans", 1, several_spans},
                               {"periodic", 1, periodic},
                               {"divided", 0, divided},
                               {"divided as stored", 3, divided},
                               {"mixed blocks", 1, mixed_blocks}};

struct SelectedShape {
  Shape shape;
  int64_t chunk;  // of the selection; it divides the stored chunk
  int64_t count;
};

const SelectedShape kShapes[] = {{{1, 1, 64, 64, kF32}, 64, 3},
                                 {{4, 2, 32, 16, kF16}, 16, 7},
                                 {{2, 1, 48, 48, kF32}, 48, 20},
                                 {{8, 1, 80, 32, kBF16}, 32, 3},
                                 {{3, 2, 24, 112, kF16}, 16, 2},
                                 {{1, 4, 128, 16, kF32}, 16, 12},
                                 {{2, 2, 64, 128, kBF16}, 32, 6},
                                 {{3, 1, 32, 48, kF32}, 16, 12},
                                 // Old text is narrow.
                                 {{4, 1, 64, 64, kF16, 0}, 32, 6},
                                 {{2, 2, 48, 48, kF16, 60, ElementType::kInt4}, 16, 9}};

Plan make_plan(const SelectedCase& c, const SelectedShape& s, int64_t first, int64_t n) {
  Plan plan;
  c.append(first, n, plan);
  plan.selection.chunk = s.chunk;
  plan.selection.count = s.count;
  return plan;
}

std::string name_of(const SelectedCase& c, const SelectedShape& s) {
  return std::string(c.name) + "; " + s.shape.name() + "; " + std::to_string(s.count) + " chunks";
}

TEST(SelectedAttention, MatchesTheNaiveReference) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machine(2);
  for (const SelectedShape& s : kShapes) {
    AttentionScenes scenes(machine, random, s.shape, s.chunk, s.count);
    for (const SelectedCase& c : kCases) {
      SCOPED_TRACE(name_of(c, s));
      const AttentionScene& scene = scenes.stored_by(c.stored_div);
      const Plan plan = make_plan(c, s, kFirst, kQueries);
      ASSERT_EQ("ok", message_of(validate(plan, kFirst, kQueries, s.shape.n_query_heads())));
      expect_reference(scene.run(machine, plan, kFirst, kQueries), scene.expected(plan, random.between(0, 1), 2),
                       s.shape);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(SelectedAttention, BitsDependOnTheQueryAlone) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machines[] = {Machine(1), Machine(2), Machine(4)};
  for (const SelectedShape& s : kShapes) {
    AttentionScenes scenes(machines[0], random, s.shape, s.chunk, s.count);
    const int64_t n_chunks = ceil_div(AttentionScene::kTextKeys, s.shape.chunk);
    std::vector<int64_t> each;
    for (int64_t c = 1; c < n_chunks; ++c) each.push_back(c);
    for (const SelectedCase& c : kCases) {
      const AttentionScene& scene = scenes.stored_by(c.stored_div);
      const auto run_split = [&](Machine& machine, int64_t step, const std::vector<int64_t>& cuts) {
        std::vector<float> out;
        const int64_t all = step <= 2 ? 30 : kQueries;  // many small calls take long
        for (int64_t q = 0; q < all; q += step) {
          const int64_t n = std::min(step, all - q);
          const auto part = scene.run(machine, make_plan(c, s, kFirst + q, n), kFirst + q, n, {.cuts = cuts});
          out.insert(out.end(), part.begin(), part.end());
        }
        return out;
      };
      const auto whole = run_split(machines[0], kQueries, {});
      const auto check = [&](Machine& machine, int64_t step, const std::vector<int64_t>& cuts) {
        const auto parts = run_split(machine, step, cuts);
        expect_same_bits({whole.begin(), whole.begin() + static_cast<int64_t>(parts.size())}, parts,
                         name_of(c, s) + "; " + std::to_string(machine.pool.n_threads()) + " threads, calls of " +
                             std::to_string(step) + ", windows " + testing::PrintToString(cuts));
      };
      for (Machine& machine : machines) {
        for (const int64_t step : {int64_t{1}, int64_t{2}, int64_t{7}, int64_t{64}, kQueries}) {
          check(machine, step, {});
          if (testing::Test::HasFatalFailure()) return;
        }
        check(machine, kQueries, each);
        check(machine, 1, {n_chunks / 2});
        if (testing::Test::HasFatalFailure()) return;
      }
      for (int64_t cut = 0; cut <= n_chunks; ++cut) check(machines[cut % 3], kQueries, {cut});
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// Where every query selects all chunks, ranks are indexes: plain attention.
TEST(SelectedAttention, AllChunksSelectedIsPlainAttention) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machine(2);
  const SelectedShape s{{2, 2, 48, 64, kF32}, 32, 11};
  AttentionScene scene(machine, random, s.shape, false);
  scene.select(random, s.chunk, s.count);
  Plan plain;
  plain.add_block(kFirst, kQueries, {run_of(0, kFirst + kQueries, false)});
  const auto expected = scene.expected(plain, 0, 3);
  for (const int which : {0, 1}) {
    expect_close(scene.run(machine, make_plan(kCases[which], s, kFirst, kQueries), kFirst, kQueries), expected, 48,
                 1e-5);
  }
}

}  // namespace
}  // namespace quire::test
