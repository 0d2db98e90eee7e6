// Which texts the stores of a runtime hold in complete chunks, so that a store whose text begins as another one's finds
// what that has computed.
//
// A text is a chain of chunks. There is one Prefix for each text up to the end of a chunk, however many stores have it.
// It is found by a hash over its fingerprint and its tokens, and is taken for the same text only if the text before it
// is the same Prefix and the tokens of its last chunk are equal. So no two texts are mixed up, whatever their hashes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/kv/record.h"
#include "lib/kv/residency.h"
#include "lib/support/mutex.h"

namespace quire {

// XXH3-128: of what keys and values depend on beside the tokens, or of a Prefix.
using PrefixHash = std::array<std::byte, 16>;

// Pages of representations that the last chunk of a text has some in, and those of the chunks before it in the same
// pages: [page][layer], from the page of its first one on. Nobody writes what they have of that text.
using PrefixPages = std::vector<std::shared_ptr<Buffer>>;

class PrefixChain;

// A store that holds the records of a chunk, and says so before it lets them go or changes them.
struct PrefixHolder {
  const PrefixChain* chain;
  std::vector<std::weak_ptr<Buffer>> pages{};  // PrefixPages, as long as the store or another one has them
};

// A text up to the end of a chunk. What is not const is the table's, under its mutex.
struct Prefix {
  const Prefix* const before;  // null: this chunk is the text's first
  const PrefixHash hash;
  const std::vector<int32_t> ids;  // of the chunk; a generated token that has other keys than a given one is ~id
  int64_t n_chains = 0;            // that it is a part of; the last one takes it out of the table
  ChunkRecords* chunk = nullptr;   // records of the chunk; null: there are no holders
  std::vector<PrefixHolder> holders{};
};

// Of a runtime; any thread. Its mutex is taken before the Residency's.
class PrefixTable {
 public:
  // Of the text that `before` names, and a chunk of these tokens behind it.
  using Next = PrefixHash (*)(const PrefixHash& before, std::span<const int32_t> ids);
  static PrefixHash next_hash(const PrefixHash& before, std::span<const int32_t> ids);

  explicit PrefixTable(Next next = next_hash) : next_(next) {}
  // Texts that are known now.
  int64_t size() const;

 private:
  friend class PrefixChain;
  struct First {  // the hash is as good as random
    size_t operator()(const PrefixHash& hash) const {
      size_t bits = 0;
      std::memcpy(&bits, hash.data(), sizeof bits);
      return bits;
    }
  };

  // Null: it is not known. The hash of another text is as if it were not.
  Prefix* find(const Prefix* before, const PrefixHash& hash, std::span<const int32_t> ids) QUIRE_REQUIRES(mutex_);

  const Next next_;  // another one in tests
  mutable Mutex mutex_;
  std::unordered_map<PrefixHash, std::unique_ptr<Prefix>, First> all_ QUIRE_GUARDED_BY(mutex_);
};

// The text of one store, as far as it takes part: its first chunks. One thread at a time.
class PrefixChain {
 public:
  // What came of take().
  enum class Take { kTaken, kUnknown, kRefused };

  // root: of the fingerprint. Without a table nothing is ever shared.
  PrefixChain(std::shared_ptr<PrefixTable> table, const PrefixHash& root) : table_(std::move(table)), root_(root) {}
  ~PrefixChain() { cut(0); }
  PrefixChain(const PrefixChain&) = delete;
  PrefixChain& operator=(const PrefixChain&) = delete;

  bool takes_part() const { return table_ != nullptr; }
  // Chunks of the chain.
  int64_t size() const { return static_cast<int64_t>(links_.size()); }
  // Whether the store is a holder of the n-th chunk in the table.
  bool holds(int64_t n) const { return n < size() && links_[static_cast<size_t>(n)].holds; }

  // The text has one chunk more. False: another text has its hash, and the chain stays as it is.
  bool append(std::span<const int32_t> ids);
  // The store holds the records of the n-th chunk, which is complete and will not change. True: others can take them
  // from here on; false: they have other records of it already. `pages` are those that the store has now.
  bool enter(int64_t n, ChunkRecords& chunk, const PrefixPages& pages);
  // Whether a store has entered the last one of chunks that follow, of these tokens one behind the other.
  bool knows(std::span<const std::vector<int32_t>> following) const;
  // Whether a store has the text with these chunks behind it, whatever it holds of it.
  bool knows_text(std::span<const std::vector<int32_t>> following) const;
  // The text has one chunk more, whose records `user` holds too from here on, if `accept` likes them. It is called
  // under the table's mutex. n_pages: so many are needed. An exception: nothing was changed.
  Take take(std::span<const int32_t> ids, size_t n_pages, Residency& residency, RecordUser& user,
            const std::function<bool(const ChunkRecords&)>& accept, ChunkRecords** chunk, PrefixPages* pages);
  // The same for the n-th chunk of the chain, of which the store is no holder: true, if it is one now. It has no pages
  // of it in the table yet.
  bool join(int64_t n, Residency& residency, RecordUser& user, const std::function<bool(const ChunkRecords&)>& accept,
            ChunkRecords** chunk);
  // The store lets go of the records of the n-th chunk, or is going to change them. Whoever lets go of records says so
  // here first. True: another store holds them still, and others can take them.
  bool leave(int64_t n);
  // The chain ends after n chunks; those behind are left. True: another store holds one of these.
  bool cut(int64_t n);
  // An empty chain of the same table becomes that of a fork, which holds what the other one does. An exception: it
  // stays empty.
  void copy(const PrefixChain& other);

 private:
  struct Link {
    Prefix* prefix;
    bool holds;  // this store is one of prefix->holders
  };

  const Prefix* find(std::span<const std::vector<int32_t>> following) const QUIRE_REQUIRES(table_->mutex_);
  const Prefix* last() const { return links_.empty() ? nullptr : links_.back().prefix; }
  const PrefixHash& last_hash() const { return links_.empty() ? root_ : links_.back().prefix->hash; }

  const std::shared_ptr<PrefixTable> table_;  // null: takes no part
  const PrefixHash root_;
  std::vector<Link> links_;
};

}  // namespace quire
