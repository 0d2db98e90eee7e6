// Old text in a narrower type: ChunkStore's part of it.
//
// Each complete chunk has narrow records, which are made of its full ones when the block that completes it is computed
// (Backend::narrow_chunks). From then on a query reads one or the other, as its distance says (OldText): records of
// both are made, moved, shared and saved alike, so where they are changes no bit. Full records go when no query to come
// reads them.
#include <algorithm>
#include <utility>

#include "lib/kv/chunk_store.h"

namespace quire {

bool ChunkStore::holds_for(int64_t next_query, int64_t begin, int64_t end) const {
  const int64_t old = std::clamp(options_.old.before(next_query, geometry_.chunk), begin, std::max(begin, end));
  if (old > begin && !table_.holds(KvKind::kNarrow, begin / geometry_.chunk, ceil_div(old, geometry_.chunk)))
    return false;
  return old == end || holds(old, end);
}

void ChunkStore::drop_old_text(int64_t next_query) {
  const int64_t end = options_.old.before(next_query, geometry_.chunk) / geometry_.chunk - kSpareChunks;
  if (end <= narrow_until_) return;
  drop(KvKind::kText, narrow_until_, end);
  narrow_until_ = end;
}

// ---- prefixes
//
// A text has two chains in the table: with its full records, of which old ones are missing, and with its narrow ones.

// Both chains have one chunk more, or none.
bool ChunkStore::append_prefix(std::span<const int32_t> ids) {
  if (!prefixes_.append(ids)) return false;
  if (!options_.old.narrows() || narrow_prefixes_.append(ids)) return true;
  prefixes_.cut(n_prefixes() - 1);
  return false;
}

void ChunkStore::enter_narrow(int64_t chunk) {
  const PrefixPages pages = selection_.pages_of(chunk * geometry_.chunk, (chunk + 1) * geometry_.chunk);
  if (narrow_prefixes_.holds(chunk) && pages.empty()) return;
  narrow_prefixes_.enter(chunk, table_.chunk(KvKind::kNarrow, chunk), pages);
}

// To how many of the chunks that follow, with these ids, the text can be lengthened: narrow records of all of them are
// known, and the full ones of those that the next query reads at full width.
int64_t ChunkStore::known_prefix(std::span<const std::vector<int32_t>> ids) {
  struct Restore {
    PrefixChain& chain;
    const int64_t size = chain.size();
    ~Restore() { chain.cut(size); }
  } full{prefixes_}, narrow{narrow_prefixes_};
  const int64_t first = full.size;
  int64_t best = 0, in_full = 0;  // chunks in a row up to here whose full records are known
  for (size_t n = 0; n < ids.size(); ++n) {
    if (!narrow_prefixes_.knows(ids.subspan(n, 1))) break;
    in_full = prefixes_.knows(ids.subspan(n, 1)) ? in_full + 1 : 0;
    const int64_t end = first + static_cast<int64_t>(n) + 1;
    const int64_t old = options_.old.before(end * geometry_.chunk, geometry_.chunk) / geometry_.chunk;
    if (end - std::max(first, old) <= in_full) best = end - first;
    if (!append_prefix(ids[n])) break;
  }
  return best;
}

// The text has one chunk more in the chain of a kind, whose records the store holds too. begin: where what is taken
// over begins.
Result<PrefixChain::Take> ChunkStore::take_prefix(KvKind kind, std::span<const int32_t> ids, int64_t begin,
                                                  PrefixPages* pages) {
  PrefixChain& chain = kind == KvKind::kNarrow ? narrow_prefixes_ : prefixes_;
  const int64_t chunk = chain.size(), at = chunk * geometry_.chunk;
  table_.extend(kind, chunk, chunk + 1);
  const size_t n_pages = selection_.n_pages_of(at, at + geometry_.chunk);
  ChunkRecords* records = nullptr;
  bool needs_spill = false;
  const auto accept = [&](const ChunkRecords& known) {
    needs_spill = known.tier && !spills();
    return !needs_spill && can_share(known, begin, at + geometry_.chunk);
  };
  const auto take = [&] { return chain.take(ids, n_pages, *residency_, user_, accept, &records, pages); };
  PrefixChain::Take taken = take();
  if (needs_spill) {
    QUIRE_TRY(let_spill());
    taken = take();
  }
  if (taken != PrefixChain::Take::kTaken) return taken;
  table_.hold(kind, chunk, *records);
  if (records->page) {
    const auto bytes = static_cast<int64_t>(records->page->size());
    account_.hold_shared(bytes);
    fixed_bytes_ += bytes;
  }
  return taken;
}

// As adopt(): all chunks that are known, as far as the next query can go on from there, or none.
Result<ChunkStore::Adopted> ChunkStore::adopt_narrow(int64_t end, const ChunkIds& ids_of) {
  const int64_t first = n_prefixes(), begin = first * geometry_.chunk;
  std::vector<std::vector<int32_t>> ids;
  for (int64_t chunk = first; chunk < end; ++chunk) {
    ids.push_back(ids_of(chunk));
    if (ids.back().empty()) return Status(Code::kInternal, "chunk " + std::to_string(chunk) + " takes no part");
  }
  const int64_t n = first + known_prefix(ids);
  const int64_t full_from = options_.old.before(n * geometry_.chunk, geometry_.chunk) / geometry_.chunk;
  const int64_t page_tokens = selection_.chunk() * Representations::kPageChunks;
  PrefixPages pages;  // of all chunks that are taken over, from the first one's page on
  for (int64_t chunk = first; chunk < n; ++chunk) {
    const std::vector<int32_t>& own_ids = ids[static_cast<size_t>(chunk - first)];
    table_.extend(KvKind::kText, chunk, chunk + 1);
    PrefixPages own, of_full;
    QUIRE_ASSIGN(PrefixChain::Take taken, take_prefix(KvKind::kNarrow, own_ids, begin, &own));
    if (taken == PrefixChain::Take::kTaken && chunk >= full_from) {
      QUIRE_ASSIGN(taken, take_prefix(KvKind::kText, own_ids, begin, &of_full));
    } else if (taken == PrefixChain::Take::kTaken && !prefixes_.append(own_ids)) {
      taken = PrefixChain::Take::kUnknown;
    }
    if (taken != PrefixChain::Take::kTaken) {
      truncate(begin);
      return Adopted{0, taken == PrefixChain::Take::kUnknown ? AdoptEnd::kUnknown : AdoptEnd::kNoRoom};
    }
    // A page's last chunk has those before it, too.
    if (own.empty()) continue;
    pages.resize(static_cast<size_t>(chunk * geometry_.chunk / page_tokens - begin / page_tokens) *
                 static_cast<size_t>(table_.n_layers()));
    pages.insert(pages.end(), own.begin(), own.end());
  }
  if (n > first && !adopt_selection(begin, n * geometry_.chunk, std::move(pages)).ok()) {
    truncate(begin);
    return Adopted{0, AdoptEnd::kNoRoom};
  }
  for (int64_t chunk = first; chunk < n; ++chunk) {
    if (table_.holds(KvKind::kText, chunk)) enter_prefix(chunk);
    enter_narrow(chunk);
  }
  return Adopted{n - first, n == end ? AdoptEnd::kAll : AdoptEnd::kUnknown};
}

}  // namespace quire
