// The attention kernel against the float64 reference of the CPU backend's tests, for plans that use everything in
// lib/plan/plan.h.

#include <gtest/gtest.h>

#include "lib/backend/cpu/cpu_step.h"
#include "lib/backend/cpu/rope_cache.h"
#include "lib/backend/cuda/cuda_backend.h"
#include "lib/backend/cuda/cuda_step.h"
#include "tests/gpu/emulation/emulated_device.h"
#include "tests/gpu/schedules.h"
#include "tests/gpu/test_device.h"
#include "tests/unit/backend/attention_scene.h"
#include "tests/unit/backend/plans.h"
#include "tests/unit/model/watched_backend.h"

namespace quire::test {
namespace {

constexpr auto kF16 = ElementType::kF16;
constexpr auto kBF16 = ElementType::kBF16;
constexpr auto kInt4 = ElementType::kInt4;
constexpr int64_t kFirst = AttentionScene::kFirstQuery;
constexpr int64_t kQueries = AttentionScene::kQueries;

// The CPU backend, but for attention: that is the CUDA backend's on the emulated device, to which everything is
// brought.
class CudaAttention : public WatchedBackend {
 public:
  CudaAttention(Backend& real, const cuda::DeviceApi& api, bool warpgroups)
      : WatchedBackend(real),
        device_(take(cuda::create_cuda_backend(allocator_, api, 0, {.warpgroups = warpgroups}))),
        queue_(take(device_->create_queue())) {}

  Status attention(Exec exec, const PreparedStep& step, std::span<const AttentionArgs> sequences) override {
    for (const AttentionArgs& args : sequences) {
      QUIRE_TRY(run(exec.cancel, static_cast<const cpu::CpuStep&>(step), args));
    }
    return {};
  }

 private:
  // The same bytes on the device; null of null.
  std::unique_ptr<Buffer> there(const Buffer* here) {
    if (here == nullptr) return nullptr;
    auto buffer = take(device_->allocate(here->size(), MemoryKind::kDevice));
    check(device_->upload(*queue_, here->host(), *buffer, 0, here->size()));
    return buffer;
  }
  void back(const std::unique_ptr<Buffer>& there, Buffer* here) {
    if (there) check(device_->download(*queue_, *there, 0, here->host(), here->size()));
  }
  static void check(const Status& status) {
    if (!status.ok()) throw std::runtime_error(status.message());
  }

  Status run(const CancelToken* cancel, const cpu::CpuStep& step, const AttentionArgs& args) {
    StepSequence sequence = step.at(args.sequence);
    const KvGeometry& g = sequence.geometry;
    const auto rope =
        take(device_->create_rope({static_cast<const cpu::RopeCache*>(sequence.rope)->theta(), 1}, g.chunk));
    sequence.rope = rope.get();
    const Exec exec{*queue_, cancel};
    QUIRE_ASSIGN(const auto prepared, device_->prepare_step(exec, step.n_query_heads, {&sequence, 1}));

    AttentionArgs own = args;
    own.sequence = 0;
    const auto queries = there(args.queries.buffer), out = there(args.out.buffer), selection = there(args.selection);
    const auto shares = there(args.shares.out), state = there(args.state);
    own.queries.buffer = queries.get();
    own.out.buffer = out.get();
    own.selection = selection.get();
    own.shares.out = shares.get();
    own.state = state.get();
    std::vector<std::unique_ptr<Buffer>> pages;
    std::vector<KvRecord> records[cuda::kRecordKinds];
    for (size_t kind = 0; kind < cuda::kRecordKinds; ++kind) {
      const KvGeometry own_g = kind == cuda::kNarrowRecord ? narrow_geometry(g, sequence.old) : g;
      const size_t bytes = device_->kv_record_bytes(own_g);
      std::vector<std::byte> neutral(kv_neutral_bytes(own_g)), record(bytes);
      for (const KvRecord& from : args.records[kind].chunks) {
        KvRecord& to = records[kind].emplace_back();
        if (!from) continue;
        to_neutral(own_g, cpu::record_ptr(from), neutral.data());
        device_->from_neutral(own_g, neutral.data(), record.data());
        pages.push_back(take(device_->allocate(2 * bytes, MemoryKind::kDevice)));
        to = {pages.back().get(), bytes};
        QUIRE_TRY(device_->upload(*queue_, record.data(), *to.page, to.offset, bytes));
      }
      own.records[kind] = {records[kind], args.records[kind].stored_div};
    }
    const Status status = device_->attention(exec, *prepared, {&own, 1});
    if (status.ok()) {
      back(out, args.out.buffer);
      back(shares, args.shares.out);
      back(state, args.state);
    }
    const Status done = finish_queue(*device_, *queue_);
    return status.ok() ? done : status;
  }

  Allocator allocator_;
  const std::unique_ptr<Backend> device_;
  const std::unique_ptr<Queue> queue_;
};

// The device, which says that it has so many processors.
const cuda::DeviceApi& device_of(int n_processors) {
  static int said = 0;
  static const cuda::DeviceApi api = [] {
    cuda::DeviceApi of = test_device();
    of.describe = [](int device, cuda::DeviceFacts* out) {
      const int error = test_device().describe(device, out);
      out->n_processors = said;
      return error;
    };
    return of;
  }();
  said = n_processors;
  return api;
}

// A machine whose attention is the kernel's. The fewer processors its device has, the fewer keys are in parts; 0: none
// are. warpgroups: tiles are wide, where the device has wgmma.
struct CudaMachine : Machine {
  explicit CudaMachine(int n_processors = 0, bool warpgroups = false) : real(std::move(backend)) {
    backend = std::make_unique<CudaAttention>(*real, device_of(n_processors), warpgroups);
  }
  ~CudaMachine() { queue.reset(); }
  std::unique_ptr<Backend> real;
};
constexpr int kMany = 1000;

class CudaAttentionKernel : public OnEverySchedule {
 protected:
  // Of tests that use one size of tiles: three of the orders have the usual ones, two have wide ones.
  static bool in_wide_tiles() { return static_cast<int>(GetParam().schedule) % 2 > 0; }
};
INSTANTIATE_TEST_SUITE_P(Orders, CudaAttentionKernel, kSchedules, schedule_name);

// NaN in `expected`: not asked. Queries are rounded to 16 bits before and after they are turned, and so are keys that
// are turned on load, which changes logits by a part of what they are; `logits`: how great they are beside the usual
// ones.
void expect_near(const std::vector<float>& actual, const std::vector<double>& expected, const Shape& shape,
                 double logits = 1) {
  const double tolerance = (shape.type == kF16 ? 2e-3 : 1e-2) * logits;
  EXPECT_LE(relative_error(actual, expected), tolerance);
  expect_close(actual, expected, shape.head_dim, 3 * tolerance);  // each row, however small it is
}

// A sample of plans in each order; all of them, in all shapes, in one.
TEST_P(CudaAttentionKernel, MatchesTheReference) {
  Random random;
  SCOPED_TRACE(random.trace());
  CudaMachine whole, parts(kMany), wide(0, true);
  const bool all = GetParam().schedule == emulation::Schedule::kAhead;
  const Shape shapes[] = {{4, 1, 64, 64, kBF16}, {1, 1, 96, 48, kF16},   {2, 2, 32, 256, kF16},  {3, 1, 128, 80, kBF16},
                          {8, 1, 48, 16, kF16},  {1, 2, 16, 112, kBF16}, {4, 1, 256, 64, kBF16}, {2, 1, 146, 48, kF16}};
  for (const Shape& shape : shapes) {
    AttentionScenes scenes(whole, random, shape);
    if (testing::Test::HasFatalFailure()) return;
    for (const PlanCase& plan_case : plan_cases()) {
      if (!all && random.between(0, 9) > 0) continue;
      SCOPED_TRACE(plan_case.name + "; " + shape.name());
      const Plan plan = make_plan(plan_case, kFirst, kQueries, shape.n_query_heads());
      const AttentionScene& scene = scenes.stored_by(plan_case.stored_div);
      const auto expected = scene.expected(plan, random.between(0, 4), 5);
      CudaMachine* const machines[] = {&whole, &parts, &wide};
      expect_near(scene.run(*machines[random.between(0, 2)], plan, kFirst, kQueries), expected, shape,
                  plan_case.name == "scaled" ? 4 : 1);
      if (HasFailure()) return;
    }
  }
}

// Chunks that are read from narrow records by some queries or by all: widths with padding and without, chunks of less
// than a block of keys, of several, and of a block and a part, records that are copied by 16 bytes and by 8.
TEST_P(CudaAttentionKernel, MatchesTheReferenceForOldText) {
  Random random;
  SCOPED_TRACE(random.trace());
  CudaMachine whole, parts(kMany), wide(0, true);
  const bool all = GetParam().schedule == emulation::Schedule::kAhead;
  const Shape shapes[] = {
      {4, 1, 64, 64, kBF16, 0},         {1, 2, 96, 48, kF16, 100},        {2, 1, 32, 256, kF16, 0},
      {3, 1, 80, 16, kBF16, 230},       {1, 1, 22, 16, kBF16, 1},         {2, 1, 128, 112, kF16, 0},
      {3, 1, 128, 80, kBF16, 0, kInt4}, {2, 2, 48, 48, kF16, 100, kInt4}, {2, 1, 32, 256, kF16, 0, kInt4},
      {1, 1, 22, 16, kF16, 1, kInt4},   {8, 1, 96, 64, kBF16, 0, kInt4},  {1, 1, 64, 112, kBF16, 40, kInt4},
      {2, 1, 256, 64, kBF16, 0},        {1, 1, 250, 48, kF16, 100},       {2, 1, 256, 112, kF16, 0, kInt4},
      {1, 1, 200, 80, kBF16, 40, kInt4}};
  for (const Shape& shape : shapes) {
    AttentionScenes scenes(whole, random, shape);
    if (testing::Test::HasFatalFailure()) return;
    for (const PlanCase& plan_case : plan_cases()) {
      if (random.between(0, 15) >= (all ? 4 : 1)) continue;
      SCOPED_TRACE(plan_case.name + "; " + shape.name() + " to " + element_name(shape.old_type));
      const Plan plan = make_plan(plan_case, kFirst, kQueries, shape.n_query_heads());
      const AttentionScene& scene = scenes.stored_by(plan_case.stored_div);
      const auto expected = scene.expected(plan, random.between(0, 4), 5);
      CudaMachine* const machines[] = {&whole, &parts, &wide};
      expect_near(scene.run(*machines[random.between(0, 2)], plan, kFirst, kQueries), expected, shape,
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

// Each head of each query has chunks of its own, of which tiles have the union. Where all queries select, the lists are
// made on the device, for several tiles, blocks and ages.
TEST_P(CudaAttentionKernel, MatchesTheReferenceForSelections) {
  Random random;
  SCOPED_TRACE(random.trace());
  CudaMachine whole, parts(kMany);
  struct Selected {
    Shape shape;
    int64_t chunk, count;
  };
  const Selected all[] = {{{4, 2, 32, 16, kF16}, 16, 7},
                          {{8, 1, 80, 32, kBF16}, 32, 3},
                          {{2, 2, 64, 128, kBF16}, 32, 6},
                          {{4, 1, 64, 16, kF16, 20}, 16, 7},
                          {{2, 2, 32, 128, kBF16, 100, kInt4}, 32, 6},
                          {{2, 2, 256, 32, kBF16}, 32, 6}};
  for (const Selected& s : all) {
    SCOPED_TRACE(s.shape.name());
    AttentionScene scene(whole, random, s.shape, 1);
    scene.select(random, s.chunk, s.count);
    if (testing::Test::HasFatalFailure()) return;
    Plan by_rank, by_place, both;
    by_rank.selection.chunk = by_place.selection.chunk = both.selection.chunk = s.chunk;
    by_rank.selection.count = by_place.selection.count = both.selection.count = s.count;
    by_rank.add_block(kFirst, kQueries, {run_of(0, kFirst + kQueries, true)}, KeysSeen::kSelected);
    std::vector<Span> spans = {run_of(2, 100, false), run_of(110, 221, false)};
    spans[0].key_period = 23, spans[0].q_cap = 50;
    spans[1].max_lag = 150, spans[1].q_offset = 3;
    by_place.add_block(kFirst, kQueries / 2, spans, KeysSeen::kSelected);
    by_place.add_block(kFirst + kQueries / 2, kQueries - kQueries / 2, {run_of(0, kFirst + kQueries, false)});
    both.add_block(kFirst, kQueries / 3, {run_of(0, kFirst + kQueries, true)}, KeysSeen::kSelected);
    both.add_block(kFirst + kQueries / 3, kQueries - kQueries / 3, spans, KeysSeen::kSelected);
    for (const Plan* plan : {&by_rank, &by_place, &both}) {
      const auto expected = scene.expected(*plan, random.between(0, 4), 5);
      expect_near(scene.run(random.between(0, 1) == 0 ? whole : parts, *plan, kFirst, kQueries), expected, s.shape);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// More heads share a KV head than a tile has rows.
TEST_P(CudaAttentionKernel, MatchesTheReferenceForHeadsOfSeveralTiles) {
  Random random;
  SCOPED_TRACE(random.trace());
  CudaMachine whole, parts(kMany), wide(0, true);
  constexpr int64_t kFew = 3, kCount = 5;
  for (const Shape& shape : {Shape{72, 2, 32, 64, kBF16}, Shape{150, 1, 16, 16, kF16}}) {
    SCOPED_TRACE(shape.name());
    AttentionScene scene(whole, random, shape, 1);
    scene.select(random, shape.chunk, kCount);
    if (testing::Test::HasFatalFailure()) return;
    for (const KeysSeen seen : {KeysSeen::kAll, KeysSeen::kSelected}) {
      Plan plan;
      plan.selection.chunk = shape.chunk;
      plan.selection.count = kCount;
      plan.add_block(kFirst, kFew, {run_of(0, kFirst + kFew, false)}, seen);
      auto expected = scene.expected(plan);
      expected.resize(static_cast<size_t>(kFew * shape.n_query_heads() * shape.head_dim));
      for (CudaMachine* machine : {&whole, &parts, &wide}) {
        expect_near(scene.run(*machine, plan, kFirst, kFew), expected, shape);
        if (HasFailure()) return;
      }
    }
  }
}

// A few queries, as of a decode step, with keys in several parts; of the last ones some see a chunk as old and others
// do not.
TEST_P(CudaAttentionKernel, MatchesTheReferenceForFewQueriesThatSelect) {
  Random random;
  SCOPED_TRACE(random.trace());
  CudaMachine whole, parts(kMany);
  struct Selected {
    Shape shape;
    int64_t chunk, count, n;
    int64_t first = -1;  // query; -1: any
  };
  const Selected all[] = {{{4, 2, 32, 16, kF16}, 16, 7, 1},
                          {{8, 1, 80, 32, kBF16}, 32, 3, 8},
                          {{2, 2, 64, 128, kBF16}, 32, 6, 5},
                          {{4, 1, 64, 16, kF16, 20, kInt4}, 16, 7, 1},
                          {{2, 2, 32, 128, kBF16, 100, kInt4}, 32, 6, 5, 254}};
  const Selected of_large_heads{{4, 1, 256, 32, kF16, 20}, 32, 5, 2};
  for (const Selected& s : {all[static_cast<size_t>(GetParam().schedule) % std::size(all)], of_large_heads}) {
    SCOPED_TRACE(s.shape.name());
    AttentionScene scene(whole, random, s.shape, 1);
    scene.select(random, s.chunk, s.count);
    if (testing::Test::HasFatalFailure()) return;
    const int64_t first = s.first >= 0 ? s.first : kFirst + random.between(0, kQueries - s.n);
    std::vector<Span> by_place = {run_of(2, 100, false), run_of(110, 221, false)};
    by_place[0].key_period = 23, by_place[0].q_cap = 50;
    by_place[1].max_lag = 150, by_place[1].q_offset = 3;
    std::vector<Span> turned = {run_of(0, 290, false), run_of(290, 41, false)};
    turned[0].key_base = 7, turned[0].key_div = 3;
    turned[0].min_lag = 2;
    for (const auto& spans : {std::vector<Span>{run_of(0, kFirst + kQueries, true)}, by_place, turned}) {
      Plan plan;
      plan.selection.chunk = s.chunk;
      plan.selection.count = s.count;
      plan.add_block(first, s.n, spans, KeysSeen::kSelected);
      const auto expected = scene.expected(plan, 0, 1);
      const auto width = static_cast<int64_t>(expected.size()) / kQueries;
      const std::vector<double> rows(expected.begin() + (first - kFirst) * width,
                                     expected.begin() + (first - kFirst + s.n) * width);
      for (CudaMachine* machine : {&whole, &parts}) {
        expect_near(scene.run(*machine, plan, first, s.n), rows, s.shape);
        if (HasFailure()) return;
      }
    }
  }
}

// So few rows that warps share out keys instead: a query or some of every plan, in heads that share a KV head or do
// not.
TEST_P(CudaAttentionKernel, MatchesTheReferenceForFewRows) {
  Random random;
  SCOPED_TRACE(random.trace());
  CudaMachine whole, parts(kMany);
  const bool all = GetParam().schedule == emulation::Schedule::kAhead;
  const Shape shapes[] = {
      {4, 1, 64, 64, kBF16}, {1, 2, 96, 48, kF16, 40}, {8, 1, 32, 256, kF16},      {3, 1, 128, 80, kBF16, 0, kInt4},
      {16, 1, 48, 16, kF16}, {1, 1, 22, 16, kBF16, 1}, {4, 1, 256, 64, kBF16, 40}, {1, 2, 168, 32, kF16, 0, kInt4},
      {2, 1, 256, 48, kF16}};
  for (const Shape& shape : shapes) {
    AttentionScenes scenes(whole, random, shape);
    if (testing::Test::HasFatalFailure()) return;
    for (const PlanCase& plan_case : plan_cases()) {
      if (!all && random.between(0, 9) > 0) continue;
      SCOPED_TRACE(plan_case.name + "; " + shape.name());
      const int64_t group = shape.n_query_heads() / shape.n_kv_heads;
      const int64_t n = random.between(1, std::max<int64_t>(1, cuda::kFewTileRows / group));
      const int64_t first = kFirst + random.between(0, kQueries - n);
      const Plan plan = make_plan(plan_case, first, n, shape.n_query_heads());
      const AttentionScene& scene = scenes.stored_by(plan_case.stored_div);
      const auto expected = scene.expected(plan);
      const auto width = static_cast<int64_t>(expected.size()) / kQueries;
      const std::vector<double> rows(expected.begin() + (first - kFirst) * width,
                                     expected.begin() + (first - kFirst + n) * width);
      expect_near(scene.run(parts, plan, first, n), rows, shape, plan_case.name == "scaled" ? 4 : 1);
      if (HasFailure()) return;
    }
  }
}

// A decode step's few rows, and keys in several parts: the parts come together to the whole, but for rounding.
TEST_P(CudaAttentionKernel, OfPartsIsThatOfTheWhole) {
  Random random;
  SCOPED_TRACE(random.trace());
  CudaMachine whole, parts(kMany);
  for (const Shape& shape : {Shape{4, 2, 64, 48, kF16}, Shape{4, 2, 64, 16, kF16, 40},
                             Shape{2, 1, 96, 48, kF16, 0, kInt4}, Shape{2, 1, 256, 48, kF16}}) {
    SCOPED_TRACE(shape.name());
    const AttentionScene scene(whole, random, shape, 1);
    if (testing::Test::HasFatalFailure()) return;
    for (const int64_t n : {int64_t{1}, int64_t{3}}) {
      Plan plan;
      plan.add_block(kFirst + 20, n, {run_of(0, kFirst + 20 + n, false)});
      const auto one = scene.run(whole, plan, kFirst + 20, n), many = scene.run(parts, plan, kFirst + 20, n);
      ASSERT_EQ(one.size(), many.size());
      for (size_t i = 0; i < one.size(); ++i) ASSERT_NEAR(one[i], many[i], 2e-3) << i;
      const auto expected = scene.expected(plan, 20, kQueries);  // of the first query
      const std::vector<double> row(expected.begin() + static_cast<int64_t>(20 * one.size()) / n,
                                    expected.begin() + static_cast<int64_t>(21 * one.size()) / n);
      expect_close({many.begin(), many.begin() + static_cast<int64_t>(row.size())}, row, shape.head_dim, 6e-3);
    }
  }
}

// Keys that come in windows of chunks: any windows give the bits that one call gives, if its keys are in no parts.
TEST_P(CudaAttentionKernel, WindowsChangeNoBit) {
  Random random;
  SCOPED_TRACE(random.trace());
  const bool warpgroups = in_wide_tiles();
  SCOPED_TRACE(warpgroups ? "wide tiles" : "tiles");
  CudaMachine machine(0, warpgroups);
  for (const Shape& shape : {Shape{4, 1, 32, 16, kF16}, Shape{2, 2, 24, 112, kBF16}, Shape{2, 2, 64, 16, kF16, 40},
                             Shape{2, 1, 48, 112, kBF16, 0, kInt4}, Shape{2, 1, 256, 48, kBF16}}) {
    AttentionScenes scenes(machine, random, shape);
    const int64_t n_chunks = ceil_div(AttentionScene::kTextKeys, shape.chunk);
    const std::vector<int64_t> cuts[] = {{n_chunks / 3, n_chunks / 3, 2 * n_chunks / 3}, {1, n_chunks - 1, n_chunks}};
    for (const PlanCase& plan_case : plan_cases()) {
      if (random.between(0, 11) > 0) continue;
      SCOPED_TRACE(plan_case.name + "; " + shape.name());
      const AttentionScene& scene = scenes.stored_by(plan_case.stored_div);
      const Plan plan = make_plan(plan_case, kFirst + 20, 9, shape.n_query_heads());
      const auto whole = scene.run(machine, plan, kFirst + 20, 9);
      expect_same_bits(whole, scene.run(machine, plan, kFirst + 20, 9, {.cuts = cuts[random.between(0, 1)]}),
                       "windows");
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// The same rounding as that of outputs, of shares that are at most 1.
constexpr double kShares = 8e-3;

TEST_P(CudaAttentionKernel, SharesAreTheDefinition) {
  Random random;
  SCOPED_TRACE(random.trace());
  const bool warpgroups = in_wide_tiles();
  SCOPED_TRACE(warpgroups ? "wide tiles" : "tiles");
  CudaMachine whole(0, warpgroups), parts(kMany);
  const int64_t n_keys = AttentionScene::kTextKeys;
  for (const Shape& shape : {Shape{4, 1, 32, 16, kF16}, Shape{2, 2, 48, 64, kBF16}, Shape{2, 2, 64, 32, kF16, 60},
                             Shape{2, 1, 32, 64, kBF16, 0, kInt4}, Shape{2, 1, 256, 48, kF16}}) {
    AttentionScenes scenes(whole, random, shape);
    for (const PlanCase& plan_case : plan_cases()) {
      if (random.between(0, 9) > 0 || plan_case.name == "scaled") continue;
      SCOPED_TRACE(plan_case.name + "; " + shape.name());
      const AttentionScene& scene = scenes.stored_by(plan_case.stored_div);
      const Plan plan = make_plan(plan_case, kFirst, kQueries, shape.n_query_heads());
      const int64_t first_row = random.between(0, 5), first_key = random.between(0, 40);
      SharesAsked asked{first_row, first_key, random.between(first_key, n_keys)}, in_windows = asked;
      const auto plain = scene.run(whole, plan, kFirst, kQueries);
      expect_same_bits(plain, scene.run(whole, plan, kFirst, kQueries, {.shares = &asked}), "asking");
      const int64_t n_chunks = ceil_div(n_keys, shape.chunk);
      (void)scene.run(whole, plan, kFirst, kQueries, {.shares = &in_windows, .cuts = {n_chunks / 3, 2 * n_chunks / 3}});
      SharesAsked of_parts = asked;
      (void)scene.run(parts, plan, kFirst, kQueries, {.shares = &of_parts});
      const auto expected = scene.expected_shares(plan, asked, random.between(0, 2), 3);
      const size_t hidden = expected.size() - asked.values.size();  // of the rows before first_row
      for (size_t e = hidden; e < expected.size(); ++e) {
        if (std::isnan(expected[e])) continue;  // not computed
        ASSERT_NEAR(asked.values[e - hidden], expected[e], kShares) << e;
        ASSERT_NEAR(in_windows.values[e - hidden], expected[e], kShares) << e;
        ASSERT_NEAR(of_parts.values[e - hidden], expected[e], kShares) << e;
      }
    }
  }
}

TEST_P(CudaAttentionKernel, SharesOfSelectedChunks) {
  if (GetParam().schedule != emulation::Schedule::kRandom) GTEST_SKIP() << "one order is enough of the same kernel";
  Random random;
  SCOPED_TRACE(random.trace());
  CudaMachine machine;
  AttentionScene scene(machine, random, {2, 2, 32, 64, kF16}, 1);
  scene.select(random, 32, 4);
  Plan plan;
  plan.selection = {.chunk = 32, .count = 4};
  plan.add_block(kFirst, kQueries, {run_of(0, AttentionScene::kTextKeys, true)}, KeysSeen::kSelected);
  SharesAsked asked{0, 0, AttentionScene::kTextKeys}, in_windows = asked;
  (void)scene.run(machine, plan, kFirst, kQueries, {.shares = &asked});
  (void)scene.run(machine, plan, kFirst, kQueries, {.shares = &in_windows, .cuts = {2, 4}});
  const auto expected = scene.expected_shares(plan, asked, 0, 1);
  ASSERT_EQ(asked.values.size(), expected.size());
  for (size_t e = 0; e < expected.size(); ++e) {
    ASSERT_NEAR(asked.values[e], expected[e], kShares) << e;
    ASSERT_NEAR(in_windows.values[e], expected[e], kShares) << e;
  }
}

// Pieces end where a period of the distances does, within a cell, of which two blocks of threads then have a part each.
TEST_P(CudaAttentionKernel, SharesOfCellsInSeveralPieces) {
  Random random;
  SCOPED_TRACE(random.trace());
  CudaMachine parts(kMany);
  AttentionScene scene(parts, random, {2, 2, 32, 64, kF16}, 1);
  scene.select(random, 32, 4);
  if (HasFatalFailure()) return;
  Span span = run_of(0, AttentionScene::kTextKeys, false);
  span.key_period = 23, span.q_cap = 50;
  const int64_t first = kFirst + kQueries - 1;
  Plan plan;
  plan.selection = {.chunk = 32, .count = 4};
  plan.add_block(first, 1, {span}, KeysSeen::kSelected);
  SharesAsked asked{0, 0, AttentionScene::kTextKeys};
  (void)scene.run(parts, plan, first, 1, {.shares = &asked});
  const auto expected = scene.expected_shares(plan, asked, 0, 1);
  const size_t before = expected.size() - asked.values.size();  // of queries before this one
  for (size_t e = 0; e < asked.values.size(); ++e) {
    ASSERT_NEAR(asked.values[e], expected[before + e], kShares) << e;
  }
}

// Rows that see nothing give zeros, and with them what has no pieces at all.
TEST_P(CudaAttentionKernel, NoKeysGiveZero) {
  Random random;
  CudaMachine machine(0, in_wide_tiles());
  const AttentionScene scene(machine, random, {2, 2, 32, 16, kF16}, 1);
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

// Rows that see a key with NaN give NaN, and so do those with a score of infinity, which one of two keys with
// infinities of both signs has: in the whole, in a part of it, and where nothing else is in any part. Rows of the other
// KV head are what they were.
TEST_P(CudaAttentionKernel, KeysWithoutNumbersGiveNaN) {
  Random random;
  SCOPED_TRACE(random.trace());
  CudaMachine whole, parts(kMany), wide(0, true);
  const Shape shape = in_wide_tiles() ? Shape{2, 2, 256, 64, kF16} : Shape{2, 2, 64, 64, kBF16};
  const int64_t half = int64_t{shape.group} * shape.head_dim;
  AttentionScene scene(whole, random, shape, 1);
  const auto run = [&](CudaMachine& machine, const Span& span, int64_t n) {
    Plan plan;
    plan.add_block(kFirst + 20, n, {span});
    return scene.run(machine, plan, kFirst + 20, n);
  };
  for (const float number : {std::nanf(""), INFINITY}) {
    for (const int64_t n : {int64_t{1}, int64_t{9}}) {  // few rows, and more
      SCOPED_TRACE(std::to_string(number) + ", queries: " + std::to_string(n));
      for (const Span& span : {run_of(0, kFirst + 20, false), run_of(100, 100, false), run_of(254, 4, false)}) {
        SCOPED_TRACE("keys from " + std::to_string(span.first_key));
        for (CudaMachine* machine : {&whole, &parts, &wide}) {
          for (const int64_t key : {150, 151, 254, 255, 256, 257}) scene.spoil_key(key, 1);
          const auto before = run(*machine, span, n);
          for (const int64_t key : {150, 254, 256}) scene.spoil_key(key, number), scene.spoil_key(key + 1, -number);
          const auto out = run(*machine, span, n);
          for (size_t i = 0; i < out.size(); ++i) {
            const bool spoiled = static_cast<int64_t>(i) % (2 * half) < half;
            ASSERT_FALSE(std::isnan(before[i])) << i;
            ASSERT_TRUE(spoiled ? std::isnan(out[i]) : out[i] == before[i]) << i << ": " << out[i];
          }
        }
      }
    }
  }
}

// Heads with lists of their own have a tile each: of a token one of a row, in parts for which there is memory planned.
TEST(CudaListsPerHead, AreTilesOfFewRowsInPlannedParts) {
  constexpr int kHeads = 32, kKvHeads = 1;
  constexpr int64_t kText = 20000;
  const KvGeometry geometry{kKvHeads, 64, 64, kF16};
  Allocator allocator;
  const auto backend = take(cuda::create_cuda_backend(allocator, device_of(100), 0, {}));
  const auto queue = take(backend->create_queue());
  const auto prepare = [&](const Span& span, int64_t n) {
    const auto plan = std::make_shared<Plan>();
    plan->add_block_per_head(kText - n, n, std::vector<std::vector<Span>>(kHeads, {span}));
    const StepSequence sequence{.plan = plan, .n = n, .first_key = kText - n, .geometry = geometry};
    return take(backend->prepare_step({*queue}, kHeads, {&sequence, 1}));
  };
  const auto of_token = prepare(run_of(0, kText, false), 1);
  cuda::Attention args;
  const int64_t n_parts = static_cast<const cuda::CudaStep&>(*of_token).set_lists(0, args);
  EXPECT_TRUE(static_cast<const cuda::CudaStep&>(*of_token).at(0).few);
  EXPECT_EQ(n_parts, 6 * kHeads);  // as many as twice 100 processors work on at a time
  EXPECT_LE(n_parts * cuda::attention_part_floats(geometry.head_dim) * int64_t{sizeof(float)},
            static_cast<int64_t>(backend->attention_workspace_bytes(geometry, kHeads, 1, kText, {})));

  // Each fourth query is in the same tile.
  Span dilated = run_of(0, kText / 4, false);
  dilated.stride = dilated.lag_stride = 4;
  EXPECT_TRUE(static_cast<const cuda::CudaStep&>(*prepare(dilated, 60)).at(0).few);
  EXPECT_FALSE(static_cast<const cuda::CudaStep&>(*prepare(dilated, 68)).at(0).few);
}

}  // namespace
}  // namespace quire::test
