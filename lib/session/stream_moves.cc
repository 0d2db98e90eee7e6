// What a stream does not compute, because it stood elsewhere in the text before an edit (Session::edit_text).
#include <algorithm>
#include <vector>

#include "lib/session/stream_block.h"

namespace quire {
namespace {

// Chunks of a step, so that other sessions are not kept waiting.
constexpr int kMovesOfStep = 16;

}  // namespace

// Takes over the chunks that come next, if they are to be taken over: then they are computed tokens at once, and the
// block stays empty (true). Else *stop is where such chunks begin, if they come later. One token at least is left to be
// computed.
Result<bool> GenerationStream::make_moves(Block& block, int64_t* stop) {
  SessionContents& contents = block.contents();
  ChunkStore& kv = contents.kv();
  TextState& text = contents.text;
  const int64_t chunk = kv.geometry().chunk, first = text.n_computed() + block.n_reused;
  const int64_t end = std::min(text.n_tokens(), limit_);
  kv.drop_moves(ceil_div(first, chunk));
  const auto is_next = [&](const ChunkStore::Move* move) {
    return move && move->chunk * chunk == text.n_computed() && (move->chunk + 1) * chunk < end;
  };
  if (!kv.next_move()) return false;
  if (options_.score || options_.keep_logits || options_.keep_hidden) {
    reuse_miss_ = ReuseMiss::kStream;
    return false;
  }
  if (!is_next(kv.next_move())) {
    // Chunks that others have computed become this text's with a block behind them.
    *stop = std::min(*stop, std::max(kv.next_move()->chunk * chunk, first + 1));
    return false;
  }
  const auto begin = Clock::now();
  const ModelConfig& config = session_->model().llama->config();
  std::vector<const Rope*> ropes;
  for (int layer = 0; layer < config.n_layers; ++layer) {
    ropes.push_back(contents.ropes().of(!config.is_nope_layer(layer), config.is_window_layer(layer)));
  }
  Status status;
  for (int n = 0; n < kMovesOfStep && is_next(kv.next_move()) && !cancel_.cancelled(); ++n) {
    const ChunkStore::KeptKeys kept_keys = contents.kept_keys(text.n_computed() + chunk);
    status = kv.make_move(ropes);
    if (!status.ok()) break;
    block.cost.n_moved += text.moved(chunk);
    contents.kept.cut(text.n_tokens(), text.n_computed());
    kv.drop_unseen(kept_keys);
  }
  if (status.code() == Code::kBudget) {  // what is computed needs less memory
    kv.drop_moves(kNoLimit);
    reuse_miss_ = ReuseMiss::kMemory;
    status = {};
  }
  block.cost.prefill = Clock::now() - begin;
  if (block.cost.n_moved > 0) {
    prompt_moved_ += block.cost.n_moved;
    show_progress(block, contents);
  }
  QUIRE_TRY(status);
  return block.cost.n_moved > 0;
}

}  // namespace quire
