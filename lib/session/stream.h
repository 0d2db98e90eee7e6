// A stream: one computation on a session, pulled event by event.
//
// Two halves meet under the session's mutex. The engine's half (ready, step) processes pending tokens block by block
// and generates; it stops while a generated token waits to be delivered. The caller's half (next, cancel, close) takes
// events.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
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
  friend class Session;
  using Clock = std::chrono::steady_clock;

  GenerationStream(std::shared_ptr<Session> session, StreamOptions options, int64_t limit);

  // Engine's half; in stream_compute.cc up to `commit`.
  struct Block;
  static void step_all(std::span<GenerationStream* const> streams, std::span<bool> finished);
  static Status compute(std::span<GenerationStream* const> streams, std::span<bool> finished,
                        std::span<Status> failures);
  bool settle(Status failure, bool undo);
  int64_t n_uncomputed() const;
  Status next_block(Block& block);
  Sequence sequence(Block& block) const;
  Status read_logits(Block& block, std::span<const float> row, const CancelToken& cancel) const;
  Status commit(Block& block, Clock::time_point begin);
  Status generate();
  bool expired() const;
  void finish(FinishReason reason, int32_t token = -1);
  void end(StreamEvent event, Status failure);

  // Caller's half; under the session's mutex.
  Status check_open() const;
  bool has_event() const {
    return notice_ || base_warning_ || warning_ || progress_ || token_ || end_ || (!failure_.ok() && !end_delivered_);
  }
  void cancel_locked();
  void deliver_token();
  void update_wait_event();

  const std::shared_ptr<Session> session_;
  const StreamOptions options_;
  const int64_t limit_;  // tokens the session may hold: the strategy's reach, or kNoLimit
  Sampler sampler_;
  std::vector<int32_t> endings_;  // tokens that end a text, if some must be generated first
  Detokenizer detokenizer_;
  CancelToken cancel_;

  std::condition_variable changed_;
  // Events that wait, at most one of each; delivered in this order.
  std::optional<StreamEvent> notice_;
  std::optional<StreamEvent> base_warning_;
  std::optional<StreamEvent> warning_;
  std::optional<StreamEvent> progress_;
  std::optional<StreamEvent> token_;
  std::optional<StreamEvent> end_;
  Status failure_;
  StreamEvent current_;  // the event the caller holds
  bool end_delivered_ = false;
  bool finished_ = false;  // the engine will not touch this stream again
  bool abandoned_ = false;
  bool closed_ = false;
  bool in_step_ = false;
  bool apart_ = false;  // something failed in company: the next step is taken alone
  std::unique_ptr<WaitEvent> wait_event_;

  int64_t n_generated_ = 0;
  int64_t prompt_total_ = 0, prompt_done_ = 0;
  Clock::time_point started_;
  Clock::time_point cancelled_at_;
  int64_t tasks_at_cancel_ = 0;
};

}  // namespace quire
