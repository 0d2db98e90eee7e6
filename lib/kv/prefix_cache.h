// Complete chunks of texts whose sessions were released, for sessions whose text begins as one of these.
//
// A released session's store stays as the holder of its chunks (ChunkStore::keep_prefix), so the next one finds them as
// those of any other (prefix_table.h). The text that was used longest ago goes first, from its end on: when the chunks
// together exceed the limit, and when a live session needs the room. A text is used when it is released, and when
// another session takes over chunks of it; chunks that several texts have in common count once, and stay with the last.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "lib/kv/chunk_store.h"
#include "lib/support/mutex.h"

namespace quire {

struct PrefixCacheStats {
  int64_t bytes = 0;    // of chunks that are kept, wherever they lie, and what is kept beside them
  int64_t n_texts = 0;  // that they are of
  int64_t n_hits = 0;   // tokens that sessions took over while they were kept
};

// Any thread. Its mutex is taken before the prefix table's and the residency's.
class PrefixCache {
 public:
  // limit_bytes: 0: nothing is kept.
  explicit PrefixCache(int64_t limit_bytes) : limit_(limit_bytes) {}
  ~PrefixCache() { close(); }
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // A session is released. `owner`: what its backend lives as long as.
  void keep(std::unique_ptr<ChunkStore> store, const void* owner) noexcept;
  // Drops what it keeps of this owner.
  void drop(const void* owner) noexcept;
  // Drops everything, and keeps nothing from here on.
  void close() noexcept;

  // Drops chunks of a residency until so many bytes fit into its memory, or none is left that takes any.
  void make_room(const Residency& memory, int64_t bytes) noexcept;
  // Drops a text of a residency. False: there is none.
  bool drop_oldest(const Residency& memory) noexcept;
  // Drops a text of any, whose records can lie in lower tiers. False: there is none.
  bool drop_oldest_with_tier() noexcept;
  // A session has taken over these records, of `tokens` tokens each, from the given chunk of its text on.
  void hit(int64_t chunk, std::span<ChunkRecords* const> records, int64_t tokens) noexcept;

  PrefixCacheStats stats() const;

 private:
  struct Text {
    std::unique_ptr<ChunkStore> store;
    const void* owner;
    std::vector<ChunkStore::Kept> chunks;
    int64_t beside;  // bytes that are no records
  };
  using Texts = std::list<Text>;
  using Counts = std::unordered_map<const ChunkRecords*, int64_t>;

  void count(const ChunkStore::Kept& chunk) QUIRE_REQUIRES(mutex_);
  void discount(const ChunkStore::Kept& chunk) QUIRE_REQUIRES(mutex_);
  void erase(Texts::iterator text) QUIRE_REQUIRES(mutex_);
  void cut(Texts::iterator text) QUIRE_REQUIRES(mutex_);
  template <typename Holds>
  bool erase_oldest(const Holds& holds) QUIRE_REQUIRES(mutex_);

  const int64_t limit_;
  mutable Mutex mutex_;
  bool closed_ QUIRE_GUARDED_BY(mutex_) = false;
  Texts texts_ QUIRE_GUARDED_BY(mutex_);     // the one used last first
  Counts n_texts_ QUIRE_GUARDED_BY(mutex_);  // that have the records
  int64_t bytes_ QUIRE_GUARDED_BY(mutex_) = 0;
  int64_t n_hits_ QUIRE_GUARDED_BY(mutex_) = 0;
};

}  // namespace quire
