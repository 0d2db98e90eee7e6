// One sequence's part of an attention call: what a tile of queries makes of its pieces of keys.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "lib/backend/cpu/cpu_backend.h"
#include "lib/backend/cpu/cpu_step.h"
#include "lib/backend/cpu/rope_cache.h"

namespace quire::cpu {

using PickSpan = std::span<const Pick>;

// Attention over some of the keys, of several rows: the softmax's maximum and sum, and the sum of weighted values.
struct Partial {
  float* max;  // [rows]
  float* sum;  // [rows]
  float* out;  // [rows][d]
};

inline size_t partial_floats(int64_t rows, int64_t d) { return static_cast<size_t>(rows * (d + 2)); }

inline Partial partial_at(float* memory, int64_t rows) { return {memory, memory + rows, memory + 2 * rows}; }

// What a thread works in: parts of `memory`, of n_floats. memory: null to know only how many these are.
struct Scratch {
  Scratch(float* memory, int64_t most_rows, int64_t d, int64_t chunk, bool turns, bool widens);

  float* rotated;  // queries [rows][d]
  float* scores;   // [rows][scores_ld], of the keys of the chunk's blocks from a piece's first one on
  int64_t scores_ld;
  Partial partial;
  Partial state;   // the running result
  float* angles;   // [d]
  float* widened;  // where keys are turned, or codes widened: the keys, or values, of a chunk
  float* turns;    // where keys are turned: their turns and a key
  // Of integers: codes of the queries [rows][d], then of the weights [rows][scores_ld] of the chunk's keys; their
  // scales [rows]; and what makes codes of weights [scores_ld].
  float* code_scales;
  float* factors;
  int16_t* codes;
  float* sums;          // of cells: behind all else, as many as are asked for
  size_t n_floats = 0;  // but for those
};

// The pieces of a sequence's blocks with a selection, and the memory that they are cut in.
struct SelectedPieces {
  tiling::CutMemory memory;
  Pieces pieces;
};

// Made for one call; step, args and `selected` must outlive it. Its const functions: any thread.
class SequenceRun {
 public:
  SequenceRun(const CpuStep& step, const AttentionArgs& args, ThreadPool& pool, SelectedPieces& selected);

  // A tile and its pieces [first, end) in this call's window.
  struct Work {
    const SequenceRun* run;
    const Pieces* cut;
    const Tile* tile;
    int64_t first;
    int64_t end;
    int64_t first_asked;  // shares are asked for of the tile's rows from this one on
    float* shares;        // of that row and the tile's first head
    bool asked() const { return first_asked < tile->rows(); }
    const Piece& piece(int64_t p) const { return cut->piece(*tile, p); }
  };
  void add_work(std::vector<Work>& work) const {
    for (const Pieces* cut : {&sequence_.pieces, &selected_}) {
      for (const Tile& tile : cut->tiles) {
        const auto [first, end] = cut->in_window(tile, args_.window);
        work.push_back({this, cut, &tile, first, end, first_asked(tile), first_shares(tile)});
      }
    }
  }
  // Rows [begin, end) of a tile.
  struct RowRange {
    int64_t begin;
    int64_t end;
  };
  // The cells of a piece: n from the row's cell `first` on, of the piece's keys [begin, end), the others of which are
  // not counted.
  struct Cells {
    int64_t begin;
    int64_t end;
    int64_t first;
    int64_t n;
    bool condensed;
  };
  Cells cells_of(const Work& work, const Piece& piece) const {
    if (!work.asked()) return {};
    const AttentionShares& shares = args_.shares;
    if (piece.span->kind == KvKind::kCondensed) {
      const int64_t end = std::min(piece.end, shares.n_entries);
      return {piece.begin, end, shares.n_text_cells() + piece.begin, std::max<int64_t>(0, end - piece.begin), true};
    }
    const int64_t begin = std::max(piece.begin, shares.first_key), end = std::min(piece.end, shares.end_key);
    const int64_t first = begin / AttentionShares::kCell;
    return {begin, end, first, begin < end ? ceil_div(end, AttentionShares::kCell) - first : 0, false};
  }
  int64_t most_rows() const { return most_rows_; }
  size_t scratch_floats() const { return scratch(nullptr).n_floats + static_cast<size_t>(most_rows_ * most_cells()); }
  Scratch scratch(float* memory) const { return {memory, most_rows_, d_, l_, turns_, widens_}; }
  // A partial result of so many rows, and behind it the sums of a piece's cells.
  size_t part_floats(int64_t rows) const { return partial_floats(rows, d_); }
  Partial part(float* memory, int64_t rows) const { return partial_at(memory, rows); }
  // Floats of any part of the work, with its sums.
  size_t most_part_floats(const Work& work) const {
    return partial_floats(work.tile->rows(), d_) + static_cast<size_t>(work.tile->rows() * most_cells());
  }

  void run_tile(const Work& work, const Scratch& scratch) const;
  PickSpan rows_of(const Work& work, const Piece& piece) const;
  // Fills `partial`, row by row of `rows`, and where shares are asked for `sums`: for each of the rows those of the
  // piece's cells (AttentionShares), relative to the row's maximum.
  void run_piece(const Work& work, const Piece& piece, PickSpan rows, const Cells& cells, const Scratch& scratch,
                 Partial partial, float* sums) const;
  // Floats of `sums`.
  size_t n_sums(const Work& work, const Piece& piece, PickSpan rows) const {
    return rows.size() * static_cast<size_t>(cells_of(work, piece).n);
  }
  // Of some of the tile's rows, each of which goes its own way: the running result, and the shares, before the window's
  // first piece, the part that a piece's `seen` rows have in them, and what they come to.
  void start(const Work& work, RowRange rows, Partial state) const;
  void merge(const Work& work, RowRange rows, PickSpan seen, const Cells& cells, Partial part, const float* sums,
             Partial& state) const;
  void finish(const Work& work, RowRange rows, Partial state) const;

 private:
  double position(const Tile& tile, const Piece& piece, const Pick& pick) const;
  void rotate_queries(const Tile& tile, const Piece& piece, PickSpan rows, float* rotated, float* angles) const;
  // The keys and values of a piece, as one record of them holds them.
  struct Stored {
    ElementType type;
    const std::byte* keys;
    const std::byte* values;
    const float* key_scales;    // [d]; null: there are none
    const float* value_scales;  // [chunk]; likewise
  };
  Stored stored(const Tile& tile, const Piece& piece) const;
  const KvRecords& records(const Span& span) const { return args_.records[static_cast<size_t>(span.kind)]; }
  bool as_stored(const Span& span) const { return span.as_stored(records(span).stored_div, l_); }
  const float* turned_keys(const Piece& piece, const Stored& stored, const Scratch& scratch) const;
  // Codes become numbers once for all rows, where these are many.
  static bool widens(const Stored& stored, int64_t n_rows);
  // A piece's keys, counted in its chunk.
  struct Range {
    int64_t first_block;  // the first key of its first block
    int64_t begin;
    int64_t end;
  };
  Range range_of(const Piece& piece) const {
    const int64_t begin = piece.begin - piece.chunk * l_;
    return {begin / kKeyBlock * kKeyBlock, begin, piece.end - piece.chunk * l_};
  }
  // The three steps of a piece.
  void score_piece(const Piece& piece, const Stored& stored, int64_t n_rows, const Scratch& scratch) const;
  void weigh_piece(const Work& work, const Piece& piece, PickSpan rows, const Cells& cells, const Scratch& scratch,
                   Partial partial, float* sums) const;
  void add_values(const Tile& tile, const Piece& piece, const Stored& stored, PickSpan rows, const Scratch& scratch,
                  Partial partial) const;
  void add_int8_values(const Tile& tile, const Piece& piece, const Stored& stored, PickSpan rows,
                       const Scratch& scratch, Partial partial) const;
  float* saved(const Tile& tile, int64_t row) const {
    const int64_t head = tile.first_head + row % tile.heads;
    return static_cast<float*>(args_.state->host()) + (tile.place(row) * n_heads_ + head) * (d_ + 2);
  }

  // Shares of the attention, in cpu_attention_shares.cc. The first of the tile's rows that they are asked for.
  int64_t first_asked(const Tile& tile) const;
  float* first_shares(const Tile& tile) const;
  // Of any piece.
  int64_t most_cells() const;
  float* shares_of(const Work& work, int64_t row) const {
    row -= work.first_asked;  // the first of its query
    const Tile& tile = *work.tile;
    const int64_t query = row < tile.heads ? 0 : row / tile.heads;  // divisions are slow, and decode has one query
    return work.shares + (query * (tile.stride * n_heads_ - tile.heads) + row) * n_cells_;
  }
  void start_shares(const Work& work, RowRange rows) const;
  void finish_shares(const Work& work, RowRange rows, const Partial& state) const;

  const CpuStep::Sequence& sequence_;
  const AttentionArgs& args_;
  const int n_heads_;
  const RopeCache& rope_;
  const RecordLayout layout_;
  const RecordLayout narrow_;
  const int64_t d_;
  const int64_t l_;
  const int64_t n_cells_;  // of a row
  const Pieces& selected_;
  int64_t most_rows_ = 0;
  bool turns_ = false;   // keys of some span are not where it wants them
  bool widens_ = false;  // some keys and values are of kInt4
  std::vector<Pick> all_rows_;
};

// Lists that a call makes. The backend keeps them, so that the calls of all layers use the same memory.
struct AttentionLists {
  std::vector<SelectedPieces> selected;  // of each sequence
};

}  // namespace quire::cpu
