// The engine's half of a stream, step by step: what a step begins with, and how what it came to is shown.
#include <utility>

#include "lib/session/contain.h"
#include "lib/session/stream_block.h"

namespace quire {

bool GenerationStream::ready() {
  MutexLock lock(mutex_);
  if (finished_ || cancel_.cancelled() || rewind_) return true;
  if (needs_constraint_) return false;
  const auto waiting = static_cast<int64_t>(events_.tokens.size());
  return ending_ || stalled_ ? waiting == 0 : waiting < options_.max_undelivered;
}

const void* GenerationStream::pass() { return session_->model().pass.get(); }

// After its first token a stream has exactly one token to process in each step.
bool GenerationStream::shares_step() {
  MutexLock lock(mutex_);
  return decoding_ && !finished_ && !apart_ && !rewind_ && !cancel_.cancelled();
}

void GenerationStream::submit(std::span<Job* const> jobs) {
  Step& step = step_->emplace();
  step.n = jobs.size();
  for (size_t i = 0; i < step.n; ++i) {
    step.streams[i] = static_cast<GenerationStream*>(jobs[i]);
    step.failures[i] = step.streams[i]->begin_step(step.blocks[i], step.n == 1);
  }
  step.failure = contain([&] { return submit_blocks(step); });
}

bool GenerationStream::submitted_is_done() {
  const Step& step = **step_;
  return !step.states || step.states->done();
}

void GenerationStream::collect(std::span<Job* const>, std::span<bool> finished) {
  Step& step = **step_;
  if (step.failure.ok()) step.failure = contain([&] { return collect_blocks(step); });
  step.states.reset();  // waits, so that nothing works on what is undone below
  const bool undo = !step.failure.ok();
  const bool retry = step.n > 1 && undo && step.failure.code() != Code::kCancelled;
  // Alone, what failed was this stream's; in company it tries again alone and then knows.
  if (step.n == 1 && undo) step.failures[0] = std::move(step.failure);
  for (size_t i = 0; i < step.n; ++i) {
    GenerationStream& stream = *step.streams[i];
    Block& block = step.blocks[i];
    finished[i] = !block.postponed;
    if (!block.work) continue;
    stream.apart_ = retry;
    // What failed with a draft may succeed without.
    const bool drops_draft = block.n_drafted() > 0 && block.generated_tokens.empty() && !step.failures[i].ok() &&
                             step.failures[i].code() != Code::kCancelled;
    if (drops_draft) {
      stream.drafts_ = false;
      step.failures[i] = {};
    }
    finished[i] = stream.settle(block, std::move(step.failures[i]), undo || drops_draft);
  }
  step_->reset();
}

// Tokens of the text before this are part of the session for good; kNoLimit: all are.
int64_t GenerationStream::n_confirmed() const {
  return first_generated_ == kNoLimit ? kNoLimit : first_generated_ + n_delivered_;
}

// Takes the session's turn, unless the stream has ended already, and goes back to the last delivered token if that was
// asked for. That needs a step alone: perhaps more than one token is to be processed then.
Status GenerationStream::begin_step(Block& block, bool alone) {
  StopSet more;
  TokenGenerator::State delivered;
  {
    MutexLock lock(mutex_);
    block.alone = alone;
    block.postponed = rewind_ && !alone && !finished_;
    if (finished_ || block.postponed) return {};
    in_step_ = true;
    block.n_confirmed = n_confirmed();
    if (events_.tokens.empty()) stalled_ = false;
    if (allowed_for_ == n_delivered_) block.allowed = allowed_;
    block.work.emplace(session_->begin_step());
    if (!std::exchange(rewind_, false)) return {};
    std::swap(more, more_stops_);
    std::swap(delivered, delivered_);  // put back below, without a copy that could fail
  }
  if (block.n_confirmed != kNoLimit) block.contents().forget_generated(block.n_confirmed);
  ending_.reset();
  Status status = contain([&] {
    generator_.rewind(delivered);
    generator_.add_stops(more);
    return Status();
  });
  MutexLock lock(mutex_);
  std::swap(delivered, delivered_);
  return status;
}

bool GenerationStream::expired() const {
  return options_.deadline_ms > 0 && Clock::now() - started_ >= std::chrono::milliseconds(options_.deadline_ms);
}

// Generates the text's next token from the logits after its last one, or finds the reason why there is none.
Status GenerationStream::generate(Block& block, const TokenLogits& logits) {
  TextState& text = block.contents().text;
  if (ending_ || block.end || cancel_.cancelled()) return {};
  const auto finish = [&](FinishReason reason) {
    block.end = generator_.end(reason);
    return Status();
  };
  if (generator_.n_generated() >= options_.max_tokens) return finish(FinishReason::kMaxTokens);
  if (text.n_settled() >= limit_) return finish(FinishReason::kReach);
  if (expired()) return finish(FinishReason::kDeadline);
  if (options_.constrain && !block.allowed) {
    block.needs_constraint = true;
    return {};
  }
  text.reserve_generated();
  const TokenGenerator::State before = generator_.state();
  struct Undo {
    TokenGenerator* generator;
    const TokenGenerator::State& state;
    ~Undo() {
      if (generator) generator->rewind(state);
    }
  } undo{&generator_, before};
  QUIRE_ASSIGN(StreamEvent event,
               generator_.next(logits, text.settled(), block.allowed ? *block.allowed : AllowedTokens()));
  if (event.type == StreamEvent::Type::kEnd) {
    block.end = std::move(event);
  } else {
    const int32_t token = event.token;
    block.generated_tokens.push_back({std::move(event), generator_.state()});
    first_generated_ = std::min(first_generated_, text.n_settled());
    text.add_generated(token);
  }
  undo.generator = nullptr;
  return {};
}

// The end of a step: the session and the reader get what it came to. If something failed, or the step is undone, the
// store goes back to the token boundary. True: the stream has ended, and the engine will not touch it again.
bool GenerationStream::settle(Block& block, Status failure, bool undo) {
  if (undo || !failure.ok()) block.contents().undo_block();
  bool forgotten = false;
  for (;;) {
    {
      MutexLock lock(mutex_);
      if (forgotten || !cancel_.cancelled()) {
        show(block, std::move(failure), undo);
        return finished_;
      }
    }
    forget_undelivered(block.contents());  // without the mutex: it frees the host's memory
    forgotten = true;
  }
}

// After a cancel, which drops them: the reader takes none meanwhile.
void GenerationStream::forget_undelivered(SessionContents& contents) {
  int64_t n_tokens = 0;
  {
    MutexLock lock(mutex_);
    n_tokens = n_confirmed();
  }
  if (n_tokens == kNoLimit) return;
  const bool computed = contents.text.n_computed() > n_tokens;
  contents.forget_generated(n_tokens);
  if (computed) contents.text.read_again();
}

// Gives back the turn and shows what the step came to.
void GenerationStream::show(Block& block, Status failure, bool undo) {
  const TextState& text = block.contents().text;
  const bool cancelled = cancel_.cancelled();
  std::optional<StreamEvent> end;
  if (cancelled) {
    end = cancelled_event();
  } else {
    if (block.progress) events_.progress = std::move(block.progress);
    if (!undo && !rewind_ && !block.generated_tokens.empty()) {
      pace_.shown(Clock::now(), static_cast<int64_t>(block.generated_tokens.size()));
      events_.tokens.splice(events_.tokens.end(), block.generated_tokens);
    }
    const bool all_delivered = events_.tokens.empty();
    needs_constraint_ = block.needs_constraint && allowed_for_ != n_delivered_;
    if (rewind_) {
      // Whatever it was: the next step finds out again, from the last delivered token.
    } else if (!failure.ok()) {
      // The step knew of the tokens that were delivered when it began.
      stalled_ = !all_delivered || block.n_confirmed < text.n_settled();
      if (!stalled_) end.emplace();
    } else {
      if (block.end) ending_ = std::move(block.end);
      if (ending_ && all_delivered) end = std::move(ending_);
    }
  }
  const int64_t n_undelivered = std::max<int64_t>(0, text.n_settled() - n_confirmed());
  decoding_ = first_generated_ != kNoLimit && text.n_uncomputed() <= 1 && !ending_;
  if (end) {
    end->type = StreamEvent::Type::kEnd;
    end->n_tokens = text.n_settled() - n_undelivered;
    if (failure.ok() || cancelled) {
      events_.end = std::move(end);
    } else {
      events_.failure = std::move(failure);
    }
    finished_ = true;
  }
  in_step_ = false;
  if (finished_) block.contents().kv().rest();
  block.work->end_step(block.cost, n_undelivered);
  if (finished_) session_->stream_finished(*this);
  changed_.notify_all();
  const bool full = static_cast<int64_t>(events_.tokens.size()) >= options_.max_undelivered;
  const bool last = generator_.n_generated() >= options_.max_tokens || ending_;
  const bool more = !(finished_ || full || last || stalled_ || needs_constraint_);
  if (!more) rested_.notify_all();
  // A reader that rests is not woken for each token.
  if (!more || !wait_event_ || !wait_event_->comes()) update_wait_event();
}

StreamEvent GenerationStream::cancelled_event() {
  events_.drop();
  const int64_t tasks = tasks_at_cancel_ < 0 ? 0 : runtime()->pool().tasks_started() - tasks_at_cancel_;
  session_->count_cancel(tasks, Clock::now() - cancelled_at_);
  // The answer's text ends behind the last delivered token. Without memory for what was held back it is left out.
  const TokenGenerator::State delivered = std::move(delivered_);
  StreamEvent event;
  event.finish = FinishReason::kCancelled;
  (void)contain([&] {
    generator_.rewind(delivered);
    event = generator_.end(FinishReason::kCancelled);
    return Status();
  });
  return event;
}

}  // namespace quire
