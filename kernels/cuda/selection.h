// Representations of chunks, and the choice of chunks by them: ChunkSelection of lib/plan/plan.h. Plain C++.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/kernels.h"

namespace quire::cuda {

constexpr int64_t kPageChunks = 64;

// Vectors of chunks in pages, [n_vectors][kPageChunks][head_dim] each, of one type.
struct ChunkVectors {
  void* const* pages = nullptr;
  ElementType type = ElementType::kF32;

  bool operator==(const ChunkVectors&) const = default;
};

// The mean, or the least and the greatest of each channel, of the keys of chunks [first_chunk, first_chunk + n_chunks)
// of `chunk` keys, turned to where they stand in their period. Vectors: of KV head h the h-th; bounds: 2 h and 2 h + 1.
struct SummariseKeys {
  KvShape shape{};
  const void* const* records = nullptr;  // by stored chunk
  const Turns* turns = nullptr;          // [head_dim / 2]
  int64_t chunk = 0;                     // divides the stored one
  int64_t key_period = 0;
  int64_t first_chunk = 0;
  int64_t n_chunks = 0;
  bool bounds = false;
  ChunkVectors out{};

  bool operator==(const SummariseKeys&) const = default;
};
int summarise_keys(Stream stream, const SummariseKeys& args);

// The vector of a query head for a stored chunk (LongHeads, arXiv:2402.10685, Eq. 1-2): the mean over the chunk's
// queries of their attention over the chunk, without a mask, attends to the chunk's keys, whose weighted sum is the
// vector. Keys have the rotary_dim dimensions that turn first in each half, values have them at the beginning.
struct AttendInChunks {
  KvShape shape{};
  const void* const* records = nullptr;
  const Turns* turns = nullptr;
  int n_query_heads = 0;
  float scale = 1;       // of the logits
  int rotary_dim = 0;    // head_dim: all turn
  DeviceRows queries{};  // [n_chunks * shape.chunk][n_query_heads * head_dim], not rotated
  int64_t first_chunk = 0;
  int64_t n_chunks = 0;
  ChunkVectors out{};  // f32, of query head h the h-th

  bool operator==(const AttendInChunks&) const = default;
};
// Channels of a query that it turns at a time, of a head padded to `width`: of large heads not all have room beside the
// keys.
constexpr int64_t turned_at_once(int64_t width) { return is_large_head(width) ? 64 : width; }
// Shared memory that it takes; a block of a device has some 99 KiB or more.
constexpr int64_t attend_in_chunks_bytes(const KvShape& shape) {
  const int64_t d = shape.head_dim, padded = is_large_head(d) ? kMostHeadDim : (d + 31) / 32 * 32;
  const int64_t sums = padded < 128 ? 128 : padded;
  const int64_t row = padded + 8, row_of_turned = turned_at_once(padded) + 8;
  return 2 * kTileRows * (row + row_of_turned) * 2 + (5 * sums + shape.chunk) * int64_t{sizeof(float)};
}
int attend_in_chunks(Stream stream, const AttendInChunks& args);

// ---- choosing

// A run of text keys as the scores of chunks need it: the query is turned to its distance from key j plus j mod
// key_period, j being the chunk's first key in the run.
struct ScoreSpan {
  int64_t first_key = 0;
  int64_t count = 0;
  double q_div = 1;
  double q_offset = 0;
  double q_cap = 0;
  bool q_floor = true;
  int64_t key_base = 0;
  int64_t key_period = 0;  // of the span; 0: its positions begin anew nowhere
};

enum class ChunkScores : int32_t { kVectors, kMeans, kBounds, kRandom };

// A query's scores of the chunks before its own, by representations of query heads (kVectors: not rotated) or KV heads.
struct ScoreChunks {
  ChunkScores kind = ChunkScores::kVectors;
  bool negate = false;  // the lowest scores win
  int head_dim = 0;
  int n_query_heads = 0;
  int n_kv_heads = 0;
  float scale = 1;  // of the logits; no matter for kVectors
  int64_t chunk = 0;
  int64_t key_period = 0;  // of the representations: kMeans and kBounds
  const Turns* turns = nullptr;
  const ScoreSpan* spans = nullptr;  // of kMeans and kBounds: chunks in no span have the least score
  int n_spans = 0;
  int layer = 0;         // of kRandom
  DeviceRows queries{};  // [n][n_query_heads * head_dim], not rotated
  int64_t n = 0;
  const int64_t* first_query = nullptr;
  int64_t first_row = 0;  // row r is the query at index *first_query + first_row + r
  ChunkVectors vectors{};
  float* scores = nullptr;  // [n][n_query_heads][n_chunks]
  int64_t n_chunks = 0;     // at least those before the last query's own

  bool operator==(const ScoreChunks&) const = default;
};
int score_chunks(Stream stream, const ScoreChunks& args);

// The chunks that queries take: all up to their own if these are at most `most`; else the first one (if first_forced),
// the last n_last ones, and of chunks [first_free, own + 1 - n_last) first the sticky ones, and then those with the
// highest scores, the lower index where they are equal.
struct ChooseChunks {
  int64_t chunk = 0;
  int64_t count = 0;   // most = count, or in longer texts one chunk in one_in
  int64_t one_in = 0;  // 0: never more than count
  int64_t n_last = 1;
  int64_t first_free = 1;
  bool first_forced = true;
  int n_query_heads = 0;
  int heads = 1;  // that choose together: consecutive ones, by the sum of their scores
  bool softmax =
      false;  // of each head over the chunks before the query's own, before they are summed; changes `scores`
  float* scores = nullptr;  // of score_chunks; those of sticky chunks are changed
  int64_t n_chunks = 0;
  int64_t n = 0;
  const int64_t* first_query = nullptr;  // as of ScoreChunks
  int64_t first_row = 0;
  const int32_t* sticky = nullptr;  // [n_sticky] chunks
  int64_t n_sticky = 0;
  int32_t* chosen = nullptr;  // [n][n_query_heads][width]: ascending, -1 behind them
  int64_t width = 0;          // most of the last query

  bool operator==(const ChooseChunks&) const = default;
};
int choose_chunks(Stream stream, const ChooseChunks& args);

// ---- lists for attention over what was chosen

// A run of text keys that a selecting block sees: Span of lib/plan/plan.h. Its keys are [first_key, end_key).
struct ChosenSpan {
  int64_t first_key = 0;
  int64_t end_key = 0;
  int64_t min_lag = 0;
  int64_t key_base = 0;
  int64_t key_period = 0;
  int64_t key_div = 1;
  bool key_floor = true;
  int32_t span = 0;  // which one it is of Attention::spans
};

// What the rows of a tile may choose from.
struct ChosenKeys {
  int32_t first_span = 0;  // of ListChosen::spans
  int32_t n_spans = 0;
  int64_t old_before = 0;  // keys before this one are read from narrow records, by all of its queries
};

// Pieces, picks and works of tiles whose rows chose chunks: what cut_selected and append_lists make on the host, but
// for the parts, which have equal numbers of pieces. Tiles are of consecutive queries.
struct ListChosen {
  const int32_t* chosen = nullptr;  // of choose_chunks
  int64_t width = 0;
  int n_query_heads = 0;
  int64_t chunk = 0;         // keys that are chosen together
  int64_t stored_chunk = 0;  // a multiple
  int64_t n_chunks = 0;      // up to the last query's own, which counts
  const AttentionTile* tiles = nullptr;
  const ChosenKeys* keys = nullptr;  // by tile
  int64_t n_tiles = 0;
  const ChosenSpan* spans = nullptr;
  int n_parts = 1;                   // of a tile; with one its works go to `out`
  int64_t most_pieces = 0;           // of a tile
  int64_t most_picks = 0;            // likewise: rows * width
  AttentionPiece* pieces = nullptr;  // [n_tiles][most_pieces]
  AttentionPick* picks = nullptr;    // [n_tiles][most_picks]
  AttentionWork* works = nullptr;    // [n_tiles][n_parts]

  bool operator==(const ListChosen&) const = default;
};
int list_chosen(Stream stream, const ListChosen& args);

}  // namespace quire::cuda
