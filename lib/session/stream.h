// A stream: one computation on a session, pulled event by event.
//
// Two halves meet under the stream's mutex. The engine's half (stream_step.cc, stream_compute.cc) processes pending
// tokens block by block and generates, ahead of the reader as far as max_undelivered and drafts allow. The caller's
// half (next, cancel, close: stream.cc) takes events. A step works with the session's turn and without a mutex. What it
// came to (tokens read, events, the end of the stream) is shown to the caller's half at the step's very end, in
// settle(), together with giving back the turn: so whoever sees that a stream has ended may use the session at once.
//
// The session's text holds the undelivered tokens while the stream is open. They are no part of the session until they
// are delivered: a stream that ends before forgets them.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lib/session/session.h"
#include "lib/session/stream_control.h"
#include "lib/session/stream_event.h"
#include "lib/session/token_generator.h"
#include "lib/session/token_pace.h"
#include "lib/session/waiting_events.h"
#include "lib/support/cancel.h"
#include "lib/support/mutex.h"
#include "lib/support/os_wait_event.h"

namespace quire {

enum class NextResult { kEvent, kTimeout, kEnd };

class GenerationStream : public StreamControl, public std::enable_shared_from_this<GenerationStream> {
 public:
  // Errors: kBusy, kClosed, kOverflow, kEmpty, kInvalidArgument. In stream_open.cc.
  static Result<std::shared_ptr<GenerationStream>> open(const std::shared_ptr<Session>& session, StreamOptions options);
  ~GenerationStream() override;

  // Waits up to timeout_ms (negative: forever) for the next event, which stays at `*event` until the following call.
  Result<NextResult> next(int32_t timeout_ms, const StreamEvent** event);
  Status cancel();  // kClosed if the session was closed
  // Cancels and waits until the engine has let go.
  void close();
  // For the tokens that are not delivered yet: those generated already are forgotten and generated anew.
  // kInvalidArgument: more than a stream may have.
  Status add_stops(StopSet more);
  // Which tokens may come next, if the stream is constrained. kInvalidArgument: the wrong size, none, or at the wrong
  // time: each token must be taken before the next one is allowed, once.
  Status allow(AllowedTokens allowed);
  // The last handle is gone: ends without waiting.
  void abandon();
  Result<int> wait_descriptor();
  const std::shared_ptr<Runtime>& runtime() const;

  void request_stop() override { (void)cancel(); }  // closed meanwhile: nothing to stop
  void engine_stopped() override;
  void session_closes() override { close(); }

  bool ready() override;
  const void* pass() override;
  bool shares_step() override;  // while it decodes
  void submit(std::span<Job* const> jobs) override;
  bool submitted_is_done() override;
  void collect(std::span<Job* const> jobs, std::span<bool> finished) override;

 private:
  using Clock = std::chrono::steady_clock;

  GenerationStream(std::shared_ptr<Session> session, StreamOptions options, int64_t limit, const TextState& text,
                   std::list<SessionMessage> messages);

  // Engine's half. The turn is taken in begin_step and given back in settle.
  struct Block;
  struct Step;
  static Status submit_blocks(Step& step);
  static Status collect_blocks(Step& step);
  Status begin_step(Block& block, bool alone);
  Status next_block(Block& block);
  Status fill_block(Block& block, int64_t stop);
  Status reserve(SessionContents& contents, int64_t first, int64_t n) const;
  void add_draft(Block& block, int64_t most) const;      // in stream_draft.cc, as verify()
  Status reuse_chunks(Block& block, int64_t* stop);      // in stream_reuse.cc
  Result<bool> make_moves(Block& block, int64_t* stop);  // in stream_moves.cc
  void show_progress(Block& block, const SessionContents& contents) const;
  Sequence sequence(Block& block) const;
  static void look_for_sticky(Block& block, PeaksWanted& look);
  static void read_sticky(Block& block);
  Status prepare_row(Block& block) const;
  static Status queue_last_rows(Step& step);
  Status read_rows(Block& block, const HiddenStates& states, int64_t first_row, const CancelToken& cancel) const;
  Status read_results(Block& block, const HiddenStates& states, int64_t first_row, const CancelToken& cancel) const;
  Status verify(Block& block, Clock::time_point begin);
  TokenLogits drafted_logits(Block& block, int64_t i) const;
  void commit(Block& block, int64_t n, Clock::time_point begin);
  Status generate(Block& block, const TokenLogits& logits);
  bool settle(Block& block, Status failure, bool undo);
  int64_t n_confirmed() const QUIRE_REQUIRES(mutex_);
  void show(Block& block, Status failure, bool undo) QUIRE_REQUIRES(mutex_);
  void forget_undelivered(SessionContents& contents) QUIRE_EXCLUDES(mutex_);
  StreamEvent cancelled_event() QUIRE_REQUIRES(mutex_);
  bool expired() const;
  static int64_t next_query(const Block& block, int64_t n_computed);

  // Caller's half.
  Status check_open() const QUIRE_REQUIRES(mutex_);
  void cancel_locked() QUIRE_REQUIRES(mutex_);
  bool can_wait() const QUIRE_REQUIRES(mutex_);
  void deliver_message() QUIRE_REQUIRES(mutex_);
  void deliver_token() QUIRE_REQUIRES(mutex_);
  void update_wait_event() QUIRE_REQUIRES(mutex_);
  void rest_wait_event() QUIRE_REQUIRES(mutex_);

  const std::shared_ptr<Session> session_;
  const StreamOptions options_;
  const int64_t limit_;          // tokens the session may hold: the strategy's reach, or kNoLimit
  const int64_t first_settled_;  // tokens that the session held at first
  const int64_t prompt_total_;   // tokens to read
  const Clock::time_point started_;
  CancelToken cancel_;  // set under the mutex, polled without

  // The engine thread's alone.
  // The step that this stream leads; none between steps. Its room is made ahead, so that no step fails for want of it.
  const std::unique_ptr<std::optional<Step>> step_;
  TokenGenerator generator_;
  int64_t prompt_done_ = 0;
  int64_t prompt_reused_ = 0;
  int64_t prompt_moved_ = 0;
  ReuseMiss reuse_miss_ = ReuseMiss::kNone;  // why a whole chunk was computed; the last reason there was
  bool offered_ = false;                     // what the session had computed before was offered to others
  int64_t first_generated_ = kNoLimit;       // where the first generated token stands
  bool decoding_ = false;                    // the next step has one token to process
  bool apart_ = false;                       // something failed in company: the next step is taken alone
  bool drafts_;                              // until a step with a draft has failed
  std::optional<StreamEvent> ending_;        // the end of the answer, shown when all of its tokens are delivered
  bool stalled_ = false;  // a step failed that worked ahead: tried again when all tokens are delivered

  mutable Mutex mutex_;
  CondVar changed_;  // notified when there is an event, when the stream ends, and when it is closed
  // For a reader that sleeps (token_pace.h): notified where no more tokens come without it.
  CondVar rested_;
  TokenPace pace_ QUIRE_GUARDED_BY(mutex_);
  WaitingEvents events_ QUIRE_GUARDED_BY(mutex_);
  StreamEvent current_ QUIRE_GUARDED_BY(mutex_);  // the event the caller holds
  int64_t n_delivered_ QUIRE_GUARDED_BY(mutex_) = 0;
  TokenGenerator::State delivered_ QUIRE_GUARDED_BY(mutex_);  // the generator's, after the last delivered token
  // The next step forgets the undelivered tokens and goes on from there with more_stops_.
  bool rewind_ QUIRE_GUARDED_BY(mutex_) = false;
  StopSet more_stops_ QUIRE_GUARDED_BY(mutex_);
  size_t n_stop_ids_ QUIRE_GUARDED_BY(mutex_) = 0;  // all so far
  size_t n_stop_strings_ QUIRE_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<const AllowedTokens> allowed_ QUIRE_GUARDED_BY(mutex_);
  int64_t allowed_for_ QUIRE_GUARDED_BY(mutex_) = -1;       // the generated token that allowed_ speaks of
  bool needs_constraint_ QUIRE_GUARDED_BY(mutex_) = false;  // the engine waits for it
  bool end_delivered_ QUIRE_GUARDED_BY(mutex_) = false;
  bool in_step_ QUIRE_GUARDED_BY(mutex_) = false;
  bool finished_ QUIRE_GUARDED_BY(mutex_) = false;  // the engine will not touch this stream again
  bool closed_ QUIRE_GUARDED_BY(mutex_) = false;
  std::unique_ptr<WaitEvent> wait_event_ QUIRE_GUARDED_BY(mutex_) QUIRE_PT_GUARDED_BY(mutex_);
  Clock::time_point cancelled_at_ QUIRE_GUARDED_BY(mutex_);
  int64_t tasks_at_cancel_ QUIRE_GUARDED_BY(mutex_) = 0;  // the pool's; -1: cancelled between steps
};

}  // namespace quire
