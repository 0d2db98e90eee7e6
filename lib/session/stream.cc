#include "lib/session/stream.h"

#include <algorithm>
#include <utility>

namespace quire {
namespace {

int64_t nanoseconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(d).count();
}

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
  std::unique_lock<std::mutex> lock;
  QUIRE_TRY(session->begin_call(lock));
  const auto n_pending = static_cast<int64_t>(session->pending_.size());
  const int64_t prompt = session->n_settled() + n_pending;
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
  std::shared_ptr<GenerationStream> stream(new GenerationStream(session, std::move(options), limit));
  stream->prompt_total_ = n_pending + std::max<int64_t>(0, session->reread_end_ - session->n_computed_);
  if (policy == OverflowPolicy::kExtrapolate && saturating_add(next, max_tokens) > reach) {
    StreamEvent& warning = stream->warning_.emplace();
    warning.type = StreamEvent::Type::kWarning;
    warning.n_tokens = session->n_settled();
    warning.text = "positions beyond " + std::to_string(reach) + " were never trained: expect worse answers there";
  }
  if (!session->notice_delivered_ && !session->strategy_->notice().empty()) {
    StreamEvent& notice = stream->notice_.emplace();
    notice.type = StreamEvent::Type::kNotice;
    notice.n_tokens = session->n_settled();
    notice.text = session->strategy_->notice();
  }
  if (std::string text = session->base_warning_delivered_ ? "" : session->base_warning(); !text.empty()) {
    StreamEvent& warning = stream->base_warning_.emplace();
    warning.type = StreamEvent::Type::kWarning;
    warning.n_tokens = session->n_settled();
    warning.text = std::move(text);
  }
  if (!session->model_->runtime->scheduler().add(stream)) return Status(Code::kClosed, "the runtime was closed");
  session->stream_ = stream;
  session->selected_.clear();
  session->selected_from_ = std::max<int64_t>(0, prompt - 1);
  session->kept_first_ = session->n_computed_;
  session->kept_logits_.clear();
  session->kept_scores_.clear();
  return stream;
}

GenerationStream::GenerationStream(std::shared_ptr<Session> session, StreamOptions options, int64_t limit)
    : session_(std::move(session)),
      options_(std::move(options)),
      limit_(limit),
      sampler_(options_.sampling),
      detokenizer_(session_->model_->llama->tokenizer(), options_.stop_strings, false),
      started_(Clock::now()) {
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

// ---- the engine's half (its computing part: stream_compute.cc)

bool GenerationStream::ready() {
  std::lock_guard lock(session_->mutex_);
  return finished_ || cancel_.cancelled() || !token_;
}

bool GenerationStream::expired() const {
  return options_.deadline_ms > 0 && Clock::now() - started_ >= std::chrono::milliseconds(options_.deadline_ms);
}

Status GenerationStream::generate() {
  Session& s = *session_;
  std::lock_guard lock(s.mutex_);
  if (finished_ || cancel_.cancelled()) return {};
  if (n_generated_ >= options_.max_tokens) {
    finish(FinishReason::kMaxTokens);
    return {};
  }
  if (s.n_settled() >= limit_) {
    finish(FinishReason::kReach);
    return {};
  }
  if (expired()) {
    finish(FinishReason::kDeadline);
    return {};
  }
  const auto banned =
      n_generated_ < options_.min_tokens ? std::span<const int32_t>(endings_) : std::span<const int32_t>();
  Sample sample = sampler_.sample(s.last_logits_, s.n_settled(), s.tokens_, banned);
  if (!options_.ignore_eos && s.model_->llama->is_eos(sample.token)) {
    finish(FinishReason::kEos, sample.token);
    return {};
  }
  if (std::find(options_.stop_ids.begin(), options_.stop_ids.end(), sample.token) != options_.stop_ids.end()) {
    finish(FinishReason::kStopId, sample.token);
    return {};
  }
  StreamEvent event;
  event.type = StreamEvent::Type::kToken;
  event.token = sample.token;
  event.logprob = sample.logprob;
  event.top = std::move(sample.top);
  QUIRE_ASSIGN(event.text, detokenizer_.add(sample.token));
  if (detokenizer_.stopped() >= 0) {
    StreamEvent last;
    last.finish = FinishReason::kStopString;
    last.text = std::move(event.text);
    last.stop_index = detokenizer_.stopped();
    end(std::move(last), {});
    return {};
  }
  ++n_generated_;
  token_ = std::move(event);
  update_wait_event();
  changed_.notify_all();
  return {};
}

void GenerationStream::finish(FinishReason reason, int32_t token) {
  StreamEvent event;
  event.finish = reason;
  event.token = token;
  if (reason == FinishReason::kCancelled) {
    notice_.reset();
    base_warning_.reset();
    warning_.reset();
    progress_.reset();
    token_.reset();
    const auto& pool = session_->model_->runtime->pool();
    session_->stats_.tasks_after_cancel = tasks_at_cancel_ < 0 ? 0 : pool.tasks_started() - tasks_at_cancel_;
    session_->stats_.cancel_latency_ns = nanoseconds(Clock::now() - cancelled_at_);
  } else {
    event.text = detokenizer_.finish();
  }
  end(std::move(event), {});
}

void GenerationStream::end(StreamEvent event, Status failure) {
  event.type = StreamEvent::Type::kEnd;
  event.n_tokens = session_->n_settled();
  if (failure.ok()) {
    end_ = std::move(event);
  } else {
    failure_ = std::move(failure);
  }
  finished_ = true;
  if (abandoned_) session_->stream_.reset();
  update_wait_event();
  changed_.notify_all();
}

// ---- the caller's half

Result<NextResult> GenerationStream::next(int32_t timeout_ms, const StreamEvent** event) {
  std::unique_lock lock(session_->mutex_);
  const auto settled = [&] { return closed_ || end_delivered_ || has_event(); };
  if (timeout_ms < 0) {
    changed_.wait(lock, settled);
  } else if (!changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), settled)) {
    return NextResult::kTimeout;
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
    session_->stream_.reset();
    update_wait_event();
    if (!failure_.ok()) return std::move(failure_);
    current_ = *std::exchange(end_, std::nullopt);
  }
  update_wait_event();
  *event = &current_;
  return NextResult::kEvent;
}

void GenerationStream::deliver_token() {
  Session& s = *session_;
  s.add_generated(token_->token);
  current_ = *std::exchange(token_, std::nullopt);
  current_.n_tokens = s.n_settled();
  ++s.stats_.n_generated;
  s.stats_.n_tokens = s.n_settled();
  s.model_->runtime->scheduler().wake();
}

Status GenerationStream::check_open() const {
  if (session_->closed_) return Status(Code::kClosed, "the session was closed");
  return closed_ ? Status(Code::kClosed, "the stream was closed") : Status();
}

Status GenerationStream::cancel() {
  std::lock_guard lock(session_->mutex_);
  if (session_->closed_) return check_open();
  cancel_locked();
  return {};
}

void GenerationStream::cancel_locked() {
  if (finished_ || cancel_.cancelled()) return;
  cancelled_at_ = Clock::now();
  notice_.reset();
  base_warning_.reset();
  warning_.reset();
  progress_.reset();
  token_.reset();
  update_wait_event();
  cancel_.cancel();
  tasks_at_cancel_ = in_step_ ? session_->model_->runtime->pool().tasks_started() : -1;
  session_->model_->runtime->scheduler().wake();
}

void GenerationStream::close() {
  std::unique_lock lock(session_->mutex_);
  cancel_locked();
  changed_.wait(lock, [&] { return finished_; });
  closed_ = true;
  if (session_->stream_.lock().get() == this) session_->stream_.reset();
  changed_.notify_all();
}

void GenerationStream::abandon() {
  std::lock_guard lock(session_->mutex_);
  abandoned_ = true;
  if (finished_) {
    if (session_->stream_.lock().get() == this) session_->stream_.reset();
    return;
  }
  cancel_locked();
}

Result<int> GenerationStream::wait_descriptor() {
  std::lock_guard lock(session_->mutex_);
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
  if (closed_ || end_delivered_ || has_event()) {
    wait_event_->set();
  } else {
    wait_event_->clear();
  }
}

}  // namespace quire
