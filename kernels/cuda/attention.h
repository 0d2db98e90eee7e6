// Attention over plans: what a launch of the kernel is given. Plain C++.
//
// The work is cut on the host as for the CPU backend: tiles of up to kTileRows rows, a row being a query and one of the
// query heads that share a KV head, and for each tile the pieces of keys that its rows may see, each in one chunk. The
// keys of a chunk are stored rotated at their offset in it, and the query is turned to its distance from the chunk's
// first key: whatever distances a strategy wants, keys are read once, in one pass.
#pragma once

#include <cstdint>

#include "kernels/cuda/kernels.h"

namespace quire::cuda {

constexpr int kTileRows = 64;
constexpr int kWideTileRows = 128;  // of tiles for warpgroups
constexpr int kFewTileRows = 16;    // of tiles whose keys are shared out among warps
constexpr int kMostHeadDim = 256;
// Heads of more channels are padded to kMostHeadDim, which takes so many registers and so much shared memory that
// kernels work on them in another way (attention_block.h).
constexpr bool is_large_head(int64_t head_dim) { return head_dim > 128; }
constexpr int kRecordKinds = 3;
// KvKind of lib/plan/plan.h: full records of the text, those of condensed entries, narrow ones of old text.
constexpr int32_t kTextRecord = 0, kCondensedRecord = 1, kNarrowRecord = 2;

// A run of keys as queries see it: Span of lib/plan/plan.h. A query at index i sees key j if
//   min_lag <= i - j <= max_lag, lag_stride divides i - j, and stride divides j - first_key.
struct AttentionSpan {
  int64_t first_key = 0;
  int64_t stride = 1;
  int64_t min_lag = 0;
  int64_t max_lag = 0;
  int64_t lag_stride = 1;
  // Where the query is turned to: min(i / q_div + q_offset, q_cap) - AttentionPiece::base.
  double q_div = 1;
  double q_offset = 0;
  double q_cap = 0;
  bool q_floor = true;  // i / q_div is floored
  // Keys are turned on load, to (j - key_base) / key_div (floored or not; key_div 0: to 0) from where they are stored.
  bool turned = false;
  bool key_floor = true;
  int64_t key_base = 0;
  int64_t key_div = 1;
  // The t-th query of the block sees key first_key + t alone, at distance 0.
  bool diagonal = false;
  // Distances by the rank of the chunk among those that the row selected (AttentionRanks).
  bool ranked = false;
};

// Keys [begin, end) of a span, in one chunk.
struct AttentionPiece {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t chunk = 0;  // of the records of this kind
  double base = 0;    // position of the chunk's first key, or of the period's that the keys lie in
  int32_t span = 0;
  int32_t kind = kTextRecord;  // of the records that it is read from
  // Of a tile with a selection: the rows that selected the keys, picks [first_pick, first_pick + n_picks).
  int32_t first_pick = 0;
  int32_t n_picks = 0;
};

// A row that selected a chunk, as the rank-th of the chunks it selected.
struct AttentionPick {
  int32_t row = 0;
  int32_t rank = 0;
};

// `count` queries first + t * step, and query heads [first_head, first_head + heads) of a KV head. Row r is query
// r / heads and head first_head + r % heads.
struct AttentionTile {
  int64_t first = 0;
  int64_t step = 1;
  int32_t count = 0;
  int32_t heads = 1;
  int32_t first_head = 0;
  int32_t kv_head = 0;
  bool selected = false;
  int32_t in_block = 0;  // the first query's place in its block
  int32_t place = 0;     // and among the rows of queries; the next ones follow at `stride`
  int32_t stride = 1;
};

// What a block of threads does: pieces [first_piece, end_piece) of a tile.
struct AttentionWork {
  int32_t tile = 0;
  int32_t first_piece = 0;
  int32_t end_piece = 0;
  int32_t part = -1;  // where it leaves its part of the result; -1: it is the whole, and goes to `out`
};

// Parts [first_part, first_part + n_parts) of a tile, in the order of their keys.
struct AttentionMerge {
  int32_t tile = 0;
  int32_t first_part = 0;
  int32_t n_parts = 0;
};

// ChunkSelection of lib/plan/plan.h, as far as distances by rank need it.
struct AttentionRanks {
  int64_t chunk = 1;
  int64_t count = 0;
  int64_t one_in = 0;

  bool operator==(const AttentionRanks&) const = default;
};

// Of a row and query head, scores times log2 e: the greatest one before the call and behind it, and the sum of exp2 of
// the others relative to that.
struct AttentionStats {
  float before = 0;
  float max = 0;
  float sum = 0;
};

struct Attention {
  DeviceRows queries{};  // [n][n_query_heads * head_dim], not rotated
  DeviceRows out{};      // the same shape; may be `queries` where nothing reads those later (shares)
  KvShape shape{};
  int n_query_heads = 0;
  float scale = 1;                                // of the logits; positive
  const float* query_scale = nullptr;             // f32 [n], another one for the logits of each query; may be null
  const Turns* turns = nullptr;                   // [head_dim / 2]
  const void* const* records[kRecordKinds] = {};  // by chunk
  int64_t stored_div[kRecordKinds] = {1, 1, 1};   // their keys stand at offset / stored_div; 0: at 0
  ElementType narrow_type = ElementType::kInt8;   // of narrow records: kInt8 or kInt4
  const AttentionTile* tiles = nullptr;
  const AttentionPiece* pieces = nullptr;
  const AttentionSpan* spans = nullptr;
  const AttentionPick* picks = nullptr;
  const AttentionWork* works = nullptr;
  int64_t n_works = 0;
  const AttentionMerge* merges = nullptr;
  int64_t n_merges = 0;
  AttentionRanks ranks{};
  float* parts = nullptr;  // attention_part_floats() for each part

  // Keys that come in several calls, of works without parts: f32 [n][n_query_heads][head_dim + 2], the greatest score,
  // the sum, and the sum of the values. Where a call ends changes no bit.
  float* state = nullptr;
  bool resumes = false;  // begins with what an earlier call left there
  bool pauses = false;   // leaves it there, and writes no `out`

  // Tiles have up to kWideTileRows rows, and are neither of large heads, nor selected, nor in parts: for devices of
  // DeviceFacts::warpgroups.
  bool wide = false;
  // Tiles have up to kFewTileRows rows, and `state` is null.
  bool few = false;
  // No tile is selected, no piece is narrow, and the keys of spans follow each other and are not turned: the kernel is
  // made without all that.
  bool plain = false;

  AttentionStats* stats = nullptr;  // [n][n_query_heads], left for attention_shares(); null: nobody asks

  bool operator==(const Attention&) const = default;
};

// AttentionShares of lib/backend/operations.h: f32 [n_rows - first_row][n_query_heads][n_cells()].
constexpr int64_t kCellKeys = 16;
struct AttentionCells {
  float* shares = nullptr;
  int64_t n_rows = 0;     // of the queries
  int64_t first_row = 0;  // those from here on are asked for
  int64_t first_key = 0;  // text keys [first_key, end_key) count; the chunk is whole cells
  int64_t end_key = 0;
  int64_t n_entries = 0;

  bool operator==(const AttentionCells&) const = default;
  constexpr int64_t n_cells() const { return (end_key + kCellKeys - 1) / kCellKeys + n_entries; }
};

// Of the rows of a tile: the greatest score (times log2 e), the sum of exp2 of the others relative to it, the sum of
// the values weighted so.
constexpr int64_t attention_part_floats(int head_dim) { return int64_t{kTileRows} * (head_dim + 2); }

// Whether the kernel has a form for these records: bf16 or f16, head_dim even, up to kMostHeadDim. Multiples of 16 are
// fast; a large head takes the time and the memory of one of kMostHeadDim.
constexpr bool can_attend(const KvShape& shape) {
  const bool type = shape.type == ElementType::kBF16 || shape.type == ElementType::kF16;
  return type && shape.head_dim > 0 && shape.head_dim % 2 == 0 && shape.head_dim <= kMostHeadDim;
}

// For each work the attention of its tile's rows over its pieces' keys (flash attention: Dao et al. 2022,
// arXiv:2205.14135, with the products on tensor cores); then the merges. A row that sees no key gets zeros.
int attention(Stream stream, const Attention& args);

// Behind attention() with the same arguments, whose `stats` it left: the shares of the rows that are asked for,
// complete behind the last of several calls.
int attention_shares(Stream stream, const Attention& args, const AttentionCells& cells);

// peaks[r][c] = the greatest of shares[r][h][c] over the heads h and, unless `first`, of what it was; 0 at least.
int keep_peaks(Stream stream, const float* shares, int64_t n, int n_heads, int64_t n_cells, bool first, float* peaks);

}  // namespace quire::cuda
