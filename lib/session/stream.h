// A stream: one computation on a session, pulled event by event.
//
// Two halves meet under the session's mutex. The engine's half (ready, step) processes pending tokens block by block
// and generates; it stops while a generated token waits to be delivered. The caller's half (next, cancel, close) takes
// events. A step works with the session's turn and without its mutex. What it came to (tokens read, an event, the end
// of the stream) is shown to the caller's half at the step's very end, in settle(), together with giving back the turn:
// so whoever sees that a stream has ended may use the session at once.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/session/sampler.h"
#include "lib/session/session.h"
#include "lib/support/os_wait_event.h"
#include "lib/tokenizer/detokenizer.h"

namespace quire {

struct StreamOptions {
  int64_t max_tokens = 0;
  SamplingOptions sampling;
  std::vector<std::string> dry_breakers;  // of kDry steps: tokens that contain one of these
  int64_t min_tokens = 0;                 // so many are generated before the text may end
  int64_t deadline_ms = 0;                // from opening; 0: none
  std::vector<int32_t> stop_ids;
  std::vector<std::string> stop_strings;
  bool score = false;
  bool keep_logits = false;
  bool ignore_eos = false;
};

enum class FinishReason : int32_t {  // the numbers of QUIRE_FINISH_*
  kNone = 0,
  kMaxTokens = 1,
  kEos = 2,
  kStopId = 3,
  kStopString = 4,
  kReach = 5,
  kCancelled = 6,
  kDeadline = 7,
};

struct StreamEvent {
  // The numbers of QUIRE_EVENT_*.
  enum class Type : int32_t { kPrefill = 1, kToken = 2, kWarning = 3, kEnd = 4, kNotice = 5 };
  Type type = Type::kEnd;
  int32_t token = -1;
  int64_t n_tokens = 0;
  std::string text;
  int64_t total = 0, reused = 0, done = 0;
  double n_per_second = 0;
  float logprob = 0;
  std::vector<TokenLogprob> top;
  FinishReason finish = FinishReason::kNone;
  int32_t stop_index = -1;
};

enum class NextResult { kEvent, kTimeout, kEnd };

class GenerationStream : public Job, public std::enable_shared_from_this<GenerationStream> {
 public:
  // Errors: kBusy, kClosed, kOverflow, kEmpty, kInvalidArgument.
  static Result<std::shared_ptr<GenerationStream>> open(const std::shared_ptr<Session>& session, StreamOptions options);

  // Waits up to timeout_ms (negative: forever) for the next event, which stays at `*event` until the following call.
  Result<NextResult> next(int32_t timeout_ms, const StreamEvent** event);
  Status cancel();  // kClosed if the session was closed
  // Cancels and waits until the engine has let go.
  void close();
  // The engine will never finish this stream: it was stopped.
  void engine_stopped();
  // The last handle is gone: ends without waiting.
  void abandon();
  Result<int> wait_descriptor();
  const std::shared_ptr<Runtime>& runtime() const;

  bool ready() override;
  bool step() override;
  // Streams of one model that decode take their steps together.
  const void* group() override;
  void step_together(std::span<Job* const> jobs, std::span<bool> finished) override;

 private:
  using Clock = std::chrono::steady_clock;

  // What is said before the first token.
  struct Messages {
    std::optional<StreamEvent> notice, base_warning, warning;
  };

  GenerationStream(std::shared_ptr<Session> session, StreamOptions options, int64_t limit, Messages messages);

  // Engine's half: stream_compute.cc. The turn is taken in begin_step and given back in settle.
  struct Block;
  static void step_all(std::span<GenerationStream* const> streams, std::span<bool> finished);
  static Status compute(std::span<GenerationStream* const> streams, std::span<Block> blocks,
                        std::span<Status> failures);
  bool begin_step();
  bool settle(Block& block, Status failure, bool undo);
  Status next_block(Block& block);
  Sequence sequence(Block& block) const;
  Status read_logits(Block& block, std::span<const float> row, const HiddenStates& states,
                     const CancelToken& cancel) const;
  void commit(Block& block, Clock::time_point begin);
  Status generate(Block& block);
  bool expired() const;
  StreamEvent end_event(FinishReason reason, int32_t token = -1);
  void end(StreamEvent event, Status failure) QUIRE_REQUIRES(session_->mutex_);
  StreamEvent cancelled_event() QUIRE_REQUIRES(session_->mutex_);

  // Caller's half.
  Status check_open() const QUIRE_REQUIRES(session_->mutex_);
  bool has_event() const QUIRE_REQUIRES(session_->mutex_) {
    return notice_ || base_warning_ || warning_ || progress_ || token_ || end_ || (!failure_.ok() && !end_delivered_);
  }
  void cancel_locked() QUIRE_REQUIRES(session_->mutex_);
  void drop_events() QUIRE_REQUIRES(session_->mutex_);
  void deliver_token() QUIRE_REQUIRES(session_->mutex_);
  void leave_session() QUIRE_REQUIRES(session_->mutex_);
  void update_wait_event() QUIRE_REQUIRES(session_->mutex_);

  const std::shared_ptr<Session> session_;
  const StreamOptions options_;
  const int64_t limit_;  // tokens the session may hold: the strategy's reach, or kNoLimit
  const Clock::time_point started_;
  std::vector<int32_t> endings_;  // tokens that end a text, if some must be generated first
  int64_t prompt_total_ = 0;
  CancelToken cancel_;  // set under the mutex, polled without

  // The engine thread's alone.
  Sampler sampler_;
  Detokenizer detokenizer_;
  int64_t n_generated_ = 0;
  int64_t prompt_done_ = 0;
  bool apart_ = false;  // something failed in company: the next step is taken alone

  // Events that wait, at most one of each; delivered in this order.
  std::optional<StreamEvent> notice_ QUIRE_GUARDED_BY(session_->mutex_);
  std::optional<StreamEvent> base_warning_ QUIRE_GUARDED_BY(session_->mutex_);
  std::optional<StreamEvent> warning_ QUIRE_GUARDED_BY(session_->mutex_);
  std::optional<StreamEvent> progress_ QUIRE_GUARDED_BY(session_->mutex_);
  std::optional<StreamEvent> token_ QUIRE_GUARDED_BY(session_->mutex_);
  std::optional<StreamEvent> end_ QUIRE_GUARDED_BY(session_->mutex_);
  Status failure_ QUIRE_GUARDED_BY(session_->mutex_);
  StreamEvent current_ QUIRE_GUARDED_BY(session_->mutex_);  // the event the caller holds
  bool end_delivered_ QUIRE_GUARDED_BY(session_->mutex_) = false;
  bool finished_ QUIRE_GUARDED_BY(session_->mutex_) = false;  // the engine will not touch this stream again
  bool closed_ QUIRE_GUARDED_BY(session_->mutex_) = false;
  std::unique_ptr<WaitEvent> wait_event_ QUIRE_GUARDED_BY(session_->mutex_) QUIRE_PT_GUARDED_BY(session_->mutex_);
  Clock::time_point cancelled_at_ QUIRE_GUARDED_BY(session_->mutex_);
  int64_t tasks_at_cancel_ QUIRE_GUARDED_BY(session_->mutex_) = 0;  // the pool's; -1: cancelled between steps
};

}  // namespace quire
