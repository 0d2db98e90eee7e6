// A session: one text, its KV cache, and the stream that computes on it.
//
// Tokens pass through three states: pending (fed, not processed), settled (processed, or generated and delivered) and,
// for the last delivered token only, settled but not yet in the KV cache: it is computed when the next token is wanted.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/kv/chunk_store.h"
#include "lib/session/runtime.h"
#include "lib/strategy/strategy.h"

namespace quire {

class GenerationStream;

enum class OverflowPolicy { kError, kStop, kExtrapolate };

struct SessionOptions {
  std::string strategy = "full";
  ElementType kv_type = ElementType::kF16;
  OverflowPolicy overflow = OverflowPolicy::kError;
  int64_t expected_tokens = 0;
  int64_t kv_budget_bytes = 0;
  int64_t prefill_block = 256;
};

struct SessionStats {
  int64_t n_tokens = 0, n_pending = 0;
  int64_t n_prefilled = 0, n_generated = 0;
  int64_t prefill_ns = 0, decode_ns = 0;
  int64_t kv_bytes = 0, kv_bytes_peak = 0, kv_chunks = 0, kv_chunks_evicted = 0;
  int64_t scratch_bytes = 0;
  int64_t reach = 0;
  int64_t tasks_after_cancel = 0, cancel_latency_ns = 0;
};

// Public functions: any thread. `mutex_` guards everything that is not constant; the engine's step works on the KV
// store and the model without it, which is safe because a stream is open then and every other call is refused.
class Session : public std::enable_shared_from_this<Session> {
 public:
  static Result<std::shared_ptr<Session>> create(std::shared_ptr<Model> model, SessionOptions options);
  // The strategy that a session with these options would have.
  static Result<std::unique_ptr<const Strategy>> choose_strategy(const Model& model, const SessionOptions& options);
  ~Session();

  Status feed_text(std::string_view text, bool parse_special, bool add_bos);
  Status feed_tokens(std::span<const int32_t> ids);
  Status discard_pending();
  Status reset();
  Status position(int64_t* n_tokens, int64_t* n_pending) const;
  Status stats(SessionStats* stats) const;
  Status logits(int64_t first_position, int64_t n_rows, float* out, size_t capacity) const;
  Status scores(int64_t first_position, int64_t n, float* out) const;
  Status check_open() const;
  const std::string& strategy() const { return strategy_->canonical(); }

  // Cancels an open stream without waiting.
  void request_stop();
  // The engine will never finish an open stream: it was stopped.
  void engine_stopped();
  // Cancels, waits until the engine has let go, frees memory; later calls return kClosed.
  void close();
  const Model& model() const { return *model_; }

 private:
  friend class GenerationStream;  // its computing half: see stream.h

  Session(std::shared_ptr<Model> model, SessionOptions options, std::unique_ptr<const Strategy> strategy,
          std::unique_ptr<Rope> rope);
  // Locks and checks that no stream is open. A stream whose last handle was released is waited for.
  Status begin_call(std::unique_lock<std::mutex>& lock) const;
  void update_stats();  // at a token boundary
  int64_t n_settled() const { return static_cast<int64_t>(tokens_.size()); }

  const std::shared_ptr<Model> model_;
  const SessionOptions options_;
  const std::unique_ptr<const Strategy> strategy_;
  const std::unique_ptr<Rope> rope_;

  mutable std::mutex mutex_;
  bool closed_ = false;
  bool notice_delivered_ = false;           // the strategy's, by the first stream
  std::weak_ptr<GenerationStream> stream_;  // open: not yet ended, closed or released
  std::unique_ptr<ChunkStore> kv_;
  std::vector<int32_t> tokens_;  // settled
  std::deque<int32_t> pending_;
  int64_t n_computed_ = 0;          // tokens in the KV cache: n_settled() or one less
  std::vector<float> last_logits_;  // after token n_computed_ - 1; empty: none
  // Kept on request by the last stream, from position kept_first_ on.
  int64_t kept_first_ = 0;
  std::vector<float> kept_logits_;
  std::vector<float> kept_scores_;
  SessionStats stats_;
};

}  // namespace quire
