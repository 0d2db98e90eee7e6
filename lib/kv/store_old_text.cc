// Old text in a narrower type: ChunkStore's part of it.
//
// A chunk has full records first. Its narrow ones are made of them (Backend::narrow_chunks) in the first step whose
// last query sees it as old. From then on a query reads one or the other, as its distance says (OldText): records of
// both are moved, shared and saved alike, so where they are, and when they were made, changes no bit. Full records go
// when no query to come reads them and there are narrow ones. So of most chunks a store has one kind or the other; it
// has both of kSpareChunks, and of those that both kinds of queries of a step read.
#include <algorithm>
#include <new>
#include <utility>

#include "lib/kv/chunk_store.h"

namespace quire {

bool ChunkStore::holds_for(int64_t next_query, int64_t begin, int64_t end) const {
  const int64_t old = std::clamp(options_.old.before(next_query, geometry_.chunk), begin, std::max(begin, end));
  return (old == end || holds(old, end)) && (old == begin || holds_any(begin, old));
}

void ChunkStore::drop_old_text(int64_t next_query) {
  next_query_ = next_query;
  taken_over_ = {0, 0};
  const int64_t old = options_.old.before(next_query, geometry_.chunk) / geometry_.chunk;
  advance_narrow(old);
  const int64_t end = std::min(old - kSpareChunks, narrow_until_);
  if (end <= full_from_) return;
  drop(RecordKind::kText, full_from_, end);
  full_from_ = end;
}

// ---- making narrow records

// Finds the chunks that are old for the last of the tokens [first, first + n) and have no narrow records. Those that
// other stores have made are this one's too from here on.
void ChunkStore::find_to_narrow(int64_t first, int64_t n) {
  drop_unmade();
  const int64_t end = options_.old.before(first + n - 1, geometry_.chunk) / geometry_.chunk;
  if (end <= narrow_until_) return;
  std::vector<int64_t> chunks = table_.extend(RecordKind::kNarrow, narrow_until_, end);
  // Those that the strategy dropped have none.
  std::erase_if(chunks, [&](int64_t chunk) {
    return (chunk < first / geometry_.chunk && !table_.holds(RecordKind::kText, chunk)) || join_narrow(chunk);
  });
  to_narrow_ = std::move(chunks);
}

// Whether another store has narrow records of the same text, which this one holds too then.
bool ChunkStore::join_narrow(int64_t chunk) {
  const int64_t first = chunk * geometry_.chunk;
  ChunkRecords* records = nullptr;
  const auto accept = [&](const ChunkRecords& known) {
    return (!known.tier || spills()) && !must_copy(known) && can_take(known, first, first);
  };
  if (!narrow_prefixes_.join(chunk, *residency_, user_, accept, &records)) return false;
  hold_shared(RecordKind::kNarrow, chunk, *records);
  enter_prefix(RecordKind::kNarrow, chunk);
  return true;
}

void ChunkStore::narrowed() noexcept {
  for (const int64_t chunk : to_narrow_) {
    if (chunk >= n_prefixes()) break;  // entered with its full records
    try {
      enter_prefix(RecordKind::kNarrow, chunk);
    } catch (const std::bad_alloc&) {  // others make their own
    }
  }
  to_narrow_.clear();
}

// To `end` at most.
void ChunkStore::advance_narrow(int64_t end) {
  if (!to_narrow_.empty()) return;  // not made yet
  while (narrow_until_ < end &&
         (table_.holds(RecordKind::kNarrow, narrow_until_) || !table_.holds(RecordKind::kText, narrow_until_)))
    ++narrow_until_;
}

void ChunkStore::drop_unmade() {
  for (const int64_t chunk : to_narrow_) drop(RecordKind::kNarrow, chunk, chunk + 1);
  to_narrow_.clear();
}

}  // namespace quire
