// How a chunk store shares the chunks of its text with others: ChunkStore's part of prefixes.
//
// A text has a chain in the table for each kind of records that it has: its full records, of which old ones are missing
// where these are narrow; its narrow ones; those of layers with a window, most of which are missing. Where the strategy
// drops what no query to come sees, so are most of any kind. A text is taken over up to a place where it can go on.
#include <algorithm>
#include <string>
#include <utility>

#include "lib/kv/chunk_store.h"
#include "lib/kv/prefix_cache.h"

namespace quire {
namespace {

bool is_of_text(RecordKind kind) { return kind != RecordKind::kWindow; }

}  // namespace

PrefixChain* ChunkStore::chain_of(RecordKind kind) {
  switch (kind) {
    case RecordKind::kText:
      return &prefixes_;
    case RecordKind::kNarrow:
      return &narrow_prefixes_;
    case RecordKind::kWindow:
      return &windowed_prefixes_;
    case RecordKind::kCondensed:
      break;
  }
  return nullptr;
}

// All chains have one chunk more, or none, at an exception too.
bool ChunkStore::append_prefix(std::span<const int32_t> ids) {
  struct Undo {
    std::vector<PrefixChain*> longer{};
    ~Undo() {
      for (PrefixChain* const chain : longer) chain->cut(chain->size() - 1);
    }
  } undo;
  undo.longer.reserve(kAllRecordKinds.size());
  for (const RecordKind kind : kAllRecordKinds) {
    PrefixChain* const chain = chain_of(kind);
    if (!chain || !chain->takes_part()) continue;
    if (!chain->append(ids)) return false;
    undo.longer.push_back(chain);
  }
  undo.longer.clear();
  return true;
}

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
    for (const RecordKind kind : kAllRecordKinds) {
      if (chain_of(kind) && table_.holds(kind, chunk)) enter_prefix(kind, chunk);
    }
  }
}

void ChunkStore::enter_prefix(RecordKind kind, int64_t chunk) {
  PrefixChain& chain = *chain_of(kind);
  PrefixPages pages;
  if (kind != RecordKind::kWindow) {
    pages = selection_.pages_of(chunk * geometry_.chunk, (chunk + 1) * geometry_.chunk);
  }
  if (chain.holds(chunk) && pages.empty()) return;
  chain.enter(chunk, table_.chunk(kind, chunk), pages);
}

bool ChunkStore::knows_prefix(int64_t chunk, const ChunkIds& ids_of) const {
  if (!shares_prefixes()) return false;
  std::vector<std::vector<int32_t>> following;
  for (int64_t c = n_prefixes(); c <= chunk; ++c) {
    following.push_back(ids_of(c));
    if (following.back().empty()) return false;
  }
  // Where most records are dropped, those of this chunk need not be there.
  if (has_gaps()) return prefixes_.knows_text(following);
  return prefixes_.knows(following) || narrow_prefixes_.knows(following);
}

// The store became a holder of these records, which another one had.
void ChunkStore::hold_shared(RecordKind kind, int64_t chunk, ChunkRecords& records) {
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

// The keys that others must hold of a text which goes on at this query. Where chunks are selected, that is all: their
// representations are shared by pages, which other chunks have parts of.
std::vector<KeyRange> ChunkStore::seen_of_shared(int64_t query) const {
  return has_gaps() ? seen_text(query) : std::vector<KeyRange>{{0, kNoLimit}};
}

// To how many of the chunks that follow, with these ids, the text can be lengthened: records of all that the next query
// sees there are known, in the type in which it reads them.
int64_t ChunkStore::known_prefix(std::span<const std::vector<int32_t>> ids) {
  struct Restore {
    PrefixChain& chain;
    const int64_t size = chain.size();
    ~Restore() { chain.cut(size); }
  } full{prefixes_}, narrow{narrow_prefixes_}, windowed{windowed_prefixes_};
  // Of the first n chunks that follow, how many are known in no type, not in the full one, and not in windows.
  struct Missing {
    std::vector<int64_t> counts{0};
    void add(bool known) { counts.push_back(counts.back() + (known ? 0 : 1)); }
    bool none(int64_t begin, int64_t end) const {
      return begin >= end || counts[static_cast<size_t>(begin)] == counts[static_cast<size_t>(end)];
    }
  } in_any, in_full, in_windows;
  const int64_t first = full.size;
  int64_t best = 0;
  for (size_t n = 0; n < ids.size(); ++n) {
    const auto next = ids.subspan(n, 1);
    const bool is_full = prefixes_.knows(next), is_any = is_full || narrow_prefixes_.knows(next);
    if (!is_any && !(has_gaps() && prefixes_.knows_text(next))) break;
    in_any.add(is_any);
    in_full.add(is_full);
    in_windows.add(windowed_prefixes_.knows(next));
    // Chunks from here on are counted behind the first one that follows.
    const int64_t end = static_cast<int64_t>(n) + 1, query = (first + end) * geometry_.chunk;
    const auto behind_first = [&](int64_t key) { return std::max<int64_t>(0, key / geometry_.chunk - first); };
    const int64_t old = behind_first(options_.old.before(query, geometry_.chunk));
    const bool goes_on = std::ranges::all_of(seen_of_shared(query), [&](const KeyRange& range) {
      const int64_t seen = behind_first(range.begin);
      const int64_t seen_end = range.end >= query ? end : behind_first(range.end + geometry_.chunk - 1);
      return in_any.none(seen, seen_end) && in_full.none(std::max(seen, old), seen_end);
    });
    const bool in_window =
        !options_.windowed.any() || in_windows.none(behind_first(options_.windowed.first_seen(query)), end);
    if (goes_on && in_window) best = end;
    if (!append_prefix(ids[n])) break;
  }
  return best;
}

Result<ChunkStore::Adopted> ChunkStore::adopt(int64_t end, const ChunkIds& ids_of) {
  const int64_t first = n_prefixes();
  QUIRE_ASSIGN(auto ids, prefix_ids(first, end, ids_of));
  const bool in_parts = options_.old.narrows() || options_.windowed.any() || has_gaps();
  const auto n_asked = static_cast<int64_t>(ids.size());
  // All chunks that are known, as far as the next query can go on from there, or none. Of old ones narrow records are
  // taken if there are any.
  if (in_parts) ids.resize(static_cast<size_t>(known_prefix(ids)));
  const int64_t query = (first + static_cast<int64_t>(ids.size())) * geometry_.chunk;
  const int64_t full_from = options_.old.before(query, geometry_.chunk) / geometry_.chunk;
  const std::vector<KeyRange> seen = seen_of_shared(query);
  const auto window_from = [&](int64_t of) { return options_.windowed.first_seen(of) / geometry_.chunk; };
  // With what queries from first_kept on see, if it is there.
  const auto take = [&](int64_t first_kept) {
    return take_chunks(ids, true, [&, kept = seen_of_shared(first_kept)](int64_t chunk) {
      WantedKinds wanted{.needs_text = has_key_in(seen, chunk)};
      if (has_key_in(kept, chunk)) {
        if (chunk < full_from && options_.old.narrows()) wanted.kinds.push_back(RecordKind::kNarrow);
        wanted.kinds.push_back(RecordKind::kText);
      }
      if (options_.windowed.any()) {
        wanted.needs_window = chunk >= window_from(query);
        if (chunk >= window_from(first_kept)) wanted.kinds.push_back(RecordKind::kWindow);
      }
      return wanted;
    });
  };
  // What is spare is taken as well, so that the text can be cut, unless there is no room for it.
  QUIRE_ASSIGN(Adopted adopted, take(first_spare_query(query, geometry_.chunk)));
  if (in_parts && adopted.end == AdoptEnd::kNoRoom) {
    truncate(first * geometry_.chunk);
    QUIRE_ASSIGN(adopted, take(query));
  }
  if (in_parts && adopted.end != AdoptEnd::kAll) {
    truncate(first * geometry_.chunk);
    return Adopted{0, adopted.end};
  }
  enter_held(first, first + adopted.n_chunks);
  if (adopted.n_chunks > 0) taken_over_ = {first * geometry_.chunk, query};
  if (adopted.end == AdoptEnd::kAll && adopted.n_chunks < n_asked) adopted.end = AdoptEnd::kUnknown;
  return adopted;
}

// The first `end` chunks of what a snapshot has, as far as others hold records of them. What they hold in one type
// alone, or not in the snapshot's, is read from it in the other; and what would have to be copied.
Result<int64_t> ChunkStore::adopt_restored(const StoreSnapshot& snapshot, int64_t end, const ChunkIds& ids_of) {
  QUIRE_ASSIGN(const auto ids, prefix_ids(0, end, ids_of));
  QUIRE_ASSIGN(const Adopted adopted, take_chunks(ids, false, [&](int64_t chunk) {
                 WantedKinds wanted{.each = true};
                 for (const RecordKind kind : {RecordKind::kNarrow, RecordKind::kText, RecordKind::kWindow}) {
                   if (snapshot.has(kind, chunk)) wanted.kinds.push_back(kind);
                 }
                 wanted.needs_text = std::ranges::any_of(wanted.kinds, is_of_text);
                 return wanted;
               }));
  return adopted.n_chunks;
}

// The text has one chunk more in the chain of a kind, whose records the store holds too, or, if `copies`, has a copy
// of. begin: where what is taken over begins.
Result<PrefixChain::Take> ChunkStore::take_prefix(RecordKind kind, std::span<const int32_t> ids, int64_t begin,
                                                  bool copies, PrefixPages* pages) {
  PrefixChain& chain = *chain_of(kind);
  const int64_t chunk = chain.size(), at = chunk * geometry_.chunk;
  table_.extend(kind, chunk, chunk + 1);
  const size_t n_pages = kind == RecordKind::kWindow ? 0 : selection_.n_pages_of(at, at + geometry_.chunk);
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

// The text has one chunk more, of which the store holds what is wanted and others have.
Result<PrefixChain::Take> ChunkStore::take_kinds(const WantedKinds& wanted, std::span<const int32_t> ids, int64_t begin,
                                                 bool copies, PrefixPages* pages) {
  const int64_t chunk = n_prefixes();
  PrefixChain::Take taken = PrefixChain::Take::kUnknown;
  for (const RecordKind kind : wanted.kinds) {
    if (!is_of_text(kind) || (taken == PrefixChain::Take::kTaken && !wanted.each)) continue;
    PrefixPages own;
    QUIRE_ASSIGN(const PrefixChain::Take take, take_prefix(kind, ids, begin, copies, &own));
    if (take == PrefixChain::Take::kTaken) *pages = std::move(own);
    if (taken != PrefixChain::Take::kTaken) taken = take;
  }
  if (wanted.needs_text && taken != PrefixChain::Take::kTaken) return taken;
  taken = PrefixChain::Take::kTaken;
  if (std::ranges::find(wanted.kinds, RecordKind::kWindow) != wanted.kinds.end()) {
    PrefixPages none;
    QUIRE_ASSIGN(const PrefixChain::Take take, take_prefix(RecordKind::kWindow, ids, begin, copies, &none));
    if (wanted.needs_window) taken = take;
  }
  for (const RecordKind kind : kAllRecordKinds) {
    PrefixChain* const chain = chain_of(kind);
    if (!chain || !chain->takes_part() || chain->size() > chunk || chain->append(ids)) continue;
    taken = PrefixChain::Take::kUnknown;  // another text has its hash
  }
  if (taken != PrefixChain::Take::kTaken) truncate(chunk * geometry_.chunk);
  return taken;
}

// Takes over chunks of these ids behind n_prefixes(), one after the other, as far as it can. The caller enters them.
Result<ChunkStore::Adopted> ChunkStore::take_chunks(std::span<const std::vector<int32_t>> ids, bool copies,
                                                    const std::function<WantedKinds(int64_t)>& wanted_of) {
  const int64_t first = n_prefixes(), begin = first * geometry_.chunk;
  const int64_t page_tokens = selection_.chunk() * Representations::kPageChunks;
  Adopted adopted;
  PrefixPages pages;  // of all chunks that are taken over, from the first one's page on
  for (const std::vector<int32_t>& own_ids : ids) {
    const int64_t chunk = first + adopted.n_chunks;
    PrefixPages own;
    QUIRE_ASSIGN(const PrefixChain::Take taken, take_kinds(wanted_of(chunk), own_ids, begin, copies, &own));
    if (taken != PrefixChain::Take::kTaken) {
      adopted.end = taken == PrefixChain::Take::kUnknown ? AdoptEnd::kUnknown : AdoptEnd::kNoRoom;
      break;
    }
    ++adopted.n_chunks;
    // A page's last chunk has those before it, too.
    if (own.empty()) continue;
    pages.resize(static_cast<size_t>(chunk * geometry_.chunk / page_tokens - begin / page_tokens) *
                 table_.layers(RecordKind::kText).size());
    pages.insert(pages.end(), own.begin(), own.end());
  }
  const int64_t n = first + adopted.n_chunks;
  table_.shorten(RecordKind::kText, std::min(n, table_.n_chunks(RecordKind::kText)));
  table_.shorten(RecordKind::kNarrow, std::min(n, table_.n_chunks(RecordKind::kNarrow)));
  table_.shorten(RecordKind::kWindow, std::min(n, table_.n_chunks(RecordKind::kWindow)));
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
    const RecordKind kind = table_.holds(RecordKind::kText, chunk) ? RecordKind::kText : RecordKind::kNarrow;
    records.push_back(table_.holds(kind, chunk) ? &table_.chunk(kind, chunk) : nullptr);
  }
  options_.cache->hit(first_chunk, records, geometry_.chunk);
}

bool ChunkStore::has_text(const Kept& kept) { return kept[0] || kept[1]; }

std::vector<ChunkStore::Kept> ChunkStore::keep_prefix() {
  std::vector<Kept> kept;
  for (int64_t chunk = 0; chunk < n_prefixes(); ++chunk) {
    Kept records{};
    for (size_t i = 0; i < kTextKinds.size(); ++i) {
      if (!chain_of(kTextKinds[i])->holds(chunk) || table_.chunk(kTextKinds[i], chunk).in_snapshot()) continue;
      records[i] = &table_.chunk(kTextKinds[i], chunk);
    }
    if (!has_text(records) && !has_gaps()) break;
    kept.push_back(records);
  }
  const auto goes_on = [&](int64_t n) {
    return std::ranges::all_of(seen_of_shared(n * geometry_.chunk), [&](const KeyRange& range) {
      const int64_t begin = range.begin / geometry_.chunk,
                    end = std::min(n, ceil_div(std::min(range.end, n * geometry_.chunk), geometry_.chunk));
      return begin >= end || std::all_of(kept.begin() + begin, kept.begin() + end, has_text);
    });
  };
  while (!kept.empty() && !(has_text(kept.back()) && goes_on(std::ssize(kept)))) kept.pop_back();
  drop_moves(kNoLimit);
  const auto n = static_cast<int64_t>(kept.size());
  truncate(n * geometry_.chunk);
  // What others cannot take over, of chunks that they can.
  for (int64_t chunk = 0; chunk < n; ++chunk) {
    for (size_t i = 0; i < kTextKinds.size(); ++i) {
      if (!kept[static_cast<size_t>(chunk)][i]) drop(kTextKinds[i], chunk, chunk + 1);
    }
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
