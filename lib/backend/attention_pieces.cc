#include "lib/backend/attention_pieces.h"

#include <algorithm>
#include <utility>

namespace quire::tiling {
namespace {

class Cutter {
 public:
  // selection: null to cut the blocks without one. pool: for the others; may be null.
  Cutter(const CutArgs& args, const int32_t* selection, ThreadPool* pool)
      : plan_(args.plan),
        n_heads_(args.n_query_heads),
        l_(args.chunk),
        old_(args.old),
        tile_rows_(args.tile_rows),
        group_(args.n_query_heads / args.n_kv_heads),
        selection_(selection),
        pool_(pool) {}
  Pieces run();

 private:
  int64_t of_one_age(const QueryBlock& block, int64_t q, int64_t stride, int64_t count) const;
  Tile tile_at(const QueryBlock& block, int64_t in_plan, int64_t q, int64_t count) const;
  void push(Tile& tile);
  void add_block(const QueryBlock& block, int64_t in_plan);
  void add_head(const QueryBlock& block, int head, int64_t in_plan);
  int64_t lag_stride(const Plan::List& list) const;
  int64_t first_key(const Plan::List& list) const;
  void add_list(const Plan::List& list, const Tile& tile);
  void sort_picks();
  void sort_picks(size_t tile);
  void add_selected(size_t tile);

  const Plan& plan_;
  int n_heads_;
  int64_t l_;
  OldText old_;
  const int64_t tile_rows_;
  int group_;
  const int32_t* selection_;
  ThreadPool* pool_;
  Pieces out_;
  // Of blocks with a selection. Tiles are made first, with room for their picks, which are then sorted by chunk, a tile
  // at a time, and at last cut into pieces.
  struct TilePicks {
    const QueryBlock* block;
    size_t first;       // of the tile's, in out_.picks
    size_t first_ends;  // in ends_
    int64_t n_chunks;
  };
  std::vector<TilePicks> tile_picks_;  // of each tile
  size_t n_picks_ = 0;                 // of all tiles at most
  std::vector<int32_t> ends_;          // of a tile: where in its picks those of each chunk end
};

// The first key after `key` whose position counts from another base.
int64_t period_end(const Span& span, int64_t key) {
  return span.key_period == 0 ? kNoLimit : span.base_of(key) + span.key_period;
}

Pieces Cutter::run() {
  int64_t in_plan = 0;
  for (const QueryBlock& block : plan_.blocks) {
    if (block.selected != (selection_ != nullptr)) {
      // The other call's.
    } else if (block.per_head) {
      for (int head = 0; head < n_heads_; ++head) add_head(block, head, in_plan);
    } else {
      add_block(block, in_plan);
    }
    in_plan += block.n_queries;
  }
  if (selection_) {
    sort_picks();
    for (size_t tile = 0; tile < out_.tiles.size(); ++tile) add_selected(tile);
  }
  return std::move(out_);
}

// How many of the block's queries q, q + stride, ..., at most `count`, read the same keys from narrow records.
int64_t Cutter::of_one_age(const QueryBlock& block, int64_t q, int64_t stride, int64_t count) const {
  const auto at = [&](int64_t t) { return old_.before(block.first_query + (q + t * stride) * block.step, l_); };
  if (at(0) == at(count - 1)) return count;
  int64_t same = 1;
  while (at(same) == at(0)) ++same;
  return same;
}

// A tile of `count` queries from the block's q-th on.
Tile Cutter::tile_at(const QueryBlock& block, int64_t in_plan, int64_t q, int64_t count) const {
  Tile tile{};
  tile.first = block.first_query + q * block.step;
  tile.step = block.step;
  tile.stride = 1;
  tile.count = count;
  tile.selected = block.selected;
  tile.in_block = q;
  tile.in_plan = in_plan + q;
  tile.old_before = old_.before(tile.first, l_);
  return tile;
}

void Cutter::push(Tile& tile) {
  tile.n_pieces = static_cast<int32_t>(out_.pieces.size()) - tile.first_piece;
  out_.tiles.push_back(tile);
  out_.most_rows = std::max(out_.most_rows, tile.rows());
}

void Cutter::add_block(const QueryBlock& block, int64_t in_plan) {
  const int64_t tile_queries = std::max<int64_t>(1, (block.selected ? kSelectedTileRows : tile_rows_) / group_);
  int64_t count = 0;
  for (int64_t q = 0; q < block.n_queries; q += count) {
    count = of_one_age(block, q, 1, std::min(tile_queries, block.n_queries - q));
    Tile tile = tile_at(block, in_plan, q, count);
    tile.heads = group_;
    for (int head = 0; head < n_heads_; head += group_) {
      tile.first_head = head;
      tile.kv_head = head / group_;
      if (head == 0) tile.first_piece = static_cast<int32_t>(out_.pieces.size());
      if (block.selected) {
        const int64_t n_chunks = tile.query(tile.rows() - 1) / plan_.selection.chunk + 1;
        tile_picks_.push_back({&block, n_picks_, ends_.size(), n_chunks});
        n_picks_ += static_cast<size_t>(tile.rows() * plan_.most_selected());
        ends_.resize(ends_.size() + static_cast<size_t>(n_chunks));
      } else if (head == 0) {
        add_list(plan_.list(block, 0), tile);
      }
      push(tile);
    }
  }
}

// The queries of a residue class that sees nothing have tiles without pieces.
void Cutter::add_head(const QueryBlock& block, int head, int64_t in_plan) {
  const Plan::List& list = plan_.list(block, head);
  const int64_t stride = block.step == 1 ? lag_stride(list) : 1;
  for (int64_t residue = 0; residue < std::min(stride, block.n_queries); ++residue) {
    const bool sees = stride == 1 || (block.first_query + residue - first_key(list)) % stride == 0;
    int64_t count = 0;
    for (int64_t q = residue; q < block.n_queries; q += count * stride) {
      count = of_one_age(block, q, stride, std::min(tile_rows_, ceil_div(block.n_queries - q, stride)));
      Tile tile = tile_at(block, in_plan, q, count);
      tile.step *= stride;
      tile.stride = stride;
      tile.heads = 1;
      tile.first_head = head;
      tile.kv_head = head / group_;
      tile.first_piece = static_cast<int32_t>(out_.pieces.size());
      if (sees) add_list(list, tile);
      push(tile);
    }
  }
}

// The list's keys are of one residue class modulo the result, and so are the queries that see any; 1: of any class.
int64_t Cutter::lag_stride(const Plan::List& list) const {
  int64_t common = 1;
  for (int32_t s = list.begin; s < list.end; ++s) {
    const Span& span = plan_.spans[static_cast<size_t>(s)];
    if (s == list.begin) common = span.lag_stride;
    if (span.lag_stride != common || span.stride % common != 0) return 1;
    if ((span.first_key - first_key(list)) % common != 0) return 1;
  }
  return common;
}

int64_t Cutter::first_key(const Plan::List& list) const {
  return plan_.spans[static_cast<size_t>(list.begin)].first_key;
}

void Cutter::add_list(const Plan::List& list, const Tile& tile) {
  const size_t before = out_.pieces.size();
  for (int32_t s = list.begin; s < list.end; ++s) {
    const Span& span = plan_.spans[static_cast<size_t>(s)];
    int64_t begin = span.first_key;
    int64_t last = span.first_key + (span.count - 1) * span.stride;
    if (span.diagonal) {
      begin = tile.diagonal_key(span, 0);
      last = std::min(last, begin + tile.count - 1);
    } else {
      if (span.max_lag != kNoLimit) begin = std::max(begin, tile.first - span.max_lag);
      last = std::min(last, tile.first + (tile.count - 1) * tile.step - span.min_lag);
    }
    for (int64_t at = begin; at <= last;) {
      const int64_t chunk = at / l_;
      const int64_t end = std::min({last + 1, (chunk + 1) * l_, period_end(span, at)});
      out_.pieces.push_back({&span, at, end, chunk});
      at = end;
    }
  }
  // Several spans over the same keys: chunk by chunk, so that windows of chunks keep the order; in a chunk those for
  // greater lags first, so that it does not hang on where the block's spans begin.
  const auto before_in_text = [](const Piece& a, const Piece& b) {
    if (a.span->kind != b.span->kind) return a.span->kind < b.span->kind;
    return a.chunk != b.chunk ? a.chunk < b.chunk : a.span->min_lag > b.span->min_lag;
  };
  std::stable_sort(out_.pieces.begin() + static_cast<std::ptrdiff_t>(before), out_.pieces.end(), before_in_text);
}

void Cutter::sort_picks() {
  constexpr size_t kFewPicks = 1 << 14;  // sorted sooner than other threads wake
  out_.picks.resize(n_picks_);
  const auto n_tiles = static_cast<int64_t>(out_.tiles.size());
  const auto sort = [this](int64_t tile, int) { sort_picks(static_cast<size_t>(tile)); };
  if (pool_ && n_picks_ > kFewPicks) {
    (void)pool_->run(n_tiles, nullptr, sort);
  } else {
    for (int64_t tile = 0; tile < n_tiles; ++tile) sort(tile, 0);
  }
}

// By the chunks that the rows selected, in each by row. Any thread.
void Cutter::sort_picks(size_t index) {
  const Tile& tile = out_.tiles[index];
  const TilePicks& of = tile_picks_[index];
  int32_t* const ends = ends_.data() + of.first_ends;
  Pick* const picks = out_.picks.data() + of.first;
  const int64_t width = plan_.most_selected();
  const auto for_picks = [&](const auto& use) {
    for (int64_t row = 0; row < tile.rows(); ++row) {
      const int64_t head = tile.first_head + row % tile.heads;
      const int32_t* own = selection_ + (tile.place(row) * n_heads_ + head) * width;
      for (int32_t rank = 0; rank < width && own[rank] >= 0; ++rank) {
        use(own[rank], Pick{static_cast<int32_t>(row), rank});
      }
    }
  };
  for_picks([&](int32_t chunk, const Pick&) { ++ends[chunk]; });
  int32_t before = 0;
  for (int64_t chunk = 0; chunk < of.n_chunks; ++chunk) before += std::exchange(ends[chunk], before);
  for_picks([&](int32_t chunk, const Pick& pick) { picks[ends[chunk]++] = pick; });
}

void Cutter::add_selected(size_t index) {
  Tile& tile = out_.tiles[index];
  const TilePicks& of = tile_picks_[index];
  const Plan::List& list = plan_.list(*of.block, 0);
  const int64_t n_keys = plan_.selection.chunk;  // it divides the stored chunk
  tile.first_piece = static_cast<int32_t>(out_.pieces.size());
  int32_t before = 0;
  for (int64_t chunk = 0; chunk < of.n_chunks; ++chunk) {
    const int32_t first = before, n_picks = ends_[of.first_ends + static_cast<size_t>(chunk)] - first;
    if (n_picks == 0) continue;
    before += n_picks;
    for (int32_t s = list.begin; s < list.end; ++s) {
      const Span& span = plan_.spans[static_cast<size_t>(s)];
      const int64_t begin = std::max(span.first_key, chunk * n_keys);
      const int64_t end = std::min({span.first_key + (span.count - 1) * span.stride + 1, (chunk + 1) * n_keys,
                                    tile.first + tile.count - span.min_lag});
      for (int64_t at = begin; at < end;) {
        const int64_t stop = std::min(end, period_end(span, at));
        out_.pieces.push_back({&span, at, stop, at / l_, static_cast<int32_t>(of.first) + first, n_picks});
        at = stop;
      }
    }
  }
  tile.n_pieces = static_cast<int32_t>(out_.pieces.size()) - tile.first_piece;
}

}  // namespace

std::pair<int32_t, int32_t> Pieces::in_window(const Tile& tile, const AttentionArgs::Window& window) const {
  const auto begin = pieces.begin() + tile.first_piece, end = begin + tile.n_pieces;
  // Text pieces come first, with ascending chunks.
  const auto from = [&](int64_t chunk) {
    const auto before = [&](const Piece& p) { return p.span->kind == KvKind::kText && p.chunk < chunk; };
    return static_cast<int32_t>(std::partition_point(begin, end, before) - pieces.begin());
  };
  const int32_t last = window.last ? tile.first_piece + tile.n_pieces : from(window.end_chunk);
  return {window.first ? tile.first_piece : from(window.first_chunk), last};
}

Pieces cut_pieces(const CutArgs& args) { return Cutter(args, nullptr, nullptr).run(); }

Pieces cut_selected(const CutArgs& args, const int32_t* selection, ThreadPool* pool) {
  return Cutter(args, selection, pool).run();
}

}  // namespace quire::tiling
