// What a strategy that selects chunks keeps beside the records: a representation of each complete chunk, and the
// queries of the chunk in progress (keeps_queries). Chunks are here those of ChunkSelection::chunk keys.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/kv/tier_budget.h"
#include "lib/support/status.h"

namespace quire {

// Stays in device memory, and is counted there. One thread at a time.
class SelectionState {
 public:
  // If the strategy selects nothing, nothing is kept; queries are kept where representations are made of them. Backend
  // and account must outlive this.
  SelectionState(Backend& backend, const KvGeometry& geometry, int n_layers, int n_query_heads,
                 const ChunkSelection& selection, TierAccount& account);

  // Bytes that a text of n_tokens tokens needs.
  int64_t bytes_for(int64_t n_tokens) const;
  int64_t bytes() const { return page_bytes_ * n_pages_ + queries_bytes_; }
  int64_t representation_bytes() const { return page_bytes_ * n_pages_; }
  // Bytes that reserve() will allocate.
  int64_t bytes_to_add(int64_t first, int64_t n_tokens) const;
  // Makes room for a text of n_tokens tokens, of which those from `first` on come now. What it shares with another
  // state and they will change becomes its own. kBudget, kOutOfMemory. What was made before a failure stays, and is
  // used by the next call.
  Status reserve(int64_t first, int64_t n_tokens);
  // An empty state becomes one that shares everything with `other`. What tokens that follow would change is copied by
  // reserve().
  void share(SelectionState& other);
  // Pages [page][layer] with the representations of complete chunks of tokens [first, end), from the first one's page
  // on.
  std::vector<std::shared_ptr<Buffer>> pages_of(int64_t first, int64_t end) const;
  size_t n_pages_of(int64_t first, int64_t end) const {
    const int64_t n = complete_pages(end) - first / chunk_ / Representations::kPageChunks;
    return page_bytes_ == 0 ? 0 : static_cast<size_t>(n) * pages_.size();
  }
  // The text goes on from `first` to `end`, both ends of chunks, with the representations that these pages have, which
  // are as pages_of(first, end) of another state. It holds those that are complete together with the others, and copies
  // the last one if it is not. kBudget, kOutOfMemory: nothing was changed.
  Status adopt(int64_t first, int64_t end, std::vector<std::shared_ptr<Buffer>> pages);
  // The text was [0, first) and n tokens follow. The queries of the chunk where it ended stay; those of the chunk where
  // it will end get the other place. A chunk that these tokens hold whole is represented from them: its queries are not
  // kept.
  void extend(int64_t first, int64_t n);
  // `others`: some have the pages of the tokens that are forgotten.
  void truncate(int64_t n_tokens, bool others);
  // No token will follow: the queries of the chunk in progress go.
  void drop_queries();
  // The most tokens, at most n_tokens, to which the text can be cut so that no query of the chunk in progress is
  // missing.
  int64_t exact_boundary(int64_t n_tokens) const;

  Representations representations(int layer) const { return {pages_[static_cast<size_t>(layer)]}; }
  int64_t chunk() const { return chunk_; }
  // Pages of a layer for the complete chunks of a text.
  int64_t complete_pages(int64_t n_tokens) const {
    return page_bytes_ == 0 ? 0 : ceil_div(n_tokens / chunk_, Representations::kPageChunks);
  }
  // Rows for the queries of that chunk; no buffer if it is not in progress.
  Rows queries_in_progress(int layer, int64_t chunk) const;

 private:
  int64_t pages_for(int64_t n_tokens) const;  // of a layer
  // Of a layer: those that a fork has too and that tokens from `first` on change.
  int64_t pages_to_copy(int64_t first) const {
    return std::max<int64_t>(0, n_shared_ - first / chunk_ / Representations::kPageChunks);
  }

  Backend& backend_;
  TierAccount& account_;
  int64_t chunk_;
  int64_t head_dim_;
  int n_query_heads_;  // whose queries are kept
  int n_vectors_ = 0;  // of a chunk's representation, and their type
  ElementType type_ = ElementType::kF32;
  int64_t page_bytes_ = 0;                                   // 0: nothing is kept
  int64_t n_pages_ = 0;                                      // of all layers
  std::vector<std::vector<std::shared_ptr<Buffer>>> pages_;  // [layer][page]
  // Of two chunks in each layer: the one where the text ends, and the one where it will end.
  int64_t n_shared_ = 0;  // pages of each layer, the first ones, that others may have too
  bool queries_shared_ = false;
  std::shared_ptr<Buffer> queries_;  // f32 [layer][2][chunk][n_query_heads * head_dim]
  int64_t queries_bytes_ = 0;
  int64_t queries_chunk_[2] = {-1, -1};
};

}  // namespace quire
