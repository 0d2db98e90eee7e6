#include "lib/kv/prefix_cache.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

namespace quire {

PrefixCache::Out::~Out() {
  cache_.put_back(texts);
  if (!counts) return;
  MutexLock lock(cache_.mutex_);
  --cache_.n_out_;
  cache_.changed_.notify_all();
}

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
    Out out(*this);
    MutexLock lock(mutex_);
    if (closed_) return;
    n_texts_.reserve(n_texts_.size() + counts.size());  // from here on there are no exceptions
    // Whether whoever asks for the shorter text finds it in the longer one.
    const auto begins_as = [&](const Text& longer, const std::vector<ChunkStore::Kept>& shorter) {
      const size_t n = shorter.size();
      return longer.owner == owner && longer.chunks.size() >= n && longer.chunks[n - 1] == shorter.back() &&
             is_of_use(*longer.store, static_cast<int64_t>(n));
    };
    const auto same = std::ranges::find_if(texts_, [&](const Text& text) { return begins_as(text, chunks); });
    if (same != texts_.end()) return use(same);
    for (auto text = texts_.begin(); text != texts_.end();) {
      const auto next = std::next(text);
      if (text->owner == owner && begins_as(made.front(), text->chunks)) erase(text, out);
      text = next;
    }
    n_texts_.merge(counts);
    for (const ChunkStore::Kept& chunk : chunks) count(chunk);
    bytes_ += made.front().beside;
    made.front().used = ++clock_;
    texts_.splice(texts_.begin(), made);
    while (bytes_ > limit_ && !texts_.empty()) {
      Text& last = take_out(std::prev(texts_.end()), out);
      while (bytes_ > limit_ && !last.chunks.empty()) shorten(last);
    }
  } catch (const std::bad_alloc&) {  // it goes as if nothing were kept
  }
}

// n_texts_ has its records.
void PrefixCache::count(const ChunkStore::Kept& chunk) {
  for (const ChunkRecords* const records : chunk) {
    if (records && n_texts_.find(records)->second++ == 0) bytes_ += records->bytes();
  }
}

void PrefixCache::discount(const ChunkStore::Kept& chunk) {
  for (const ChunkRecords* const records : chunk) {
    if (!records) continue;
    const auto at = n_texts_.find(records);
    if (--at->second > 0) continue;
    bytes_ -= records->bytes();
    n_texts_.erase(at);
  }
}

void PrefixCache::use(Texts::iterator text) {
  text->used = ++clock_;
  texts_.splice(texts_.begin(), texts_, text);
}

PrefixCache::Text& PrefixCache::take_out(Texts::iterator text, Out& out) {
  bytes_ -= text->beside;
  out.texts.splice(out.texts.end(), texts_, text);
  if (!std::exchange(out.counts, true)) ++n_out_;
  return out.texts.back();
}

// Whether another text can go on behind the first n chunks. Without memory to find out: no.
bool PrefixCache::is_of_use(const ChunkStore& store, int64_t n) {
  try {
    return !store.drops() || store.can_go_on(n * store.geometry().chunk);
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void PrefixCache::drop_last(Text& text) {
  discount(text.chunks.back());
  text.chunks.pop_back();
}

// Of a text that was taken out: its last chunk goes, and those behind which no text can go on then.
void PrefixCache::shorten(Text& text) {
  do {
    drop_last(text);
  } while (!text.chunks.empty() &&
           !(ChunkStore::has_text(text.chunks.back()) && is_of_use(*text.store, std::ssize(text.chunks))));
}

void PrefixCache::erase(Texts::iterator text, Out& out) {
  Text& gone = take_out(text, out);
  while (!gone.chunks.empty()) drop_last(gone);
}

// Texts without chunks go, and what others have lost.
void PrefixCache::put_back(Texts& texts) {
  while (!texts.empty()) {
    Text& text = texts.front();
    if (text.chunks.empty()) {
      texts.pop_front();
      continue;
    }
    text.store->truncate(static_cast<int64_t>(text.chunks.size()) * text.store->geometry().chunk);
    text.beside = text.store->bytes_beside();
    MutexLock lock(mutex_);
    if (bytes_ + text.beside > limit_) {
      shorten(text);
      continue;
    }
    bytes_ += text.beside;
    const auto behind = std::ranges::find_if(texts_, [&](const Text& other) { return other.used < text.used; });
    texts_.splice(behind, texts, texts.begin());
  }
}

// ---- what goes

void PrefixCache::drop(const void* owner) noexcept {
  Out out(*this);
  MutexLock lock(mutex_);
  while (n_out_ > 0) changed_.wait(mutex_);
  for (auto text = texts_.begin(); text != texts_.end();) {
    const auto next = std::next(text);
    if (text->owner == owner) erase(text, out);
    text = next;
  }
}

void PrefixCache::close() noexcept {
  Out out(*this);
  MutexLock lock(mutex_);
  closed_ = true;
  while (n_out_ > 0) changed_.wait(mutex_);
  while (!texts_.empty()) erase(texts_.begin(), out);
}

// The text used longest ago of those that it needs, or the list's end.
template <typename Needs>
PrefixCache::Texts::iterator PrefixCache::oldest(const Needs& needs) {
  const auto found = std::find_if(texts_.rbegin(), texts_.rend(), needs);
  return found == texts_.rend() ? texts_.end() : std::prev(found.base());
}

void PrefixCache::make_room(const Residency& memory, int64_t bytes) noexcept {
  const TierBudget& budget = *memory.budget();
  if (limit_ == 0) return;
  const auto is_in_memory = [&](const Text& t) { return t.store->residency() == &memory && t.store->in_memory(); };
  while (budget.room() < bytes && (shorten_oldest(is_in_memory) || wait_for_others())) {
  }
}

// A chunk less of the oldest text of those that it needs. False: there is none.
template <typename Needs>
bool PrefixCache::shorten_oldest(const Needs& needs) {
  Out out(*this);
  MutexLock lock(mutex_);
  const auto text = oldest(needs);
  if (text == texts_.end()) return false;
  shorten(take_out(text, out));
  return true;
}

// What other threads have taken out gives room, too, or comes back. False: there is no such thread.
bool PrefixCache::wait_for_others() {
  MutexLock lock(mutex_);
  if (n_out_ == 0) return false;
  changed_.wait(mutex_);
  return true;
}

// Drops the oldest text of those that it needs. False: there is none.
template <typename Needs>
bool PrefixCache::erase_oldest(const Needs& needs) {
  {
    Out out(*this);
    MutexLock lock(mutex_);
    const auto text = oldest(needs);
    if (text != texts_.end()) {
      erase(text, out);
      return true;
    }
  }
  return wait_for_others();
}

bool PrefixCache::drop_oldest(const Residency& memory) noexcept {
  return erase_oldest([&](const Text& t) { return t.store->residency() == &memory; });
}

bool PrefixCache::drop_oldest_with_tier() noexcept {
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
  if (text != texts_.end()) use(text);
}

PrefixCacheStats PrefixCache::stats() const {
  MutexLock lock(mutex_);
  return {bytes_, static_cast<int64_t>(texts_.size()), n_hits_};
}

}  // namespace quire
