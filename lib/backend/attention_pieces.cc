#include "lib/backend/attention_pieces.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <span>
#include <utility>

namespace quire::tiling {
namespace {

using TilePicks = CutMemory::TilePicks;
using Word = CutMemory::Word;
using Run = CutMemory::Run;

constexpr int64_t kWordChunks = 64;

// Where the chunk stands among those that were selected, of which it is one.
int32_t place(const Word& word, int64_t chunk) {
  return word.before + std::popcount(word.chunks & ((uint64_t{1} << (chunk % kWordChunks)) - 1));
}

int64_t first_key(const Plan& plan, const Plan::List& list) {
  return plan.spans[static_cast<size_t>(list.begin)].first_key;
}

// The list's keys are of one residue class modulo the result, and so are the queries that see any; 1: of any class.
int64_t lag_stride(const Plan& plan, const Plan::List& list) {
  int64_t common = 1;
  for (int32_t s = list.begin; s < list.end; ++s) {
    const Span& span = plan.spans[static_cast<size_t>(s)];
    if (s == list.begin) common = span.lag_stride;
    if (span.lag_stride != common || span.stride % common != 0) return 1;
    if ((span.first_key - first_key(plan, list)) % common != 0) return 1;
  }
  return common;
}

class Cutter {
 public:
  // selection: null to cut the blocks without one. pool: for the others; may be null.
  Cutter(const CutArgs& args, const int32_t* selection, ThreadPool* pool, CutMemory& memory, Pieces& out)
      : plan_(args.plan),
        n_heads_(args.n_query_heads),
        l_(args.chunk),
        old_(args.old),
        tile_rows_(args.tile_rows),
        group_(args.n_query_heads / args.n_kv_heads),
        selection_(selection),
        pool_(pool),
        out_(out),
        memory_(memory) {}
  void run();

 private:
  int64_t of_one_age(const QueryBlock& block, int64_t q, int64_t stride, int64_t count) const;
  Tile tile_at(const QueryBlock& block, int64_t in_plan, int64_t q, int64_t count) const;
  void push(Tile& tile);
  void add_block(const QueryBlock& block, int64_t in_plan);
  void add_head(const QueryBlock& block, int head, int64_t in_plan);
  // A part of a span.
  struct Keys {
    int64_t begin;
    int64_t last;
  };
  Keys seen(const Span& span, const Tile& tile) const;
  int64_t end_of_common(const Plan::List& list, const Tile& first) const;
  void add_pieces(const Span& span, Keys keys);
  void sort_pieces(int64_t first);
  void add_common(const Plan::List& list, const Tile& first);
  void add_own(const Plan::List& list, Tile& tile);
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
  Pieces& out_;
  // Pieces that tiles of the block share: of text chunks before end_chunk.
  struct Common {
    int64_t first;
    int64_t n;
    int64_t end_chunk;
  };
  Common common_{};
  // Of blocks with a selection. Tiles are made first, with room for their picks, which are then sorted by chunk, a tile
  // at a time, and at last cut into pieces.
  CutMemory& memory_;
  size_t n_picks_ = 0;  // of all tiles at most
  size_t n_runs_ = 0;   // likewise
};

// The first key after `key` whose position counts from another base.
int64_t period_end(const Span& span, int64_t key) {
  return span.key_period == 0 ? kNoLimit : span.base_of(key) + span.key_period;
}

void Cutter::run() {
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
    size_t n_runs = 0;
    for (const TilePicks& of : memory_.tiles) n_runs += static_cast<size_t>(of.n_runs);
    out_.pieces.reserve(n_runs);  // or a few more, where spans end within chunks
    for (size_t tile = 0; tile < out_.tiles.size(); ++tile) add_selected(tile);
  }
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
  tile.n_pieces = tile.n_common + std::ssize(out_.pieces) - tile.first_piece;
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
      if (block.selected) {
        const int64_t n_chunks = tile.query(tile.rows() - 1) / plan_.selection.chunk + 1;
        const int64_t n_picks = tile.rows() * plan_.most_selected();
        tile.first_pick = static_cast<int64_t>(n_picks_);
        memory_.tiles.push_back({&block, n_picks_, memory_.words.size(), n_runs_});
        n_picks_ += static_cast<size_t>(n_picks);
        n_runs_ += static_cast<size_t>(std::min(n_picks, n_chunks));
        memory_.words.resize(memory_.words.size() + static_cast<size_t>(ceil_div(n_chunks, kWordChunks)));
      } else if (head == 0) {
        if (q == 0) add_common(plan_.list(block, 0), tile);
        add_own(plan_.list(block, 0), tile);
      }
      push(tile);
    }
  }
}

// The queries of a residue class that sees nothing have tiles without pieces.
void Cutter::add_head(const QueryBlock& block, int head, int64_t in_plan) {
  const Plan::List& list = plan_.list(block, head);
  const int64_t stride = query_stride(plan_, block, head);
  for (int64_t residue = 0; residue < std::min(stride, block.n_queries); ++residue) {
    const bool sees = stride == 1 || (block.first_query + residue - first_key(plan_, list)) % stride == 0;
    int64_t count = 0;
    for (int64_t q = residue; q < block.n_queries; q += count * stride) {
      count = of_one_age(block, q, stride, std::min(tile_rows_, ceil_div(block.n_queries - q, stride)));
      Tile tile = tile_at(block, in_plan, q, count);
      tile.step *= stride;
      tile.stride = stride;
      tile.heads = 1;
      tile.first_head = head;
      tile.kv_head = head / group_;
      tile.first_piece = std::ssize(out_.pieces);
      if (sees && q == residue) add_common(list, tile);
      if (sees) add_own(list, tile);
      push(tile);
    }
  }
}

// May be none, where last < begin. Both ends ascend from tile to tile.
Cutter::Keys Cutter::seen(const Span& span, const Tile& tile) const {
  Keys keys{span.first_key, span.first_key + (span.count - 1) * span.stride};
  if (span.diagonal) {
    keys.begin = tile.diagonal_key(span, 0);
    keys.last = std::min(keys.last, keys.begin + tile.count - 1);
  } else {
    if (span.max_lag != kNoLimit) keys.begin = std::max(keys.begin, tile.first - span.max_lag);
    keys.last = std::min(keys.last, tile.first + (tile.count - 1) * tile.step - span.min_lag);
  }
  return keys;
}

// The first text chunk of which tiles behind `first` may see other keys than it.
int64_t Cutter::end_of_common(const Plan::List& list, const Tile& first) const {
  int64_t end = kNoLimit;
  for (int32_t s = list.begin; s < list.end; ++s) {
    const Span& span = plan_.spans[static_cast<size_t>(s)];
    if (span.kind != KvKind::kText) continue;
    const Keys keys = seen(span, first);
    if (span.diagonal || span.max_lag != kNoLimit) {
      end = std::min(end, keys.begin / l_);
    } else if (keys.last < span.first_key + (span.count - 1) * span.stride) {
      end = std::min(end, std::max(keys.begin, keys.last) / l_);
    }
  }
  return end;
}

void Cutter::add_pieces(const Span& span, Keys keys) {
  for (int64_t at = keys.begin; at <= keys.last;) {
    const int64_t chunk = at / l_;
    const int64_t end = std::min({keys.last + 1, (chunk + 1) * l_, period_end(span, at)});
    out_.pieces.push_back({&span, at, end, chunk});
    at = end;
  }
}

// Several spans over the same keys: chunk by chunk, so that windows of chunks keep the order; in a chunk those for
// greater lags first, so that it does not hang on where the block's spans begin.
void Cutter::sort_pieces(int64_t first) {
  const auto before_in_text = [](const Piece& a, const Piece& b) {
    if (a.span->kind != b.span->kind) return a.span->kind < b.span->kind;
    return a.chunk != b.chunk ? a.chunk < b.chunk : a.span->min_lag > b.span->min_lag;
  };
  std::stable_sort(out_.pieces.begin() + first, out_.pieces.end(), before_in_text);
}

// first: of the tiles that share them.
void Cutter::add_common(const Plan::List& list, const Tile& first) {
  common_ = {std::ssize(out_.pieces), 0, end_of_common(list, first)};
  for (int32_t s = list.begin; s < list.end; ++s) {
    const Span& span = plan_.spans[static_cast<size_t>(s)];
    if (span.kind != KvKind::kText) continue;
    Keys keys = seen(span, first);
    if (common_.end_chunk != kNoLimit) keys.last = std::min(keys.last, common_.end_chunk * l_ - 1);
    add_pieces(span, keys);
  }
  sort_pieces(common_.first);
  common_.n = std::ssize(out_.pieces) - common_.first;
}

void Cutter::add_own(const Plan::List& list, Tile& tile) {
  tile.first_common = common_.first;
  tile.n_common = common_.n;
  tile.first_piece = std::ssize(out_.pieces);
  for (int32_t s = list.begin; s < list.end; ++s) {
    const Span& span = plan_.spans[static_cast<size_t>(s)];
    Keys keys = seen(span, tile);
    if (span.kind == KvKind::kText) {
      if (common_.end_chunk == kNoLimit) continue;
      keys.begin = std::max(keys.begin, common_.end_chunk * l_);
    }
    add_pieces(span, keys);
  }
  sort_pieces(tile.first_piece);
}

void Cutter::sort_picks() {
  constexpr size_t kFewPicks = 1 << 14;  // sorted sooner than other threads wake
  out_.picks.resize(n_picks_);
  memory_.runs.resize(n_runs_);
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
  TilePicks& of = memory_.tiles[index];
  const auto next = index + 1 < memory_.tiles.size() ? memory_.tiles[index + 1].first_word : memory_.words.size();
  const std::span words(memory_.words.data() + of.first_word, next - of.first_word);
  Run* const runs = memory_.runs.data() + of.first_run;
  Pick* const picks = out_.picks.data() + of.first;
  const int64_t width = plan_.most_selected();
  const auto for_picks = [&](const auto& use) {
    for (int64_t row = 0; row < tile.rows(); ++row) {
      const int64_t head = tile.first_head + row % tile.heads;
      const int32_t* own = selection_ + (tile.place(row) * n_heads_ + head) * width;
      for (int32_t rank = 0; rank < width && own[rank] >= 0; ++rank) {
        use(own[rank], words[static_cast<size_t>(own[rank] / kWordChunks)], Pick{static_cast<int32_t>(row), rank});
      }
    }
  };
  for_picks([](int32_t chunk, Word& word, const Pick&) { word.chunks |= uint64_t{1} << (chunk % kWordChunks); });
  int32_t n = 0;
  for (size_t w = 0; w < words.size(); ++w) {
    words[w].before = n;
    for (uint64_t left = words[w].chunks; left != 0; left &= left - 1) {
      runs[n++] = {static_cast<int32_t>(w) * static_cast<int32_t>(kWordChunks) + std::countr_zero(left), 0};
    }
  }
  of.n_runs = n;
  for_picks([&](int32_t chunk, const Word& word, const Pick&) { ++runs[place(word, chunk)].end; });
  int32_t before = 0;
  for (int32_t r = 0; r < n; ++r) before += std::exchange(runs[r].end, before);
  for_picks([&](int32_t chunk, const Word& word, const Pick& pick) { picks[runs[place(word, chunk)].end++] = pick; });
}

void Cutter::add_selected(size_t index) {
  Tile& tile = out_.tiles[index];
  const TilePicks& of = memory_.tiles[index];
  const Plan::List& list = plan_.list(*of.block, 0);
  const int64_t n_keys = plan_.selection.chunk;  // it divides the stored chunk
  tile.first_piece = std::ssize(out_.pieces);
  int32_t first = 0;
  for (const Run& run : std::span(memory_.runs.data() + of.first_run, static_cast<size_t>(of.n_runs))) {
    const int64_t chunk = run.chunk;
    const int32_t n_picks = run.end - std::exchange(first, run.end);
    for (int32_t s = list.begin; s < list.end; ++s) {
      const Span& span = plan_.spans[static_cast<size_t>(s)];
      const int64_t begin = std::max(span.first_key, chunk * n_keys);
      const int64_t end = std::min({span.first_key + (span.count - 1) * span.stride + 1, (chunk + 1) * n_keys,
                                    tile.first + tile.count - span.min_lag});
      for (int64_t at = begin; at < end;) {
        const int64_t stop = std::min(end, period_end(span, at));
        out_.pieces.push_back({&span, at, stop, at / l_, run.end - n_picks, n_picks});
        at = stop;
      }
    }
  }
  tile.n_pieces = std::ssize(out_.pieces) - tile.first_piece;
}

}  // namespace

std::pair<int64_t, int64_t> Pieces::in_window(const Tile& tile, const AttentionArgs::Window& window) const {
  // Text pieces come first, with ascending chunks.
  const auto before = [this](int64_t first, int64_t n, int64_t chunk) {
    const auto is_before = [chunk](const Piece& p) { return p.span->kind == KvKind::kText && p.chunk < chunk; };
    const auto begin = pieces.begin() + first;
    return std::partition_point(begin, begin + n, is_before) - begin;
  };
  const auto from = [&](int64_t chunk) {
    const int64_t common = before(tile.first_common, tile.n_common, chunk);
    if (common < tile.n_common) return common;
    return common + before(tile.first_piece, tile.n_pieces - tile.n_common, chunk);
  };
  const int64_t last = window.last ? tile.n_pieces : from(window.end_chunk);
  return {window.first ? 0 : from(window.first_chunk), last};
}

int64_t query_stride(const Plan& plan, const QueryBlock& block, int head) {
  return block.step == 1 ? lag_stride(plan, plan.list(block, head)) : 1;
}

Pieces cut_pieces(const CutArgs& args) {
  CutMemory memory;
  Pieces pieces;
  Cutter(args, nullptr, nullptr, memory, pieces).run();
  return pieces;
}

void cut_selected(const CutArgs& args, const int32_t* selection, ThreadPool* pool, CutMemory& memory, Pieces& out) {
  memory.tiles.clear();
  memory.words.clear();
  out.clear();
  Cutter(args, selection, pool, memory, out).run();
}

}  // namespace quire::tiling
