// One sequence's part of an attention call: what a tile of queries makes of its pieces of keys.
#pragma once

#include <span>
#include <vector>

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

// Keys [begin, end).
struct KeyBounds {
  int64_t begin;
  int64_t end;
};

// Floats that a thread works in: rotated queries, scores, one partial, one running result, angles, and where keys are
// rotated on load (raw) those of a chunk.
size_t scratch_floats(int64_t most_rows, int64_t d, int64_t chunk, bool raw);

// Made for one call; step and args must outlive it. Its const functions: any thread.
class SequenceRun {
 public:
  SequenceRun(const CpuStep& step, const AttentionArgs& args);

  // A tile and its pieces [first, end) in this call's window.
  struct Work {
    const SequenceRun* run;
    const Pieces* cut;
    const Tile* tile;
    int32_t first;
    int32_t end;
    const Piece& piece(int32_t p) const { return cut->pieces[static_cast<size_t>(p)]; }
  };
  void add_work(std::vector<Work>& work) const {
    for (const Pieces* cut : {&sequence_.pieces, &selected_}) {
      for (const Tile& tile : cut->tiles) {
        const auto [first, end] = cut->in_window(tile, args_.window);
        work.push_back({this, cut, &tile, first, end});
      }
    }
  }
  int64_t most_rows() const { return most_rows_; }
  size_t scratch_floats_needed() const {
    return scratch_floats(most_rows_, d_, l_, sequence_.pieces.any_raw || selected_.any_raw);
  }
  size_t part_floats() const { return partial_floats(most_rows_, d_); }
  Partial part(float* memory) const { return partial_at(memory, most_rows_); }

  void run_tile(const Work& work, float* scratch) const;
  PickSpan rows_of(const Work& work, const Piece& piece) const;
  // Fills `partial`, row by row of `rows`, and cell_floats() floats at `cells`.
  void run_piece(const Tile& tile, const Piece& piece, PickSpan rows, float* scratch, Partial partial,
                 float* cells) const;
  // The running result before the window's first piece, a piece's part of it, and what it comes to.
  void start(const Tile& tile, Partial state) const;
  void merge(const Partial& part, PickSpan rows, Partial& state) const;
  void finish(const Tile& tile, Partial state) const;

  // Shares of the attention (AttentionShares), in cpu_attention_shares.cc. What a piece leaves for them, if they are
  // asked for: of each of its rows that are asked for, its maximum and the sums of its cells, relative to that.
  size_t cell_floats(const Tile& tile, const Piece& piece, PickSpan rows) const;
  // Of all pieces.
  size_t cell_floats(const Work& work) const;
  // Before finish(). cells_of(p): what the work's piece p left.
  template <typename CellsOf>
  void share_out(const Work& work, const Partial& state, const CellsOf& cells_of) const {
    if (!asked(*work.tile)) return;
    begin_shares(*work.tile, state);
    for (int32_t p = work.first; p < work.end; ++p) {
      const PickSpan rows = rows_of(work, work.piece(p));
      add_shares(*work.tile, work.piece(p), rows, cells_of(p, rows), state);
    }
    end_shares(*work.tile, state);
  }

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
  const KvRecords& records(const Piece& piece) const { return args_.records[static_cast<size_t>(piece.span->kind)]; }
  double turn(const Piece& piece, int64_t j) const;
  bool as_stored(const Piece& piece) const;
  const float* turned_keys(const Piece& piece, const Stored& stored, float* turned, float* angles) const;
  float* saved(const Tile& tile, int64_t row) const {
    const int64_t head = tile.first_head + row % tile.heads;
    return static_cast<float*>(args_.state->host()) + (tile.place(row) * n_heads_ + head) * (d_ + 2);
  }

  bool asked(const Tile& tile) const {
    return args_.shares.out != nullptr && tile.place(tile.rows() - 1) >= args_.shares.first_row;
  }
  bool asked(const Tile& tile, int64_t row) const { return tile.place(row) >= args_.shares.first_row; }
  KeyBounds counted(const Piece& piece) const;
  int64_t n_cells(const Piece& piece) const;
  void sum_cells(const Piece& piece, const float* p, int64_t origin, int64_t from, int64_t to, float* sums) const;
  float* shares_of(const Tile& tile, int64_t row) const;
  void begin_shares(const Tile& tile, const Partial& state) const;
  void add_shares(const Tile& tile, const Piece& piece, PickSpan rows, const float* cells, const Partial& state) const;
  void end_shares(const Tile& tile, const Partial& state) const;

  const CpuStep::Sequence& sequence_;
  const AttentionArgs& args_;
  const int n_heads_;
  const RopeCache& rope_;
  const RecordLayout layout_;
  const RecordLayout narrow_;
  const int64_t d_;
  const int64_t l_;
  Pieces selected_;  // of the blocks with a selection
  int64_t most_rows_ = 0;
  std::vector<Pick> all_rows_;
};

}  // namespace quire::cpu
