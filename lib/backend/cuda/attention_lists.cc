#include "lib/backend/cuda/attention_lists.h"

#include <algorithm>

namespace quire::cuda {
namespace {

class Lister {
 public:
  Lister(const Plan& plan, const tiling::Pieces& cut, const ListOptions& options, AttentionLists& lists)
      : plan_(plan),
        cut_(cut),
        options_(options),
        lists_(lists),
        first_span_(static_cast<int32_t>(lists.spans.size())) {}

  void run() {
    for (const Span& span : plan_.spans) add_span(span);
    for (const tiling::Tile& tile : cut_.tiles) {
      // So many heads may share a KV head that a query has more rows than a tile.
      const int most_heads = std::min(tile.heads, static_cast<int>(options_.tile_rows));
      const int64_t queries = options_.tile_rows / most_heads;
      for (int64_t q = 0; q < tile.count; q += queries) {
        for (int head = 0; head < tile.heads; head += most_heads) {
          add_tile(tile, {q, std::min(queries, tile.count - q), head, std::min(most_heads, tile.heads - head)});
        }
      }
    }
  }

 private:
  bool turned(const Span& span) const {
    return !span.as_stored(options_.stored_div[static_cast<size_t>(span.kind)], options_.chunk);
  }

  void add_span(const Span& span) {
    AttentionSpan of;
    of.first_key = span.first_key;
    of.stride = span.stride;
    of.min_lag = span.min_lag;
    of.max_lag = span.max_lag;
    of.lag_stride = span.lag_stride;
    of.q_div = span.q_div;
    of.q_offset = span.q_offset;
    of.q_cap = span.q_cap;
    of.q_floor = span.q_floor;
    of.turned = turned(span);
    of.key_floor = span.key_floor;
    of.key_base = span.key_base;
    of.key_div = span.key_div;
    of.diagonal = span.diagonal;
    of.ranked = span.ranked;
    lists_.spans.push_back(of);
  }

  // Of a tile's rows those of queries [q, q + count) and of heads [head, head + heads) among its own.
  struct SomeRows {
    int64_t q, count;
    int head, heads;
  };

  void add_tile(const tiling::Tile& tile, const SomeRows& rows) {
    AttentionTile of;
    of.first = tile.first + rows.q * tile.step;
    of.step = tile.step;
    of.count = static_cast<int32_t>(rows.count);
    of.heads = rows.heads;
    of.first_head = tile.first_head + rows.head;
    of.kv_head = tile.kv_head;
    of.selected = tile.selected;
    of.in_block = static_cast<int32_t>(tile.in_block + rows.q * tile.stride);
    of.place = static_cast<int32_t>(tile.place(rows.q * tile.heads));
    of.stride = static_cast<int32_t>(tile.stride);
    const auto index = static_cast<int32_t>(lists_.tiles.size());
    lists_.tiles.push_back(of);

    const size_t first_work = lists_.works.size();
    const Shown shown{tile.first_common, tile.first_piece, tile.n_pieces, tile.old_before, rows.q, rows.count};
    if (!tile.selected && first_work > 0 && shown == shown_) {
      for (size_t w = first_shown_; w < first_work; ++w) {
        const AttentionWork same = lists_.works[w];
        lists_.works.push_back({index, same.first_piece, same.end_piece});
      }
    } else {
      add_works(tile, rows, index);
    }
    shown_ = tile.selected ? Shown() : shown;
    first_shown_ = first_work;
    const size_t n = lists_.works.size() - first_work;
    if (n == 1) return;
    lists_.merges.push_back({index, lists_.n_parts, static_cast<int32_t>(n)});
    for (size_t w = first_work; w < lists_.works.size(); ++w) lists_.works[w].part = lists_.n_parts++;
  }

  // The pieces of these rows of the tile, and works over them, one for each part.
  void add_works(const tiling::Tile& tile, const SomeRows& rows, int32_t index) {
    const auto first_piece = static_cast<int32_t>(lists_.pieces.size());
    const size_t first_work = lists_.works.size();
    int64_t part = -1;
    const auto [begin, end] = cut_.in_window(tile, options_.window);
    for (int64_t p = begin; p < end; ++p) {
      const tiling::Piece& piece = cut_.piece(tile, p);
      if (!add_piece(piece, tile, rows)) continue;
      const auto now = static_cast<int32_t>(lists_.pieces.size()) - 1;
      // Condensed entries, which come last, are in the part of the text's last keys.
      const bool text = piece.span->kind == KvKind::kText;
      const int64_t its =
          options_.part_keys > 0 && text ? piece.begin / options_.part_keys : std::max<int64_t>(part, 0);
      if (its != part) lists_.works.push_back({index, now, now});
      part = its;
      lists_.works.back().end_piece = now + 1;
    }
    if (lists_.works.size() == first_work) lists_.works.push_back({index, first_piece, first_piece});
  }

  // False: none of these rows of the tile selected it.
  bool add_piece(const tiling::Piece& piece, const tiling::Tile& tile, const SomeRows& rows) {
    const Span& span = *piece.span;
    AttentionPiece of;
    of.begin = piece.begin;
    of.end = piece.end;
    of.chunk = piece.chunk;
    const int64_t chunk_first = piece.chunk * options_.chunk;
    of.base = span.key_period > 0 ? static_cast<double>(chunk_first - span.base_of(piece.begin))
                                  : span.key_position(chunk_first);
    of.span = first_span_ + static_cast<int32_t>(piece.span - plan_.spans.data());
    of.kind = static_cast<int32_t>(tiling::records_read(tile, piece));
    of.first_pick = static_cast<int32_t>(lists_.picks.size());
    for (const tiling::Pick& pick : cut_.picks_of(tile, piece)) {
      const int64_t q = pick.row / tile.heads - rows.q, head = pick.row % tile.heads - rows.head;
      if (q < 0 || q >= rows.count || head < 0 || head >= rows.heads) continue;
      lists_.picks.push_back({static_cast<int32_t>(q * rows.heads + head), pick.rank});
    }
    of.n_picks = static_cast<int32_t>(lists_.picks.size()) - of.first_pick;
    if (tile.selected && of.n_picks == 0) return false;
    lists_.pieces.push_back(of);
    return true;
  }

  // Which pieces a tile sees. The tiles of a block's KV heads see the same ones, and follow each other: they are listed
  // once.
  struct Shown {
    int64_t first_common = 0;
    int64_t first_piece = -1;
    int64_t n_pieces = 0;
    int64_t old_before = 0;
    int64_t q = 0;
    int64_t count = 0;
    bool operator==(const Shown&) const = default;
  };

  const Plan& plan_;
  const tiling::Pieces& cut_;
  const ListOptions& options_;
  AttentionLists& lists_;
  const int32_t first_span_;
  Shown shown_;             // by the tile before
  size_t first_shown_ = 0;  // its works begin here, and end where this tile's begin
};

}  // namespace

void append_lists(const Plan& plan, const tiling::Pieces& cut, const ListOptions& options, AttentionLists& lists) {
  Lister(plan, cut, options, lists).run();
}

}  // namespace quire::cuda
