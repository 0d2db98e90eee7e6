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
  const int64_t old = options_.old.before(next_query, geometry_.chunk) / geometry_.chunk;
  advance_narrow(old);
  const int64_t end = std::min(old - kSpareChunks, narrow_until_);
  if (end <= full_from_) return;
  drop(KvKind::kText, full_from_, end);
  full_from_ = end;
}

// ---- making narrow records

// Finds the chunks that are old for the last of the tokens [first, first + n) and have no narrow records. Those that
// other stores have made are this one's too from here on.
void ChunkStore::find_to_narrow(int64_t first, int64_t n) {
  drop_unmade();
  const int64_t end = options_.old.before(first + n - 1, geometry_.chunk) / geometry_.chunk;
  if (end <= narrow_until_) return;
  std::vector<int64_t> chunks = table_.extend(KvKind::kNarrow, narrow_until_, end);
  // Those that the strategy dropped have none.
  std::erase_if(chunks, [&](int64_t chunk) {
    return (chunk < first / geometry_.chunk && !table_.holds(KvKind::kText, chunk)) || join_narrow(chunk);
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
  hold_shared(KvKind::kNarrow, chunk, *records);
  enter_narrow(chunk);
  return true;
}

void ChunkStore::narrowed() noexcept {
  for (const int64_t chunk : to_narrow_) {
    if (chunk >= n_prefixes()) break;  // entered with its full records
    try {
      enter_narrow(chunk);
    } catch (const std::bad_alloc&) {  // others make their own
    }
  }
  to_narrow_.clear();
}

// To `end` at most.
void ChunkStore::advance_narrow(int64_t end) {
  if (!to_narrow_.empty()) return;  // not made yet
  while (narrow_until_ < end &&
         (table_.holds(KvKind::kNarrow, narrow_until_) || !table_.holds(KvKind::kText, narrow_until_)))
    ++narrow_until_;
}

void ChunkStore::drop_unmade() {
  for (const int64_t chunk : to_narrow_) drop(KvKind::kNarrow, chunk, chunk + 1);
  to_narrow_.clear();
}

// ---- prefixes
//
// A text has two chains in the table: with its full records, of which old ones are missing, and with its narrow ones.

// Both chains have one chunk more, or none, at an exception too.
bool ChunkStore::append_prefix(std::span<const int32_t> ids) {
  if (!prefixes_.append(ids)) return false;
  if (!options_.old.narrows()) return true;
  struct Undo {
    PrefixChain* chain;
    ~Undo() {
      if (chain) chain->cut(chain->size() - 1);
    }
  } undo{&prefixes_};
  if (!narrow_prefixes_.append(ids)) return false;
  undo.chain = nullptr;
  return true;
}

void ChunkStore::enter_narrow(int64_t chunk) {
  const PrefixPages pages = selection_.pages_of(chunk * geometry_.chunk, (chunk + 1) * geometry_.chunk);
  if (narrow_prefixes_.holds(chunk) && pages.empty()) return;
  narrow_prefixes_.enter(chunk, table_.chunk(KvKind::kNarrow, chunk), pages);
}

// To how many of the chunks that follow, with these ids, the text can be lengthened: records of all of them are known,
// and the full ones of those that the next query reads at full width.
int64_t ChunkStore::known_prefix(std::span<const std::vector<int32_t>> ids) {
  struct Restore {
    PrefixChain& chain;
    const int64_t size = chain.size();
    ~Restore() { chain.cut(size); }
  } full{prefixes_}, narrow{narrow_prefixes_};
  const int64_t first = full.size;
  int64_t best = 0, in_full = 0;  // chunks in a row up to here whose full records are known
  for (size_t n = 0; n < ids.size(); ++n) {
    const bool is_full = prefixes_.knows(ids.subspan(n, 1));
    if (!is_full && !narrow_prefixes_.knows(ids.subspan(n, 1))) break;
    in_full = is_full ? in_full + 1 : 0;
    const int64_t end = first + static_cast<int64_t>(n) + 1;
    const int64_t old = options_.old.before(end * geometry_.chunk, geometry_.chunk) / geometry_.chunk;
    if (end - std::max(first, old) <= in_full) best = end - first;
    if (!append_prefix(ids[n])) break;
  }
  return best;
}

// As adopt(): all chunks that are known, as far as the next query can go on from there, or none. Of old ones narrow
// records are taken if there are any.
Result<ChunkStore::Adopted> ChunkStore::adopt_narrow(std::vector<std::vector<int32_t>> ids) {
  const int64_t first = n_prefixes();
  const auto n_asked = static_cast<int64_t>(ids.size());
  ids.resize(static_cast<size_t>(known_prefix(ids)));
  const int64_t n = first + static_cast<int64_t>(ids.size());
  const int64_t full_from = options_.old.before(n * geometry_.chunk, geometry_.chunk) / geometry_.chunk;
  QUIRE_ASSIGN(Adopted adopted, take_chunks(ids, false, true, [&](int64_t chunk) {
                 return chunk < full_from ? std::vector{KvKind::kNarrow, KvKind::kText} : std::vector{KvKind::kText};
               }));
  if (adopted.end != AdoptEnd::kAll) {
    truncate(first * geometry_.chunk);
    return Adopted{0, adopted.end};
  }
  enter_held(first, n);
  if (n < first + n_asked) adopted.end = AdoptEnd::kUnknown;
  return adopted;
}

// The first `end` chunks of what a snapshot has, as far as others hold records of them. What they hold in one type
// alone, or not in the snapshot's, is read from it in the other; and what would have to be copied.
Result<int64_t> ChunkStore::adopt_restored(const StoreSnapshot& snapshot, int64_t end, const ChunkIds& ids_of) {
  QUIRE_ASSIGN(const auto ids, prefix_ids(0, end, ids_of));
  QUIRE_ASSIGN(const Adopted adopted, take_chunks(ids, true, false, [&](int64_t chunk) {
                 std::vector<KvKind> kinds;
                 for (const KvKind kind : {KvKind::kNarrow, KvKind::kText}) {
                   if (snapshot.has(kind, chunk)) kinds.push_back(kind);
                 }
                 return kinds;
               }));
  return adopted.n_chunks;
}

}  // namespace quire
