// What a stream does not compute, because another session of the runtime has read the same text.
#include <algorithm>

#include "lib/session/stream_block.h"

namespace quire {

// Takes over the chunks that come next, as far as other sessions have computed them. One token at least is left to be
// computed, for the logits after the text. Where the text ends within a chunk, *stop is the end of that one, if the
// chunk behind it could be taken over then. Nothing is settled by this: undo_block() lets go of the chunks.
Status GenerationStream::reuse_chunks(Block& block, int64_t* stop) {
  SessionContents& contents = block.contents();
  ChunkStore& kv = contents.kv();
  const TextState& text = contents.text;
  const int64_t chunk = kv.geometry().chunk, first = text.n_computed();
  int64_t end = (std::min(text.n_tokens(), limit_) - 1) / chunk;
  const int64_t begin = ceil_div(first, chunk);
  if (begin >= end) return {};
  const auto miss = [&](ReuseMiss reason) {
    reuse_miss_ = reason;
    return Status();
  };
  if (!session_->options().reuse_prefixes) return miss(ReuseMiss::kOff);
  if (contents.strategy().condenses()) return miss(ReuseMiss::kStrategy);
  if (options_.score || options_.keep_logits || options_.keep_hidden) return miss(ReuseMiss::kStream);
  if (text.n_exact() != kNoLimit) return miss(ReuseMiss::kApproximate);
  const auto gaps = text.positions().runs();
  const int64_t consecutive = gaps.empty() ? end : gaps.front().first_token / chunk;
  if (begin >= consecutive) return miss(ReuseMiss::kPositions);
  const bool has_gap = consecutive < end;
  end = std::min(end, consecutive);

  if (!offered_) contents.offer_chunks(std::min(first, block.n_confirmed), true);
  offered_ = true;
  if (kv.n_prefixes() != first / chunk) return miss(ReuseMiss::kUnknown);
  const auto ids_of = [&](int64_t c) { return contents.chunk_ids(c); };
  // Of a text that nobody has, no more than its next chunk is looked at in each step.
  if (!kv.knows_prefix(begin, ids_of)) return miss(ReuseMiss::kUnknown);
  if (first % chunk != 0) {
    *stop = begin * chunk;
    return {};
  }
  QUIRE_ASSIGN(const ChunkStore::Adopted adopted, kv.adopt(end, ids_of));
  block.n_reused = adopted.n_chunks * chunk;
  if (adopted.end == ChunkStore::AdoptEnd::kUnknown) return miss(ReuseMiss::kUnknown);
  if (adopted.end == ChunkStore::AdoptEnd::kNoRoom) return miss(ReuseMiss::kMemory);
  return has_gap ? miss(ReuseMiss::kPositions) : Status();
}

}  // namespace quire
