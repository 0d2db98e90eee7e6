#include "lib/session/stream.h"

#include <algorithm>
#include <utility>

namespace quire {
namespace {

int64_t saturating_add(int64_t a, int64_t b) { return a > kNoLimit - b ? kNoLimit : a + b; }

// `next`: where the first generated token will stand.
Status overflow_status(const Session& session, int64_t prompt, int64_t next, int64_t max_tokens, int64_t reach) {
  return Status(Code::kOverflow,
                std::to_string(prompt) + " tokens of prompt" +
                    (next > prompt ? ", up to position " + std::to_string(next - 1) + "," : "") + " and " +
                    std::to_string(max_tokens) + " to generate exceed the " + std::to_string(reach) + " tokens that " +
                    session.strategy() + " can serve; choose another strategy or an overflow policy",
                saturating_add(next, max_tokens));
}

Status check_bias(const SamplingOptions& sampling, int32_t vocab) {
  for (size_t i = 0; i < sampling.logit_bias.size(); ++i) {
    const int32_t token = sampling.logit_bias[i].first;
    if (token >= 0 && token < vocab) continue;
    return Status(Code::kInvalidToken,
                  "logit_bias[" + std::to_string(i) + "] names token " + std::to_string(token) +
                      ", which is outside the vocabulary of " + std::to_string(vocab),
                  static_cast<int64_t>(i));
  }
  return {};
}

// Marks the tokens whose text contains a breaker, and control tokens.
Status find_breakers(const Tokenizer& tokenizer, StreamOptions& options) {
  auto& marks = options.sampling.dry_breakers;
  marks.assign(static_cast<size_t>(tokenizer.size()), false);
  std::string bytes;
  for (int32_t token = 0; token < tokenizer.size(); ++token) {
    bytes.clear();
    QUIRE_TRY(tokenizer.append_bytes(token, false, bytes));
    marks[static_cast<size_t>(token)] =
        tokenizer.is_control(token) || std::any_of(options.dry_breakers.begin(), options.dry_breakers.end(),
                                                   [&](const auto& b) { return bytes.find(b) != std::string::npos; });
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<GenerationStream>> GenerationStream::open(const std::shared_ptr<Session>& session,
                                                                 StreamOptions options) {
  Session::Call call(*session);
  QUIRE_TRY(call.status());
  bool notice_delivered = false, base_warning_delivered = false;
  {
    MutexLock lock(session->mutex_);
    notice_delivered = session->notice_delivered_;
    base_warning_delivered = session->base_warning_delivered_;
  }
  const int64_t n_settled = session->n_settled();
  const int64_t prompt = n_settled + session->n_pending();
  if (options.max_tokens > 0 && prompt == 0) {
    return Status(Code::kEmpty, "nothing was fed: there is no text to continue");
  }
  const int64_t next = session->positions_.position(prompt);
  const bool gaps = !session->positions_.consecutive();
  const int64_t reach = gaps ? session->strategy_->reach_with_gaps() : session->strategy_->reach();
  const int64_t max_tokens = options.max_tokens;
  const OverflowPolicy policy = session->options_.overflow;
  if (policy == OverflowPolicy::kError && saturating_add(next, max_tokens) > reach) {
    return overflow_status(*session, prompt, next, max_tokens, reach);
  }
  const auto& steps = options.sampling.steps;
  if (std::any_of(steps.begin(), steps.end(), [](const auto& s) { return s.kind == SamplerStep::Kind::kDry; })) {
    QUIRE_TRY(find_breakers(session->model_->llama->tokenizer(), options));
  }
  QUIRE_TRY(check_bias(options.sampling, session->model_->llama->config().vocab_size));
  const int64_t limit = policy == OverflowPolicy::kExtrapolate ? kNoLimit : session->positions_.tokens_below(reach);
  Messages messages;
  const auto message = [&](StreamEvent::Type type, std::string text) -> std::optional<StreamEvent> {
    if (text.empty()) return std::nullopt;
    StreamEvent event;
    event.type = type;
    event.n_tokens = n_settled;
    event.text = std::move(text);
    return event;
  };
  if (!notice_delivered) messages.notice = message(StreamEvent::Type::kNotice, session->strategy_->notice());
  if (!base_warning_delivered) messages.base_warning = message(StreamEvent::Type::kWarning, session->base_warning());
  if (policy == OverflowPolicy::kExtrapolate && saturating_add(next, max_tokens) > reach) {
    messages.warning = message(StreamEvent::Type::kWarning, "positions beyond " + std::to_string(reach) +
                                                                " were never trained: expect worse answers there");
  }
  std::shared_ptr<GenerationStream> stream(
      new GenerationStream(session, std::move(options), limit, std::move(messages)));
  stream->prompt_total_ = session->n_pending() + std::max<int64_t>(0, session->reread_end_ - session->n_computed_);
  session->selected_.clear();
  session->selected_from_ = std::max<int64_t>(0, prompt - 1);
  session->kept_first_ = session->n_computed_;
  session->kept_logits_.clear();
  session->kept_scores_.clear();

  // Under one lock: the scheduler may give the stream a step as soon as it knows it.
  MutexLock lock(session->mutex_);
  if (session->state_ != Session::State::kOpen) return Status(Code::kClosed, "the session was closed");
  if (!session->model_->runtime->scheduler().add(stream)) return Status(Code::kClosed, "the runtime was closed");
  session->stream_ = stream;
  session->stream_released_ = false;
  call.end_locked();
  return stream;
}

GenerationStream::GenerationStream(std::shared_ptr<Session> session, StreamOptions options, int64_t limit,
                                   Messages messages)
    : session_(std::move(session)),
      options_(std::move(options)),
      limit_(limit),
      started_(Clock::now()),
      sampler_(options_.sampling),
      detokenizer_(session_->model_->llama->tokenizer(), options_.stop_strings, false),
      notice_(std::move(messages.notice)),
      base_warning_(std::move(messages.base_warning)),
      warning_(std::move(messages.warning)) {
  if (options_.min_tokens == 0) return;
  const LlamaModel& llama = *session_->model_->llama;
  const int32_t vocab = llama.config().vocab_size;
  for (const int32_t token : options_.stop_ids) {  // any number may be a stop id
    if (token >= 0 && token < vocab) endings_.push_back(token);
  }
  for (int32_t token = 0; !options_.ignore_eos && token < vocab; ++token) {
    if (llama.is_eos(token)) endings_.push_back(token);
  }
}

// ---- the caller's half

void GenerationStream::drop_events() {
  notice_.reset();
  base_warning_.reset();
  warning_.reset();
  progress_.reset();
  token_.reset();
}

// The session may have another stream from here on.
void GenerationStream::leave_session() {
  if (session_->stream_.lock().get() != this) return;
  session_->stream_.reset();
  session_->stream_released_ = false;
}

Result<NextResult> GenerationStream::next(int32_t timeout_ms, const StreamEvent** event) {
  MutexLock lock(session_->mutex_);
  const auto until = Clock::now() + std::chrono::milliseconds(std::max(timeout_ms, 0));
  bool in_time = timeout_ms != 0;
  while (check_open().ok() && !end_delivered_ && !has_event()) {
    if (!in_time) return NextResult::kTimeout;
    if (timeout_ms < 0) {
      session_->changed_.wait(session_->mutex_);
    } else {
      in_time = session_->changed_.wait_until(session_->mutex_, until);
    }
  }
  QUIRE_TRY(check_open());
  if (end_delivered_) return NextResult::kEnd;
  if (notice_) {
    current_ = *std::exchange(notice_, std::nullopt);
    session_->notice_delivered_ = true;
  } else if (base_warning_) {
    current_ = *std::exchange(base_warning_, std::nullopt);
    session_->base_warning_delivered_ = true;
  } else if (warning_) {
    current_ = *std::exchange(warning_, std::nullopt);
  } else if (progress_) {
    current_ = *std::exchange(progress_, std::nullopt);
  } else if (token_) {
    deliver_token();
  } else {
    end_delivered_ = true;
    leave_session();
    update_wait_event();
    if (!failure_.ok()) return std::move(failure_);
    current_ = *std::exchange(end_, std::nullopt);
  }
  update_wait_event();
  *event = &current_;
  return NextResult::kEvent;
}

// While a token waits the engine takes no step, and other calls are refused: the turn is free.
void GenerationStream::deliver_token() {
  session_->turn_.take();
  session_->turn_.assert_held();
  session_->add_generated(token_->token);
  current_ = *std::exchange(token_, std::nullopt);
  current_.n_tokens = session_->n_settled();
  ++session_->stats_.n_generated;
  session_->stats_.n_tokens = session_->n_settled();
  session_->turn_.give_back();
  session_->model_->runtime->scheduler().wake();
}

Status GenerationStream::check_open() const {
  if (session_->state_ != Session::State::kOpen) return Status(Code::kClosed, "the session was closed");
  return closed_ ? Status(Code::kClosed, "the stream was closed") : Status();
}

Status GenerationStream::cancel() {
  MutexLock lock(session_->mutex_);
  if (session_->state_ != Session::State::kOpen) return check_open();
  cancel_locked();
  return {};
}

void GenerationStream::cancel_locked() {
  if (finished_ || cancel_.cancelled()) return;
  cancelled_at_ = Clock::now();
  drop_events();
  update_wait_event();
  cancel_.cancel();
  tasks_at_cancel_ = session_->turn_.taken() ? session_->model_->runtime->pool().tasks_started() : -1;
  session_->model_->runtime->scheduler().wake();
}

void GenerationStream::close() {
  MutexLock lock(session_->mutex_);
  cancel_locked();
  while (!finished_) session_->changed_.wait(session_->mutex_);
  closed_ = true;
  leave_session();
  update_wait_event();
  session_->changed_.notify_all();
}

void GenerationStream::engine_stopped() {
  MutexLock lock(session_->mutex_);
  finished_ = true;
  if (session_->stream_released_) leave_session();
  session_->changed_.notify_all();
}

void GenerationStream::abandon() {
  MutexLock lock(session_->mutex_);
  if (finished_) {
    leave_session();
  } else {
    session_->stream_released_ = true;
    cancel_locked();
  }
  session_->changed_.notify_all();
}

Result<int> GenerationStream::wait_descriptor() {
  MutexLock lock(session_->mutex_);
  QUIRE_TRY(check_open());
  if (!wait_event_) {
    QUIRE_ASSIGN(wait_event_, WaitEvent::create());
    update_wait_event();
  }
  return wait_event_->descriptor();
}

const std::shared_ptr<Runtime>& GenerationStream::runtime() const { return session_->model_->runtime; }

void GenerationStream::update_wait_event() {
  if (!wait_event_) return;
  if (closed_ || session_->state_ != Session::State::kOpen || end_delivered_ || has_event()) {
    wait_event_->set();
  } else {
    wait_event_->clear();
  }
}

}  // namespace quire
