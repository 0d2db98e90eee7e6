// A session: one text, its KV cache, and the stream that computes on it.
//
// Tokens pass through three states: pending (fed, not processed), settled (processed, or generated and delivered), and
// settled but not in the KV cache: the last delivered token, which is computed when the next one is wanted, and what
// truncate() left to be read again.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/kv/chunk_store.h"
#include "lib/plan/text_positions.h"
#include "lib/session/label_attention.h"
#include "lib/session/runtime.h"
#include "lib/session/turn.h"
#include "lib/strategy/strategy.h"
#include "lib/support/mutex.h"

namespace quire {

class GenerationStream;

enum class OverflowPolicy { kError, kStop, kExtrapolate };

struct SessionAdapter {
  std::shared_ptr<const LoadedAdapter> adapter;
  double scale = 1;
};

struct SessionOptions {
  std::string strategy = "full";
  ElementType kv_type = ElementType::kF16;
  OverflowPolicy overflow = OverflowPolicy::kError;
  int64_t expected_tokens = 0;
  int64_t kv_budget_bytes = 0;
  std::string spill_directory;  // empty: the KV cache stays in memory
  int64_t spill_budget_bytes = 0;
  int64_t prefill_block = 256;
  std::vector<SessionAdapter> adapters;
};

struct SessionStats {
  int64_t n_tokens = 0, n_pending = 0;
  int64_t n_prefilled = 0, n_generated = 0;
  int64_t prefill_ns = 0, decode_ns = 0;
  int64_t kv_bytes = 0, kv_bytes_peak = 0, kv_chunks = 0, kv_chunks_resident = 0, kv_chunks_evicted = 0;
  int64_t kv_record_bytes = 0;
  int64_t kv_file_bytes = 0, kv_chunks_read = 0, kv_chunks_written = 0;
  int64_t scratch_bytes = 0;
  int64_t reach = 0;
  int64_t tasks_after_cancel = 0, cancel_latency_ns = 0;
};

// Public functions: any thread. What the session computes on is guarded by `turn_`, which a call holds while it works,
// and the engine during a step of the session's stream. What any thread may ask meanwhile is guarded by `mutex_`, which
// no thread holds while it works or calls the host.
class Session : public std::enable_shared_from_this<Session> {
 public:
  // What create() would refuse, and text of expected_tokens beyond the strategy's reach.
  static Status check(const Model& model, const SessionOptions& options);
  // kOverflow where text of expected_tokens is beyond the strategy's reach and the policy is to fail.
  static Status check_reach(const Strategy& strategy, const SessionOptions& options);
  static Result<std::shared_ptr<Session>> create(std::shared_ptr<Model> model, SessionOptions options);
  // The strategy that a session with these options would have.
  static Result<std::unique_ptr<const Strategy>> choose_strategy(const Model& model, const SessionOptions& options);
  ~Session();

  Status feed_text(std::string_view text, bool parse_special, bool add_bos, std::span<const TextLabel> labels = {});
  Status feed_tokens(std::span<const int32_t> ids);
  // At positions of their own, one for each id.
  Status feed_positions(std::span<const int32_t> ids, std::span<const int64_t> positions);
  Status discard_pending();
  Status reset();
  // Forgets the tokens from n_tokens on, pending ones too.
  Status truncate(int64_t n_tokens);
  // For benchmarks: an empty session then stands as if it had read n_tokens (> 0) random tokens, but for the last one's
  // keys. See quire_session_fill_random.
  Status fill_random(int64_t n_tokens, uint64_t seed);
  Status count_tokens(int64_t* n_tokens, int64_t* n_pending) const;
  Status stats(SessionStats* stats) const;
  Status logits(int64_t first_token, int64_t n_rows, float* out, size_t capacity) const;
  Status scores(int64_t first_token, int64_t n, float* out) const;
  // Of the last stream: choices of the prompt's last token and of the generated ones. kUnsupported: the strategy makes
  // none.
  Status label_attention(std::vector<LabelAttention>* labels) const;
  Status check_open() const;
  const SessionOptions& options() const { return options_; }
  const std::string& strategy() const { return strategy_->canonical(); }
  // 128 bits that name everything that keys and values depend on beside the tokens, as 32 hexadecimal digits.
  std::string fingerprint() const;

  // Cancels an open stream without waiting.
  void request_stop();
  // The engine will never finish an open stream: it was stopped.
  void engine_stopped();
  // Cancels, waits until the engine and other calls have let go, frees memory. Calls that begin after it return
  // kClosed.
  void close();
  const Model& model() const { return *model_; }

 private:
  friend class GenerationStream;  // its computing half: see stream.h

  enum class State { kOpen, kClosing, kClosed };

  // The turn of one call, until the end of a block.
  class QUIRE_SCOPED_CAPABILITY Call {
   public:
    explicit Call(const Session& session) QUIRE_ACQUIRE(session.turn_)
        : session_(session), status_(session.begin_call()), holds_(status_.ok()) {}
    ~Call() QUIRE_RELEASE() {
      if (holds_) session_.end_call();
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    // Unless it is OK nothing is held, and nothing may be touched.
    const Status& status() const { return status_; }
    // Gives the turn back earlier, under the session's mutex.
    void end_locked() QUIRE_RELEASE() {
      holds_ = false;
      session_.turn_.give_back();
    }

   private:
    const Session& session_;
    const Status status_;
    bool holds_;
  };

  Session(std::shared_ptr<Model> model, SessionOptions options, std::unique_ptr<const Strategy> strategy,
          std::shared_ptr<const Rope> rope, std::unique_ptr<ChunkStore> kv, AdapterList adapters);
  static Result<AdapterList> list_adapters(const Model& model, const SessionOptions& options);
  // What to say where an adapter may need another RoPE base than the session has; empty: nothing.
  std::string base_warning() const;

  // Takes the turn, waiting for the end of another call, or of a stream whose last handle was released. kBusy: a stream
  // is open; kClosed.
  Status begin_call() const QUIRE_EXCLUDES(mutex_);
  void end_call() const QUIRE_EXCLUDES(mutex_);
  void free_contents();  // called by the holder of the turn
  // What any thread may ask becomes what the holder of the turn has made.
  void publish() const QUIRE_REQUIRES(mutex_, turn_);
  bool stream_is_open() const QUIRE_REQUIRES(mutex_) { return !stream_.expired(); }

  void cut(int64_t n_tokens) QUIRE_REQUIRES(turn_);
  Status check_ids(std::span<const int32_t> ids) const;
  // The store goes back to what n_computed_ tokens left.
  void cut_store() QUIRE_REQUIRES(turn_) { kv_->truncate(n_computed_, strategy_->condensed_entries(n_computed_)); }
  void cut_labels(int64_t n_tokens) QUIRE_REQUIRES(turn_);
  // Room for one more generated token, so that adding it cannot fail.
  void reserve_generated() QUIRE_REQUIRES(turn_);
  void add_generated(int32_t token) QUIRE_REQUIRES(turn_);
  bool is_generated(int64_t position) const QUIRE_REQUIRES(turn_);
  int64_t n_settled() const QUIRE_REQUIRES(turn_) { return static_cast<int64_t>(tokens_.size()); }
  int64_t n_pending() const QUIRE_REQUIRES(turn_) { return static_cast<int64_t>(pending_.size()); }
  // Settled and pending tokens that are not in the KV cache.
  int64_t n_uncomputed() const QUIRE_REQUIRES(turn_) { return n_settled() - n_computed_ + n_pending(); }

  const std::shared_ptr<Model> model_;
  const SessionOptions options_;
  const std::unique_ptr<const Strategy> strategy_;
  const AdapterList adapters_;  // those of options_

  mutable Mutex mutex_;
  // Notified when the turn is given back, when the stream has an event or ends, and when the session closes.
  mutable CondVar changed_;
  State state_ QUIRE_GUARDED_BY(mutex_) = State::kOpen;
  bool notice_delivered_ QUIRE_GUARDED_BY(mutex_) = false;        // the strategy's, by the first stream
  bool base_warning_delivered_ QUIRE_GUARDED_BY(mutex_) = false;  // likewise
  // Open: not yet ended, closed, or released and let go by the engine.
  std::weak_ptr<GenerationStream> stream_ QUIRE_GUARDED_BY(mutex_);
  bool stream_released_ QUIRE_GUARDED_BY(mutex_) = false;  // the open stream's last handle is gone: it ends by itself
  mutable SessionStats stats_ QUIRE_GUARDED_BY(mutex_);    // at the last token boundary

  mutable Turn turn_;
  std::shared_ptr<const Rope> rope_ QUIRE_GUARDED_BY(turn_);  // shared with sessions of equal frequencies and chunk
  std::unique_ptr<ChunkStore> kv_ QUIRE_GUARDED_BY(turn_) QUIRE_PT_GUARDED_BY(turn_);
  std::vector<int32_t> tokens_ QUIRE_GUARDED_BY(turn_);      // settled
  std::vector<KeyRange> generated_ QUIRE_GUARDED_BY(turn_);  // runs of them that the model generated, ascending; empty
                                                             // where the strategy does not ask for them
  std::deque<int32_t> pending_ QUIRE_GUARDED_BY(turn_);
  TextPositions positions_ QUIRE_GUARDED_BY(turn_);  // of settled and pending tokens
  // Tokens in the KV cache: n_settled() or one less; after truncate() maybe fewer.
  int64_t n_computed_ QUIRE_GUARDED_BY(turn_) = 0;
  // Settled tokens before this that are not computed were, before truncate().
  int64_t reread_end_ QUIRE_GUARDED_BY(turn_) = 0;
  std::vector<float> last_logits_ QUIRE_GUARDED_BY(turn_);      // after token n_computed_ - 1; empty: none
  std::vector<LabelAttention> labels_ QUIRE_GUARDED_BY(turn_);  // in the order fed
  // By chunk: choices of the last stream from position selected_from_ on.
  std::vector<int64_t> selected_ QUIRE_GUARDED_BY(turn_);
  int64_t selected_from_ QUIRE_GUARDED_BY(turn_) = 0;
  // Kept on request by the last stream, from position kept_first_ on.
  int64_t kept_first_ QUIRE_GUARDED_BY(turn_) = 0;
  std::vector<float> kept_logits_ QUIRE_GUARDED_BY(turn_);
  std::vector<float> kept_scores_ QUIRE_GUARDED_BY(turn_);
};

}  // namespace quire
