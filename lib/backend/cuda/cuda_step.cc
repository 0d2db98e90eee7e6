#include "lib/backend/cuda/cuda_step.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace quire::cuda {
namespace {

constexpr int64_t kAlignment = 256;
// Few tiles are spread over the device by parts: as many blocks of threads as its processors work on at a time, so that
// all end together. Keys of a part at least, and parts of a tile at most: a lane of the merging warp weighs two.
constexpr int64_t kBlocks = 2;
constexpr int64_t kLeastPart = 256;
constexpr int64_t kMostParts = 64;

// Of the tiles of plans.
struct TileCounts {
  int64_t most_rows = 0;  // of a tile, before it is cut at kTileRows
  int64_t n_tiles = 0;    // that see keys
  int64_t n_full = 0;     // as many as all rows would fill
};

// Where heads have lists of their own, so they have tiles; of the classes of a head's queries one sees keys.
void count_tiles(const Plan& plan, const QueryBlock& block, int n_query_heads, int n_kv_heads, TileCounts& of) {
  if (!block.per_head) {
    const int64_t rows = block.n_queries * (n_query_heads / n_kv_heads);
    of.most_rows = std::max(of.most_rows, rows);
    of.n_tiles += ceil_div(rows, kTileRows) * n_kv_heads;
    of.n_full += ceil_div(rows, kTileRows) * n_kv_heads;
    return;
  }
  for (int head = 0; head < n_query_heads; ++head) {
    const int64_t rows = ceil_div(block.n_queries, tiling::query_stride(plan, block, head));
    of.most_rows = std::max(of.most_rows, rows);
    of.n_tiles += ceil_div(rows, kTileRows);
  }
  of.n_full += ceil_div(block.n_queries * n_query_heads, kTileRows);
}

}  // namespace

// ---- ListPool

Result<ListMemory> ListPool::take(size_t bytes) {
  {
    MutexLock lock(mutex_);
    // The least that suffices, and of equals always the same: steps whose lists lie where they lay can be graphs.
    const auto rank = [](const ListMemory& of) { return std::pair(of.host.size(), of.device.data()); };
    auto fits = kept_.end();
    for (auto m = kept_.begin(); m != kept_.end(); ++m) {
      if (m->host.size() >= bytes && (fits == kept_.end() || rank(*m) < rank(*fits))) fits = m;
    }
    if (fits != kept_.end()) {
      ListMemory taken = std::move(*fits);
      kept_.erase(fits);
      return taken;
    }
  }
  const size_t size = std::bit_ceil(std::max<size_t>(bytes, size_t{64} << 10));
  ListMemory made;
  QUIRE_ASSIGN(made.host, DeviceMemory::make(device_, size, MemoryKind::kStaging));
  QUIRE_ASSIGN(made.device, DeviceMemory::make(device_, size, MemoryKind::kDevice));
  total_ += static_cast<int64_t>(size);
  return made;
}

void ListPool::give_back(ListMemory memory) {
  if (memory.device.data() == nullptr) return;
  ListMemory dropped;  // freed without the lock
  MutexLock lock(mutex_);
  kept_.push_back(std::move(memory));
  if (kept_.size() <= kMostKept) return;
  const auto least = std::ranges::min_element(kept_, {}, [](const ListMemory& m) { return m.host.size(); });
  dropped = std::move(*least);
  kept_.erase(least);
  total_ -= static_cast<int64_t>(dropped.device.size());
}

// ---- ListLayout

size_t ListLayout::add(const void* data, size_t bytes) {
  const size_t at = bytes_;
  arrays_.push_back({data, bytes, at});
  bytes_ += static_cast<size_t>(round_up(static_cast<int64_t>(bytes), kAlignment));
  return at;
}

void ListLayout::write(std::byte* to) const {
  for (const Array& array : arrays_) {
    if (array.bytes > 0) std::memcpy(to + array.at, array.data, array.bytes);
  }
}

ListsOnDevice::ListsOnDevice(const AttentionLists& lists, ListLayout& layout)
    : tiles(layout.add(lists.tiles)),
      pieces(layout.add(lists.pieces)),
      spans(layout.add(lists.spans)),
      picks(layout.add(lists.picks)),
      works(layout.add(lists.works)),
      merges(layout.add(lists.merges)),
      n_works(static_cast<int64_t>(lists.works.size())),
      n_merges(static_cast<int64_t>(lists.merges.size())),
      n_parts(lists.n_parts) {}

void ListsOnDevice::set(const std::byte* base, Attention& args) const {
  args.tiles = reinterpret_cast<const AttentionTile*>(base + tiles);
  args.pieces = reinterpret_cast<const AttentionPiece*>(base + pieces);
  args.spans = reinterpret_cast<const AttentionSpan*>(base + spans);
  args.picks = reinterpret_cast<const AttentionPick*>(base + picks);
  args.works = reinterpret_cast<const AttentionWork*>(base + works) + first_work;
  args.n_works = n_works;
  args.merges = reinterpret_cast<const AttentionMerge*>(base + merges) + first_merge;
  args.n_merges = n_merges;
}

// ---- CudaStep

ListOptions CudaStep::list_options(const Sequence& sequence) {
  return {.chunk = sequence.geometry.chunk,
          .stored_div = {sequence.stored_div, 1, sequence.stored_div},
          .part_keys = sequence.part_keys,
          .tile_rows = sequence.tile_rows};
}

int64_t CudaStep::part_keys(int64_t n_keys, int64_t n_tiles, int n_processors, int64_t chunk) {
  if (n_tiles > kBlocks * n_processors / 2 || n_tiles == 0) return 0;
  const int64_t parts = std::min(kMostParts, kBlocks * n_processors / n_tiles);
  return round_up(std::max(kLeastPart, ceil_div(n_keys, parts)), chunk);
}

void CudaStep::cut(std::span<const StepSequence> all, const DeviceFacts& device) {
  struct Range {
    int64_t first_work, n_works, first_merge, n_merges;
    int32_t n_parts;
  };
  std::vector<Range> ranges;
  sequences_.reserve(all.size());
  for (const StepSequence& given : all) {
    Sequence& own = sequences_.emplace_back();
    static_cast<StepSequence&>(own) = given;
    own.first_index = add_index(given.first_key);
    int64_t n_keys = 0;
    TileCounts tiles;
    bool selects = false;
    for (const QueryBlock& block : given.plan->blocks) {
      const int64_t last = block.first_query + (block.n_queries - 1) * block.step;
      n_keys = std::max(n_keys, last + 1);
      count_tiles(*given.plan, block, n_query_heads, given.geometry.n_kv_heads, tiles);
      selects = selects || block.selected;
    }
    own.part_keys = part_keys(n_keys, tiles.n_tiles, device.n_processors, given.geometry.chunk);
    own.few = own.part_keys > 0 && tiles.most_rows <= kFewTileRows;
    // As many wide tiles as processors, of which each works on one at a time, or nearly so many.
    const bool many = 8 * tiles.n_full * kTileRows >= 7 * device.n_processors * int64_t{kWideTileRows};
    const bool may_be_wide = device.warpgroups && !is_large_head(given.geometry.head_dim) && !selects;
    if (may_be_wide && many && own.part_keys == 0) own.tile_rows = kWideTileRows;
    own.pieces = tiling::cut_pieces(
        {*given.plan, n_query_heads, given.geometry.n_kv_heads, given.geometry.chunk, given.old, own.tile_rows});
    const auto first_work = static_cast<int64_t>(lists_.works.size());
    const auto first_merge = static_cast<int64_t>(lists_.merges.size());
    const auto first_span = static_cast<int32_t>(lists_.spans.size());
    lists_.n_parts = 0;  // sequences use the same memory, one after the other
    append_lists(*own.plan, own.pieces, list_options(own), lists_);
    own.plain = !selects && !own.old.narrows() &&
                std::all_of(lists_.spans.begin() + first_span, lists_.spans.end(), [](const AttentionSpan& span) {
                  return !span.turned && !span.diagonal && !span.ranked && span.stride == 1 && span.lag_stride == 1;
                });
    ranges.push_back({first_work, static_cast<int64_t>(lists_.works.size()) - first_work, first_merge,
                      static_cast<int64_t>(lists_.merges.size()) - first_merge, lists_.n_parts});
    add_scored(own);
    add_chosen(own, first_span, device.n_processors);
  }
  const ListsOnDevice together(lists_, layout_);
  for (const Range& range : ranges) {
    ListsOnDevice& own = places_.emplace_back(together);
    own.first_work = range.first_work;
    own.n_works = range.n_works;
    own.first_merge = range.first_merge;
    own.n_merges = range.n_merges;
    own.n_parts = range.n_parts;
  }
  indexes_at_ = layout_.add(indexes_);
  score_spans_at_ = layout_.add(score_spans_);
  chosen_tiles_at_ = layout_.add(chosen_tiles_);
  chosen_keys_at_ = layout_.add(chosen_keys_);
  chosen_spans_at_ = layout_.add(chosen_spans_);
  chosen_merges_at_ = layout_.add(chosen_merges_);
  for (Sequence& own : sequences_) {
    own.query_scale = layout_.add(own.plan->query_scale);
    own.sticky = layout_.add(own.plan->sticky);
  }
}

void CudaStep::add_scored(Sequence& sequence) {
  const Plan& plan = *sequence.plan;
  int64_t row = 0;
  for (const QueryBlock& block : plan.blocks) {
    if (block.selected) {
      const Plan::List& list = plan.list(block, 0);
      const auto first = static_cast<int64_t>(score_spans_.size());
      for (int32_t s = list.begin; s < list.end; ++s) {
        const Span& span = plan.spans[static_cast<size_t>(s)];
        ScoreSpan of;
        of.first_key = span.first_key;
        of.count = (span.count - 1) * span.stride + 1;
        of.q_div = span.q_div;
        of.q_offset = span.q_offset;
        of.q_cap = span.q_cap;
        of.q_floor = span.q_floor;
        of.key_base = span.key_base;
        of.key_period = span.key_period;
        score_spans_.push_back(of);
      }
      sequence.scored.push_back({&block, row, add_index(block.first_query), first, list.end - list.begin});
    }
    row += block.n_queries;
  }
}

// first_span: where the lists have the plan's spans.
void CudaStep::add_chosen(Sequence& sequence, int32_t first_span, int n_processors) {
  const Plan& plan = *sequence.plan;
  const int group = n_query_heads / sequence.geometry.n_kv_heads;
  if (sequence.scored.empty() || sequence.scored.size() != plan.blocks.size() || group > kTileRows) return;
  ChosenTiles own;
  own.first_tile = static_cast<int64_t>(chosen_tiles_.size());
  own.first_span = static_cast<int64_t>(chosen_spans_.size());
  own.first_merge = static_cast<int64_t>(chosen_merges_.size());
  int64_t n_rows = 0, pieces = 0;  // of a tile, of a chunk: at most
  for (const ScoredBlock& scored : sequence.scored) {
    const QueryBlock& block = *scored.block;
    ChosenKeys keys;
    keys.first_span = static_cast<int32_t>(static_cast<int64_t>(chosen_spans_.size()) - own.first_span);
    keys.n_spans = scored.n_spans;
    pieces = std::max(pieces, add_chosen_spans(plan, block, first_span));
    add_chosen_tiles(sequence, scored, keys);
    own.n_chunks = std::max(own.n_chunks, (block.first_query + block.n_queries - 1) / plan.selection.chunk + 1);
    n_rows = std::max(n_rows, std::min<int64_t>(block.n_queries, kTileRows / group) * group);
  }
  own.n_tiles = static_cast<int64_t>(chosen_tiles_.size()) - own.first_tile;
  own.most_picks = n_rows * plan.most_selected();
  const int64_t most_chunks = std::min(own.most_picks, own.n_chunks);
  own.most_pieces = most_chunks * pieces;
  const auto bytes = static_cast<int64_t>(sizeof(AttentionPiece)) * own.most_pieces +
                     static_cast<int64_t>(sizeof(AttentionPick)) * own.most_picks;
  if (own.n_tiles * bytes > kMostListBytes) {
    chosen_tiles_.resize(static_cast<size_t>(own.first_tile));
    chosen_keys_.resize(chosen_tiles_.size());
    chosen_spans_.resize(static_cast<size_t>(own.first_span));
    return;
  }
  // Where there is one tile for each KV head, as of a token, a part may be a chunk.
  const bool few = own.n_tiles == sequence.geometry.n_kv_heads;
  const int64_t most_parts = few ? most_chunks : ceil_div(most_chunks * plan.selection.chunk, kLeastPart);
  own.n_parts =
      static_cast<int>(std::clamp<int64_t>(kBlocks * n_processors / own.n_tiles, 1, std::min(kMostParts, most_parts)));
  for (int32_t tile = 0; own.n_parts > 1 && tile < own.n_tiles; ++tile) {
    chosen_merges_.push_back({tile, tile * own.n_parts, own.n_parts});
  }
  sequence.chosen = own;
}

// Returns how many pieces they cut a chunk into at most.
int64_t CudaStep::add_chosen_spans(const Plan& plan, const QueryBlock& block, int32_t first_span) {
  const Plan::List& list = plan.list(block, 0);
  int64_t pieces = 0;
  for (int32_t s = list.begin; s < list.end; ++s) {
    const Span& span = plan.spans[static_cast<size_t>(s)];
    pieces += 1 + (span.key_period > 0 ? ceil_div(plan.selection.chunk, span.key_period) : 0);
    ChosenSpan of;
    of.first_key = span.first_key;
    of.end_key = span.first_key + (span.count - 1) * span.stride + 1;
    of.min_lag = span.min_lag;
    of.key_base = span.key_base;
    of.key_period = span.key_period;
    of.key_div = span.key_div;
    of.key_floor = span.key_floor;
    of.span = first_span + s;
    chosen_spans_.push_back(of);
  }
  return pieces;
}

// A tile's queries read the same keys from narrow records. The tiles of all KV heads follow each other.
void CudaStep::add_chosen_tiles(const Sequence& sequence, const ScoredBlock& scored, const ChosenKeys& keys) {
  const KvGeometry& g = sequence.geometry;
  const QueryBlock& block = *scored.block;
  const int group = n_query_heads / g.n_kv_heads;
  const auto old_before = [&](int64_t q) { return sequence.old.before(block.first_query + q, g.chunk); };
  for (int64_t q = 0, count = 0; q < block.n_queries; q += count) {
    count = std::min<int64_t>(kTileRows / group, block.n_queries - q);
    while (old_before(q + count - 1) != old_before(q)) --count;
    AttentionTile tile;
    tile.first = block.first_query + q;
    tile.count = static_cast<int32_t>(count);
    tile.heads = group;
    tile.selected = true;
    tile.in_block = static_cast<int32_t>(q);
    tile.place = static_cast<int32_t>(scored.first_row + q);
    for (tile.kv_head = 0; tile.kv_head < g.n_kv_heads; ++tile.kv_head) {
      tile.first_head = tile.kv_head * group;
      chosen_tiles_.push_back(tile);
      chosen_keys_.push_back(keys);
      chosen_keys_.back().old_before = old_before(q);
    }
  }
}

void CudaStep::set_chosen(int sequence, Attention& args, ListChosen& of) const {
  const Sequence& s = at(sequence);
  const ChosenTiles& own = s.chosen;
  const std::byte* const base = memory_.device.data();
  (void)set_lists(sequence, args);  // spans
  args.tiles = of.tiles = reinterpret_cast<const AttentionTile*>(base + chosen_tiles_at_) + own.first_tile;
  args.merges = reinterpret_cast<const AttentionMerge*>(base + chosen_merges_at_) + own.first_merge;
  args.n_merges = own.n_parts > 1 ? own.n_tiles : 0;
  args.n_works = own.n_tiles * own.n_parts;
  of.keys = reinterpret_cast<const ChosenKeys*>(base + chosen_keys_at_) + own.first_tile;
  of.spans = reinterpret_cast<const ChosenSpan*>(base + chosen_spans_at_) + own.first_span;
  of.n_tiles = own.n_tiles;
  of.n_parts = own.n_parts;
  of.most_pieces = own.most_pieces;
  of.most_picks = own.most_picks;
  of.width = s.plan->most_selected();
  of.n_query_heads = n_query_heads;
  of.chunk = s.plan->selection.chunk;
  of.stored_chunk = s.geometry.chunk;
  of.n_chunks = own.n_chunks;
}

Status CudaStep::upload(CudaQueue& queue) {
  QUIRE_ASSIGN(memory_, pool_.take(layout_.bytes()));
  layout_.write(memory_.host.data());
  lists_ = {};
  return queue.add("copying the step's lists", nullptr, [&](const DeviceApi& api, Stream s) {
    return api.upload(s, memory_.device.data(), memory_.host.data(), layout_.bytes());
  });
}

int32_t CudaStep::set_lists(int sequence, Attention& args) const {
  const ListsOnDevice& own = places_[static_cast<size_t>(sequence)];
  own.set(memory_.device.data(), args);
  return own.n_parts;
}

}  // namespace quire::cuda
