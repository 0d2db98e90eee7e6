#include "lib/kv/prefix_cache.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

namespace quire {
namespace {

int64_t bytes_of(const ChunkRecords& records) {
  return static_cast<int64_t>(records.records.size()) * records.record_bytes;
}

}  // namespace

// ---- what is kept

void PrefixCache::keep(std::unique_ptr<ChunkStore> store, const void* owner) noexcept {
  if (limit_ == 0 || !store || !store->shares_prefixes()) return;
  try {
    Texts made;
    made.push_back({nullptr, owner, store->keep_prefix(), store->bytes_beside()});
    if (made.front().chunks.empty()) return;
    made.front().store = std::move(store);
    const std::vector<ChunkStore::Kept>& chunks = made.front().chunks;
    Counts counts;
    for (const ChunkStore::Kept& chunk : chunks) {
      for (const ChunkRecords* const records : chunk) {
        if (records) counts.try_emplace(records, 0);
      }
    }
    MutexLock lock(mutex_);
    if (closed_) return;
    n_texts_.reserve(n_texts_.size() + counts.size());  // from here on nothing is allocated
    const auto begins_as = [&](const Text& longer, const std::vector<ChunkStore::Kept>& shorter) {
      return longer.owner == owner && longer.chunks.size() >= shorter.size() &&
             longer.chunks[shorter.size() - 1] == shorter.back();
    };
    const auto same = std::ranges::find_if(texts_, [&](const Text& text) { return begins_as(text, chunks); });
    if (same != texts_.end()) {
      texts_.splice(texts_.begin(), texts_, same);
      return;
    }
    for (auto text = texts_.begin(); text != texts_.end();) {
      const auto next = std::next(text);
      if (text->owner == owner && begins_as(made.front(), text->chunks)) erase(text);
      text = next;
    }
    n_texts_.merge(counts);
    for (const ChunkStore::Kept& chunk : chunks) count(chunk);
    bytes_ += made.front().beside;
    texts_.splice(texts_.begin(), made);
    while (bytes_ > limit_) cut(std::prev(texts_.end()));
  } catch (const std::bad_alloc&) {  // it goes as if nothing were kept
  }
}

// n_texts_ has its records.
void PrefixCache::count(const ChunkStore::Kept& chunk) {
  for (const ChunkRecords* const records : chunk) {
    if (records && n_texts_.find(records)->second++ == 0) bytes_ += bytes_of(*records);
  }
}

void PrefixCache::discount(const ChunkStore::Kept& chunk) {
  for (const ChunkRecords* const records : chunk) {
    if (!records) continue;
    const auto at = n_texts_.find(records);
    if (--at->second > 0) continue;
    bytes_ -= bytes_of(*records);
    n_texts_.erase(at);
  }
}

void PrefixCache::erase(Texts::iterator text) {
  for (const ChunkStore::Kept& chunk : text->chunks) discount(chunk);
  bytes_ -= text->beside;
  texts_.erase(text);
}

// Its last chunk goes.
void PrefixCache::cut(Texts::iterator text) {
  if (text->chunks.size() == 1) {
    erase(text);
    return;
  }
  discount(text->chunks.back());
  text->chunks.pop_back();
  bytes_ -= text->beside;
  text->store->truncate(static_cast<int64_t>(text->chunks.size()) * text->store->geometry().chunk);
  text->beside = text->store->bytes_beside();
  bytes_ += text->beside;
}

// ---- what goes

void PrefixCache::drop(const void* owner) noexcept {
  MutexLock lock(mutex_);
  for (auto text = texts_.begin(); text != texts_.end();) {
    const auto next = std::next(text);
    if (text->owner == owner) erase(text);
    text = next;
  }
}

void PrefixCache::close() noexcept {
  MutexLock lock(mutex_);
  closed_ = true;
  while (!texts_.empty()) erase(texts_.begin());
}

void PrefixCache::make_room(const Residency& memory, int64_t bytes) noexcept {
  const TierBudget& budget = *memory.budget();
  if (limit_ == 0 || budget.room() >= bytes) return;
  MutexLock lock(mutex_);
  while (budget.room() < bytes) {
    const auto oldest = std::find_if(texts_.rbegin(), texts_.rend(), [&](const Text& t) {
      return t.store->residency() == &memory && t.store->in_memory();
    });
    if (oldest == texts_.rend()) return;
    cut(std::prev(oldest.base()));
  }
}

// Drops the oldest text of those that it holds for. False: there is none.
template <typename Holds>
bool PrefixCache::erase_oldest(const Holds& holds) {
  const auto oldest = std::find_if(texts_.rbegin(), texts_.rend(), holds);
  if (oldest == texts_.rend()) return false;
  erase(std::prev(oldest.base()));
  return true;
}

bool PrefixCache::drop_oldest(const Residency& memory) noexcept {
  MutexLock lock(mutex_);
  return erase_oldest([&](const Text& t) { return t.store->residency() == &memory; });
}

bool PrefixCache::drop_oldest_with_tier() noexcept {
  MutexLock lock(mutex_);
  return erase_oldest([](const Text& t) { return t.store->spills(); });
}

// ---- what is found

void PrefixCache::hit(int64_t chunk, std::span<ChunkRecords* const> records, int64_t tokens) noexcept {
  if (limit_ == 0) return;
  MutexLock lock(mutex_);
  const ChunkRecords* last = nullptr;
  int64_t at = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    if (!n_texts_.contains(records[i])) continue;
    n_hits_ += tokens;
    last = records[i];
    at = chunk + static_cast<int64_t>(i);
  }
  if (!last) return;
  const auto text = std::ranges::find_if(texts_, [&](const Text& t) {
    return static_cast<int64_t>(t.chunks.size()) > at &&
           std::ranges::find(t.chunks[static_cast<size_t>(at)], last) != t.chunks[static_cast<size_t>(at)].end();
  });
  if (text != texts_.end()) texts_.splice(texts_.begin(), texts_, text);
}

PrefixCacheStats PrefixCache::stats() const {
  MutexLock lock(mutex_);
  return {bytes_, static_cast<int64_t>(texts_.size()), n_hits_};
}

}  // namespace quire
