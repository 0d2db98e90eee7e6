#include "lib/backend/cpu/cpu_sequence_attention.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/kernels.h"

namespace quire::cpu {
namespace {

// The keys of a piece, [from, to), that a row of a tile may see by its lags.
struct Lags {
  const Tile& tile;
  const Piece& piece;
  int64_t from(int64_t row) const {
    const Span& span = *piece.span;
    if (span.diagonal) return std::max(piece.begin, tile.diagonal_key(span, row));
    return span.max_lag == kNoLimit ? piece.begin : std::max(piece.begin, tile.query(row) - span.max_lag);
  }
  int64_t to(int64_t row) const {
    const Span& span = *piece.span;
    if (span.diagonal) return std::min(piece.end, tile.diagonal_key(span, row) + 1);
    const int64_t to = std::min(piece.end, tile.query(row) - span.min_lag + 1);
    // Ends behind a key of the span: sums must not depend on what hidden keys the piece happens to have behind it.
    return span.stride == 1 || to <= span.first_key ? to : to - (to - 1 - span.first_key) % span.stride;
  }
};

// Of the scores of keys [from, to), leaves those that query i sees by the span's strides.
void hide_between(const Span& span, int64_t i, int64_t from, int64_t to, float* scores) {
  int64_t next = span.first_key + std::max<int64_t>(0, ceil_div(from - span.first_key, span.stride)) * span.stride;
  for (int64_t j = from; j < to; ++j) {
    const bool shown = j == next && (span.lag_stride == 1 || (i - j) % span.lag_stride == 0);
    if (j == next) next += span.stride;
    if (!shown) scores[j - from] = -std::numeric_limits<float>::infinity();
  }
}

static_assert(AttentionShares::kCell == kKeyBlock);

// The sums of a piece's cells in a row that sees its keys [from, to). p[0] belongs to key `origin`, a cell's first one.
void sum_cells(const SequenceRun::Cells& cells, const float* p, int64_t origin, int64_t from, int64_t to, float* sums) {
  if (from > cells.begin || to < cells.end) {
    std::fill_n(sums, cells.n, 0.0f);
    if (from >= cells.end || to <= cells.begin) return;
  }
  from = std::max(from, cells.begin);
  to = std::min(to, cells.end);
  if (cells.condensed) {
    std::copy(p + (from - origin), p + (to - origin), sums + (from - cells.begin));
  } else {
    sum_blocks(p, from - origin, to - origin, sums + (from / kKeyBlock - cells.first));
  }
}

void scale(float* x, const float* by, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] *= by[i];
}

}  // namespace

size_t scratch_floats(int64_t most_rows, int64_t d, int64_t chunk, bool turns) {
  const int64_t keys = round_up(chunk, kKeyBlock);
  return static_cast<size_t>(most_rows * (d + keys) + d + (turns ? 2 * keys * d + d : 0)) +
         2 * partial_floats(most_rows, d);
}

SequenceRun::SequenceRun(const CpuStep& step, const AttentionArgs& args, ThreadPool& pool)
    : sequence_(step.at(args.sequence)),
      args_(args),
      n_heads_(step.n_query_heads),
      rope_(static_cast<const RopeCache&>(*sequence_.rope)),
      layout_(sequence_.geometry),
      narrow_(narrow_geometry(sequence_.geometry, sequence_.old)),
      d_(sequence_.geometry.head_dim),
      l_(sequence_.geometry.chunk),
      n_cells_(args.shares.out ? args.shares.n_cells() : 0) {
  if (args.selection) {
    selected_ =
        tiling::cut_selected({*sequence_.plan, n_heads_, sequence_.geometry.n_kv_heads, l_, sequence_.old},
                             static_cast<const int32_t*>(args.selection->host()) + args.selection_offset, &pool);
  }
  turns_ = !std::ranges::all_of(sequence_.plan->spans, [this](const Span& span) { return as_stored(span); });
  most_rows_ = std::max(sequence_.pieces.most_rows, selected_.most_rows);
  for (int64_t row = 0; row < most_rows_; ++row) all_rows_.push_back({static_cast<int32_t>(row), 0});
}

// The tile's rows that see any key of the piece. Visible ranges move forward with the query, so they are consecutive.
PickSpan SequenceRun::rows_of(const Work& work, const Piece& piece) const {
  const Tile& tile = *work.tile;
  PickSpan rows(all_rows_.data(), static_cast<size_t>(tile.rows()));
  if (tile.selected) {
    rows = {work.cut->picks.data() + piece.first_pick, static_cast<size_t>(piece.n_picks)};
  }
  const Lags lags{tile, piece};
  const auto sees = [&](const Pick& pick) { return lags.from(pick.row) < lags.to(pick.row); };
  while (!rows.empty() && !sees(rows.front())) rows = rows.subspan(1);
  while (!rows.empty() && !sees(rows.back())) rows = rows.first(rows.size() - 1);
  return rows;
}

// Where the query is rotated to: its distance from the chunk's first key.
double SequenceRun::position(const Tile& tile, const Piece& piece, const Pick& pick) const {
  const Span& span = *piece.span;
  const int64_t i = tile.query(pick.row);
  if (span.ranked) {
    const int64_t of_first = sequence_.plan->selection.distance(i, pick.rank, piece.begin);
    return static_cast<double>(of_first + piece.begin - piece.chunk * l_);
  }
  if (span.diagonal) return static_cast<double>(tile.diagonal_key(span, pick.row) - piece.chunk * l_);
  const double p = span.query_position(i);
  // The piece's keys share one base, which may lie behind the chunk's first key.
  if (span.key_period > 0) return p - static_cast<double>(piece.chunk * l_ - span.base_of(piece.begin));
  return p - span.key_position(piece.chunk * l_);
}

void SequenceRun::rotate_queries(const Tile& tile, const Piece& piece, PickSpan rows, float* rotated,
                                 float* angles) const {
  const int64_t half = d_ / 2;
  double at = std::numeric_limits<double>::quiet_NaN();  // what `angles` holds
  for (const Pick& pick : rows) {
    const double p = position(tile, piece, pick);
    if (p != at) rope_.angles(at = p, angles, angles + half);
    float scale = sequence_.scale;
    if (!sequence_.plan->query_scale.empty()) {
      scale *= sequence_.plan->query_scale[static_cast<size_t>(tile.place(pick.row))];
    }
    const float* q = rows_ptr(args_.queries.at(tile.place(pick.row))) + (tile.first_head + pick.row % tile.heads) * d_;
    rotate(q, angles, angles + half, scale, d_, rotated);
    rotated += d_;
  }
}

SequenceRun::Stored SequenceRun::stored(const Tile& tile, const Piece& piece) const {
  const auto chunk = static_cast<size_t>(piece.chunk);
  if (tiling::records_read(tile, piece) == KvKind::kNarrow) {
    const std::byte* record = record_ptr(args_.records[static_cast<size_t>(KvKind::kNarrow)].chunks[chunk]);
    const auto scales = [&](size_t at) {
      return sequence_.old.type == ElementType::kInt8 ? reinterpret_cast<const float*>(record + at) : nullptr;
    };
    return {sequence_.old.type, record + narrow_.keys(tile.kv_head), record + narrow_.values(tile.kv_head),
            scales(narrow_.key_scales(tile.kv_head)), scales(narrow_.value_scales(tile.kv_head))};
  }
  const std::byte* record = record_ptr(records(*piece.span).chunks[chunk]);
  return {sequence_.geometry.type, record + layout_.keys(tile.kv_head), record + layout_.values(tile.kv_head), nullptr,
          nullptr};
}

// The piece's keys as f32 blocks, each turned to where the span wants it.
const float* SequenceRun::turned_keys(const Piece& piece, const Stored& stored, float* turned) const {
  const int64_t first = piece.chunk * l_, begin = piece.begin - first, end = piece.end - first;
  float *const own_turns = turned + key_elements(l_, d_), *const key = own_turns + key_elements(l_, d_);
  const float* turns = find_key_turns(sequence_.key_turns, *piece.span, l_);
  if (!turns) {
    write_key_turns(rope_, *piece.span, records(*piece.span).stored_div, first, begin, end, key, own_turns);
    turns = own_turns;
  }
  const bool narrow = stored.type == ElementType::kInt8 || stored.type == ElementType::kInt4;
  for (int64_t j = begin; narrow && j < end; ++j) {
    load_key(stored.type, stored.keys, j, d_, key);
    for (int64_t i = 0; stored.key_scales && i < d_; ++i) key[i] *= stored.key_scales[i];
    store_key(key, d_, ElementType::kF32, turned, j);
  }
  turn_keys(narrow ? ElementType::kF32 : stored.type, narrow ? turned : static_cast<const void*>(stored.keys), begin,
            end, d_, turns, turned);
  return turned;
}

void SequenceRun::run_piece(const Work& work, const Piece& piece, PickSpan rows, const Cells& cells, float* scratch,
                            Partial partial, float* sums) const {
  if (rows.empty()) return;
  const Tile& tile = *work.tile;
  const Span& span = *piece.span;
  const int64_t chunk_first = piece.chunk * l_;
  const int64_t block_first = (piece.begin - chunk_first) / kKeyBlock * kKeyBlock;  // lane 0 of the scores
  const int64_t origin = chunk_first + block_first;
  const int64_t ld = round_up(l_, kKeyBlock);
  const auto n = static_cast<int64_t>(rows.size());
  float* rotated = scratch;
  float* scores = rotated + most_rows_ * d_;
  float* angles = scores + most_rows_ * ld + 2 * partial_floats(most_rows_, d_);

  const Stored own = stored(tile, piece);
  rotate_queries(tile, piece, rows, rotated, angles);
  const void* keys = own.keys;
  ElementType key_type = own.type;
  if (!as_stored(span)) {
    keys = turned_keys(piece, own, angles + d_);
    key_type = ElementType::kF32;
  } else if (own.key_scales) {
    for (int64_t r = 0; r < n; ++r) scale(rotated + r * d_, own.key_scales, d_);
  }
  attention_scores(rotated, n, d_, key_type, keys, piece.begin - chunk_first, piece.end - chunk_first, scores, ld);

  const auto* values = own.values + static_cast<size_t>(block_first) * row_bytes(own.type, d_);
  const auto accumulate = [&](int64_t r, int64_t n_rows, int64_t from, int64_t to) {
    if (from < to) {
      accumulate_values(scores + r * ld, ld, n_rows, d_, own.type, values, from - origin, to - origin,
                        partial.out + r * d_);
    }
  };
  // All rows together over the keys that all see, row by row over the ragged ends.
  const Lags lags{tile, piece};
  const int64_t common_from = lags.from(rows.back().row);
  const int64_t common_to = lags.to(rows.front().row);
  for (int64_t r = 0; r < n; ++r) {
    const int32_t row = rows[static_cast<size_t>(r)].row;
    const int64_t i = tile.query(row), from = lags.from(row), to = lags.to(row);
    if (span.stride > 1 || span.lag_stride > 1) hide_between(span, i, from, to, scores + r * ld + (from - origin));
    float* const row_sums = cells.n > 0 && row >= work.first_asked ? sums + r * cells.n : nullptr;
    const bool all_count = from == cells.begin && to == cells.end && !cells.condensed;
    softmax_partial(scores + r * ld, from - origin, to - origin, &partial.max[r], &partial.sum[r],
                    all_count ? row_sums : nullptr);
    if (row_sums && !all_count) sum_cells(cells, scores + r * ld, origin, from, to, row_sums);
    if (own.value_scales) {
      scale(scores + r * ld + (from - origin), own.value_scales + (from - chunk_first), to - from);
    }
    std::fill_n(partial.out + r * d_, d_, 0.0f);
    accumulate(r, 1, from, common_from < common_to ? common_from : to);
  }
  if (common_from >= common_to) return;
  accumulate(0, n, common_from, common_to);
  for (int64_t r = 0; r < n; ++r) accumulate(r, 1, common_to, lags.to(rows[static_cast<size_t>(r)].row));
}

void SequenceRun::start(const Work& work, Partial state) const {
  const Tile& tile = *work.tile;
  if (args_.window.first) {
    start_shares(work);
    std::fill_n(state.max, tile.rows(), -std::numeric_limits<float>::infinity());
    std::fill_n(state.sum, tile.rows(), 0.0f);
    std::fill_n(state.out, tile.rows() * d_, 0.0f);
    return;
  }
  for (int64_t row = 0; row < tile.rows(); ++row) {
    const float* from = saved(tile, row);
    state.max[row] = from[0];
    state.sum[row] = from[1];
    std::copy_n(from + 2, d_, state.out + row * d_);
  }
}

void SequenceRun::merge(const Work& work, PickSpan rows, const Cells& cells, const Partial& part, const float* sums,
                        Partial& state) const {
  BlockShares blocks{sums, cells.first, cells.n, nullptr, n_cells_};
  for (int64_t r = 0; r < static_cast<int64_t>(rows.size()); ++r, blocks.sums += cells.n) {
    // A strided span may hide every key of a piece from a row: then its maximum is -infinity and it adds nothing.
    if (part.max[r] == -std::numeric_limits<float>::infinity()) continue;
    const int64_t row = rows[static_cast<size_t>(r)].row;
    // A piece without cells changes the scale of the others.
    const bool shares = row >= work.first_asked;
    if (shares) blocks.running = shares_of(work, row);
    merge_partial(part.max[r], part.sum[r], part.out + r * d_, d_, &state.max[row], &state.sum[row],
                  state.out + row * d_, shares ? &blocks : nullptr);
  }
}

void SequenceRun::finish(const Work& work, Partial state) const {
  const Tile& tile = *work.tile;
  if (args_.window.last) finish_shares(work, state);
  for (int64_t row = 0; row < tile.rows(); ++row) {
    if (!args_.window.last) {
      float* to = saved(tile, row);
      to[0] = state.max[row];
      to[1] = state.sum[row];
      std::copy_n(state.out + row * d_, d_, to + 2);
      continue;
    }
    float* out = rows_ptr(args_.out.at(tile.place(row))) + (tile.first_head + row % tile.heads) * d_;
    const float factor = state.sum[row] > 0 ? 1 / state.sum[row] : 0;  // no key: output 0
    for (int64_t c = 0; c < d_; ++c) out[c] = state.out[row * d_ + c] * factor;
  }
}

void SequenceRun::run_tile(const Work& work, float* scratch) const {
  float* memory = scratch + most_rows_ * d_ + most_rows_ * round_up(l_, kKeyBlock);
  Partial partial = part(memory);
  Partial state = part(memory + part_floats());
  float* sums = scratch + sums_at();
  start(work, state);
  for (int32_t p = work.first; p < work.end; ++p) {
    const PickSpan seen = rows_of(work, work.piece(p));
    const Cells cells = cells_of(work, work.piece(p));
    run_piece(work, work.piece(p), seen, cells, scratch, partial, sums);
    merge(work, seen, cells, partial, sums, state);
  }
  finish(work, state);
}

}  // namespace quire::cpu
