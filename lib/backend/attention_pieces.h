// What attention executors of all backends work through: tiles of queries, and for each the pieces of keys they see.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/support/thread_pool.h"

namespace quire::tiling {

// A part of a span inside one chunk, and inside one of the span's key periods.
struct Piece {
  const Span* span;
  int64_t begin;  // keys [begin, end), counted among those of its kind
  int64_t end;
  int64_t chunk;
  // Of tiles with a selection: who selected the keys, of the tile's picks [first_pick, first_pick + n_picks).
  int32_t first_pick = 0;
  int32_t n_picks = 0;
};

// A row of a tile that selected a chunk, as the rank-th of the chunks it selected.
struct Pick {
  int32_t row;
  int32_t rank;
};

// Every `stride`-th query of a block, first + t * step, t < count, and one KV head. A row is a (query, query head of
// the group) pair, queries outermost; with one span list per query head a tile holds one query head only. Where old
// text is narrow, all its queries read the same keys so.
struct Tile {
  int64_t first;
  int64_t count;
  int64_t step;
  int64_t stride;
  int kv_head;
  int first_head;  // query heads [first_head, first_head + heads)
  int heads;
  bool selected;
  // Of its pieces the first n_common are those of `Pieces::pieces` from first_common on, which tiles of a block share;
  // the others are its own, from first_piece on.
  int64_t first_common;
  int64_t n_common;
  int64_t first_piece;
  int64_t n_pieces;
  int64_t first_pick;  // of a tile with a selection: where its picks begin
  int64_t in_block;    // the first query's place in its block
  int64_t in_plan;     // and among all queries of the plan
  int64_t old_before;  // all its queries read the text keys before this one from narrow records

  int64_t rows() const { return count * heads; }
  int64_t query(int64_t row) const { return first + row / heads * step; }
  int64_t place(int64_t row) const { return in_plan + row / heads * stride; }
  // The key that a row sees of a diagonal span.
  int64_t diagonal_key(const Span& span, int64_t row) const { return span.first_key + in_block + row / heads * stride; }
};

// The records that a tile reads a piece from: of old text narrow ones.
inline KvKind records_read(const Tile& tile, const Piece& piece) {
  const bool old = piece.span->kind == KvKind::kText && piece.begin < tile.old_before;
  return old ? KvKind::kNarrow : piece.span->kind;
}

struct Pieces {
  std::vector<Tile> tiles;
  std::vector<Piece> pieces;
  std::vector<Pick> picks;  // of a piece: ascending by row; between tiles there may be others
  int64_t most_rows = 0;    // of a tile

  // Keeps the memory.
  void clear() {
    tiles.clear();
    pieces.clear();
    picks.clear();
    most_rows = 0;
  }
  // A tile's pieces, p < Tile::n_pieces: ascending by kind, chunk and span.
  const Piece& piece(const Tile& tile, int64_t p) const {
    const int64_t at = p < tile.n_common ? tile.first_common + p : tile.first_piece + p - tile.n_common;
    return pieces[static_cast<size_t>(at)];
  }
  std::span<const Pick> picks_of(const Tile& tile, const Piece& piece) const {
    return {picks.data() + tile.first_pick + piece.first_pick, static_cast<size_t>(piece.n_picks)};
  }
  // The tile's pieces of a call with this window: [first, second). The condensed entries belong to the last window.
  std::pair<int64_t, int64_t> in_window(const Tile& tile, const AttentionArgs::Window& window) const;
};

// Most rows of a tile: few enough for the caches; more where rows are gathered from those that selected a chunk.
constexpr int64_t kTileRows = 64;
constexpr int64_t kSelectedTileRows = 256;

// What a plan is cut for. Pieces point into the plan.
struct CutArgs {
  const Plan& plan;
  int n_query_heads;
  int n_kv_heads;
  int64_t chunk;
  OldText old;
  int64_t tile_rows = kTileRows;  // of tiles without a selection, at most
};

// Of a block with one span list per query head: the distance of queries of a head that share a tile. Those between them
// see keys of other residue classes, or none.
int64_t query_stride(const Plan& plan, const QueryBlock& block, int head);

// The blocks without a selection: the same in every layer.
Pieces cut_pieces(const CutArgs& args);

// What cut_selected() works in. Who keeps it has the same memory used again: to get as much anew for each layer of a
// token takes longer than to cut.
struct CutMemory {
  // A tile's place in the lists below, and among the picks.
  struct TilePicks {
    const QueryBlock* block;
    size_t first;
    size_t first_word;
    size_t first_run;
    int32_t n_runs = 0;
  };
  // Of 64 chunks, which ones rows of the tile selected, and how many chunks before these.
  struct Word {
    uint64_t chunks = 0;
    int32_t before = 0;
  };
  // Of a chunk that was selected, where its picks end among those of the tile.
  struct Run {
    int32_t chunk;
    int32_t end;
  };
  std::vector<TilePicks> tiles;
  std::vector<Word> words;
  std::vector<Run> runs;
};

// The blocks with one. selection: int32 [queries of the plan][n_query_heads][Plan::most_selected()]. pool: sorts the
// picks, if there are many of them; may be null.
void cut_selected(const CutArgs& args, const int32_t* selection, ThreadPool* pool, CutMemory& memory, Pieces& out);

}  // namespace quire::tiling
