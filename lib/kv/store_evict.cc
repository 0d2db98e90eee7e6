// Text that no query to come sees: ChunkStore's part of it.
//
// Many strategies show a query the last keys alone, or these and a few others, and layers of a model may have a window
// of their own, whose records of a chunk are an object by themselves (RecordKind::kWindow). What no query to come sees
// is dropped. The text could then go on at its end only; so what was seen from the last kSpareChunks chunks is kept,
// and what is seen at a few places before them, until a budget has no room for it.
#include <algorithm>
#include <array>
#include <utility>

#include "lib/kv/chunk_store.h"

namespace quire {
namespace {

constexpr std::array kKindsOfText = {RecordKind::kText, RecordKind::kNarrow};
constexpr std::array kKindsOfWindows = {RecordKind::kWindow};

// Ascending disjoint ranges of what is in these, or in one of `others` and before `end`.
void unite(std::vector<KeyRange>& ranges, std::span<const KeyRange> others, int64_t end) {
  for (const KeyRange& other : others) {
    if (other.begin < end) ranges.push_back({other.begin, std::min(other.end, end)});
  }
  std::ranges::sort(ranges, {}, &KeyRange::begin);
  size_t n = 0;
  for (const KeyRange& range : ranges) {
    if (n > 0 && range.begin <= ranges[n - 1].end) {
      ranges[n - 1].end = std::max(ranges[n - 1].end, range.end);
    } else {
      ranges[n++] = range;
    }
  }
  ranges.resize(n);
}

// What stays of a kind of records, of whose keys queries from some q on see those in seen(q). A text that is cut to n
// tokens goes on with query n - 1.
template <typename Seen>
std::vector<KeyRange> kept_of(int64_t first_spare, std::span<const int64_t> places, int64_t chunk, const Seen& seen) {
  std::vector<KeyRange> kept = seen(first_spare);
  for (const int64_t place : places) {
    unite(kept, seen(std::max<int64_t>(0, ((place - 1) / chunk - 1) * chunk)), place);
  }
  return kept;
}

}  // namespace

std::vector<KeyRange> ChunkStore::seen_text(int64_t next_query) const {
  return options_.seen ? options_.seen(next_query) : std::vector<KeyRange>{{0, kNoLimit}};
}

std::vector<KeyRange> ChunkStore::seen_in_windows(int64_t next_query) const {
  return {{options_.windowed.first_seen(next_query), kNoLimit}};
}

bool ChunkStore::holds_windows(int64_t next_query) const {
  if (!options_.windowed.any()) return true;
  return table_.holds(RecordKind::kWindow, options_.windowed.first_seen(next_query) / geometry_.chunk,
                      ceil_div(next_query, geometry_.chunk));
}

bool ChunkStore::can_go_on(int64_t next_query) const {
  // The rows before the query in its own chunk, for the chunk must not be made anew without them.
  if (!holds(next_query / geometry_.chunk * geometry_.chunk, next_query)) return false;
  return holds_windows(next_query) && std::ranges::all_of(seen_text(next_query), [&](const KeyRange& range) {
           return holds_for(next_query, range.begin, std::min(range.end, next_query));
         });
}

bool ChunkStore::has_key_in(std::span<const KeyRange> ranges, int64_t chunk) const {
  return std::ranges::any_of(ranges, [&](const KeyRange& range) {
    return range.begin < (chunk + 1) * geometry_.chunk && range.end > chunk * geometry_.chunk;
  });
}

int64_t ChunkStore::first_spare_query(int64_t next_query, int64_t chunk) {
  return std::max<int64_t>(0, ((next_query - 1) / chunk - kSpareChunks) * chunk);
}

bool ChunkStore::passes(int64_t next_query) const {
  return (options_.seen || options_.windowed.any()) && first_spare_query(next_query, geometry_.chunk) > passed_;
}

ChunkStore::KeptKeys ChunkStore::kept_keys(int64_t next_query, std::span<const int64_t> places) const {
  KeptKeys kept{.next_query = next_query};
  if (!passes(next_query)) return kept;
  const int64_t first_spare = first_spare_query(next_query, geometry_.chunk);
  kept.text = kept_of(first_spare, places, geometry_.chunk, [&](int64_t query) { return seen_text(query); });
  if (!options_.windowed.any()) return kept;
  kept.windowed = kept_of(first_spare, places, geometry_.chunk, [&](int64_t query) { return seen_in_windows(query); });
  if (options_.windowed.keeps_all) unite(kept.windowed, kept.text, kNoLimit);
  return kept;
}

void ChunkStore::drop_unseen(const KeptKeys& kept) {
  drop_old_text(kept.next_query);
  if (kept.text.empty()) return;
  passed_ = first_spare_query(kept.next_query, geometry_.chunk);
  drop_all_but(kKindsOfText, kept.text);
  if (options_.windowed.any()) drop_all_but(kKindsOfWindows, kept.windowed);
}

// Whether there was anything spare.
bool ChunkStore::drop_spare() {
  const int64_t before = n_evicted_;
  // Behind what was taken over queries see less of the text before it; but that has to stay until the step is settled.
  const bool takes_over = taken_over_.begin < taken_over_.end;
  const auto needed = [&](const auto& seen) {
    std::vector<KeyRange> ranges = seen(takes_over ? taken_over_.end : next_query_);
    if (takes_over) unite(ranges, seen(next_query_), taken_over_.begin);
    return ranges;
  };
  const std::vector<KeyRange> text = needed([&](int64_t query) { return seen_text(query); });
  if (options_.seen) drop_all_but(kKindsOfText, text);
  if (options_.windowed.any()) {
    std::vector<KeyRange> windowed = needed([&](int64_t query) { return seen_in_windows(query); });
    if (options_.windowed.keeps_all) unite(windowed, text, kNoLimit);
    drop_all_but(kKindsOfWindows, windowed);
  }
  std::erase_if(to_narrow_, [&](int64_t chunk) { return !table_.holds(RecordKind::kNarrow, chunk); });
  return n_evicted_ > before;
}

// Drops the records of these kinds of the chunks that have no key in these ranges, the last of which has no end.
void ChunkStore::drop_all_but(std::span<const RecordKind> kinds, std::span<const KeyRange> kept) {
  int64_t end = 0;  // of the range before
  for (const KeyRange& range : kept) {
    const int64_t end_chunk = std::min(range.begin / geometry_.chunk, table_.n_chunks(kinds.front()));
    for (int64_t chunk = ceil_div(end, geometry_.chunk); chunk < end_chunk; ++chunk) {
      if (std::ranges::none_of(kinds, [&](RecordKind kind) { return table_.holds(kind, chunk); })) continue;
      n_evicted_ += n_records(kinds.front());
      for (const RecordKind kind : kinds) drop(kind, chunk, chunk + 1);
    }
    end = range.end;
  }
}

}  // namespace quire
