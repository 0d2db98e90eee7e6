// The rows of a tile: which queries and heads they are, where queries are turned to, and which keys they see.
#pragma once

#include "kernels/cuda/attention_block.h"

namespace quire::cuda {

// What becomes of a tile's scores.
enum class Purpose {
  kOutput,  // weights of the values
  kShares,  // shares of cells of keys: a second pass, behind one that left the rows' maxima and sums
};

// A block of kKeys keys of a piece: those from chunk offset `offset` on, before `end`, which is the piece's.
template <int kKeys>
struct KeyBlock {
  int32_t piece;
  int32_t kind;
  int32_t offset;
  int32_t end;
  const void* record;

  // Of the block's keys those before the piece's end.
  __device__ __forceinline__ int n_keys() const { return end - offset < kKeys ? end - offset : kKeys; }
};

// A warp has 16 rows, and a thread two of them, which four lanes share.
template <Purpose kPurpose, typename Way, bool kPlain>
class TileRows {
 public:
  using Block = KeyBlock<Way::kKeys>;
  static constexpr bool kByKeys = Way::kKeysOfWarp < Way::kKeys;
  static constexpr bool kSelects = !kPlain && Way::kRows <= kTileRows;  // tiles may be selected
  static constexpr int kOctets = Way::kKeysOfWarp / 8;                  // of a block's keys, those of a warp
  using Scores = float[kOctets][4];  // of the thread: two rows, two keys of each octet

  __device__ explicit TileRows(const Attention& args)
      : args_(args),
        work_(args.works[blockIdx.x / blocks_of_work(args)]),
        tile_(args.tiles[work_.tile]),
        n_rows_(tile_.count * tile_.heads),
        first_row_(static_cast<int>(blockIdx.x) % blocks_of_work(args) * kTileRows),
        g_(lane_of_warp() / 4),
        t_(lane_of_warp() % 4) {}

 protected:
  // Shares of a wide tile are made by two blocks, each for half of its rows. The first row of the block:
  __device__ __forceinline__ static int blocks_of_work(const Attention& args) {
    return kPurpose == Purpose::kShares && args.wide ? kWideTileRows / kTileRows : 1;
  }
  __device__ __forceinline__ int first_row() const { return kPurpose == Purpose::kShares ? first_row_ : 0; }

  // Of the thread's two rows.
  __device__ __forceinline__ int row_of(int side) const { return first_row() + row_of_warp() + g_ + 8 * side; }
  // The first of the warp's rows in the block, and of its keys in a block of keys.
  __device__ __forceinline__ static int row_of_warp() { return kByKeys ? 0 : warp_of_block() * 16; }
  __device__ __forceinline__ static int key_of_warp() { return kByKeys ? warp_of_block() * Way::kKeysOfWarp : 0; }
  __device__ __forceinline__ int64_t query_of(int row) const { return tile_.first + row / tile_.heads * tile_.step; }
  __device__ __forceinline__ int64_t place_of(int row) const {
    return tile_.place + int64_t{row / tile_.heads} * tile_.stride;
  }
  __device__ __forceinline__ int64_t head_of(int row) const { return tile_.first_head + row % tile_.heads; }
  __device__ __forceinline__ int64_t diagonal_key(const AttentionSpan& span, int row) const {
    return span.first_key + tile_.in_block + int64_t{row / tile_.heads} * tile_.stride;
  }

  // Finds what the thread's rows see of a piece. rank: Shared::rank.
  __device__ __forceinline__ void find_seen(const AttentionPiece& piece, const AttentionSpan& span,
                                            const int32_t* rank) {
    spaced_ = !kPlain && (span.diagonal || span.stride != 1 || span.lag_stride != 1);
    QUIRE_UNROLL for (int side = 0; side < 2; ++side) find_seen(side, piece, span, rank);
  }

  // Of the thread's row: the run of keys that it sees, as offsets in the chunk. Where keys are spaced, it sees some of
  // the run. A row that is not there sees all: what becomes of it is not kept.
  __device__ __forceinline__ void find_seen(int side, const AttentionPiece& piece, const AttentionSpan& span,
                                            const int32_t* rank) {
    const int row = row_of(side);
    int64_t from = 0, to = INT32_MAX;
    if (row < n_rows_) {
      const int64_t first = piece.chunk * args_.shape.chunk, i = query_of(row);
      from = piece.begin;
      to = piece.end;
      if (kPlain || !span.diagonal) {
        if (i - span.max_lag > from) from = i - span.max_lag;
        if (i - span.min_lag < to) to = i - span.min_lag + 1;
      }
      if (kSelects && tile_.selected && rank[row] < 0) to = from;
      if (to < from) to = from;
      if (from > piece.end) from = to = piece.end;
      from -= first;
      to -= first;
    }
    seen_from_[side] = static_cast<int>(from);
    seen_to_[side] = static_cast<int>(to);
  }

  // Whether rows have distances from a piece that are no position in the span less the piece's base.
  __device__ __forceinline__ static bool has_own_distances(const AttentionSpan& span) {
    return !kPlain && (span.diagonal || (kSelects && span.ranked));
  }
  // The row's position in the span.
  __device__ __forceinline__ double position_of(int row, const AttentionSpan& span) const {
    double q = static_cast<double>(query_of(row)) / span.q_div;
    if (span.q_floor) q = floor(q);
    q += span.q_offset;
    return q > span.q_cap ? span.q_cap : q;
  }
  // Its distance from the chunk's first key. Of rows that do not see the piece it may be anything.
  __device__ __forceinline__ double distance_of(int row, const AttentionPiece& piece, const AttentionSpan& span,
                                                const int32_t* rank) const {
    const int64_t i = query_of(row), chunk_first = piece.chunk * args_.shape.chunk;
    if (row >= n_rows_) return 0;
    if (kPlain) return position_of(row, span) - piece.base;
    if (span.diagonal) return static_cast<double>(diagonal_key(span, row) - chunk_first);
    if (kSelects && span.ranked) {
      const AttentionRanks& ranks = args_.ranks;
      const int64_t own = i / ranks.chunk;
      int64_t n = ranks.count;
      if (ranks.one_in > 0 && (own + 1) / ranks.one_in > n) n = (own + 1) / ranks.one_in;
      if (own + 1 < n) n = own + 1;
      const int64_t of_begin = (n - 1 - rank[row]) * ranks.chunk + i % ranks.chunk - piece.begin % ranks.chunk;
      return static_cast<double>(of_begin + piece.begin - chunk_first);
    }
    return position_of(row, span) - piece.base;
  }

  // Of spaced keys, which ones the row sees. Bit 2n + e: key n * 8 + 2t + e of the warp's.
  __device__ __forceinline__ unsigned find_spaced(int row, const Block& block) const {
    if (row >= n_rows_) return ~0u;
    const AttentionPiece& piece = args_.pieces[block.piece];
    const AttentionSpan& span = args_.spans[piece.span];
    const int64_t first = piece.chunk * args_.shape.chunk + block.offset + key_of_warp() + 2 * t_;
    if (span.diagonal) {
      const int64_t own = diagonal_key(span, row);
      return own < first ? 0 : find_every(own - first, Way::kKeysOfWarp);
    }
    return find_every(keys_before(first, query_of(row), span.lag_stride), span.lag_stride) &
           find_every(keys_before(first, span.first_key, span.stride), span.stride);
  }
  // How many keys from `first` on come before the next one whose distance from `key` the stride divides.
  __device__ __forceinline__ static int64_t keys_before(int64_t first, int64_t key, int64_t stride) {
    if (stride == 1) return 0;
    const int64_t rest = (key - first) % stride;
    return rest < 0 ? rest + stride : rest;
  }
  // The bits of each stride-th key behind the first `before` ones.
  __device__ __forceinline__ static unsigned find_every(int64_t before, int64_t stride) {
    constexpr int kEnd = Way::kKeysOfWarp;
    if (stride == 1) return ~0u;
    const int step = stride < kEnd ? static_cast<int>(stride) : kEnd;
    unsigned found = 0;
    QUIRE_ROLLED for (int at = before < kEnd ? static_cast<int>(before) : kEnd; at < kEnd; at += step) {
      if (at % 8 < 2) found |= 1u << (at / 8 * 2 + at % 8);
    }
    return found;
  }

  // Scores of keys that a row does not see become -infinity.
  __device__ __forceinline__ void mask(Scores& scores, const Block& block) const {
    const int first = block.offset + key_of_warp();
    bool all = !spaced_;
    QUIRE_UNROLL for (int side = 0; side < 2; ++side) {
      all = all && seen_from_[side] <= first && first + Way::kKeysOfWarp <= seen_to_[side];
    }
    if (__all_sync(kWholeWarp, all)) return;
    QUIRE_UNROLL for (int side = 0; side < 2; ++side) {
      const int from = seen_from_[side] - first - 2 * t_, to = seen_to_[side] - first - 2 * t_;
      const unsigned spaced = spaced_ ? find_spaced(row_of(side), block) : ~0u;
      QUIRE_UNROLL for (int n = 0; n < kOctets; ++n) {
        QUIRE_UNROLL for (int e = 0; e < 2; ++e) {
          const int at = n * 8 + e;
          if (at < from || at >= to || (spaced >> (2 * n + e) & 1) == 0) scores[n][2 * side + e] = -INFINITY;
        }
      }
    }
  }

  __device__ __forceinline__ float scale_of(int row) const {
    const float own = args_.query_scale != nullptr && row < n_rows_ ? args_.query_scale[place_of(row)] : 1.0f;
    return args_.scale * own * kLog2E;
  }

  const Attention& args_;
  const AttentionWork& work_;
  const AttentionTile& tile_;
  const int n_rows_, first_row_, g_, t_;
  // Of the piece: whether keys are seen with spaces in between, and the run of keys that the thread's rows see.
  bool spaced_ = false;
  int seen_from_[2], seen_to_[2];
  float scale_[2];
};

}  // namespace quire::cuda
