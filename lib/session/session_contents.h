// What the holder of a session's turn works on: the text, its KV cache, and what was kept of its computation.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lib/format/model_config.h"
#include "lib/format/snapshot_file.h"
#include "lib/kv/chunk_store.h"
#include "lib/model/llama_model.h"
#include "lib/session/kept_results.h"
#include "lib/session/text_state.h"
#include "lib/strategy/strategy.h"

namespace quire {

// One thread at a time. The strategy must outlive it.
class SessionContents {
 public:
  SessionContents(const Strategy& strategy, const ModelConfig& config, Ropes ropes, std::unique_ptr<ChunkStore> kv);

  TextState text;
  KeptResults kept;
  // The last snapshot that was loaded or written to a file; text.n_unchanged() says what is still as it was then.
  std::optional<SnapshotMark> saved_as;

  const Strategy& strategy() const { return strategy_; }
  const Ropes& ropes() const { return ropes_; }
  ChunkStore& kv() { return *kv_; }
  const ChunkStore& kv() const { return *kv_; }

  // The same text on a fork of the store, with the last logits, and nothing else of what was kept. Errors: those of
  // ChunkStore::fork.
  Result<std::unique_ptr<SessionContents>> fork(const ModelConfig& config);
  // The contents of a new session become this text, whose keys the store holds. last_logits: after the last computed
  // token; empty: not known, and that token is read again. `mark`: of the snapshot that all this came from.
  void restore(TextState restored, std::vector<float> last_logits, const SnapshotMark& mark);
  // Forgets the tokens from n_tokens on, pending ones and what was kept too; n_tokens: at most the settled ones. The
  // last one that stays is read again, for its logits; if the store cannot go on from there exactly, so are the ones
  // from the last place where it can.
  void forget_from(int64_t n_tokens);
  // Forgets the generated tokens from n_tokens on, and stands as if they had never been generated: where any was
  // computed, the last token that stays and perhaps some before it are not computed any more. What was kept of those
  // that stay is kept. Never fails: without memory to find the place to go on from, everything is computed again.
  void forget_generated(int64_t n_tokens);
  // After a block that was not taken: the store goes back to the computed tokens.
  void undo_block();
  // Lets other sessions share the complete chunks of the first n_tokens tokens, which are computed and stay. `again`:
  // also those of which others had records of their own before. Without memory for that they are not shared.
  void offer_chunks(int64_t n_tokens, bool again) noexcept;
  // The tokens of a chunk, as the table of prefixes knows them; none: some stand at positions of their own.
  std::vector<int32_t> chunk_ids(int64_t chunk) const;
  // Drops the keys outside these ranges, which are Strategy::retained(next_query), and full records that are old then.
  void evict(std::span<const KeyRange> retained, int64_t next_query);

 private:
  // Where the store can go on from if the text is cut to n_tokens: as many computed tokens as possible before the last.
  int64_t boundary(int64_t n_tokens) const;

  const Strategy& strategy_;
  const Ropes ropes_;
  std::unique_ptr<ChunkStore> kv_;
};

}  // namespace quire
