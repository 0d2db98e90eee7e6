// Byte-pair encoding: the vocabulary, the merges, and a part of a text to ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/support/cancel.h"
#include "lib/support/status.h"

namespace quire {

// Texts with ids, found by text. The texts lie in one string.
class TokenTable {
 public:
  // Of two equal texts the later one is found. Errors: kBadFile (texts made to collide).
  Status insert(int32_t id, std::string_view text);
  int32_t find(std::string_view text) const;  // -1: none
  void reserve(size_t n_texts);

 private:
  struct Entry {
    int32_t id;
    uint32_t begin, size;
  };
  size_t slot(std::string_view text, size_t* n_probes) const;
  void grow(size_t capacity);

  std::string texts_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> slots_;  // index of an entry, + 1; a power of two of them
};

// Immutable after creation: any thread.
class BpeModel {
 public:
  struct Merge {
    int32_t left, right, result;
  };
  struct Options {
    // What the merges begin with: bytes, or characters, of which those without a token become their bytes' (<0xXX>).
    bool bytes = true;
    bool ignore_merges = false;          // a part that is a token as it is becomes that one
    int32_t unknown = -1;                // what has no token becomes this one; -1: nothing
    bool fuse_unknown = false;           // several of those in a row become one
    std::vector<int32_t> byte_fallback;  // ids of the 256 byte tokens; empty: there are none
  };

  // tokens: those that a part may become. merges: those that come first are made first; of two of the same pair the
  // later one counts. Errors: kBadFile.
  static Result<BpeModel> make(TokenTable tokens, const std::vector<Merge>& merges, Options options);

  // The memory that encode() works in. For one thread.
  struct Workspace {
    struct Symbol {
      int32_t id;  // -1: merged into the one before
      uint32_t begin;
      int32_t previous, next;  // -1: none
    };
    struct Candidate {
      uint32_t rank, at;  // of its left symbol
      int32_t result;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> candidates;    // a heap
    int64_t n_steps = 0;                  // of the heap, in all: for tests
    const CancelToken* cancel = nullptr;  // may be null
  };

  // Calls append(id, begin) for each token of the part, of less than 2^31 bytes. Takes O(n log n). Error: kCancelled.
  template <typename Append>
  Status encode(std::string_view part, Workspace& work, Append&& append) const {
    if (const int32_t whole = options_.ignore_merges ? tokens_.find(part) : -1; whole >= 0) {
      append(whole, size_t{0});
      return {};
    }
    QUIRE_TRY(split(part, work));
    QUIRE_TRY(merge(work));
    for (const auto& symbol : work.symbols) {
      if (symbol.id >= 0) append(symbol.id, size_t{symbol.begin});
    }
    return {};
  }

  bool bytes() const { return options_.bytes; }
  int32_t unknown() const { return options_.unknown; }
  bool fuses_unknown() const { return options_.fuse_unknown && options_.unknown >= 0; }

 private:
  struct Pair {
    uint64_t key;  // left << 32 | right; kNoPair: free
    uint32_t rank;
    int32_t result;
  };
  static constexpr uint64_t kNoPair = UINT64_MAX;

  const Pair* find_pair(int32_t left, int32_t right) const;
  Status insert_pair(const Merge& merge, uint32_t rank);
  Status split(std::string_view part, Workspace& work) const;
  Status merge(Workspace& work) const;
  void add_candidate(Workspace& work, int32_t left) const;

  TokenTable tokens_;
  std::vector<Pair> pairs_;  // a hash table, its size a power of two
  Options options_;
  std::vector<int32_t> byte_ids_;  // by byte; -1: none
};

}  // namespace quire
