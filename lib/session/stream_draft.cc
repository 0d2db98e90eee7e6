// Drafts: tokens that may follow the last one, which are processed with it, and those of them that turn out to follow.
#include <algorithm>

#include "lib/session/prompt_lookup.h"
#include "lib/session/stream_block.h"

namespace quire {

// Where the block is the last generated token, appends those that may follow it, at most `most`. In company there are
// no drafts: there the weights are read for several tokens anyway.
void GenerationStream::add_draft(Block& block, int64_t most) const {
  const TextState& text = block.contents().text;
  const Strategy& strategy = block.contents().strategy();
  if (!block.alone || !drafts_ || text.n_uncomputed() != 1 || block.first < first_generated_) return;
  most = std::min({most, options_.draft_tokens, options_.max_tokens - generator_.n_generated()});
  // In less than a chunk, whatever is kept of the block, the queries of the chunk where that ends are known.
  if (strategy.selects_chunks()) most = std::min(most, strategy.selection().chunk - 2);
  const std::vector<int32_t> draft = find_draft(text.settled(), most, options_.draft_match);
  if (draft.empty()) return;
  block.with_draft.assign(block.tokens.begin(), block.tokens.end());
  block.with_draft.insert(block.with_draft.end(), draft.begin(), draft.end());
  block.tokens = block.with_draft;
}

// The logits after the i-th token of a block with a draft.
TokenLogits GenerationStream::drafted_logits(Block& block, int64_t i) const {
  const auto vocab = static_cast<size_t>(session_->model().llama->config().vocab_size);
  if (block.n_ranked == 0) return {nullptr, [&block, i, vocab] { return Result(block.logits_after(i, vocab)); }};
  const auto copy = [this, &block, i, vocab]() -> Result<std::span<const float>> {
    block.last_rows.resize(vocab);
    QUIRE_TRY(session_->model().pass->copy_logits(i, {.on_host = block.last_rows.data()}));
    return std::span<const float>(block.last_rows);
  };
  return {&block.ranked[static_cast<size_t>(i)], copy};
}

// Generates a token after each of the block's, as long as it is the one that was drafted there: so they are the tokens
// that would come without a draft. The session takes what was computed of them, and forgets the rest of the block.
Status GenerationStream::verify(Block& block, Clock::time_point begin) {
  const auto vocab = static_cast<size_t>(session_->model().llama->config().vocab_size);
  const auto finite_after = [&](int64_t i) {
    return block.n_ranked > 0 ? block.ranked[static_cast<size_t>(i)].finite : all_finite(block.logits_after(i, vocab));
  };
  Status status;
  int64_t n = 0;
  for (bool drafted = true; drafted; ++n) {
    const size_t before = block.generated_tokens.size();
    status = generate(block, drafted_logits(block, n));
    drafted = status.ok() && block.generated_tokens.size() > before && n + 1 < block.n() &&
              block.generated_tokens.back().event.token == block.tokens[static_cast<size_t>(n) + 1] &&
              finite_after(n + 1);
  }
  if (block.n_ranked > 0) {
    LastLogits& last = block.results.last;
    const Status copied = session_->model().pass->copy_logits(n - 1, {.copy = &last.on_device->buffer()});
    if (!copied.ok()) return status.ok() ? copied : status;  // the tokens stay, and are read again
    last.ranked = std::move(block.ranked[static_cast<size_t>(n) - 1]);
  }
  commit(block, n, begin);
  return status;
}

}  // namespace quire
