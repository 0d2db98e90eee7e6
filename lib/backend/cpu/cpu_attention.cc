// The attention executor of the CPU: runs any plan.
//
// Spans are cut at chunk edges into pieces. Each query forms one partial result (max, sum, output) per piece and merges
// them in list order, so that a query's result depends on its own index and nothing else. Work is split into tiles: the
// queries of one KV head's group that fit in kTileRows rows. Many tiles: each merges its pieces as it goes. Few tiles
// (decode): pieces are spread over threads, and merged by a second job in the same order.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "lib/backend/cpu/cpu_backend.h"
#include "lib/backend/cpu/rope_cache.h"

namespace quire::cpu {
namespace {

constexpr int64_t kTileRows = 64;
constexpr int64_t kSplitRows = 16;

struct Piece {
  const Span* span;
  int64_t begin;  // keys [begin, end) of one chunk, counted in the stream
  int64_t end;
  int64_t chunk;
};

// Queries [first, first + count) of a block, and one KV head. A row is a (query, query head of the group) pair, queries
// outermost; with one span list per query head a tile holds one query head only.
struct Tile {
  int64_t first;
  int64_t count;
  int kv_head;
  int first_head;  // query heads [first_head, first_head + heads)
  int heads;
  int32_t first_piece;
  int32_t n_pieces;
  int64_t first_scale;  // index of the first query in plan.query_scale

  int64_t rows() const { return count * heads; }
};

struct Partial {
  float* max;  // [rows]
  float* sum;  // [rows]
  float* out;  // [rows][d]
};

size_t partial_floats(int64_t rows, int64_t d) { return static_cast<size_t>(rows * (d + 2)); }

Partial partial_at(float* memory, int64_t rows) { return {memory, memory + rows, memory + 2 * rows}; }

class Executor {
 public:
  Executor(ThreadPool& pool, const AttentionArgs& args)
      : pool_(pool),
        args_(args),
        rope_(static_cast<const RopeCache&>(*args.rope)),
        layout_(args.geometry),
        d_(args.geometry.head_dim),
        l_(args.geometry.chunk),
        group_(args.n_query_heads / args.geometry.n_kv_heads) {
    make_tiles();
  }

  Status run(Workspace& workspace, const CancelToken* cancel);

 private:
  void make_tiles();
  void add_pieces(const Plan::List& list, int64_t first, int64_t count);
  size_t scratch_floats() const;
  void zero_outputs() const;
  void run_piece(const Tile& tile, const Piece& piece, float* scratch, Partial partial, int64_t* row_begin,
                 int64_t* row_end) const;
  void rotate_queries(const Tile& tile, const Piece& piece, int64_t row_begin, int64_t row_end, float* rotated,
                      float* angles) const;
  const float* raw_keys(const Piece& piece, const void* keys, float* rotated, float* angles) const;
  void finish(const Tile& tile, Partial state) const;
  void run_tile(const Tile& tile, float* scratch) const;

  // Spreading pieces costs memory for a partial result of each; worth it for the few rows of a decode step.
  bool split_pieces() const {
    return most_rows_ <= kSplitRows && static_cast<int64_t>(tiles_.size()) < 2 * pool_.n_threads();
  }

  ThreadPool& pool_;
  const AttentionArgs& args_;
  const RopeCache& rope_;
  RecordLayout layout_;
  int64_t d_;
  int64_t l_;
  int group_;
  std::vector<Piece> pieces_;
  std::vector<Tile> tiles_;
  int64_t most_rows_ = 0;
  bool any_raw_ = false;
};

void Executor::make_tiles() {
  int64_t scale_index = 0;
  for (const QueryBlock& block : args_.plan->blocks) {
    const int heads = block.per_head ? 1 : group_;
    const int64_t tile_queries = std::max<int64_t>(1, kTileRows / heads);
    for (int64_t q = 0; q < block.n_queries; q += tile_queries) {
      const int64_t first = block.first_query + q;
      const int64_t count = std::min(tile_queries, block.n_queries - q);
      int32_t begin = 0;
      for (int head = 0; head < args_.n_query_heads; head += heads) {
        if (head == 0 || block.per_head) {
          begin = static_cast<int32_t>(pieces_.size());
          add_pieces(args_.plan->list(block, head), first, count);
        }
        tiles_.push_back({first, count, head / group_, head, heads, begin, static_cast<int32_t>(pieces_.size()) - begin,
                          scale_index + q});
        most_rows_ = std::max(most_rows_, tiles_.back().rows());
      }
    }
    scale_index += block.n_queries;
  }
}

void Executor::add_pieces(const Plan::List& list, int64_t first, int64_t count) {
  for (int32_t s = list.begin; s < list.end; ++s) {
    const Span& span = args_.plan->spans[static_cast<size_t>(s)];
    any_raw_ = any_raw_ || span.rotation == Span::Rotation::kRaw;
    int64_t begin = span.first_key;
    if (span.max_lag != kNoLimit) begin = std::max(begin, first - span.max_lag);
    const int64_t last = std::min(span.first_key + (span.count - 1) * span.stride, first + count - 1 - span.min_lag);
    for (int64_t at = begin; at <= last;) {
      const int64_t end = std::min(last + 1, (at / l_ + 1) * l_);
      pieces_.push_back({&span, at, end, at / l_});
      at = end;
    }
  }
}

// Per thread: rotated queries, scores, one partial, one running result, angles, raw keys rotated on load.
size_t Executor::scratch_floats() const {
  const auto rows = static_cast<size_t>(most_rows_);
  const auto d = static_cast<size_t>(d_);
  const auto keys = static_cast<size_t>(round_up(l_, kKeyBlock));
  return rows * d + rows * keys + 2 * partial_floats(most_rows_, d_) + d + (any_raw_ ? keys * d + 2 * d : 0);
}

void Executor::rotate_queries(const Tile& tile, const Piece& piece, int64_t row_begin, int64_t row_end, float* rotated,
                              float* angles) const {
  const Span& span = *piece.span;
  const int64_t half = d_ / 2;
  for (int64_t row = row_begin; row < row_end; row += tile.heads) {
    const int64_t i = tile.first + row / tile.heads;
    double position = span.query_position(i);
    if (span.rotation == Span::Rotation::kStored) position -= static_cast<double>(piece.chunk * l_ - span.key_base);
    rope_.angles(position, angles, angles + half);
    float scale = args_.scale;
    if (!args_.plan->query_scale.empty()) {
      scale *= args_.plan->query_scale[static_cast<size_t>(tile.first_scale + row / tile.heads)];
    }
    const float* q = rows_ptr(args_.queries.at(i - args_.first_query)) + tile.first_head * d_;
    for (int head = 0; head < tile.heads; ++head) {
      rotate(q + head * d_, angles, angles + half, scale, d_, rotated + (row + head) * d_);
    }
  }
}

// The piece's keys as f32 blocks, each rotated at its position in the span.
const float* Executor::raw_keys(const Piece& piece, const void* keys, float* rotated, float* angles) const {
  float* key = angles + d_;
  for (int64_t j = piece.begin; j < piece.end; ++j) {
    const int64_t offset = j - piece.chunk * l_;
    load_key(args_.geometry.type, keys, offset, d_, key);
    rope_.angles(piece.span->key_position(j), angles, angles + d_ / 2);
    rotate(key, angles, angles + d_ / 2, 1, d_, key);
    store_key(key, d_, ElementType::kF32, rotated, offset);
  }
  return rotated;
}

// Fills `partial` for rows [*row_begin, *row_end), those that see any key of the piece.
void Executor::run_piece(const Tile& tile, const Piece& piece, float* scratch, Partial partial, int64_t* row_begin,
                         int64_t* row_end) const {
  const Span& span = *piece.span;
  const int64_t chunk_first = piece.chunk * l_;
  const int64_t block_first = (piece.begin - chunk_first) / kKeyBlock * kKeyBlock;  // lane 0 of the scores
  const int64_t origin = chunk_first + block_first;
  const int64_t ld = round_up(l_, kKeyBlock);
  float* rotated = scratch;
  float* scores = rotated + most_rows_ * d_;
  float* angles = scores + most_rows_ * ld + 2 * partial_floats(most_rows_, d_);
  const auto sees_from = [&](int64_t i) {
    return span.max_lag == kNoLimit ? piece.begin : std::max(piece.begin, i - span.max_lag);
  };
  const auto sees_to = [&](int64_t i) { return std::min(piece.end, i - span.min_lag + 1); };
  // Visible ranges move forward with i, so the queries that see anything are consecutive.
  int64_t q_begin = 0, q_end = tile.count;
  while (q_begin < q_end && sees_from(tile.first + q_begin) >= sees_to(tile.first + q_begin)) ++q_begin;
  while (q_end > q_begin && sees_from(tile.first + q_end - 1) >= sees_to(tile.first + q_end - 1)) --q_end;
  *row_begin = q_begin * tile.heads;
  *row_end = q_end * tile.heads;
  if (q_begin == q_end) return;

  const auto* record = static_cast<const std::byte*>(
      args_.records[static_cast<int>(span.stream)].chunks[static_cast<size_t>(piece.chunk)]->host());
  const void* keys = record + layout_.keys(tile.kv_head);
  ElementType key_type = args_.geometry.type;
  if (span.rotation == Span::Rotation::kRaw) {
    keys = raw_keys(piece, keys, angles + 3 * d_, angles);
    key_type = ElementType::kF32;
  }
  rotate_queries(tile, piece, *row_begin, *row_end, rotated, angles);
  attention_scores(rotated + *row_begin * d_, *row_end - *row_begin, d_, key_type, keys, piece.begin - chunk_first,
                   piece.end - chunk_first, scores + *row_begin * ld, ld);

  const auto* values = record + layout_.values(tile.kv_head) +
                       static_cast<size_t>(block_first * d_) * element_bytes(args_.geometry.type);
  const auto accumulate = [&](int64_t row, int64_t n, int64_t from, int64_t to) {
    if (from < to) {
      accumulate_values(scores + row * ld, ld, n, d_, args_.geometry.type, values, from - origin, to - origin,
                        partial.out + row * d_);
    }
  };
  // All rows together over the keys that all see, row by row over the ragged ends.
  const int64_t common_from = sees_from(tile.first + q_end - 1);
  const int64_t common_to = sees_to(tile.first + q_begin);
  for (int64_t row = *row_begin; row < *row_end; ++row) {
    const int64_t i = tile.first + row / tile.heads;
    const int64_t from = sees_from(i), to = sees_to(i);
    if (span.stride > 1) {
      for (int64_t j = from; j < to; ++j) {
        if ((j - span.first_key) % span.stride != 0) {
          scores[row * ld + j - origin] = -std::numeric_limits<float>::infinity();
        }
      }
    }
    softmax_partial(scores + row * ld, from - origin, to - origin, &partial.max[row], &partial.sum[row]);
    std::fill_n(partial.out + row * d_, d_, 0.0f);
    accumulate(row, 1, from, common_from < common_to ? common_from : to);
  }
  if (common_from >= common_to) return;
  accumulate(*row_begin, *row_end - *row_begin, common_from, common_to);
  for (int64_t row = *row_begin; row < *row_end; ++row) {
    accumulate(row, 1, common_to, sees_to(tile.first + row / tile.heads));
  }
}

void Executor::finish(const Tile& tile, Partial state) const {
  for (int64_t row = 0; row < tile.rows(); ++row) {
    const int64_t i = tile.first + row / tile.heads;
    float* out = rows_ptr(args_.out.at(i - args_.first_query)) + (tile.first_head + row % tile.heads) * d_;
    const float factor = state.sum[row] > 0 ? 1 / state.sum[row] : 0;  // no key: output 0
    for (int64_t c = 0; c < d_; ++c) out[c] = state.out[row * d_ + c] * factor;
  }
}

void reset(Partial state, int64_t rows, int64_t d) {
  std::fill_n(state.max, rows, -std::numeric_limits<float>::infinity());
  std::fill_n(state.sum, rows, 0.0f);
  std::fill_n(state.out, rows * d, 0.0f);
}

void merge(const Partial& part, int64_t row_begin, int64_t row_end, int64_t d, Partial& state) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    // A strided span may hide every key of a piece from a row: then its maximum is -infinity and it adds nothing.
    if (part.max[row] == -std::numeric_limits<float>::infinity()) continue;
    merge_partial(part.max[row], part.sum[row], part.out + row * d, d, &state.max[row], &state.sum[row],
                  state.out + row * d);
  }
}

void Executor::run_tile(const Tile& tile, float* scratch) const {
  float* memory = scratch + most_rows_ * d_ + most_rows_ * round_up(l_, kKeyBlock);
  Partial part = partial_at(memory, most_rows_);
  Partial state = partial_at(memory + partial_floats(most_rows_, d_), most_rows_);
  reset(state, tile.rows(), d_);
  for (int32_t p = 0; p < tile.n_pieces; ++p) {
    int64_t row_begin = 0, row_end = 0;
    run_piece(tile, pieces_[static_cast<size_t>(tile.first_piece + p)], scratch, part, &row_begin, &row_end);
    merge(part, row_begin, row_end, d_, state);
  }
  finish(tile, state);
}

Status Executor::run(Workspace& workspace, const CancelToken* cancel) {
  const Status cancelled(Code::kCancelled, "cancelled");
  const size_t scratch = scratch_floats();
  const auto threads = static_cast<size_t>(pool_.n_threads());
  int64_t n_parts = 0;
  if (split_pieces()) {
    for (const Tile& tile : tiles_) n_parts += tile.n_pieces;
  }
  const size_t part_floats = partial_floats(most_rows_, d_);
  const size_t floats = threads * scratch + static_cast<size_t>(n_parts) * (part_floats + 2);
  auto* memory = static_cast<float*>(workspace.require(floats * sizeof(float)));
  if (!memory) {
    return Status(Code::kOutOfMemory,
                  "no memory for attention (" + std::to_string(floats * sizeof(float)) + " bytes of workspace)");
  }
  const auto thread_scratch = [&](int thread) { return memory + static_cast<size_t>(thread) * scratch; };
  if (n_parts == 0) {
    const bool done = pool_.run(static_cast<int64_t>(tiles_.size()), cancel, [&](int64_t t, int thread) {
      run_tile(tiles_[static_cast<size_t>(t)], thread_scratch(thread));
    });
    return done ? Status() : cancelled;
  }

  // Every (tile, piece) for itself, then the merges.
  struct Part {
    int32_t tile;
    int32_t piece;
    int64_t row_begin = 0, row_end = 0;
  };
  std::vector<Part> parts;
  parts.reserve(static_cast<size_t>(n_parts));
  for (size_t t = 0; t < tiles_.size(); ++t) {
    for (int32_t p = 0; p < tiles_[t].n_pieces; ++p) {
      parts.push_back({static_cast<int32_t>(t), tiles_[t].first_piece + p});
    }
  }
  float* part_memory = memory + threads * scratch;
  const auto part_at = [&](size_t index) { return partial_at(part_memory + index * part_floats, most_rows_); };
  constexpr int64_t kPartsPerTask = 4;
  bool done = pool_.run(ceil_div(n_parts, kPartsPerTask), cancel, [&](int64_t task, int thread) {
    const int64_t end = std::min(n_parts, (task + 1) * kPartsPerTask);
    for (int64_t index = task * kPartsPerTask; index < end; ++index) {
      Part& part = parts[static_cast<size_t>(index)];
      run_piece(tiles_[static_cast<size_t>(part.tile)], pieces_[static_cast<size_t>(part.piece)],
                thread_scratch(thread), part_at(static_cast<size_t>(index)), &part.row_begin, &part.row_end);
    }
  });
  if (!done) return cancelled;
  done = pool_.run(static_cast<int64_t>(tiles_.size()), cancel, [&](int64_t t, int thread) {
    const Tile& tile = tiles_[static_cast<size_t>(t)];
    Partial state = partial_at(thread_scratch(thread), most_rows_);
    reset(state, tile.rows(), d_);
    size_t index = 0;
    for (int64_t before = 0; before < t; ++before) {
      index += static_cast<size_t>(tiles_[static_cast<size_t>(before)].n_pieces);
    }
    for (int32_t p = 0; p < tile.n_pieces; ++p, ++index) {
      merge(part_at(index), parts[index].row_begin, parts[index].row_end, d_, state);
    }
    finish(tile, state);
  });
  return done ? Status() : cancelled;
}

}  // namespace

Status run_attention(ThreadPool& pool, Workspace& workspace, const CancelToken* cancel, const AttentionArgs& args) {
  return Executor(pool, args).run(workspace, cancel);
}

}  // namespace quire::cpu
