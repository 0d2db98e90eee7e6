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
#include "lib/session/snapshot_index.h"
#include "lib/session/sticky_chunks.h"
#include "lib/session/text_state.h"
#include "lib/strategy/strategy.h"

namespace quire {

// What an edit takes of the old text beside what comes before the first difference.
enum class EditReuse { kExact, kApproximate };

struct EditResult {
  int64_t n_tokens = 0;
  int64_t n_kept = 0;   // computed, and kept
  int64_t n_moved = 0;  // whose chunks will be taken over from elsewhere in the old text
};

// One thread at a time. The strategy must outlive it.
class SessionContents {
 public:
  SessionContents(const Strategy& strategy, const ModelConfig& config, Ropes ropes, std::unique_ptr<ChunkStore> kv);

  TextState text;
  KeptResults kept;
  StickyChunks sticky;  // of all tokens of the text, computed or not
  // The last snapshot that was loaded or written to a file; text.n_unchanged() says what is still as it was then.
  std::optional<SnapshotMark> saved_as;

  const Strategy& strategy() const { return strategy_; }
  const Ropes& ropes() const { return ropes_; }
  ChunkStore& kv() { return *kv_; }
  const ChunkStore& kv() const { return *kv_; }
  // The session is released; nothing else may be asked for afterwards.
  std::unique_ptr<ChunkStore> release_kv() { return std::move(kv_); }

  // The same text on a fork of the store, with the last logits and the sticky chunks, and nothing else of what was
  // kept. Errors: those of ChunkStore::fork.
  Result<std::unique_ptr<SessionContents>> fork(const ModelConfig& config);
  // The contents of a new session become this text, whose keys the store restores from its snapshot, `kv`. Where the
  // last logits are not known, the last token is read again. `mark`: of the snapshot that all this came from. Errors:
  // those of ChunkStore::restore, kBadFile: keys are missing; the contents are of no use then.
  Status restore(SavedText saved, const StoreSnapshot& kv, const SnapshotMark& mark);
  // A fork of these contents was saved. Where as much is computed here, its snapshot is also that of these.
  void note_saved(const SessionContents& fork);
  // Forgets the tokens from n_tokens on, pending ones and what was kept too; n_tokens: at most the settled ones. The
  // last one that stays is read again, for its logits; if the store cannot go on from there exactly, so are the ones
  // from the last place where it can.
  void forget_from(int64_t n_tokens);
  // The text becomes `next`, which was fed and is not processed. What was computed of the tokens before the first that
  // differs is kept, as far as the store can go on from there; kApproximate: later chunks are to be taken over as well
  // (ChunkStore::Move), but for the first `reread` tokens of each run that stands in both texts. Errors: kUnsupported:
  // the strategy's keys cannot be moved. Then, and at an exception, nothing was changed. In session_edit.cc.
  Status edit(TextState next, EditReuse reuse, int64_t reread, EditResult* result);
  // Forgets the pending tokens from n_tokens on: chunks that have some of them will not be taken over. Where no token
  // is left to be computed, and the logits after the last one are not known, as after an edit, that one is read again,
  // as by forget_from().
  void cut_pending(int64_t n_tokens);
  // Forgets the generated tokens from n_tokens on, and stands as if they had never been generated: where any was
  // computed, the last token that stays and perhaps some before it are not computed any more. What was kept of those
  // that stay is kept. Never fails: without memory to find the place to go on from, everything is computed again.
  void forget_generated(int64_t n_tokens);
  // After a block that was not taken: the store goes back to the computed tokens.
  void undo_block();
  // A given token was computed, and these are its sticky chunks. The list of the one before stays if tokens were
  // generated behind that; where tokens are computed again, all lists stay, for they depend on the text alone. Room for
  // it must be there.
  void add_sticky(int64_t token, std::span<const int32_t> chunks);
  // Lets other sessions share the complete chunks of the first n_tokens tokens, which are computed and stay. `again`:
  // also those of which others had records of their own before. Without memory for that they are not shared.
  void offer_chunks(int64_t n_tokens, bool again) noexcept;
  // The tokens of a chunk, as the table of prefixes knows them; none: some stand at positions of their own, or are not
  // exact.
  std::vector<int32_t> chunk_ids(int64_t chunk) const;
  // What ChunkStore::drop_unseen() is to leave: also what is read at a few places where the text may be cut.
  ChunkStore::KeptKeys kept_keys(int64_t next_query) const;

 private:
  // The chunks of `next` behind n_kept tokens that can be taken over from the first n_old tokens of this text.
  std::vector<ChunkStore::Move> find_moves(const TextState& next, int64_t n_kept, int64_t n_old, int64_t reread) const;
  // Where the store can go on from if the text is cut to n_tokens: as many computed tokens as possible before the last.
  int64_t boundary(int64_t n_tokens) const;

  const Strategy& strategy_;
  const Ropes ropes_;
  std::unique_ptr<ChunkStore> kv_;
};

}  // namespace quire
