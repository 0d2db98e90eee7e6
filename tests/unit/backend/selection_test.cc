// Chunk representations and selections (LongHeads, Eq. 1-3; bounds) against float64 and integer references.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

#include "kernels/cpu/kernels.h"
#include "lib/support/element.h"
#include "tests/unit/backend/attention_scene.h"
#include "tests/unit/backend/page_copy.h"

namespace quire::test {
namespace {

constexpr int64_t kPage = Representations::kPageChunks;

Buffers make_pages(Machine& machine, int n_vectors, int d, int64_t n_chunks, ElementType type = ElementType::kF32) {
  Buffers pages;
  for (int64_t p = 0; p < ceil_div(n_chunks, kPage); ++p) {
    const size_t bytes = machine.backend->representation_page_bytes(n_vectors, d, type);
    pages.push_back(take(machine.backend->allocate(bytes, MemoryKind::kDevice)));
    std::memset(pages.back()->host(), 0xFF, bytes);
  }
  return pages;
}

// The vector-th vectors of a page's chunks.
std::byte* vectors_of(const Buffers& pages, int64_t chunk, int64_t vector, int64_t d,
                      ElementType type = ElementType::kF32) {
  return static_cast<std::byte*>(pages[static_cast<size_t>(chunk / kPage)]->host()) +
         static_cast<size_t>(vector * kPage) * row_bytes(type, d);
}

std::vector<float> representation(const Buffers& pages, int64_t chunk, int64_t vector, int64_t d,
                                  ElementType type = ElementType::kF32) {
  std::vector<float> out(static_cast<size_t>(d));
  cpu::scalar::load_key(type, vectors_of(pages, chunk, vector, d, type), chunk % kPage, d, out.data());
  return out;
}

// ---- representations

// `n_chunks` complete chunks, and the queries of their tokens.
struct Chunks {
  Chunks(Machine& machine, const Shape& s, int64_t n_chunks, std::vector<float> q, const std::vector<float>& k,
         const std::vector<float>& v)
      : shape(s), n(n_chunks), queries(std::move(q)) {
    for (int a = 0; a < s.head_dim / 2; ++a) table.theta.push_back(std::pow(10000.0, -2.0 * a / s.head_dim));
    rope = take(machine.backend->create_rope(table, s.chunk));
    records = Records(*machine.backend, machine.backend->kv_record_bytes(s.geometry()), n);
    const int64_t width = int64_t{s.n_kv_heads} * s.head_dim;
    const auto keys = machine.buffer(k), values = machine.buffer(v);
    StoreKvArgs args;
    args.keys = {keys.get(), 0, width};
    args.values = {values.get(), 0, width};
    args.records = {records.chunks};
    const auto step = machine.storing_step({.n = n * s.chunk, .rope = rope.get(), .geometry = s.geometry()});
    EXPECT_TRUE(machine.backend->store_kv(machine.exec(), *step, args).ok());
  }
  static Chunks random(Machine& machine, Random& random, const Shape& s, int64_t n_chunks) {
    const int64_t elements = n_chunks * s.chunk * s.head_dim;
    return {machine,
            s,
            n_chunks,
            random.normal(elements * s.n_query_heads()),
            random.normal(elements * s.n_kv_heads),
            random.normal(elements * s.n_kv_heads)};
  }

  // Chunks [first_chunk, first_chunk + n_chunks) of the selection.
  void represent(Machine& machine, int64_t first_chunk, int64_t n_chunks, const Buffers& pages, float scale,
                 const ChunkSelection& selection = {}) const {
    const int64_t width = int64_t{shape.n_query_heads()} * shape.head_dim;
    const auto all = machine.buffer(queries);
    RepresentArgs args;
    args.queries = Rows{all.get(), 0, width}.at(first_chunk * shape.chunk);
    args.selection = selection;
    args.first_chunk = first_chunk;
    args.n_chunks = n_chunks;
    args.records = {records.chunks};
    args.out = {pages};
    const auto step = prepared(machine, scale);
    ASSERT_EQ("ok", message_of(machine.backend->represent_chunks(machine.exec(), *step, args)));
  }
  std::unique_ptr<PreparedStep> prepared(Machine& machine, float scale = 1) const {
    return machine.step(shape.n_query_heads(), {.plan = std::make_shared<Plan>(),
                                                .n = n * shape.chunk,
                                                .rope = rope.get(),
                                                .geometry = shape.geometry(),
                                                .scale = scale});
  }

  // Eq. 1-2 in float64, over keys (rotated inside the chunk) and values as they were rounded.
  std::vector<double> expected(int64_t chunk, int64_t head, double scale) const;

  Shape shape;
  int64_t n;
  std::vector<float> queries;  // [n * chunk][n_query_heads * head_dim]
  RopeTable table;
  std::shared_ptr<const Rope> rope;
  Records records;
};

using Rows64 = std::vector<std::vector<double>>;

// softmax(q keys^T * scale) out
std::vector<double> attend(const std::vector<double>& q, const Rows64& keys, const Rows64& out, double scale) {
  std::vector<double> weights, result(q.size());
  for (const auto& key : keys) {
    double dot = 0;
    for (size_t c = 0; c < q.size(); ++c) dot += q[c] * key[c];
    weights.push_back(dot * scale);
  }
  const double most = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& w : weights) sum += w = std::exp(w - most);
  for (size_t j = 0; j < keys.size(); ++j) {
    for (size_t c = 0; c < q.size(); ++c) result[c] += weights[j] / sum * out[j][c];
  }
  return result;
}

std::vector<double> Chunks::expected(int64_t chunk, int64_t head, double scale) const {
  const int64_t d = shape.head_dim, half = d / 2, l = shape.chunk, kv_head = head / shape.group;
  const cpu::RecordLayout layout(shape.geometry());
  const auto* record = cpu::record_ptr(records.chunks[static_cast<size_t>(chunk)]);
  Rows64 keys, values;
  std::vector<float> key(static_cast<size_t>(d));
  for (int64_t j = 0; j < l; ++j) {
    cpu::scalar::load_key(shape.type, record + layout.keys(kv_head), j, d, key.data());
    keys.emplace_back(key.begin(), key.end());
    values.emplace_back();
    for (int64_t c = 0; c < d; ++c) {
      values.back().push_back(load_element(shape.type, record + layout.values(kv_head), j * d + c));
    }
  }
  std::vector<double> mean(static_cast<size_t>(d));
  for (int64_t j = 0; j < l; ++j) {
    const float* q = &queries[static_cast<size_t>(((chunk * l + j) * shape.n_query_heads() + head) * d)];
    std::vector<double> rotated(static_cast<size_t>(d));
    for (int64_t a = 0; a < half; ++a) {
      const double angle = static_cast<double>(j) * table.theta[static_cast<size_t>(a)];
      rotated[a] = q[a] * std::cos(angle) - q[a + half] * std::sin(angle);
      rotated[a + half] = q[a + half] * std::cos(angle) + q[a] * std::sin(angle);
    }
    const auto out = attend(rotated, keys, values, scale);
    for (int64_t c = 0; c < d; ++c) mean[c] += out[c] / static_cast<double>(l);
  }
  return attend(mean, keys, keys, scale);
}

// G-LH-3: the worked example of a chunk of two tokens.
TEST(Representations, MatchTheWorkedExample) {
  Machine machine;
  const Shape shape{1, 1, 2, 2, ElementType::kF32};
  const Chunks chunks(machine, shape, 1, {1, 0, 0, 1}, {1, 1, 2, 0}, {1, 2, 3, 4});
  const auto pages = make_pages(machine, 1, 2, 1);
  chunks.represent(machine, 0, 1, pages, 1 / std::sqrt(2.0f));
  const auto rep = representation(pages, 0, 0, 2);
  EXPECT_NEAR(rep[0], 1.067054, 1e-6);
  EXPECT_NEAR(rep[1], 1.568130, 1e-6);
  EXPECT_NEAR(rep[0] - rep[1], -0.501076, 1e-6);  // the score of query (1, -1)
}

TEST(Representations, MatchTheNaiveReference) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machine(2);
  constexpr auto kF32 = ElementType::kF32, kF16 = ElementType::kF16, kBF16 = ElementType::kBF16;
  const Shape shapes[] = {{1, 2, 64, 64, kF32}, {4, 2, 32, 16, kF32},   {2, 1, 80, 48, kF16},
                          {8, 1, 24, 80, kF16}, {1, 3, 128, 32, kBF16}, {3, 1, 48, 256, kBF16}};
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(shape.name());
    const auto chunks = Chunks::random(machine, random, shape, 3);
    const float scale = 1.5f / std::sqrt(static_cast<float>(shape.head_dim));
    for (const ElementType type : {kF32, kBF16}) {
      const auto pages = make_pages(machine, shape.n_query_heads(), shape.head_dim, 3, type);
      chunks.represent(machine, 1, 2, pages, scale, {.attention_type = type});
      for (int64_t head = 0; head < shape.n_query_heads(); ++head) {
        for (const int64_t c : {1, 2}) {
          const auto actual = representation(pages, c, head, shape.head_dim, type);
          const auto expected = chunks.expected(c, head, scale);
          for (size_t e = 0; e < actual.size(); ++e) {
            const double rounding = type == kBF16 ? 0x1p-8 * std::abs(expected[e]) : 0;
            ASSERT_NEAR(actual[e], expected[e], rounding + 1e-5)
                << "chunk " << c << ", head " << head << ", element " << e;
          }
        }
        // Nothing else of the page was written.
        for (const float x : representation(pages, 0, head, shape.head_dim, type)) ASSERT_TRUE(std::isnan(x));
      }
    }
  }
}

TEST(Representations, AreCopiedByChunks) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machine;
  expect_copies_of_chunks(*machine.backend, *machine.queue, random);
}

// ThreadSanitizer sees it if a copy reads what a page has of later chunks.
TEST(Representations, AreCopiedWhileLaterChunksAreWritten) {
  Machine machine;
  constexpr int64_t kDim = 32, kChunks = 21;
  const auto pages = make_pages(machine, 1, kDim, kPage), copies = make_pages(machine, 1, kDim, kPage);
  std::thread writer([&] {
    const std::vector<float> vector(kDim, 1.0f);
    for (int64_t chunk = kChunks; chunk < kPage; ++chunk) {
      cpu::store_key(vector.data(), kDim, ElementType::kF32, pages[0]->host(), chunk);
    }
  });
  EXPECT_TRUE(
      machine.backend->copy_representations(*machine.queue, *pages[0], 1, kDim, ElementType::kF32, kChunks, *copies[0])
          .ok());
  writer.join();
}

TEST(Representations, DoNotDependOnThreads) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machines[] = {Machine(1), Machine(2), Machine(4)};
  const Shape shape{3, 2, 48, 112, ElementType::kF16};
  const auto chunks = Chunks::random(machines[0], random, shape, 2);
  std::vector<float> first;
  for (Machine& machine : machines) {
    const auto pages = make_pages(machine, 6, 48, 2);
    chunks.represent(machine, 1, 1, pages, 0.2f);
    std::vector<float> all;
    for (int64_t head = 0; head < 6; ++head) {
      const auto rep = representation(pages, 1, head, 48);
      all.insert(all.end(), rep.begin(), rep.end());
    }
    if (first.empty()) first = all;
    expect_same_bits(first, all, std::to_string(machine.pool.n_threads()) + " threads");
  }
}

// ---- selections; small integers, so that scores are exact and often equal

struct Selecting {
  int group, n_kv_heads, d;
  ChunkSelection selection;
  int64_t first_query, n_queries;

  int n_heads() const { return group * n_kv_heads; }
  int64_t n_chunks() const { return (first_query + n_queries - 1) / selection.chunk; }  // complete ones that are scored
};

struct SelectionScene {
  SelectionScene(Random& random, const Selecting& s) : s_(s) {
    for (int64_t e = 0; e < s.n_queries * s.n_heads() * s.d; ++e) {
      queries.push_back(static_cast<float>(random.between(-1, 1)));
    }
    for (int64_t e = 0; e < s.n_chunks() * s.n_heads() * s.d; ++e) {
      reps.push_back(static_cast<float>(random.between(-1, 1)));
    }
  }

  // [n_queries][n_heads][count]
  std::vector<int32_t> select(Machine& machine, const Plan& plan, int64_t first, int64_t n) const {
    const auto pages = make_pages(machine, s_.n_heads(), s_.d, std::max<int64_t>(1, s_.n_chunks()));
    for (int64_t c = 0; c < s_.n_chunks(); ++c) {
      for (int64_t head = 0; head < s_.n_heads(); ++head) {
        cpu::scalar::store_key(&reps[static_cast<size_t>((c * s_.n_heads() + head) * s_.d)], s_.d, ElementType::kF32,
                               vectors_of(pages, c, head, s_.d), c % kPage);
      }
    }
    const int64_t width = int64_t{s_.n_heads()} * s_.d;
    const auto all = machine.buffer(queries);
    const auto n_picks = static_cast<size_t>(n * s_.n_heads() * s_.selection.count);
    const auto out = take(machine.backend->allocate(n_picks * sizeof(int32_t), MemoryKind::kDevice));
    SelectArgs args;
    args.queries = Rows{all.get(), 0, width}.at(first - s_.first_query);
    args.representations = {pages};
    args.out = out.get();
    const auto step = machine.step(s_.n_heads(), {.plan = std::make_shared<Plan>(plan),
                                                  .n = n,
                                                  .first_key = first,
                                                  .geometry = {s_.n_kv_heads, s_.d, s_.selection.chunk}});
    EXPECT_EQ("ok", message_of(machine.backend->select_chunks(machine.exec(), *step, args)));
    const auto* picks = static_cast<const int32_t*>(out->host());
    return {picks, picks + n_picks};
  }

  int64_t score(int64_t i, int64_t head, int64_t c) const {
    using Sharing = ChunkSelection::Sharing;
    const Sharing sharing = s_.selection.sharing;
    const int64_t sharers = sharing == Sharing::kLayer ? s_.n_heads() : sharing == Sharing::kGroup ? s_.group : 1;
    const int64_t first_head = head / sharers * sharers;
    int64_t sum = 0;
    for (int64_t h = first_head; h < first_head + sharers; ++h) {
      for (int64_t e = 0; e < s_.d; ++e) {
        sum += static_cast<int64_t>(queries[static_cast<size_t>(((i - s_.first_query) * s_.n_heads() + h) * s_.d + e)] *
                                    reps[static_cast<size_t>((c * s_.n_heads() + h) * s_.d + e)]);
      }
    }
    return s_.selection.pick == ChunkSelection::Pick::kWorst ? -sum : sum;
  }

  // plan.h's definition by a sort of all scores.
  std::vector<int32_t> expected(int64_t i, int64_t head) const {
    const ChunkSelection& s = s_.selection;
    const int64_t own = i / s.chunk;
    std::vector<int32_t> picks;
    if (own + 1 <= s.count) {
      for (int64_t c = 0; c <= own; ++c) picks.push_back(static_cast<int32_t>(c));
    } else {
      std::vector<std::pair<int64_t, int32_t>> between;  // (-score, index)
      const bool forced = s.first == ChunkSelection::First::kForced;
      const int64_t first = s.first == ChunkSelection::First::kFree ? 0 : 1;
      for (int64_t c = first; c <= own - s.n_last; ++c)
        between.emplace_back(-score(i, head, c), static_cast<int32_t>(c));
      std::sort(between.begin(), between.end());
      if (forced) picks.push_back(0);
      const int64_t n_free = s.count - s.n_last - (forced ? 1 : 0);
      for (int64_t b = 0; b < n_free; ++b) picks.push_back(between[static_cast<size_t>(b)].second);
      for (int64_t b = 0; b < s.n_last; ++b) picks.push_back(static_cast<int32_t>(own - b));
      std::sort(picks.begin(), picks.end());
    }
    picks.resize(static_cast<size_t>(s.count), -1);
    return picks;
  }

  Selecting s_;
  std::vector<float> queries, reps;
};

Plan selecting_plan(const ChunkSelection& selection, int64_t first, int64_t n) {
  Plan plan;
  Span span;
  span.count = first + n;
  plan.add_block(first, n, {span}, KeysSeen::kSelected);
  plan.selection = selection;
  return plan;
}

std::vector<int32_t> picks_of(const std::vector<int32_t>& all, const Selecting& s, int64_t i, int64_t head) {
  const auto at = all.begin() + ((i - s.first_query) * s.n_heads() + head) * s.selection.count;
  return {at, at + s.selection.count};
}

// G-LH-2: a query in chunk 7, scores 9, 1, 5, 3, 8, 2, 0 of the chunks before it.
TEST(Selections, MatchTheWorkedExamples) {
  const struct {
    int64_t count, n_last;
    std::vector<int32_t> chosen;
  } cases[] = {
      {4, 2, {0, 4, 6, 7}}, {4, 1, {0, 2, 4, 7}}, {5, 2, {0, 2, 4, 6, 7}}, {5, 1, {0, 2, 3, 4, 7}}, {3, 2, {0, 6, 7}}};
  Machine machine;
  Random random;
  for (const auto& c : cases) {
    const Selecting s{1, 1, 16, {16, c.count, c.n_last}, 7 * 16 + 3, 1};
    SelectionScene scene(random, s);
    std::fill(scene.queries.begin(), scene.queries.end(), 0.0f);
    std::fill(scene.reps.begin(), scene.reps.end(), 0.0f);
    scene.queries[0] = 1;
    const float scores[] = {9, 1, 5, 3, 8, 2, 0};
    for (size_t chunk = 0; chunk < 7; ++chunk) scene.reps[chunk * 16] = scores[chunk];
    EXPECT_EQ(scene.select(machine, selecting_plan(s.selection, s.first_query, 1), s.first_query, 1), c.chosen);
  }
}

TEST(Selections, MatchASortOfAllScoresWithAnyThreadsAndCalls) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machines[] = {Machine(1), Machine(2), Machine(4)};
  using S = ChunkSelection::Sharing;
  using P = ChunkSelection::Pick;
  using F = ChunkSelection::First;
  const Selecting cases[] = {
      {1, 1, 16, {16, 4, 2}, 0, 130},                       // from the first chunk on: all, then some
      {2, 2, 24, {32, 8, 2}, 1000, 150},                    // within a page
      {4, 1, 16, {16, 16, 1, S::kGroup}, 16 * 64, 70},      // exactly a page of chunks before
      {4, 2, 32, {16, 5, 2, S::kGroup}, 16 * 200 - 9, 90},  // several pages, across chunk edges
      {3, 1, 16, {16, 3, 2}, 16 * 130, 20},                 // nothing left to choose
      {2, 1, 16, {16, 40, 1}, 16 * 65 + 3, 40},
      {2, 1, 8, {16, 6, 2, S::kGroup}, 16 * 4500 - 5, 80},  // more chunks than rows of scores fit
      {2, 2, 16, {16, 5, 2, S::kLayer}, 16 * 40, 50},
      {2, 2, 8, {16, 300, 2, S::kGroup}, 16 * 1100 - 1, 3},  // threads share the chunks of a KV head; many are chosen
      {2, 1, 8, {16, 40, 2, S::kHead, P::kWorst}, 16 * 1200, 2},
      {1, 3, 8, {16, 500, 1, S::kLayer}, 16 * 1100 + 5, 2},
      {2, 2, 16, {16, 5, 1, S::kFirstLayer}, 16 * 40, 50},
      {2, 1, 16, {16, 6, 2, S::kHead, P::kWorst}, 16 * 30, 40},
      {2, 1, 16, {16, 6, 1, S::kHead, P::kBest, F::kFree}, 16 * 5, 200},
      {2, 1, 16, {16, 6, 2, S::kGroup, P::kWorst, F::kNever}, 16 * 5, 200}};
  for (const Selecting& s : cases) {
    const SelectionScene scene(random, s);
    std::vector<int32_t> expected;
    for (int64_t i = s.first_query; i < s.first_query + s.n_queries; ++i) {
      for (int64_t head = 0; head < s.n_heads(); ++head) {
        const auto picks = scene.expected(i, head);
        expected.insert(expected.end(), picks.begin(), picks.end());
      }
    }
    for (Machine& machine : machines) {
      for (const int64_t step : {s.n_queries, int64_t{7}}) {
        if (step == 7 && s.n_chunks() > 1000) continue;  // filling the pages each time takes long
        std::vector<int32_t> actual;
        for (int64_t q = 0; q < s.n_queries; q += step) {
          const int64_t first = s.first_query + q, n = std::min(step, s.n_queries - q);
          const auto part = scene.select(machine, selecting_plan(s.selection, first, n), first, n);
          actual.insert(actual.end(), part.begin(), part.end());
        }
        ASSERT_EQ(actual, expected) << s.group << " heads a group, " << s.selection.count << " chunks, from query "
                                    << s.first_query << ", " << machine.pool.n_threads() << " threads, calls of "
                                    << step;
      }
    }
  }
}

// Random choices are the same for all threads and calls, and spread over the chunks.
TEST(Selections, ChooseAtRandom) {
  Random random;
  const Selecting s{2, 1, 16, {16, 8, 1, ChunkSelection::Sharing::kHead, ChunkSelection::Pick::kRandom}, 16 * 50, 64};
  const SelectionScene scene(random, s);
  Machine one(1), two(2);
  const auto plan = selecting_plan(s.selection, s.first_query, s.n_queries);
  const auto all = scene.select(one, plan, s.first_query, s.n_queries);
  EXPECT_EQ(all, scene.select(two, plan, s.first_query, s.n_queries));
  std::set<int32_t> seen;
  for (int64_t i = s.first_query; i < s.first_query + s.n_queries; ++i) {
    const auto alone = scene.select(one, selecting_plan(s.selection, i, 1), i, 1);
    for (int64_t head = 0; head < 2; ++head) {
      const auto picks = picks_of(all, s, i, head);
      EXPECT_TRUE(std::equal(picks.begin(), picks.end(), alone.begin() + head * s.selection.count));
      EXPECT_TRUE(std::is_sorted(picks.begin(), picks.end()));
      EXPECT_EQ(std::set<int32_t>(picks.begin(), picks.end()).size(), 8u);
      EXPECT_EQ(picks.front(), 0);
      EXPECT_EQ(picks.back(), i / 16);
      seen.insert(picks.begin(), picks.end());
    }
  }
  EXPECT_GT(seen.size(), 48u);  // of 54
}

TEST(Selections, CoverTheSelectedBlocksOfAPlan) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machine(2);
  const Selecting s{2, 1, 16, {16, 4, 2}, 100, 60};
  const SelectionScene scene(random, s);
  Plan plan;
  Span span;
  span.count = 160;
  plan.add_block(100, 20, {span});
  plan.add_block(120, 15, {span}, KeysSeen::kSelected);
  plan.add_block(135, 5, {span});
  plan.add_block(140, 20, {span}, KeysSeen::kSelected);
  plan.selection = s.selection;
  const auto all = scene.select(machine, plan, 100, 60);
  for (int64_t i = 100; i < 160; ++i) {
    if (i < 120 || (i >= 135 && i < 140)) continue;
    for (int64_t head = 0; head < 2; ++head) ASSERT_EQ(picks_of(all, s, i, head), scene.expected(i, head)) << i;
  }
}

// ---- means and bounds of keys

using Bounds64 = std::pair<std::vector<double>, std::vector<double>>;  // the least and the greatest of each channel

using Representation = ChunkSelection::Representation;

ChunkSelection by_keys(Representation representation, int64_t chunk, int64_t count, int64_t key_period) {
  ChunkSelection selection{.chunk = chunk, .count = count, .n_last = 2};
  selection.representation = representation;
  selection.key_period = key_period;
  return selection;
}

std::vector<double> rotated(const float* x, double position, const RopeTable& table) {
  const size_t half = table.theta.size();
  std::vector<double> out(2 * half);
  for (size_t a = 0; a < half; ++a) {
    const double c = std::cos(position * table.theta[a]), s = std::sin(position * table.theta[a]);
    out[a] = x[a] * c - x[a + half] * s;
    out[a + half] = x[a + half] * c + x[a] * s;
  }
  return out;
}

// The keys of a chunk of the selection as they were rounded, each rotated to its place in its period. The record holds
// them rotated at their offset in the stored chunk.
Rows64 turned_keys(const Chunks& chunks, const ChunkSelection& selection, int64_t chunk, int64_t kv_head) {
  const Shape& s = chunks.shape;
  Rows64 keys;
  std::vector<float> key(static_cast<size_t>(s.head_dim));
  for (int64_t j = chunk * selection.chunk; j < (chunk + 1) * selection.chunk; ++j) {
    const auto* stored = cpu::record_ptr(chunks.records.chunks[static_cast<size_t>(j / s.chunk)]) +
                         cpu::RecordLayout(s.geometry()).keys(kv_head);
    cpu::scalar::load_key(s.type, stored, j % s.chunk, s.head_dim, key.data());
    keys.push_back(rotated(key.data(), static_cast<double>(j % selection.key_period - j % s.chunk), chunks.table));
  }
  return keys;
}

Bounds64 expected_bounds(const Chunks& chunks, const ChunkSelection& selection, int64_t chunk, int64_t kv_head) {
  const Rows64 keys = turned_keys(chunks, selection, chunk, kv_head);
  Bounds64 bounds = {keys[0], keys[0]};
  for (const auto& key : keys) {
    for (size_t c = 0; c < key.size(); ++c) {
      bounds.first[c] = std::min(bounds.first[c], key[c]);
      bounds.second[c] = std::max(bounds.second[c], key[c]);
    }
  }
  return bounds;
}

// How far a number of about this size may be from what it is rounded to.
double rounding(ElementType type, double x) {
  return (type == ElementType::kF32 ? 1e-5 : type == ElementType::kF16 ? 0x1p-11 : 0x1p-8) * std::max(std::abs(x), 1.0);
}

std::vector<double> expected_mean(const Chunks& chunks, const ChunkSelection& selection, int64_t chunk,
                                  int64_t kv_head) {
  std::vector<double> mean(static_cast<size_t>(chunks.shape.head_dim));
  for (const auto& key : turned_keys(chunks, selection, chunk, kv_head)) {
    for (size_t c = 0; c < mean.size(); ++c) mean[c] += key[c] / static_cast<double>(selection.chunk);
  }
  return mean;
}

void expect_near(const std::vector<float>& actual, const std::vector<double>& expected, ElementType type) {
  for (size_t c = 0; c < expected.size(); ++c) {
    ASSERT_NEAR(actual[c], expected[c], rounding(type, expected[c])) << "channel " << c;
  }
}

TEST(KeySummaries, AreTheMeanOrTheBoundsOfAChunksKeys) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machine(2);
  for (const auto kind : {Representation::kMean, Representation::kBounds}) {
    for (const Shape& shape : {Shape{3, 2, 48, 64, ElementType::kF32}, Shape{1, 1, 64, 16, ElementType::kF16},
                               Shape{2, 3, 24, 80, ElementType::kBF16}}) {
      SCOPED_TRACE(shape.name());
      const ChunkSelection selection = by_keys(kind, 16, 3, 48);  // a period ends inside most stored chunks
      const int n_vectors = selection.n_vectors(shape.n_query_heads(), shape.n_kv_heads);
      const int d = shape.head_dim, per_head = n_vectors / shape.n_kv_heads;
      const auto chunks = Chunks::random(machine, random, shape, 7);
      const int64_t n_chunks = 7 * shape.chunk / 16;
      const auto pages = make_pages(machine, n_vectors, d, n_chunks, shape.type);
      chunks.represent(machine, 1, 2, pages, 1, selection);
      chunks.represent(machine, 4, n_chunks - 4, pages, 1, selection);
      for (int64_t head = 0; head < shape.n_kv_heads; ++head) {
        const auto vector = [&](int64_t c, int index) {
          return representation(pages, c, per_head * head + index, d, shape.type);
        };
        for (int64_t c = 1; c < n_chunks; ++c) {
          if (c == 3) continue;
          SCOPED_TRACE("chunk " + std::to_string(c) + ", head " + std::to_string(head));
          if (kind == Representation::kMean) {
            expect_near(vector(c, 0), expected_mean(chunks, selection, c, head), shape.type);
            continue;
          }
          const auto [least, greatest] = expected_bounds(chunks, selection, c, head);
          expect_near(vector(c, 0), least, shape.type);
          expect_near(vector(c, 1), greatest, shape.type);
        }
        // Nothing else of the page was written.
        for (const int64_t c : {0, 3}) {
          for (const float x : vector(c, 0)) ASSERT_TRUE(std::isnan(x));
        }
      }
    }
  }
}

// Queries that see keys at the distances of dca: those of the own period, of the one before, and of older ones.
struct KeysScene {
  static constexpr int64_t kChunk = 16, kStored = 48, kCount = 6, kPeriod = 64, kCap = 100, kChunks = 90;
  static constexpr float kScale = 0.3f;

  KeysScene(Machine& machine, Random& random, Representation kind, int64_t n_chunks = kChunks)
      : selection(by_keys(kind, kChunk, kCount, kPeriod)),
        chunks(Chunks::random(machine, random, shape, n_chunks * kChunk / kStored)),
        pages(make_pages(machine, selection.n_vectors(4, 2), 32, n_chunks, shape.type)) {
    chunks.represent(machine, 0, n_chunks, pages, 1, selection);
  }

  Plan plan(int64_t first, int64_t n) const {
    const int64_t own = first / kPeriod;  // all queries are of one period
    std::vector<Span> spans(3);
    spans[0].count = (own - 1) * kPeriod;
    spans[0].key_period = kPeriod;
    spans[1].first_key = spans[1].key_base = (own - 1) * kPeriod;
    spans[1].count = kPeriod;
    spans[1].q_offset = -static_cast<double>(spans[1].key_base);
    spans[2].first_key = spans[2].key_base = own * kPeriod;
    spans[2].count = first + n - own * kPeriod;
    spans[2].q_offset = -static_cast<double>(spans[2].key_base);
    for (Span& span : spans) span.q_cap = kCap;
    Plan plan;
    plan.add_block(first, n, spans, KeysSeen::kSelected);
    plan.selection = selection;
    plan.sticky = sticky;
    return plan;
  }

  std::vector<int32_t> select(Machine& machine, int64_t first, int64_t n) const {
    const auto all = machine.buffer(chunks.queries);
    const int64_t width = selection.most(first + n - 1);
    const auto n_picks = static_cast<size_t>(n * 4 * width);
    const auto out = take(machine.backend->allocate(n_picks * sizeof(int32_t), MemoryKind::kDevice));
    SelectArgs args;
    args.queries = Rows{all.get(), 0, 4 * 32}.at(first);
    args.representations = {pages};
    args.out = out.get();
    const auto step = machine.step(4, {.plan = std::make_shared<Plan>(plan(first, n)),
                                       .n = n,
                                       .first_key = first,
                                       .rope = chunks.rope.get(),
                                       .geometry = shape.geometry(),
                                       .scale = kScale});
    EXPECT_EQ("ok", message_of(machine.backend->select_chunks(machine.exec(), *step, args)));
    const auto* picks = static_cast<const int32_t*>(out->host());
    return {picks, picks + n_picks};
  }

  // The query, rotated as it sees a chunk.
  std::vector<double> query(int64_t i, int64_t head, int64_t c) const {
    const int64_t from = c / (kPeriod / kChunk), own = i / kPeriod;
    const int64_t position = from == own ? i % kPeriod : from + 1 == own ? std::min(kPeriod + i % kPeriod, kCap) : kCap;
    const float* x = &chunks.queries[static_cast<size_t>((i * 4 + head) * 32)];
    return rotated(x, static_cast<double>(position), chunks.table);
  }

  double score(int64_t i, int64_t head, int64_t c) const {
    const auto q = query(i, head, c);
    double sum = 0;
    if (selection.representation == Representation::kMean) {
      const auto mean = expected_mean(chunks, selection, c, head / 2);
      for (size_t e = 0; e < q.size(); ++e) sum += q[e] * mean[e];
    } else {
      const auto [least, greatest] = expected_bounds(chunks, selection, c, head / 2);
      for (size_t e = 0; e < q.size(); ++e) sum += std::max(q[e] * least[e], q[e] * greatest[e]);
    }
    return kScale * sum;
  }

  // Of the chunks before the query's own.
  std::vector<double> scores(int64_t i, int64_t head) const {
    std::vector<double> all;
    for (int64_t c = 0; c < i / kChunk; ++c) all.push_back(score(i, head, c));
    if (selection.sharing != ChunkSelection::Sharing::kGroup) return all;
    double sum = 0;
    for (double& x : all) sum += x = std::exp(x);
    for (double& x : all) x /= sum;
    return all;
  }

  // The free choices by a sort of all scores; nothing where two are too close to tell, as vectors are rounded to f16.
  std::vector<int32_t> expected(int64_t i, int64_t head) const {
    const bool shared = selection.sharing == ChunkSelection::Sharing::kGroup;
    const int64_t own = i / kChunk;
    auto all = scores(i, shared ? head / 2 * 2 : head);
    if (shared) {
      const auto others = scores(i, head / 2 * 2 + 1);
      for (size_t c = 0; c < all.size(); ++c) all[c] += others[c];
    }
    for (const int32_t c : sticky) {
      if (c < own) all[static_cast<size_t>(c)] = std::numeric_limits<double>::infinity();
    }
    std::vector<std::pair<double, int32_t>> free;  // (-score, index)
    for (int64_t c = 1; c <= own - 2; ++c) free.emplace_back(-all[static_cast<size_t>(c)], static_cast<int32_t>(c));
    std::sort(free.begin(), free.end());
    const auto n_free = static_cast<size_t>(selection.most(i) - 3);
    if (std::isfinite(free[n_free - 1].first) &&
        free[n_free].first - free[n_free - 1].first < 0.002 * std::abs(free[n_free].first))
      return {};
    std::vector<int32_t> picks = {0, static_cast<int32_t>(own - 1), static_cast<int32_t>(own)};
    for (size_t f = 0; f < n_free; ++f) picks.push_back(free[f].second);
    std::sort(picks.begin(), picks.end());
    return picks;
  }

  Shape shape{2, 2, 32, kStored, ElementType::kF16};
  ChunkSelection selection;
  std::vector<int32_t> sticky;
  Chunks chunks;
  Buffers pages;
};

TEST(KeySummaries, ChooseWhatASortOfAllScoresChooses) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine one(1), two(2);
  for (const auto kind : {Representation::kMean, Representation::kBounds}) {
    KeysScene scene(one, random, kind);
    for (const auto sharing : {ChunkSelection::Sharing::kHead, ChunkSelection::Sharing::kGroup}) {
      for (const int64_t one_in : {0, 10}) {  // at most 6 chunks, or from 70 on a tenth
        // Of a query's three or more free choices none, two, or more than all; the first chunk and near ones are none.
        const std::vector<int32_t> all_sticky[] = {{}, {0, 11, 62, 63, 89}, {3, 7, 9, 20, 21, 22, 23, 40, 41, 60}};
        scene.sticky = all_sticky[random.between(0, 2)];
        scene.selection.sharing = sharing;
        scene.selection.one_in = one_in;
        int64_t compared = 0;
        for (const int64_t first : {1024 + 5, 1152 + 3, 1408 - 9}) {  // before and behind a page of 64 chunks
          const int64_t width = scene.selection.most(first + 8);
          const auto all = scene.select(one, first, 9);
          ASSERT_EQ(all, scene.select(two, first, 9));
          for (int64_t i = first; i < first + 9; ++i) {
            const int64_t own_width = scene.selection.most(i);
            const auto alone = scene.select(one, i, 1);
            for (int64_t head = 0; head < 4; ++head) {
              const auto at = all.begin() + ((i - first) * 4 + head) * width;
              const std::vector<int32_t> picks(at, at + own_width);
              for (int64_t u = own_width; u < width; ++u) ASSERT_EQ(at[u], -1);
              ASSERT_TRUE(std::equal(picks.begin(), picks.end(), alone.begin() + head * own_width)) << i;
              const auto expected = scene.expected(i, head);
              if (expected.empty()) continue;
              ++compared;
              ASSERT_EQ(picks, expected) << "query " << i << ", head " << head;
            }
          }
        }
        EXPECT_GT(compared, 60);  // of 108
      }
    }
  }
}

// Behind a long text, threads share the chunks of a KV head.
TEST(KeySummaries, ManyThreadsScoreTheChunksOfFewHeads) {
  constexpr int64_t kMany = 1110;
  Random random;
  SCOPED_TRACE(random.trace());
  Machine one(1), four(4);
  for (const auto kind : {Representation::kMean, Representation::kBounds}) {
    KeysScene scene(one, random, kind, kMany);
    scene.selection.one_in = 8;
    for (const auto sharing :
         {ChunkSelection::Sharing::kHead, ChunkSelection::Sharing::kGroup, ChunkSelection::Sharing::kLayer}) {
      scene.selection.sharing = sharing;
      for (const int64_t n : {1, 3}) {
        const int64_t first = (kMany - 2) * KeysScene::kChunk + random.between(0, 9);
        const int64_t before = four.pool.tasks_started();
        const auto chosen = scene.select(four, first, n);
        EXPECT_GE(four.pool.tasks_started() - before, 4);
        ASSERT_EQ(scene.select(one, first, n), chosen);
      }
    }
  }
}

TEST(Selections, CancelledCallsSayCancelled) {
  Machine machine;
  Random random;
  CancelToken cancel;
  cancel.cancel();
  const Shape shape{1, 1, 16, 16, ElementType::kF32};
  const auto chunks = Chunks::random(machine, random, shape, 1);
  const auto pages = make_pages(machine, 1, 16, 1);
  RepresentArgs represent;
  const auto queries = machine.buffer(chunks.queries);
  represent.queries = {queries.get(), 0, 16};
  represent.n_chunks = 1;
  represent.records = {chunks.records.chunks};
  represent.out = {pages};
  EXPECT_EQ(machine.backend->represent_chunks(machine.exec(&cancel), *chunks.prepared(machine), represent).code(),
            Code::kCancelled);
  SelectArgs select;
  const auto step = machine.step(1, {.plan = std::make_shared<Plan>(selecting_plan({16, 3, 2}, 0, 16)),
                                     .n = 16,
                                     .rope = chunks.rope.get(),
                                     .geometry = shape.geometry()});
  select.queries = represent.queries;
  select.representations = {pages};
  const auto out = take(machine.backend->allocate(16 * 3 * sizeof(int32_t), MemoryKind::kDevice));
  select.out = out.get();
  EXPECT_EQ(machine.backend->select_chunks(machine.exec(&cancel), *step, select).code(), Code::kCancelled);
}

}  // namespace
}  // namespace quire::test
