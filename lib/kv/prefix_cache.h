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

// Any thread. Its mutex is held for moments: stores are taken out of the list before they are shortened or go, for that
// releases the host's memory and waits for records on their way.
class PrefixCache {
 public:
  // limit_bytes: 0: nothing is kept.
  explicit PrefixCache(int64_t limit_bytes) : limit_(limit_bytes) {}
  ~PrefixCache() { close(); }
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // A session is released. `owner`: what its backend lives as long as.
  void keep(std::unique_ptr<ChunkStore> store, const void* owner) noexcept;
  // Drops what it keeps of this owner. Waits until no other thread works on any of it, as close() does.
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
    int64_t beside;     // bytes that are no records
    uint64_t used = 0;  // the greater the later
  };
  using Texts = std::list<Text>;
  using Counts = std::unordered_map<const ChunkRecords*, int64_t>;

  // Texts that were taken out of the list. At the end of a block, without the mutex, those go that have no chunks left,
  // and the others come back.
  class Out {
   public:
    explicit Out(PrefixCache& cache) : cache_(cache) {}
    ~Out();
    Out(const Out&) = delete;
    Out& operator=(const Out&) = delete;
    Texts texts;
    bool counts = false;  // in n_out_

   private:
    PrefixCache& cache_;
  };

  void count(const ChunkStore::Kept& chunk) QUIRE_REQUIRES(mutex_);
  void discount(const ChunkStore::Kept& chunk) QUIRE_REQUIRES(mutex_);
  void use(Texts::iterator text) QUIRE_REQUIRES(mutex_);
  Text& take_out(Texts::iterator text, Out& out) QUIRE_REQUIRES(mutex_);
  static bool is_of_use(const ChunkStore& store, int64_t n);
  void drop_last(Text& text) QUIRE_REQUIRES(mutex_);
  void shorten(Text& text) QUIRE_REQUIRES(mutex_);
  void erase(Texts::iterator text, Out& out) QUIRE_REQUIRES(mutex_);
  template <typename Needs>
  Texts::iterator oldest(const Needs& needs) QUIRE_REQUIRES(mutex_);
  void put_back(Texts& texts) QUIRE_EXCLUDES(mutex_);
  template <typename Needs>
  bool shorten_oldest(const Needs& needs) QUIRE_EXCLUDES(mutex_);
  template <typename Needs>
  bool erase_oldest(const Needs& needs) QUIRE_EXCLUDES(mutex_);
  bool wait_for_others() QUIRE_EXCLUDES(mutex_);

  const int64_t limit_;
  mutable Mutex mutex_;
  CondVar changed_;  // notified when n_out_ becomes less
  bool closed_ QUIRE_GUARDED_BY(mutex_) = false;
  int64_t n_out_ QUIRE_GUARDED_BY(mutex_) = 0;  // threads that have taken texts out
  uint64_t clock_ QUIRE_GUARDED_BY(mutex_) = 0;
  Texts texts_ QUIRE_GUARDED_BY(mutex_);     // the one used last first
  Counts n_texts_ QUIRE_GUARDED_BY(mutex_);  // that have the records
  int64_t bytes_ QUIRE_GUARDED_BY(mutex_) = 0;
  int64_t n_hits_ QUIRE_GUARDED_BY(mutex_) = 0;
};

}  // namespace quire
