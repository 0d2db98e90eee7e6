// How a chunk store shares the chunks of its text with others: ChunkStore's part of prefixes.
#include <algorithm>
#include <string>
#include <utility>

#include "lib/kv/chunk_store.h"
#include "lib/kv/prefix_cache.h"

namespace quire {

void ChunkStore::enter_prefixes(int64_t first, int64_t end, const ChunkIds& ids_of) {
  if (!shares_prefixes() || first >= end) return;
  // Pages may be others by now, which have taken the place of shared ones.
  const int64_t page_chunks = selection_.chunk() * Representations::kPageChunks / geometry_.chunk;
  for (int64_t chunk = page_chunks > 1 ? first / page_chunks * page_chunks : first; chunk < end; ++chunk) {
    if (chunk == n_prefixes()) {
      const std::vector<int32_t> ids = ids_of(chunk);
      if (ids.empty() || !append_prefix(ids)) return;
    }
    enter_held(chunk, chunk + 1);
  }
}

// Others may take over these chunks: all of their representations are there.
void ChunkStore::enter_held(int64_t first, int64_t end) {
  for (int64_t chunk = first; chunk < end; ++chunk) {
    if (table_.holds(KvKind::kText, chunk)) enter_prefix(chunk);
    if (table_.holds(KvKind::kNarrow, chunk)) enter_narrow(chunk);
  }
}

void ChunkStore::enter_prefix(int64_t chunk) {
  const PrefixPages pages = selection_.pages_of(chunk * geometry_.chunk, (chunk + 1) * geometry_.chunk);
  if (prefixes_.holds(chunk) && pages.empty()) return;
  prefixes_.enter(chunk, table_.chunk(KvKind::kText, chunk), pages);
}

bool ChunkStore::knows_prefix(int64_t chunk, const ChunkIds& ids_of) const {
  if (!shares_prefixes()) return false;
  std::vector<std::vector<int32_t>> following;
  for (int64_t c = n_prefixes(); c <= chunk; ++c) {
    following.push_back(ids_of(c));
    if (following.back().empty()) return false;
  }
  return prefixes_.knows(following) || narrow_prefixes_.knows(following);
}

// The store became a holder of these records, which another one had.
void ChunkStore::hold_shared(KvKind kind, int64_t chunk, ChunkRecords& records) {
  table_.hold(kind, chunk, records);
  if (!records.page) return;
  const auto bytes = static_cast<int64_t>(records.page->size());
  account_.hold_shared(bytes);
  fixed_bytes_ += bytes;
}

// Records that cannot leave memory, while all of this store's can: it takes a copy of them.
bool ChunkStore::must_copy(const ChunkRecords& records) const { return writes_to_tier() && records.page; }

// Whether this store may have the records of a chunk of which others know, beside what representations of the tokens
// [first, end) take.
bool ChunkStore::can_take(const ChunkRecords& records, int64_t first, int64_t end) const {
  const int64_t room = account_.own_room();
  if (room == kNoLimit) return true;
  // Behind it comes a chunk of its own. Of records with slots one at a time is in memory at least, and the staging
  // buffer.
  const bool fixed = records.page && !must_copy(records);
  const int64_t bytes = fixed ? 2 * static_cast<int64_t>(records.page->size()) : 2 * record_bytes_;
  return room >= bytes + selection_.bytes_to_add(first, end);
}

// The tokens of chunks as the table of prefixes has them.
Result<std::vector<std::vector<int32_t>>> ChunkStore::prefix_ids(int64_t first, int64_t end, const ChunkIds& ids_of) {
  std::vector<std::vector<int32_t>> ids;
  for (int64_t chunk = first; chunk < end; ++chunk) {
    ids.push_back(ids_of(chunk));
    if (ids.back().empty()) return Status(Code::kInternal, "chunk " + std::to_string(chunk) + " takes no part");
  }
  return ids;
}

Result<ChunkStore::Adopted> ChunkStore::adopt(int64_t end, const ChunkIds& ids_of) {
  QUIRE_ASSIGN(auto ids, prefix_ids(n_prefixes(), end, ids_of));
  if (options_.old.narrows()) return adopt_narrow(std::move(ids));
  const int64_t first = n_prefixes();
  QUIRE_ASSIGN(const Adopted adopted, take_chunks(ids, true, true, [](int64_t) { return std::vector{KvKind::kText}; }));
  enter_held(first, first + adopted.n_chunks);
  return adopted;
}

// The text has one chunk more in the chain of a kind, whose records the store holds too, or, if `copies`, has a copy
// of. begin: where what is taken over begins.
Result<PrefixChain::Take> ChunkStore::take_prefix(KvKind kind, std::span<const int32_t> ids, int64_t begin, bool copies,
                                                  PrefixPages* pages) {
  PrefixChain& chain = kind == KvKind::kNarrow ? narrow_prefixes_ : prefixes_;
  const int64_t chunk = chain.size(), at = chunk * geometry_.chunk;
  table_.extend(kind, chunk, chunk + 1);
  const size_t n_pages = selection_.n_pages_of(at, at + geometry_.chunk);
  ChunkRecords* records = nullptr;
  bool needs_spill = false;
  const auto accept = [&](const ChunkRecords& known) {
    needs_spill = known.tier && !spills();
    return !needs_spill && (copies || !must_copy(known)) && can_take(known, begin, at + geometry_.chunk);
  };
  const auto take = [&] { return chain.take(ids, n_pages, *residency_, user_, accept, &records, pages); };
  PrefixChain::Take taken = take();
  if (needs_spill) {
    QUIRE_TRY(let_spill());
    taken = take();
  }
  if (taken != PrefixChain::Take::kTaken) return taken;
  if (!must_copy(*records)) {
    hold_shared(kind, chunk, *records);
    return taken;
  }
  Result<ChunkRecords*> copy = Status(Code::kOutOfMemory, "out of memory");
  try {
    copy = copy_of(kind, *records);
  } catch (const std::bad_alloc&) {  // nobody but this function knows that the store holds them
  }
  chain.leave(chunk);
  residency_->let_go(user_, *records);
  if (copy.ok()) {
    table_.hold(kind, chunk, **copy);
    return taken;
  }
  chain.cut(chunk);
  pages->clear();
  return PrefixChain::Take::kRefused;
}

// The text has one chunk more, of which the store holds what others have of these kinds: `all` of them, or the first
// one. kTaken: one at least.
Result<PrefixChain::Take> ChunkStore::take_kinds(std::span<const KvKind> kinds, bool all, std::span<const int32_t> ids,
                                                 int64_t begin, bool copies, PrefixPages* pages) {
  const int64_t chunk = n_prefixes();
  PrefixChain::Take taken = PrefixChain::Take::kUnknown;
  for (const KvKind kind : kinds) {
    if (taken == PrefixChain::Take::kTaken && !all) break;
    PrefixPages own;
    QUIRE_ASSIGN(const PrefixChain::Take take, take_prefix(kind, ids, begin, copies, &own));
    if (take == PrefixChain::Take::kTaken) *pages = std::move(own);
    if (taken != PrefixChain::Take::kTaken) taken = take;
  }
  if (taken != PrefixChain::Take::kTaken) return taken;
  for (PrefixChain* chain : {&prefixes_, &narrow_prefixes_}) {
    if (!chain->takes_part() || chain->size() > chunk || chain->append(ids)) continue;
    truncate(chunk * geometry_.chunk);  // another text has its hash
    return PrefixChain::Take::kUnknown;
  }
  return taken;
}

// Takes over chunks of these ids behind n_prefixes(), one after the other, as far as it can. The caller enters them.
Result<ChunkStore::Adopted> ChunkStore::take_chunks(std::span<const std::vector<int32_t>> ids, bool all_kinds,
                                                    bool copies,
                                                    const std::function<std::vector<KvKind>(int64_t)>& kinds_of) {
  const int64_t first = n_prefixes(), begin = first * geometry_.chunk;
  const int64_t page_tokens = selection_.chunk() * Representations::kPageChunks;
  Adopted adopted;
  PrefixPages pages;  // of all chunks that are taken over, from the first one's page on
  for (const std::vector<int32_t>& own_ids : ids) {
    const int64_t chunk = first + adopted.n_chunks;
    PrefixPages own;
    QUIRE_ASSIGN(const PrefixChain::Take taken, take_kinds(kinds_of(chunk), all_kinds, own_ids, begin, copies, &own));
    if (taken != PrefixChain::Take::kTaken) {
      adopted.end = taken == PrefixChain::Take::kUnknown ? AdoptEnd::kUnknown : AdoptEnd::kNoRoom;
      break;
    }
    ++adopted.n_chunks;
    // A page's last chunk has those before it, too.
    if (own.empty()) continue;
    pages.resize(static_cast<size_t>(chunk * geometry_.chunk / page_tokens - begin / page_tokens) *
                 static_cast<size_t>(table_.n_layers()));
    pages.insert(pages.end(), own.begin(), own.end());
  }
  const int64_t n = first + adopted.n_chunks;
  table_.shorten(KvKind::kText, std::min(n, table_.n_chunks(KvKind::kText)));
  table_.shorten(KvKind::kNarrow, std::min(n, table_.n_chunks(KvKind::kNarrow)));
  if (adopted.n_chunks > 0 && !adopt_selection(begin, n * geometry_.chunk, std::move(pages)).ok()) {
    truncate(begin);
    return Adopted{0, AdoptEnd::kNoRoom};
  }
  note_hits(first, adopted.n_chunks);
  return adopted;
}

// The chunks were taken over.
void ChunkStore::note_hits(int64_t first_chunk, int64_t n_chunks) {
  if (!options_.cache || n_chunks == 0) return;
  std::vector<ChunkRecords*> records;
  for (int64_t chunk = first_chunk; chunk < first_chunk + n_chunks; ++chunk) {
    records.push_back(&table_.chunk(table_.holds(KvKind::kText, chunk) ? KvKind::kText : KvKind::kNarrow, chunk));
  }
  options_.cache->hit(first_chunk, records, geometry_.chunk);
}

std::vector<ChunkStore::Kept> ChunkStore::keep_prefix() {
  std::vector<Kept> kept;
  for (int64_t chunk = 0; chunk < n_prefixes(); ++chunk) {
    Kept records{};
    const auto add = [&](KvKind kind, const PrefixChain& chain) {
      if (!chain.holds(chunk) || in_snapshot(table_.chunk(kind, chunk))) return;
      records[kind == KvKind::kText ? 0 : 1] = &table_.chunk(kind, chunk);
    };
    add(KvKind::kText, prefixes_);
    add(KvKind::kNarrow, narrow_prefixes_);
    if (!records[0] && !records[1]) break;
    kept.push_back(records);
  }
  drop_moves(kNoLimit);
  const auto n = static_cast<int64_t>(kept.size());
  truncate(n * geometry_.chunk);
  // What others cannot take over, of chunks that they can.
  for (int64_t chunk = 0; chunk < n; ++chunk) {
    const Kept& records = kept[static_cast<size_t>(chunk)];
    if (!records[0]) drop(KvKind::kText, chunk, chunk + 1);
    if (!records[1]) drop(KvKind::kNarrow, chunk, chunk + 1);
  }
  selection_.drop_queries();
  // No chunk that is kept is in the snapshot, which may be in use no longer than sessions read it.
  const size_t n_written = tiers_.n_full + tiers_.n_narrow;
  residency_->keep(user_, n_written);
  tiers_.all.resize(n_written);
  options_.snapshot = nullptr;
  return kept;
}

int64_t ChunkStore::bytes_beside() const {
  return selection_.bytes() + (spills() ? staging_bytes() - Residency::staging_left(user_) : 0);
}

Status ChunkStore::adopt_selection(int64_t first, int64_t end, PrefixPages pages) {
  if (pages.empty()) return {};
  QUIRE_TRY(make_room(selection_.bytes_to_add(first, end)));
  return selection_.adopt(first, end, std::move(pages));
}

}  // namespace quire
