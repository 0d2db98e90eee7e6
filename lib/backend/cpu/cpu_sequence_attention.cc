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

}  // namespace

Scratch::Scratch(float* memory, int64_t most_rows, int64_t d, int64_t chunk, bool keys_turned, bool widens)
    : scores_ld(round_up(chunk, kKeyBlock)) {
  const auto take = [&](int64_t floats) -> float* {
    float* const taken = memory ? memory + n_floats : nullptr;
    n_floats += static_cast<size_t>(floats);
    return taken;
  };
  const auto take_partial = [&] {
    float* const taken = take(static_cast<int64_t>(partial_floats(most_rows, d)));
    return taken ? partial_at(taken, most_rows) : Partial{};
  };
  rotated = take(most_rows * d);
  scores = take(most_rows * scores_ld);
  partial = take_partial();
  state = take_partial();
  angles = take(d);
  widened = take(keys_turned || widens ? scores_ld * d : 0);
  turns = take(keys_turned ? scores_ld * d + d : 0);
  code_scales = take(most_rows);
  factors = take(scores_ld);
  codes = reinterpret_cast<int16_t*>(take(ceil_div(most_rows * std::max(d, scores_ld), 2)));
  sums = take(0);
}

SequenceRun::SequenceRun(const CpuStep& step, const AttentionArgs& args, ThreadPool& pool, SelectedPieces& selected)
    : sequence_(step.at(args.sequence)),
      args_(args),
      n_heads_(step.n_query_heads),
      rope_(static_cast<const RopeCache&>(*sequence_.rope)),
      layout_(sequence_.geometry),
      narrow_(narrow_geometry(sequence_.geometry, sequence_.old)),
      d_(sequence_.geometry.head_dim),
      l_(sequence_.geometry.chunk),
      n_cells_(args.shares.out ? args.shares.n_cells() : 0),
      selected_(selected.pieces) {
  if (args.selection) {
    tiling::cut_selected({*sequence_.plan, n_heads_, sequence_.geometry.n_kv_heads, l_, sequence_.old},
                         static_cast<const int32_t*>(args.selection->host()) + args.selection_offset, &pool,
                         selected.memory, selected.pieces);
  } else {
    selected.pieces.clear();
  }
  turns_ = !std::ranges::all_of(sequence_.plan->spans, [this](const Span& span) { return as_stored(span); });
  widens_ = sequence_.old.narrows() && sequence_.old.type == ElementType::kInt4;
  most_rows_ = std::max(sequence_.pieces.most_rows, selected_.most_rows);
  for (int64_t row = 0; row < most_rows_; ++row) all_rows_.push_back({static_cast<int32_t>(row), 0});
}

// The tile's rows that see any key of the piece. Visible ranges move forward with the query, so they are consecutive.
PickSpan SequenceRun::rows_of(const Work& work, const Piece& piece) const {
  const Tile& tile = *work.tile;
  PickSpan rows(all_rows_.data(), static_cast<size_t>(tile.rows()));
  if (tile.selected) {
    rows = work.cut->picks_of(tile, piece);
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
const float* SequenceRun::turned_keys(const Piece& piece, const Stored& stored, const Scratch& scratch) const {
  const Range keys = range_of(piece);
  float *const turned = scratch.widened, *const key = scratch.turns + key_elements(l_, d_);
  const float* turns = find_key_turns(sequence_.key_turns, *piece.span, l_);
  if (!turns) {
    write_key_turns(rope_, *piece.span, records(*piece.span).stored_div, piece.chunk * l_, keys.begin, keys.end, key,
                    scratch.turns);
    turns = scratch.turns;
  }
  const bool narrow = stored.type == ElementType::kInt8 || stored.type == ElementType::kInt4;
  if (stored.type == ElementType::kInt4) widen_int4_keys(stored.keys, keys.begin, keys.end, d_, turned);
  for (int64_t j = keys.begin; stored.type == ElementType::kInt8 && j < keys.end; ++j) {
    load_key(stored.type, stored.keys, j, d_, key);
    for (int64_t i = 0; i < d_; ++i) key[i] *= stored.key_scales[i];
    store_key(key, d_, ElementType::kF32, turned, j);
  }
  turn_keys(narrow ? ElementType::kF32 : stored.type, narrow ? turned : static_cast<const void*>(stored.keys),
            keys.begin, keys.end, d_, turns, turned);
  return turned;
}

bool SequenceRun::widens(const Stored& stored, int64_t n_rows) {
  constexpr int64_t kFewRows = 6;  // of which the kernel for codes makes numbers once
  return stored.type == ElementType::kInt4 && n_rows > kFewRows;
}

void SequenceRun::score_piece(const Piece& piece, const Stored& stored, int64_t n_rows, const Scratch& scratch) const {
  const Range keys = range_of(piece);
  const int64_t ld = scratch.scores_ld;
  if (!as_stored(*piece.span)) {
    const float* turned = turned_keys(piece, stored, scratch);
    attention_scores(scratch.rotated, n_rows, d_, ElementType::kF32, turned, keys.begin, keys.end, scratch.scores, ld);
    return;
  }
  if (widens(stored, n_rows)) {
    widen_int4_keys(stored.keys, keys.begin, keys.end, d_, scratch.widened);
    attention_scores(scratch.rotated, n_rows, d_, ElementType::kF32, scratch.widened, keys.begin, keys.end,
                     scratch.scores, ld);
    return;
  }
  if (stored.type != ElementType::kInt8) {
    attention_scores(scratch.rotated, n_rows, d_, stored.type, stored.keys, keys.begin, keys.end, scratch.scores, ld);
    return;
  }
  for (int64_t r = 0; r < n_rows; ++r) {
    quantize_row_int16(scratch.rotated + r * d_, stored.key_scales, d_, scratch.codes + r * d_,
                       scratch.code_scales + r);
  }
  attention_scores_int8(scratch.codes, scratch.code_scales, n_rows, d_, reinterpret_cast<const int8_t*>(stored.keys),
                        keys.begin, keys.end, scratch.scores, ld);
}

// Leaves a row's weights of the keys that it sees in place of their scores.
void SequenceRun::weigh_piece(const Work& work, const Piece& piece, PickSpan rows, const Cells& cells,
                              const Scratch& scratch, Partial partial, float* sums) const {
  const Span& span = *piece.span;
  const int64_t origin = piece.chunk * l_ + range_of(piece).first_block;
  const Lags lags{*work.tile, piece};
  for (size_t r = 0; r < rows.size(); ++r) {
    const int32_t row = rows[r].row;
    const int64_t from = lags.from(row), to = lags.to(row);
    float* const p = scratch.scores + static_cast<int64_t>(r) * scratch.scores_ld;
    if (span.stride > 1 || span.lag_stride > 1) {
      hide_between(span, work.tile->query(row), from, to, p + (from - origin));
    }
    float* const row_sums = cells.n > 0 && row >= work.first_asked ? sums + static_cast<int64_t>(r) * cells.n : nullptr;
    const bool all_count = from == cells.begin && to == cells.end && !cells.condensed;
    softmax_partial(p, from - origin, to - origin, &partial.max[r], &partial.sum[r], all_count ? row_sums : nullptr);
    if (row_sums && !all_count) sum_cells(cells, p, origin, from, to, row_sums);
  }
}

void SequenceRun::add_values(const Tile& tile, const Piece& piece, const Stored& stored, PickSpan rows,
                             const Scratch& scratch, Partial partial) const {
  const int64_t origin = piece.chunk * l_ + range_of(piece).first_block, ld = scratch.scores_ld;
  const auto n = static_cast<int64_t>(rows.size());
  const Range keys = range_of(piece);
  const bool in_floats = widens(stored, n);
  if (in_floats) widen_int4_values(stored.values, keys.begin, keys.end, d_, scratch.widened);
  const ElementType type = in_floats ? ElementType::kF32 : stored.type;
  const auto* const first = in_floats ? reinterpret_cast<const std::byte*>(scratch.widened) : stored.values;
  const auto* const values = first + static_cast<size_t>(keys.first_block) * row_bytes(type, d_);
  const auto accumulate = [&](int64_t r, int64_t n_rows, int64_t from, int64_t to) {
    if (from < to) {
      accumulate_values(scratch.scores + r * ld, ld, n_rows, d_, type, values, from - origin, to - origin,
                        partial.out + r * d_);
    }
  };
  // All rows together over the keys that all see, row by row over the ragged ends.
  const Lags lags{tile, piece};
  const int64_t common_from = lags.from(rows.back().row);
  const int64_t common_to = lags.to(rows.front().row);
  for (int64_t r = 0; r < n; ++r) {
    const int32_t row = rows[static_cast<size_t>(r)].row;
    accumulate(r, 1, lags.from(row), common_from < common_to ? common_from : lags.to(row));
  }
  if (common_from >= common_to) return;
  accumulate(0, n, common_from, common_to);
  for (int64_t r = 0; r < n; ++r) accumulate(r, 1, common_to, lags.to(rows[static_cast<size_t>(r)].row));
}

// All rows together: keys that a row does not see have the code 0, which adds nothing.
void SequenceRun::add_int8_values(const Tile& tile, const Piece& piece, const Stored& stored, PickSpan rows,
                                  const Scratch& scratch, Partial partial) const {
  const Range keys = range_of(piece);
  const int64_t chunk_first = piece.chunk * l_, ld = scratch.scores_ld;
  const auto n = static_cast<int64_t>(rows.size());
  const float unit = weight_factors_int16(stored.value_scales, l_, scratch.factors);
  const Lags lags{tile, piece};
  for (int64_t r = 0; r < n; ++r) {
    const int32_t row = rows[static_cast<size_t>(r)].row;
    const int64_t from = lags.from(row) - chunk_first, to = lags.to(row) - chunk_first;
    int16_t* const codes = scratch.codes + r * ld;
    const bool is_number = partial.sum[r] == partial.sum[r];
    scratch.code_scales[r] = is_number ? unit : std::numeric_limits<float>::quiet_NaN();
    std::fill(codes + keys.first_block, codes + round_up(keys.end, 2), int16_t{0});
    if (is_number) {
      round_weights_int16(scratch.scores + r * ld + (from - keys.first_block), scratch.factors + from, to - from,
                          codes + from);
    }
  }
  accumulate_values_int8(scratch.codes, ld, scratch.code_scales, n, d_, reinterpret_cast<const int8_t*>(stored.values),
                         lags.from(rows.front().row) - chunk_first, lags.to(rows.back().row) - chunk_first,
                         partial.out);
}

void SequenceRun::run_piece(const Work& work, const Piece& piece, PickSpan rows, const Cells& cells,
                            const Scratch& scratch, Partial partial, float* sums) const {
  if (rows.empty()) return;
  const Tile& tile = *work.tile;
  const Stored own = stored(tile, piece);
  const auto n = static_cast<int64_t>(rows.size());
  if (own.type == ElementType::kInt8) {
    // Scales lie apart from keys and values: on their way before they are used. Not in a function of its own: gcc takes
    // calls of one that only prefetches away.
    constexpr int64_t kLine = 64 / sizeof(float);
    for (int64_t i = 0; i < d_; i += kLine) __builtin_prefetch(own.key_scales + i);
    for (int64_t j = 0; j < l_; j += kLine) __builtin_prefetch(own.value_scales + j);
  }
  rotate_queries(tile, piece, rows, scratch.rotated, scratch.angles);
  score_piece(piece, own, n, scratch);
  weigh_piece(work, piece, rows, cells, scratch, partial, sums);
  std::fill_n(partial.out, n * d_, 0.0f);
  if (own.type == ElementType::kInt8) {
    add_int8_values(tile, piece, own, rows, scratch, partial);
  } else {
    add_values(tile, piece, own, rows, scratch, partial);
  }
}

void SequenceRun::start(const Work& work, RowRange rows, Partial state) const {
  if (args_.window.first) {
    start_shares(work, rows);
    std::fill(state.max + rows.begin, state.max + rows.end, -std::numeric_limits<float>::infinity());
    std::fill(state.sum + rows.begin, state.sum + rows.end, 0.0f);
    std::fill(state.out + rows.begin * d_, state.out + rows.end * d_, 0.0f);
    return;
  }
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const float* from = saved(*work.tile, row);
    state.max[row] = from[0];
    state.sum[row] = from[1];
    std::copy_n(from + 2, d_, state.out + row * d_);
  }
}

void SequenceRun::merge(const Work& work, RowRange rows, PickSpan seen, const Cells& cells, Partial part,
                        const float* sums, Partial& state) const {
  const auto place = [seen](int64_t row) {
    return std::ranges::lower_bound(seen, row, {}, [](const Pick& pick) { return int64_t{pick.row}; }) - seen.begin();
  };
  const int64_t begin = rows.begin > 0 ? place(rows.begin) : 0;
  const int64_t end = rows.end < work.tile->rows() ? place(rows.end) : std::ssize(seen);
  BlockShares blocks{sums + begin * cells.n, cells.first, cells.n, nullptr, n_cells_};
  for (int64_t r = begin; r < end; ++r, blocks.sums += cells.n) {
    // A strided span may hide every key of a piece from a row: then its maximum is -infinity and it adds nothing.
    if (part.max[r] == -std::numeric_limits<float>::infinity()) continue;
    const int64_t row = seen[static_cast<size_t>(r)].row;
    // A piece without cells changes the scale of the others.
    const bool shares = row >= work.first_asked;
    if (shares) blocks.running = shares_of(work, row);
    merge_partial(part.max[r], part.sum[r], part.out + r * d_, d_, &state.max[row], &state.sum[row],
                  state.out + row * d_, shares ? &blocks : nullptr);
  }
}

void SequenceRun::finish(const Work& work, RowRange rows, Partial state) const {
  const Tile& tile = *work.tile;
  if (args_.window.last) finish_shares(work, rows, state);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
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

void SequenceRun::run_tile(const Work& work, const Scratch& scratch) const {
  Partial state = scratch.state;
  const RowRange all{0, work.tile->rows()};
  start(work, all, state);
  for (int64_t p = work.first; p < work.end; ++p) {
    const PickSpan seen = rows_of(work, work.piece(p));
    const Cells cells = cells_of(work, work.piece(p));
    run_piece(work, work.piece(p), seen, cells, scratch, scratch.partial, scratch.sums);
    merge(work, all, seen, cells, scratch.partial, scratch.sums, state);
  }
  finish(work, all, state);
}

}  // namespace quire::cpu
