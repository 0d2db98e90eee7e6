// The choice of chunks, against plain loops over scores in double.

#include <gtest/gtest.h>

#include "kernels/cuda/selection.h"
#include "tests/gpu/elements.h"
#include "tests/gpu/schedules.h"
#include "tests/gpu/test_device.h"
#include "tests/seed.h"

namespace quire::test {
namespace {

using cuda::ChunkScores;

struct HeadShape {
  int64_t dim, n_query_heads, n_kv_heads;
};

class SelectionKernels : public OnEverySchedule {
 protected:
  void TearDown() override {
    if (HasFailure()) ADD_FAILURE() << seed_trace();
  }
  void expect_scores(const HeadShape& shape);
  int64_t between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  std::mt19937 random_ = seeded_random();
};
INSTANTIATE_TEST_SUITE_P(Orders, SelectionKernels, kSchedules, schedule_name);

constexpr int64_t kChunk = 16, kPeriod = 80;

// SplitMix64 (Steele et al. 2014), whose state is what was mixed before and the next part.
double random_score(std::initializer_list<uint64_t> parts) {
  uint64_t mixed = 0;
  for (const uint64_t part : parts) {
    mixed += part + 0x9E3779B97F4A7C15;
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9;
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB;
    mixed ^= mixed >> 31;
  }
  return std::ldexp(static_cast<double>(mixed >> 40), -24);
}

// Score of a chunk in double, as ScoreChunks says.
double expected_score(const cuda::ScoreChunks& args, const Elements& queries, const std::vector<Elements>& pages,
                      const std::vector<double>& turns, int64_t row, int64_t head, int64_t chunk) {
  const int64_t i = *args.first_query + args.first_row + row, d = args.head_dim, n_heads = args.n_query_heads;
  std::vector<double> q(static_cast<size_t>(d));
  for (int64_t c = 0; c < d; ++c) q[static_cast<size_t>(c)] = queries[(row * n_heads + head) * d + c];
  const auto vector = [&](int64_t index, int64_t c) {
    return pages[static_cast<size_t>(chunk / 64)][(index * 64 + chunk % 64) * d + c];
  };
  double score = 0;
  if (args.kind == ChunkScores::kRandom) {
    return random_score({static_cast<uint64_t>(args.layer), static_cast<uint64_t>(head), static_cast<uint64_t>(i),
                         static_cast<uint64_t>(chunk)});
  }
  if (args.kind == ChunkScores::kVectors) {
    for (int64_t c = 0; c < d; ++c) score += q[static_cast<size_t>(c)] * vector(head, c);
    return score;
  }
  bool shown = false;
  double position = 0;
  for (int s = 0; s < args.n_spans; ++s) {
    const cuda::ScoreSpan& span = args.spans[s];
    const int64_t j = std::max(span.first_key, chunk * kChunk);
    if (chunk < span.first_key / kChunk || j >= span.first_key + span.count) continue;
    double of_query = static_cast<double>(i) / span.q_div;
    if (span.q_floor) of_query = std::floor(of_query);
    double of_key = static_cast<double>(j - span.key_base);
    if (span.key_period > 0) {
      const auto period = static_cast<double>(span.key_period);
      of_key -= std::floor(of_key / period) * period;
    }
    position = std::min(of_query + span.q_offset, span.q_cap) - of_key + static_cast<double>(j % kPeriod);
    shown = true;
  }
  if (!shown) return -INFINITY;
  const int64_t kv_head = head / (n_heads / args.n_kv_heads);
  for (int64_t c = 0; c < d; ++c) {
    const int64_t pair = c % (d / 2);
    const double angle = 2 * M_PI * turns[static_cast<size_t>(pair)] * position;
    const double a = q[static_cast<size_t>(pair)], b = q[static_cast<size_t>(pair + d / 2)];
    const double turned =
        c < d / 2 ? a * std::cos(angle) - b * std::sin(angle) : b * std::cos(angle) + a * std::sin(angle);
    const double scaled = turned * args.scale;
    score += args.kind == ChunkScores::kMeans
                 ? scaled * vector(kv_head, c)
                 : std::max(scaled * vector(2 * kv_head, c), scaled * vector(2 * kv_head + 1, c));
  }
  return score;
}

void SelectionKernels::expect_scores(const HeadShape& shape) {
  const auto& [d, n_heads, n_kv_heads] = shape;
  const int64_t first_row = 3;
  const Shared<int64_t> first_query{1287};
  const int64_t first = first_query[0] + first_row;
  std::vector<double> exact;
  Shared<cuda::Turns> turns;
  for (int a = 0; a < d / 2; ++a) {
    exact.push_back(std::pow(10000, -2.0 * a / static_cast<double>(d)) / (2 * M_PI));
    turns.push_back({static_cast<float>(exact.back()),
                     static_cast<float>(exact.back() - static_cast<double>(static_cast<float>(exact.back())))});
  }
  // Key 3 to 700 in periods; 720 on, in groups, with a cap; nothing between.
  const Shared<cuda::ScoreSpan> spans{{3, 698, 1, 5, INFINITY, true, 10, 90}, {720, 580, 3, 200, 600, true, 7, 0}};
  for (const ChunkScores kind :
       {ChunkScores::kVectors, ChunkScores::kMeans, ChunkScores::kBounds, ChunkScores::kRandom}) {
    const ElementType type = kind == ChunkScores::kVectors ? ElementType::kF32 : ElementType::kBF16;
    std::vector<Elements> pages;
    Shared<void*> addresses;
    for (int p = 0; p < 2; ++p) pages.push_back(random_elements(random_, type, n_heads * 64 * d));
    for (Elements& page : pages) {
      // The least and the greatest of a channel are in order.
      for (int64_t h = 0; kind == ChunkScores::kBounds && h < n_kv_heads; ++h) {
        for (int64_t e = 0; e < 64 * d; ++e) {
          const int64_t low = 2 * h * 64 * d + e, high = low + 64 * d;
          if (page[low] <= page[high]) continue;
          const double greater = page[low];
          page.set(low, page[high]);
          page.set(high, greater);
        }
      }
      addresses.push_back(page.bytes.data());
    }
    struct Case {
      int64_t n;
      bool negate;
      int64_t place;  // elements in front of the queries
    };
    // Vectors: a row for a block, and 16. Queries that begin where two elements may be read at once, and that do not.
    for (const auto& [n, negate, place] : {Case{5, true, 0}, {19, false, 0}, {2, false, 1}}) {
      const int64_t n_chunks = (first + n - 1) / kChunk;  // 80 or so, in two pages
      const Elements queries = random_elements(random_, ElementType::kBF16, n * n_heads * d);
      Elements placed(ElementType::kBF16, place + n * n_heads * d);
      char* const at = placed.bytes.data() + place * static_cast<int64_t>(element_bytes(ElementType::kBF16));
      std::ranges::copy(queries.bytes, at);
      Shared<float> scores(static_cast<size_t>(n * n_heads * n_chunks), NAN);
      cuda::ScoreChunks args;
      args.kind = kind, args.layer = 3;
      args.negate = negate && kind != ChunkScores::kRandom;
      args.head_dim = static_cast<int>(d), args.n_query_heads = static_cast<int>(n_heads);
      args.n_kv_heads = static_cast<int>(n_kv_heads);
      args.scale = 0.3f;
      args.chunk = kChunk, args.key_period = kPeriod;
      args.turns = turns.data();
      args.spans = spans.data(), args.n_spans = 2;
      args.queries = {at, n_heads * d, ElementType::kBF16};
      args.n = n, args.first_query = first_query.data(), args.first_row = first_row;
      args.vectors = {addresses.data(), type};
      args.scores = scores.data(), args.n_chunks = n_chunks;
      ASSERT_EQ(run(&cuda::DeviceApi::score_chunks, args), 0);
      for (int64_t row = 0; row < n; ++row) {
        for (int64_t head = 0; head < n_heads; ++head) {
          for (int64_t c = 0; c < n_chunks; ++c) {
            const float found = scores[static_cast<size_t>((row * n_heads + head) * n_chunks + c)];
            const bool before = c < (first + row) / kChunk;
            const double expected = before ? expected_score(args, queries, pages, exact, row, head, c) : -INFINITY;
            if (std::isinf(expected)) {
              ASSERT_EQ(found, -INFINITY) << row << " " << c;
            } else {
              ASSERT_NEAR(found, args.negate ? -expected : expected, 1e-4) << row << " " << head << " " << c;
            }
          }
        }
      }
    }
  }
}

TEST_P(SelectionKernels, ScoreChunks) {
  // Heads whose pairs of channels a lane takes one by one, or in twos, once or twice; fewer heads than a block has
  // warps, or more.
  for (const HeadShape& shape : {HeadShape{22, 3, 1}, HeadShape{48, 4, 2}, HeadShape{144, 10, 5}}) {
    SCOPED_TRACE(shape.dim);
    expect_scores(shape);
    if (HasFailure()) return;
  }
}

// More blocks of chunks than index y of a grid has.
TEST_P(SelectionKernels, ScoresMoreChunksThanAGridHasRowsOfBlocks) {
  if (GetParam().schedule != emulation::Schedule::kReverse) GTEST_SKIP() << "one order is enough of so many blocks";
  const Shared<int64_t> first_query{kChunk};
  Elements queries(ElementType::kBF16, 2), page(ElementType::kF32, 64 * 2);  // zeros
  const Shared<void*> addresses{page.bytes.data()};
  const int64_t n_chunks = 65536 * 8;
  Shared<float> scores(static_cast<size_t>(n_chunks), NAN);
  cuda::ScoreChunks args;
  args.head_dim = 2, args.n_query_heads = args.n_kv_heads = 1;
  args.chunk = kChunk;
  args.queries = queries.rows(2);
  args.n = 1, args.first_query = first_query.data();
  args.vectors = {addresses.data(), ElementType::kF32};
  args.scores = scores.data(), args.n_chunks = n_chunks;
  ASSERT_EQ(run(&cuda::DeviceApi::score_chunks, args), 0);
  EXPECT_EQ(scores[0], 0);
  for (size_t c = 1; c < scores.size(); ++c) ASSERT_EQ(scores[c], -INFINITY) << c;
}

// The chunks that a query takes, from the sum of its heads' scores.
std::vector<int32_t> expected_choice(const cuda::ChooseChunks& args, int64_t i, std::vector<float> scores) {
  for (int64_t s = 0; s < args.n_sticky; ++s) scores[static_cast<size_t>(args.sticky[s])] = INFINITY;
  const int64_t own = i / args.chunk;
  int64_t most = args.count;
  if (args.one_in > 0) most = std::max(most, (own + 1) / args.one_in);
  std::vector<int32_t> chosen;
  if (own + 1 <= most) {
    for (int64_t c = 0; c <= own; ++c) chosen.push_back(static_cast<int32_t>(c));
  } else {
    if (args.first_forced) chosen.push_back(0);
    std::vector<int32_t> free;
    for (int64_t c = args.first_free; c < own + 1 - args.n_last; ++c) free.push_back(static_cast<int32_t>(c));
    std::ranges::stable_sort(
        free, [&](int32_t a, int32_t b) { return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)]; });
    free.resize(static_cast<size_t>(most - args.n_last - (args.first_forced ? 1 : 0)));
    std::ranges::sort(free);
    chosen.insert(chosen.end(), free.begin(), free.end());
    for (int64_t c = own + 1 - args.n_last; c <= own; ++c) chosen.push_back(static_cast<int32_t>(c));
  }
  chosen.resize(static_cast<size_t>(args.width), -1);
  return chosen;
}

TEST_P(SelectionKernels, ChooseChunks) {
  for (int trial = 0; trial < 15; ++trial) {
    SCOPED_TRACE(trial);
    const bool all_differ = trial > 12, many = trial == 13;  // more than the threads of a block keep
    cuda::ChooseChunks args;
    args.chunk = kChunk;
    args.n = 3;
    const int64_t first = trial % 3 == 0 ? between(10, 110) : many ? between(70000, 80000) : between(1000, 24000);
    args.first_row = trial % 2 == 0 ? 0 : between(1, 10);
    const Shared<int64_t> first_query{first - args.first_row};
    args.first_query = first_query.data();
    args.count = between(4, 12), args.one_in = trial % 2 == 0 ? 0 : between(5, 20);
    args.n_last = between(1, 3);
    args.first_forced = trial % 4 != 3;
    args.first_free = trial % 4 == 2 ? 0 : 1;
    if (args.first_forced) args.first_free = 1;
    args.n_query_heads = 6, args.heads = trial % 3 == 1 ? 3 : 1;
    const int64_t last = first + args.n - 1;
    args.n_chunks = last / kChunk + 1;
    args.width = args.count;
    if (args.one_in > 0) args.width = std::max(args.width, (last / kChunk + 1) / args.one_in);
    args.width = std::min(args.width, last / kChunk + 1);
    // Most trials have few different scores, so that many are equal; some are of chunks that nobody is shown.
    Shared<float> scores(static_cast<size_t>(args.n * args.n_query_heads * args.n_chunks));
    const int64_t greatest = trial % 2 == 0 ? 3 : -1;  // of some trials all scores are negative
    for (float& s : scores) {
      const int64_t below = all_differ ? between(0, int64_t{1} << 22) : between(0, 6);
      s = between(0, 9) == 0 ? -INFINITY : static_cast<float>(greatest - below) * 0.25f;
    }
    const Shared<float> given = scores;
    Shared<int32_t> chosen(static_cast<size_t>(args.n * args.n_query_heads * args.width), -7);
    // Some may be those that are always taken, or the query's own and later ones.
    Shared<int32_t> sticky;
    for (int64_t c = 0; trial % 2 == 1 && c < args.n_chunks; ++c) {
      if (between(0, args.n_chunks) < 5) sticky.push_back(static_cast<int32_t>(c));
    }
    args.sticky = sticky.data();
    args.n_sticky = static_cast<int64_t>(sticky.size());
    args.scores = scores.data();
    args.chosen = chosen.data();
    ASSERT_EQ(run(&cuda::DeviceApi::choose_chunks, args), 0);
    for (int64_t row = 0; row < args.n; ++row) {
      for (int64_t head = 0; head < args.n_query_heads; ++head) {
        std::vector<float> sums(static_cast<size_t>(args.n_chunks));
        for (int64_t h = head / args.heads * args.heads; h < (head / args.heads + 1) * args.heads; ++h) {
          for (int64_t c = 0; c < args.n_chunks; ++c) {
            const float score = given[static_cast<size_t>((row * args.n_query_heads + h) * args.n_chunks + c)];
            float& sum = sums[static_cast<size_t>(c)];
            sum = h % args.heads == 0 ? score : sum + score;
          }
        }
        const auto at = chosen.begin() + (row * args.n_query_heads + head) * args.width;
        ASSERT_EQ(std::vector<int32_t>(at, at + args.width), expected_choice(args, first + row, sums));
      }
    }
  }
}

// Heads that choose together by the sum of their softmaxes: a head with great scores does not outvote the others.
TEST_P(SelectionKernels, ChooseChunksBySharesOfAttention) {
  cuda::ChooseChunks args;
  args.chunk = kChunk, args.count = 4, args.n_query_heads = args.heads = 2, args.softmax = true;
  const Shared<int64_t> first_query{20 * kChunk};
  args.n = 1, args.first_query = first_query.data(), args.n_chunks = 20, args.width = 4;
  Shared<float> scores(40);
  for (size_t c = 0; c < 20; ++c) {
    scores[c] = c == 5 || c == 7 ? 100.0f : 0.0f;         // half of its attention each
    scores[20 + c] = c == 9 ? 20.0f : c == 7 ? 3 : 0.0f;  // nearly all of it on 9
  }
  Shared<int32_t> chosen(8);
  args.scores = scores.data(), args.chosen = chosen.data();
  ASSERT_EQ(run(&cuda::DeviceApi::choose_chunks, args), 0);
  EXPECT_EQ(chosen, (Shared<int32_t>{0, 7, 9, 20, 0, 7, 9, 20}));
}

// More chunks than a block of threads looks at together, and rows that chose more and fewer of them than a warp has
// lanes.
TEST_P(SelectionKernels, ListChosenOfManyChunks) {
  constexpr int64_t kQueries = 5, kChunks = 600, kWidth = 330, kParts = 3;
  constexpr int kHeads = 4, kRows = kQueries * kHeads;
  Shared<int32_t> chosen(kRows * kWidth, -1);
  std::vector<std::vector<cuda::AttentionPick>> picks_of(kChunks);  // by chunk
  for (int row = 0; row < kRows; ++row) {
    const int64_t most = between(0, 1) == 0 ? 20 : kWidth, last = between(200, kChunks - 1);
    int32_t rank = 0;
    for (int64_t c = 0; c <= last && rank < most; ++c) {
      if (between(0, 3) == 0) continue;
      chosen[static_cast<size_t>(row * kWidth + rank)] = static_cast<int32_t>(c);
      picks_of[static_cast<size_t>(c)].push_back({row, rank++});
    }
  }
  Shared<cuda::AttentionTile> tiles(1);
  tiles[0].first = kChunks * kChunk, tiles[0].count = kQueries, tiles[0].heads = kHeads, tiles[0].selected = true;
  Shared<cuda::ChosenKeys> keys(1);
  keys[0].n_spans = 1;
  Shared<cuda::ChosenSpan> spans(1);
  spans[0].end_key = kChunks * kChunk;
  Shared<cuda::AttentionPiece> pieces(kChunks);
  Shared<cuda::AttentionPick> picks(chosen.size());
  Shared<cuda::AttentionWork> works(kParts);
  cuda::ListChosen args;
  args.chosen = chosen.data(), args.width = kWidth, args.n_query_heads = kHeads;
  args.chunk = args.stored_chunk = kChunk, args.n_chunks = kChunks;
  args.tiles = tiles.data(), args.keys = keys.data(), args.n_tiles = 1, args.spans = spans.data();
  args.n_parts = kParts, args.most_pieces = kChunks, args.most_picks = static_cast<int64_t>(picks.size());
  args.pieces = pieces.data(), args.picks = picks.data(), args.works = works.data();
  ASSERT_EQ(run(&cuda::DeviceApi::list_chosen, args), 0);
  size_t n = 0;
  int32_t n_picks = 0;
  for (int64_t c = 0; c < kChunks; ++c) {
    const auto& expected = picks_of[static_cast<size_t>(c)];
    if (expected.empty()) continue;
    const cuda::AttentionPiece& piece = pieces[n++];
    ASSERT_EQ(piece.begin, c * kChunk);
    ASSERT_EQ(piece.end, (c + 1) * kChunk);
    ASSERT_EQ(piece.first_pick, n_picks) << c;
    ASSERT_EQ(piece.n_picks, static_cast<int32_t>(expected.size())) << c;
    for (const cuda::AttentionPick& pick : expected) {
      ASSERT_EQ(picks[static_cast<size_t>(n_picks)].row, pick.row) << c;
      ASSERT_EQ(picks[static_cast<size_t>(n_picks++)].rank, pick.rank) << c;
    }
  }
  EXPECT_EQ(works[0].first_piece, 0);
  EXPECT_EQ(works[kParts - 1].end_piece, static_cast<int32_t>(n));
}

}  // namespace
}  // namespace quire::test
