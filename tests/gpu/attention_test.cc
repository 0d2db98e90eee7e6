// The attention kernel against the float64 reference of the CPU backend's tests, for plans that use everything in
// lib/plan/plan.h.

#include <gtest/gtest.h>

#include "lib/backend/cpu/cpu_step.h"
#include "lib/backend/cpu/rope_cache.h"
#include "lib/backend/cuda/attention_lists.h"
#include "tests/gpu/schedules.h"
#include "tests/unit/backend/attention_scene.h"
#include "tests/unit/backend/plans.h"
#include "tests/unit/model/watched_backend.h"

namespace quire::test {
namespace {

constexpr auto kF16 = ElementType::kF16;
constexpr auto kBF16 = ElementType::kBF16;
constexpr int64_t kFirst = AttentionScene::kFirstQuery;
constexpr int64_t kQueries = AttentionScene::kQueries;

// The CPU backend, but for attention: its records are brought into their neutral form, which is the kernel's.
class CudaAttention : public WatchedBackend {
 public:
  CudaAttention(Backend& real, int64_t part_keys) : WatchedBackend(real), part_keys_(part_keys) {}

  Status attention(Exec, const PreparedStep& step, std::span<const AttentionArgs> sequences) override {
    for (const AttentionArgs& args : sequences) {
      const int error = run(static_cast<const cpu::CpuStep&>(step), args);
      if (error != 0) return Status(Code::kInternal, "launch: " + std::to_string(error));
    }
    return {};
  }

 private:
  int run(const cpu::CpuStep& step, const AttentionArgs& args) {
    const cpu::CpuStep::Sequence& sequence = step.at(args.sequence);
    const KvGeometry& g = sequence.geometry;
    const Plan& plan = *sequence.plan;
    const cuda::ListOptions options{g.chunk, {args.records[0].raw, args.records[1].raw}, part_keys_ * g.chunk};
    cuda::AttentionLists lists;
    cuda::append_lists(plan, sequence.pieces, options, lists);
    tiling::Pieces selected;
    if (args.selection) {
      selected = tiling::cut_selected({plan, step.n_query_heads, g.n_kv_heads, g.chunk, {}},
                                      static_cast<const int32_t*>(args.selection->host()));
      cuda::append_lists(plan, selected, options, lists);
    }
    std::vector<std::vector<std::byte>> neutral;
    std::vector<const void*> records[cuda::kRecordKinds];
    for (size_t kind = 0; kind < cuda::kRecordKinds; ++kind) {
      for (const KvRecord& record : args.records[kind].chunks) {
        neutral.emplace_back(kv_neutral_bytes(g));
        to_neutral(g, cpu::record_ptr(record), neutral.back().data());
        records[kind].push_back(neutral.back().data());
      }
    }
    std::vector<cuda::Turns> turns;
    for (const double theta : static_cast<const cpu::RopeCache&>(*sequence.rope).theta()) {
      const double turn = theta / (2 * M_PI);
      turns.push_back({static_cast<float>(turn), static_cast<float>(turn - static_cast<float>(turn))});
    }
    const auto rows = [](const Rows& r) { return cuda::DeviceRows{cpu::rows_ptr(r), r.stride, r.type}; };
    // More than what is needed, and NaN: reading what nobody has written shows.
    std::vector<float> parts(static_cast<size_t>((lists.n_parts + 1) * cuda::attention_part_floats(g.head_dim)),
                             std::nanf(""));
    cuda::Attention attention;
    attention.queries = rows(args.queries);
    attention.out = rows(args.out);
    attention.shape = {g.n_kv_heads, g.head_dim, g.chunk, g.type};
    attention.n_query_heads = step.n_query_heads;
    attention.scale = sequence.scale;
    attention.query_scale = plan.query_scale.empty() ? nullptr : plan.query_scale.data();
    attention.turns = turns.data();
    for (size_t kind = 0; kind < cuda::kRecordKinds; ++kind) {
      attention.records[kind] = records[kind].data();
      attention.raw[kind] = args.records[kind].raw;
    }
    attention.tiles = lists.tiles.data();
    attention.pieces = lists.pieces.data();
    attention.spans = lists.spans.data();
    attention.picks = lists.picks.data();
    attention.works = lists.works.data();
    attention.n_works = static_cast<int64_t>(lists.works.size());
    attention.merges = lists.merges.data();
    attention.n_merges = static_cast<int64_t>(lists.merges.size());
    attention.ranks = {plan.selection.chunk, plan.selection.count, plan.selection.one_in};
    attention.parts = parts.data();
    return cuda::attention(nullptr, attention);
  }

  const int64_t part_keys_;  // in chunks
};

// A machine whose attention is the kernel's; parts of so many chunks.
struct CudaMachine : Machine {
  explicit CudaMachine(int64_t part_chunks = 0) : real(std::move(backend)) {
    backend = std::make_unique<CudaAttention>(*real, part_chunks);
  }
  std::unique_ptr<Backend> real;
};

class CudaAttentionKernel : public OnEverySchedule {};
INSTANTIATE_TEST_SUITE_P(Orders, CudaAttentionKernel, kSchedules, schedule_name);

// NaN in `expected`: not asked. Queries are rounded to 16 bits before and after they are turned, and so are keys that
// are turned on load, which changes logits by a part of what they are; `logits`: how great they are beside the usual
// ones.
void expect_near(const std::vector<float>& actual, const std::vector<double>& expected, const Shape& shape,
                 double logits = 1) {
  const double tolerance = (shape.type == kF16 ? 2e-3 : 1e-2) * logits;
  double error = 0, all = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(expected[i])) continue;
    error += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    all += expected[i] * expected[i];
  }
  EXPECT_LE(std::sqrt(error / all), tolerance);
  expect_close(actual, expected, shape.head_dim, 3 * tolerance);  // each row, however small it is
}

// A sample of plans in each order; all of them, in all shapes, in one.
TEST_P(CudaAttentionKernel, MatchesTheReference) {
  Random random;
  SCOPED_TRACE(random.trace());
  CudaMachine whole, parts(2);
  const bool all = GetParam().schedule == emulation::Schedule::kAhead;
  const Shape shapes[] = {{4, 1, 64, 64, kBF16},  {1, 1, 96, 48, kF16}, {2, 2, 32, 256, kF16},
                          {3, 1, 128, 80, kBF16}, {8, 1, 48, 16, kF16}, {1, 2, 16, 112, kBF16}};
  for (const Shape& shape : shapes) {
    const AttentionScene rotated(whole, random, shape, false), raw(whole, random, shape, true);
    if (testing::Test::HasFatalFailure()) return;
    for (const PlanCase& plan_case : plan_cases()) {
      if (!all && random.between(0, 9) > 0) continue;
      SCOPED_TRACE(plan_case.name + "; " + shape.name());
      const Plan plan = make_plan(plan_case, kFirst, kQueries, shape.n_query_heads());
      const AttentionScene& scene = plan_case.raw ? raw : rotated;
      const auto expected = scene.expected(plan, random.between(0, 4), 5);
      expect_near(scene.run(random.between(0, 1) == 0 ? whole : parts, plan, kFirst, kQueries), expected, shape,
                  plan_case.name == "scaled" ? 4 : 1);
      if (HasFailure()) return;
    }
  }
}

Span run_of(int64_t first, int64_t count, bool ranked) {
  Span span;
  span.first_key = first;
  span.count = count;
  span.ranked = ranked;
  return span;
}

// Each head of each query has chunks of its own, of which tiles have the union.
TEST_P(CudaAttentionKernel, MatchesTheReferenceForSelections) {
  Random random;
  SCOPED_TRACE(random.trace());
  CudaMachine whole, parts(2);
  struct Selected {
    Shape shape;
    int64_t chunk, count;
  };
  const Selected all[] = {
      {{4, 2, 32, 16, kF16}, 16, 7}, {{8, 1, 80, 32, kBF16}, 32, 3}, {{2, 2, 64, 128, kBF16}, 32, 6}};
  for (const Selected& s : all) {
    SCOPED_TRACE(s.shape.name());
    AttentionScene scene(whole, random, s.shape, false);
    scene.select(random, s.chunk, s.count);
    if (testing::Test::HasFatalFailure()) return;
    Plan by_rank, by_place;
    by_rank.selection.chunk = by_place.selection.chunk = s.chunk;
    by_rank.selection.count = by_place.selection.count = s.count;
    by_rank.add_block(kFirst, kQueries, {run_of(0, kFirst + kQueries, true)}, KeysSeen::kSelected);
    std::vector<Span> spans = {run_of(2, 100, false), run_of(110, 221, false)};
    spans[0].key_period = 23, spans[0].q_cap = 50;
    spans[1].max_lag = 150, spans[1].q_offset = 3;
    by_place.add_block(kFirst, kQueries / 2, spans, KeysSeen::kSelected);
    by_place.add_block(kFirst + kQueries / 2, kQueries - kQueries / 2, {run_of(0, kFirst + kQueries, false)});
    for (const Plan* plan : {&by_rank, &by_place}) {
      const auto expected = scene.expected(*plan, random.between(0, 4), 5);
      expect_near(scene.run(random.between(0, 1) == 0 ? whole : parts, *plan, kFirst, kQueries), expected, s.shape);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// A decode step's few rows, and keys in several parts: the parts come together to the whole, but for rounding.
TEST_P(CudaAttentionKernel, OfPartsIsThatOfTheWhole) {
  Random random;
  SCOPED_TRACE(random.trace());
  CudaMachine whole, parts(1);
  const Shape shape{4, 2, 64, 48, kF16};
  const AttentionScene scene(whole, random, shape, false);
  if (testing::Test::HasFatalFailure()) return;
  for (const int64_t n : {int64_t{1}, int64_t{3}}) {
    Plan plan;
    plan.add_block(kFirst + 20, n, {run_of(0, kFirst + 20 + n, false)});
    const auto one = scene.run(whole, plan, kFirst + 20, n), many = scene.run(parts, plan, kFirst + 20, n);
    ASSERT_EQ(one.size(), many.size());
    for (size_t i = 0; i < one.size(); ++i) ASSERT_NEAR(one[i], many[i], 2e-3) << i;
  }
}

// Rows that see nothing give zeros, and with them what has no pieces at all.
TEST_P(CudaAttentionKernel, NoKeysGiveZero) {
  Random random;
  CudaMachine machine;
  const AttentionScene scene(machine, random, {2, 2, 32, 16, kF16}, false);
  Plan plan;
  plan.add_block(kFirst, 3, {});
  Span late = run_of(0, kFirst + 5, false);
  late.min_lag = kFirst + 4;  // the first key, seen by the last query alone
  plan.add_block(kFirst + 3, 2, {late});
  const auto out = scene.run(machine, plan, kFirst, 5);
  const size_t row = out.size() / 5;
  for (size_t i = 0; i < 4 * row; ++i) ASSERT_EQ(out[i], 0.0f);
  for (size_t i = 4 * row; i < out.size(); ++i) ASSERT_NE(out[i], 0.0f);
}

}  // namespace
}  // namespace quire::test
