// Sticky chunks: those that the last given token before generated ones looked at most, which the generated tokens see
// besides the chunks that they choose (ChunkSelection::n_sticky).
//
// What stands for a chunk tells roughly whether its keys fit a query. Where a token looks is known exactly, and an
// answer goes on looking where the token before it did: keys that matter to the end of a prompt matter to what is
// generated (Li et al. 2024, "SnapKV: LLM Knows What You are Looking for Before Generation", arXiv:2404.14469). Here
// one list serves all layers and heads, by the greatest share that a query head of any layer gives a cell of keys, as
// in provenance.h; and no key is dropped: other chunks can still be chosen.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/plan/plan.h"
#include "lib/strategy/strategy.h"
#include "lib/support/status.h"

namespace quire {

// Keys whose cells sticky_chunks() ranks; empty: there are none before this token.
KeyRange sticky_keys(const ChunkSelection& selection, int64_t token);
// The sticky chunks of a given token, ascending: its own and the n_last - 1 before it; and of those before them, but
// for the first one, which is always taken, the n_sticky with the greatest peaks above 0, the lower index where they
// are equal. peaks: of its text cells from 0 on (PeaksWanted), at least to the end of sticky_keys().
std::vector<int32_t> sticky_chunks(const ChunkSelection& selection, int64_t token, std::span<const float> peaks);

// Those of a text: a list for each given token that generated ones follow, and for the last given one, which some may
// follow. A value without locks.
class StickyChunks {
 public:
  // A list's chunk, and the given token that the list is of.
  struct Entry {
    int64_t token;
    int64_t chunk;
  };

  // Of a text of n_tokens tokens that is selected from in chunks of `chunk`. kBadFile: they are not ascending, or not
  // chunks up to their token's; the message says which.
  static Result<StickyChunks> make(std::vector<Entry> entries, int64_t chunk, int64_t n_tokens);
  std::span<const Entry> entries() const { return entries_; }

  // Room for a list more, so that adding it cannot fail.
  void reserve(size_t n) { entries_.reserve(entries_.size() + n); }
  // The list of a token. Lists of this and later ones are forgotten.
  void add(int64_t token, std::span<const int32_t> chunks);
  // The last token that has a list; -1: none has.
  int64_t last_token() const { return entries_.empty() ? -1 : entries_.back().token; }
  // Tokens from n_tokens on are forgotten.
  void cut(int64_t n_tokens);
  // What the tokens generated from `token` on see: the list of the last given token before it.
  std::vector<int32_t> before(int64_t token) const;

 private:
  std::vector<Entry> entries_;  // ascending
};

}  // namespace quire
