// A session's lifetime: who may work on its contents, what may be asked meanwhile, and how it ends.
//
// What a session is and holds is in session_contents.h. Two things guard it. Its turn is the right to work on the
// contents: a call holds it while it works, the engine during a step of the session's stream, and while a stream is
// open other calls are refused. Its mutex guards what any thread may ask or do meanwhile, and no thread holds it while
// it works or calls the host. A stream has a mutex of its own (stream.h), which is always taken before the session's.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/chat/chat_template.h"
#include "lib/session/earlier_records.h"
#include "lib/session/label_attention.h"
#include "lib/session/provenance.h"
#include "lib/session/runtime.h"
#include "lib/session/session_contents.h"
#include "lib/session/session_message.h"
#include "lib/session/session_options.h"
#include "lib/session/snapshot_index.h"
#include "lib/session/stream_control.h"
#include "lib/session/turn.h"
#include "lib/strategy/strategy.h"
#include "lib/support/mutex.h"

namespace quire {

struct SessionStats {
  int64_t n_tokens = 0, n_pending = 0;
  int64_t n_prefilled = 0, n_reused = 0, n_moved = 0, n_generated = 0, n_drafted = 0, n_accepted = 0;
  int64_t prefill_ns = 0, decode_ns = 0;
  int64_t kv_bytes = 0, kv_bytes_peak = 0, kv_chunks = 0, kv_chunks_resident = 0, kv_chunks_evicted = 0;
  int64_t kv_record_bytes = 0;
  int64_t kv_full_bytes = 0, kv_narrow_bytes = 0;  // of kv_chunks
  TierStats kv_host{};                             // below a device's memory; its name is empty where there is none
  TierStats kv_compressed{};                       // its name is empty where there is none
  int64_t kv_chunks_in_file = 0;
  int64_t kv_file_bytes = 0, kv_chunks_read = 0, kv_chunks_written = 0;
  int64_t kv_file_bytes_read = 0, kv_file_bytes_written = 0, kv_bytes_restored = 0;
  int64_t kv_chunks_in_snapshot = 0, kv_chunks_restored = 0;
  int64_t kv_hits = 0, kv_misses = 0, kv_chunks_left = 0, kv_stall_ns = 0;  // of memory, beside a file
  int64_t kv_written_behind = 0;                                            // records
  int64_t scratch_bytes = 0;
  int64_t reach = 0;
  int64_t tasks_after_cancel = 0, cancel_latency_ns = 0;
};

// What a store of documents can have of a session.
struct StorableText {
  std::vector<int32_t> tokens;  // settled ones up to the first that was generated, or has a position of its own
  bool is_all = false;          // there are no others, pending ones included
  int64_t n_computed = 0;       // of `tokens`, the first so many are in the KV cache
  int64_t snapshot_bytes = 0;   // of the whole session, at most
};

struct EditOptions {
  bool parse_special = false;  // of a text
  bool add_bos = true;         // of a text
  std::span<const TextLabel> labels{};
  EditReuse reuse = EditReuse::kExact;
  int64_t reread = 0;  // see SessionContents::edit
};

// Public functions: any thread.
class Session : public std::enable_shared_from_this<Session> {
 public:
  // What create() would refuse, and text of expected_tokens beyond the strategy's reach.
  static Status check(const Model& model, const SessionOptions& options);
  // kOverflow where text of expected_tokens is beyond the strategy's reach and the policy is to fail.
  static Status check_reach(const Strategy& strategy, const SessionOptions& options);
  static Result<std::shared_ptr<Session>> create(std::shared_ptr<Model> model, SessionOptions options);
  // Another session that stands where this one does (session_snapshot.cc).
  Result<std::shared_ptr<Session>> fork();
  // A session that goes on where one was saved (session_snapshot.cc). kBadFile: a damaged snapshot; kInvalidArgument:
  // one of another model, or options other than the saved session's.
  static Result<std::shared_ptr<Session>> load(std::shared_ptr<Model> model, std::shared_ptr<const ByteSource> source,
                                               LoadOptions options);
  static Result<std::shared_ptr<Session>> load(std::shared_ptr<Model> model, const std::string& path,
                                               LoadOptions options);
  // What a session with these options would be, without making it. Errors: those of create().
  static Result<SnapshotOrigin> identify(const Model& model, const SessionOptions& options);
  ~Session();

  // ---- calls on the text (session_calls.cc)
  Status feed_text(std::string_view text, bool parse_special, bool add_bos, std::span<const TextLabel> labels = {});
  Status feed_tokens(std::span<const int32_t> ids);
  // As messages of a conversation; template_name: empty: the one that it began with, else the checkpoint's own.
  Status feed_messages(std::span<const ChatMessage> messages, const ChatOptions& options,
                       std::string_view template_name);
  // At positions of their own, one for each id.
  Status feed_positions(std::span<const int32_t> ids, std::span<const int64_t> positions);
  // The text becomes this one, as if it had been fed at once to an empty session, but that nothing is computed again
  // that can be kept. In session_edit.cc.
  Status edit_text(std::string_view text, const EditOptions& options, EditResult* result);
  Status edit_tokens(std::span<const int32_t> ids, const EditOptions& options, EditResult* result);
  Status discard_pending();
  Status reset();
  // Forgets the tokens from n_tokens on, pending ones too.
  Status truncate(int64_t n_tokens);
  // Writes the session to a file, which has the whole snapshot afterwards or stays as it is (session_snapshot.cc).
  // Where the file holds the session's past, what is new is appended.
  Status save(const std::string& path, const SaveControl& control) const;
  // Writes all of the session, or has the sink give up. Errors of the sink.
  Status save_to(ByteSink& sink, const SaveControl& control) const;
  // For benchmarks: an empty session then stands as if it had read n_tokens (> 0) random tokens, but for the last one's
  // keys. See quire_session_fill_random.
  Status fill_random(int64_t n_tokens, uint64_t seed);

  // All tokens of the text, pending ones last.
  Status tokens(std::vector<int32_t>* ids) const;
  // (session_snapshot.cc)
  Status storable_text(StorableText* storable) const;

  // ---- what the last stream left (session_calls.cc)
  // f32 [n_rows][vocab_size]. kNotFound, here and below: not kept; with a null `out` that is all that is asked.
  Status logits(int64_t first_token, int64_t n_rows, float* out) const;
  // f32 [n_rows][hidden_size], after the final norm.
  Status hidden_states(int64_t first_token, int64_t n_rows, float* out) const;
  Status scores(int64_t first_token, int64_t n, float* out) const;
  // Choices of the prompt's last token and of the generated ones. kUnsupported: the strategy makes none.
  Status label_attention(std::vector<LabelAttention>* labels) const;
  // What tokens [first, first + n) of the last answer looked at; first -1: all of it. kNotFound: it is not known.
  Status passages(int64_t first, int64_t n, int64_t most, std::vector<Passage>* passages,
                  std::vector<int64_t>* label_ids) const;
  Status label_shares(int64_t first, int64_t n, std::vector<LabelAttention>* labels) const;

  // ---- what may be asked while a stream is open
  Status count_tokens(int64_t* n_tokens, int64_t* n_pending) const;
  Status stats(SessionStats* stats) const;
  Status check_open() const;
  const Model& model() const { return *model_; }
  const SessionOptions& options() const { return options_; }
  const AdapterList& adapters() const { return adapters_; }
  const std::string& strategy() const { return strategy_->canonical(); }
  // 128 bits that name everything that keys and values depend on beside the tokens, as 32 hexadecimal digits.
  std::string fingerprint() const;
  // What that is made of.
  SnapshotOrigin origin() const;
  static SnapshotOrigin origin_of(const Model& model, const AdapterList& adapters, const Strategy& strategy,
                                  const SessionOptions& options);

  // ---- the end
  // Cancels an open stream without waiting.
  void request_stop();
  // The engine will never finish an open stream: it was stopped.
  void engine_stopped();
  // Cancels, waits until the engine and other calls have let go, frees memory. Calls that begin after it, or were
  // cancelled by it, return kClosed.
  void close();
  // Cancelled when a close of the session or its runtime begins: for calls that take long.
  const CancelToken& closing() const { return closing_; }
  // Nothing of it will be kept for others when it goes: nobody but a store ever had it.
  void keep_nothing() { keeps_nothing_ = true; }
  // What a call returns that ended with `status`: kClosed, if a close cancelled it.
  Status unless_closed(Status status) const;

  // ---- for the session's stream, and for stores

  // What one step added to the statistics.
  struct StepCost {
    int64_t n_prompt = 0;  // prompt tokens computed
    int64_t n_reused = 0;  // prompt tokens whose keys another session had computed
    int64_t n_moved = 0;   // and those whose keys stood elsewhere in the text before an edit
    int64_t n_drafted = 0, n_accepted = 0;
    std::chrono::nanoseconds prefill{0}, decode{0};
  };
  // The turn, as an object, which stays on its thread. It is given back when this goes, unless that was done before.
  class Work {
   public:
    explicit Work(Session& session) : session_(&session) {}
    Work(Work&& other) noexcept : session_(std::exchange(other.session_, nullptr)) {}
    Work& operator=(Work&&) = delete;
    ~Work() {
      if (session_) session_->end_call();
    }
    SessionContents& contents() const { return session_->contents(); }
    // As Session::fork.
    Result<std::shared_ptr<Session>> fork() const { return session_->fork_contents(); }
    // Gives the turn back. The stream is open from here on, and the scheduler has it. kClosed: it is not.
    Status open_stream(const std::shared_ptr<StreamControl>& stream) {
      return std::exchange(session_, nullptr)->open_stream(stream);
    }
    // Gives the turn back. The last n_undelivered of the settled tokens are no part of the session yet: for others than
    // the stream the text ends before them.
    void end_step(const StepCost& cost, int64_t n_undelivered) {
      std::exchange(session_, nullptr)->end_step(cost, n_undelivered);
    }

   private:
    Session* session_;  // null: the turn was given back
  };
  // For opening a stream, and for work elsewhere that a close of the session waits for. Waits for the end of another
  // call, or of a stream whose last handle was released. kBusy: a stream is open; kClosed.
  Result<Work> begin_work();
  // For a step of the open stream: the turn is free between its steps.
  Work begin_step();
  // The first of the undelivered tokens became part of the session.
  void count_delivered();
  void count_cancel(int64_t tasks_after, std::chrono::nanoseconds latency);
  // The last handle of the stream is gone: it ends by itself, and calls wait for that.
  void stream_released(const StreamControl& stream);
  // The engine will not touch the stream again. If its last handle is gone, that is its end.
  void stream_finished(const StreamControl& stream);
  // The session may have another stream from here on.
  void stream_ended(const StreamControl& stream);
  // What a stream says before all else, until one of this code was delivered.
  std::vector<SessionMessage> due_messages() const;
  void message_delivered(MessageCode code);

 private:
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

   private:
    const Session& session_;
    const Status status_;
    const bool holds_;
  };

  Session(std::shared_ptr<Model> model, SessionOptions options, std::shared_ptr<const Strategy> strategy,
          AdapterList adapters, std::unique_ptr<SessionContents> contents);

  // Without the runtime's knowledge of it. snapshot: what its KV cache will be restored from; may be null.
  static Result<std::shared_ptr<Session>> make(std::shared_ptr<Model> model, SessionOptions options,
                                               std::shared_ptr<const BlockSource> snapshot);
  Status announce();
  Status publish_contents();
  Status save_whole(const std::string& path, const SaveControl& control) const QUIRE_REQUIRES(turn_);
  Result<bool> save_behind(const std::string& path, const SaveControl& control) const QUIRE_REQUIRES(turn_);
  // known: may be null.
  Status write_snapshot(SnapshotWriter& writer, const EarlierRecords* known, const SaveControl& control) const
      QUIRE_REQUIRES(turn_);
  void note_saved(const SnapshotMark& mark) const QUIRE_REQUIRES(turn_);
  Status restore(const SnapshotIndex& index, SavedText saved, const SnapshotMark& mark);
  void offer_restored();

  // Takes the turn; see begin_work().
  Status begin_call() const QUIRE_EXCLUDES(mutex_);
  void end_call() const QUIRE_EXCLUDES(mutex_);
  // What any thread may ask becomes what the holder of the turn has made.
  void publish(int64_t n_undelivered) const QUIRE_REQUIRES(mutex_, turn_);
  void free_contents();  // called by the holder of the turn
  void release_contents(std::unique_ptr<SessionContents> contents) noexcept;
  Result<std::shared_ptr<Session>> fork_contents();  // called by the holder of the turn
  // For Work, whose owner is the holder of the turn, which clang cannot know.
  SessionContents& contents() const {
    turn_.assert_held();
    return *contents_;
  }
  bool stream_is_open() const QUIRE_REQUIRES(mutex_) { return !stream_.expired(); }
  Status open_stream(const std::shared_ptr<StreamControl>& stream) QUIRE_EXCLUDES(mutex_);
  void end_step(const StepCost& cost, int64_t n_undelivered) QUIRE_EXCLUDES(mutex_);
  std::shared_ptr<StreamControl> stream_now() const QUIRE_EXCLUDES(mutex_);
  void forget_stream(const StreamControl& stream) QUIRE_REQUIRES(mutex_);
  Status check_ids(std::span<const int32_t> ids) const;
  Status encode_feed(std::string_view text, bool parse_special, bool add_bos, std::span<const TextLabel> labels,
                     bool first, TextState* to) const;
  Status edit(TextState next, EditReuse reuse, int64_t reread, EditResult* result) QUIRE_REQUIRES(turn_);
  Result<CitedShares> cited_shares(int64_t first, int64_t n) const QUIRE_REQUIRES(turn_);

  const std::shared_ptr<Model> model_;
  const SessionOptions options_;
  const std::shared_ptr<const Strategy> strategy_;  // its forks have it too
  const AdapterList adapters_;                      // those of options_
  const CancelToken* const runtime_closing_[1] = {&model_->runtime->closing()};
  CancelToken closing_{runtime_closing_};
  std::atomic<bool> keeps_nothing_ = false;

  mutable Mutex mutex_;
  mutable CondVar changed_;  // notified when the turn is given back, when a stream ends, and when the session closes
  State state_ QUIRE_GUARDED_BY(mutex_) = State::kOpen;
  std::vector<SessionMessage> due_messages_ QUIRE_GUARDED_BY(mutex_);
  // Open: not yet ended, closed, or released and let go by the engine.
  std::weak_ptr<StreamControl> stream_ QUIRE_GUARDED_BY(mutex_);
  bool stream_released_ QUIRE_GUARDED_BY(mutex_) = false;  // the open stream's last handle is gone: it ends by itself
  mutable SessionStats stats_ QUIRE_GUARDED_BY(mutex_);    // at the last token boundary

  mutable Turn turn_;
  std::unique_ptr<SessionContents> contents_ QUIRE_GUARDED_BY(turn_) QUIRE_PT_GUARDED_BY(turn_);  // null: closed
};

}  // namespace quire
