// Tiles cut into pieces: of keys that all see, and of chunks that their rows chose.

#include "lib/backend/attention_pieces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/unit/backend/backend_fixture.h"

namespace quire::tiling {
namespace {

constexpr int64_t kChunk = 16, kStored = 48, kWidth = 12;
constexpr int kHeads = 6, kKvHeads = 2;

struct Scene {
  Scene(test::Random& random, int64_t first, int64_t n) {
    Span near, far;
    far.count = 200, near.first_key = 200, near.count = first + n - 200;
    plan.add_block(first, n, {far, near}, KeysSeen::kSelected);
    plan.selection.chunk = kChunk;
    plan.selection.count = kWidth;
    for (int64_t i = first; i < first + n; ++i) {
      for (int head = 0; head < kHeads; ++head) {
        std::vector<int32_t> chosen;
        for (int32_t c = 0; c <= i / kChunk; ++c) {
          if (random.between(0, 3) == 0 && std::ssize(chosen) < kWidth) chosen.push_back(c);
        }
        chosen.resize(kWidth, -1);
        selection.insert(selection.end(), chosen.begin(), chosen.end());
      }
    }
  }

  // In the same memory each time.
  Pieces cut(ThreadPool* pool) {
    cut_selected({plan, kHeads, kKvHeads, kStored, {}}, selection.data(), pool, memory, pieces);
    return pieces;
  }

  // Of the tile's rows, those that chose the chunk.
  std::vector<std::pair<int32_t, int32_t>> picks(const Tile& tile, int64_t chunk) const {
    std::vector<std::pair<int32_t, int32_t>> all;
    for (int64_t row = 0; row < tile.rows(); ++row) {
      const auto at = selection.begin() + (tile.place(row) * kHeads + tile.first_head + row % tile.heads) * kWidth;
      const auto found = std::find(at, at + kWidth, chunk);
      if (found != at + kWidth) all.emplace_back(static_cast<int32_t>(row), static_cast<int32_t>(found - at));
    }
    return all;
  }

  Plan plan;
  std::vector<int32_t> selection;  // [n][kHeads][kWidth]
  CutMemory memory;
  Pieces pieces;
};

// Few picks are sorted by the caller, many by the pool.
TEST(ChosenPieces, AreThoseOfTheRowsThatChoseTheChunkWithAnyThreads) {
  test::Random random;
  SCOPED_TRACE(random.trace());
  ThreadPool pool(3);
  for (const auto& [first, n] : {std::pair<int64_t, int64_t>{700, 1}, {640, 70}, {500, 512}}) {
    Scene scene(random, first, n);
    const Pieces pieces = scene.cut(&pool), alone = scene.cut(nullptr);
    ASSERT_EQ(alone.tiles.size(), pieces.tiles.size());
    ASSERT_EQ(alone.pieces.size(), pieces.pieces.size());
    int64_t rows = 0;
    for (size_t t = 0; t < pieces.tiles.size(); ++t) {
      const Tile& tile = pieces.tiles[t];
      rows += tile.rows();
      ASSERT_EQ(alone.tiles[t].first_piece, tile.first_piece);
      auto next = static_cast<size_t>(tile.first_piece);
      for (int64_t chunk = 0; chunk <= (first + n - 1) / kChunk; ++chunk) {
        const auto expected = scene.picks(tile, chunk);
        if (expected.empty()) continue;
        const int64_t last = std::min((chunk + 1) * kChunk, tile.first + tile.count);
        for (int64_t key = chunk * kChunk; key < last; ++next) {
          ASSERT_LT(next, static_cast<size_t>(tile.first_piece + tile.n_pieces));
          const Piece& piece = pieces.pieces[next];
          ASSERT_EQ(piece.begin, key);
          ASSERT_EQ(piece.end, key < 200 && last > 200 ? 200 : last);  // where the second span begins
          ASSERT_EQ(piece.chunk, key / kStored);
          ASSERT_EQ(static_cast<size_t>(piece.n_picks), expected.size());
          // Counted within the tile: it does not grow with the block.
          ASSERT_LE(piece.first_pick + piece.n_picks, tile.rows() * kWidth);
          for (size_t p = 0; p < expected.size(); ++p) {
            for (const Pieces* cut : {&pieces, &alone}) {
              const Pick& pick = cut->picks_of(cut->tiles[t], piece)[p];
              ASSERT_EQ(std::pair(pick.row, pick.rank), expected[p]);
            }
          }
          key = piece.end;
        }
      }
      ASSERT_EQ(next, static_cast<size_t>(tile.first_piece + tile.n_pieces));
    }
    EXPECT_EQ(rows, n * kHeads);
  }
}

// Of a block behind a long text: its tiles have the pieces of this text together.
TEST(Pieces, OfTheTextBeforeABlockAreListedOnce) {
  constexpr int64_t kFirst = 50'000, kQueries = 1000, kSinks = 40, kWindow = 30'000;
  Span all, sinks, window;
  all.count = kFirst + kQueries;
  sinks.count = kSinks;
  window.first_key = kSinks;
  window.count = kFirst + kQueries - kSinks;
  window.max_lag = kWindow - 1;
  for (const auto& spans : {std::vector<Span>{all}, std::vector<Span>{sinks, window}}) {
    for (const OldText old : {OldText(), OldText{.after = 300}}) {
      Plan plan;
      plan.add_block(kFirst, kQueries, spans);
      const Pieces cut = cut_pieces({plan, kHeads, kKvHeads, kStored, old});
      int64_t rows = 0, n_listed = 0;
      for (const Tile& tile : cut.tiles) {
        rows += tile.rows();
        n_listed += tile.n_pieces;
        int64_t next = 0;
        for (int64_t p = 0; p < tile.n_pieces; ++p) {
          const Piece& piece = cut.piece(tile, p);
          if (spans.size() > 1 && next == kSinks) next = std::max(kSinks, tile.first - kWindow + 1);
          ASSERT_EQ(piece.begin, next);
          ASSERT_EQ(piece.chunk, piece.begin / kStored);
          ASSERT_LE(piece.end, (piece.chunk + 1) * kStored);
          next = piece.end;
        }
        ASSERT_EQ(next, tile.first + tile.count);
        const auto [begin, end] =
            cut.in_window(tile, {.first_chunk = 900, .end_chunk = 901, .first = false, .last = false});
        ASSERT_EQ(end, begin + 1);
        ASSERT_EQ(cut.piece(tile, begin).chunk, 900);
      }
      EXPECT_EQ(rows, kQueries * kHeads);
      if (spans.size() == 1) {
        EXPECT_LT(std::ssize(cut.pieces), n_listed / 40);
      }
    }
  }
}

}  // namespace
}  // namespace quire::tiling
