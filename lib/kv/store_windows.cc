// Layers whose queries see the last keys of the text alone: ChunkStore's part of them.
//
// Such a layer's records of a chunk are an object of their own (RecordKind::kWindow), which goes when the window has
// passed it, while those of the other layers stay. Most of a text is held in the other layers alone then: so it can go
// on only where the records of a window before that place are left. A few places are kept for that, and the last
// kSpareChunks chunks before the window.
#include <algorithm>

#include "lib/kv/chunk_store.h"

namespace quire {

bool ChunkStore::holds_windows(int64_t next_query) const {
  if (!options_.windowed.any()) return true;
  return table_.holds(RecordKind::kWindow, options_.windowed.first_seen(next_query) / geometry_.chunk,
                      ceil_div(next_query, geometry_.chunk));
}

// The first of the chunks that stay for queries from next_query on, the spare ones among them; below 0: all do.
int64_t ChunkStore::first_spare_window(int64_t next_query) const {
  return options_.windowed.first_seen(next_query) / geometry_.chunk - kSpareChunks;
}

bool ChunkStore::passed_windows(int64_t next_query) const {
  return options_.windowed.any() && first_spare_window(next_query) > windows_until_;
}

// Nothing is allocated here: the step that it follows was taken.
void ChunkStore::drop_behind_windows(int64_t next_query, std::span<const int64_t> places) {
  if (!passed_windows(next_query)) return;
  const WindowLayers& windowed = options_.windowed;
  windows_until_ = first_spare_window(next_query);
  drop_windows(windows_until_, [&](int64_t chunk) {
    const int64_t first = chunk * geometry_.chunk;
    // What the strategy has dropped is of no use here either.
    if (windowed.keeps_all) return holds_any(first, first + geometry_.chunk);
    return std::ranges::any_of(places, [&](int64_t place) {
      const int64_t least = (place / geometry_.chunk - 1) * geometry_.chunk;
      return windowed.first_seen(least) / geometry_.chunk <= chunk && first < place;
    });
  });
}

// Whether there were any.
bool ChunkStore::drop_spare_windows() {
  if (!options_.windowed.drops()) return false;
  const int64_t before = n_evicted_;
  drop_windows(options_.windowed.first_seen(next_query_) / geometry_.chunk, [](int64_t) { return false; });
  return n_evicted_ > before;
}

// Those of the first chunks, before `end`, that is_kept(chunk) does not name.
template <typename IsKept>
void ChunkStore::drop_windows(int64_t end, const IsKept& is_kept) {
  for (int64_t chunk = 0; chunk < end; ++chunk) {
    if (!table_.holds(RecordKind::kWindow, chunk) || is_kept(chunk)) continue;
    n_evicted_ += n_records(RecordKind::kWindow);
    drop(RecordKind::kWindow, chunk, chunk + 1);
  }
}

}  // namespace quire
