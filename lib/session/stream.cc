#include "lib/session/stream.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "lib/session/contain.h"

namespace quire {
namespace {

int64_t nanoseconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(d).count();
}

int64_t saturating_add(int64_t a, int64_t b) { return a > kNoLimit - b ? kNoLimit : a + b; }

// Room for n more, so that appending them cannot fail; grows as push_back does.
void make_room(std::vector<float>& values, size_t n) {
  const size_t needed = values.size() + n;
  if (needed > values.capacity()) values.reserve(std::max(needed, 2 * values.capacity()));
}

Status overflow_status(const Session& session, int64_t prompt, int64_t max_tokens, int64_t reach) {
  return Status(Code::kOverflow,
                std::to_string(prompt) + " tokens of prompt and " + std::to_string(max_tokens) +
                    " to generate exceed the " + std::to_string(reach) + " tokens that " + session.strategy() +
                    " can serve; choose another strategy or an overflow policy",
                saturating_add(prompt, max_tokens));
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
  const int64_t reach = session->strategy_->reach();
  const int64_t max_tokens = options.max_tokens;
  const OverflowPolicy policy = session->options_.overflow;
  if (policy == OverflowPolicy::kError && saturating_add(prompt, max_tokens) > reach) {
    return overflow_status(*session, prompt, max_tokens, reach);
  }
  std::shared_ptr<GenerationStream> stream(
      new GenerationStream(session, std::move(options), policy == OverflowPolicy::kExtrapolate ? kNoLimit : reach));
  stream->prompt_total_ = n_pending;
  if (policy == OverflowPolicy::kExtrapolate && saturating_add(prompt, max_tokens) > reach) {
    StreamEvent& warning = stream->warning_.emplace();
    warning.type = StreamEvent::Type::kWarning;
    warning.position = session->n_settled();
    warning.text = "positions beyond " + std::to_string(reach) + " were never trained: expect worse answers there";
  }
  if (!session->notice_delivered_ && !session->strategy_->notice().empty()) {
    StreamEvent& notice = stream->notice_.emplace();
    notice.type = StreamEvent::Type::kNotice;
    notice.position = session->n_settled();
    notice.text = session->strategy_->notice();
  }
  if (!session->model_->runtime->scheduler().add(stream)) return Status(Code::kClosed, "the runtime was closed");
  session->stream_ = stream;
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
      started_(Clock::now()) {}

// ---- the engine's half

bool GenerationStream::ready() {
  std::lock_guard lock(session_->mutex_);
  return finished_ || cancel_.cancelled() || !token_;
}

bool GenerationStream::step() {
  {
    std::lock_guard lock(session_->mutex_);
    if (finished_) return true;
    in_step_ = true;
  }
  Status status = contain([this] { return compute(); });
  // Whatever failed: the store goes back to the token boundary.
  if (!status.ok()) session_->kv_->truncate(session_->n_computed_);
  std::lock_guard lock(session_->mutex_);
  in_step_ = false;
  if (cancel_.cancelled() && !finished_) {
    finish(FinishReason::kCancelled);
  } else if (!status.ok()) {
    end({}, std::move(status));
  }
  return finished_;
}

Status GenerationStream::compute() {
  int64_t todo = 0, room = 0;
  {
    std::lock_guard lock(session_->mutex_);
    todo = session_->n_settled() + static_cast<int64_t>(session_->pending_.size()) - session_->n_computed_;
    room = limit_ - session_->n_computed_;
  }
  if (cancel_.cancelled()) return {};
  if (todo > 0) {
    if (room <= 0) {
      std::lock_guard lock(session_->mutex_);
      finish(FinishReason::kReach);
      return {};
    }
    const int64_t n = std::min({todo, room, session_->options_.prefill_block});
    QUIRE_TRY(process_block(n));
    if (n < todo) return {};
  }
  return generate();
}

// Runs the model over the next n tokens: the last delivered one if it was not computed yet, then pending ones.
Status GenerationStream::process_block(int64_t n) {
  Session& s = *session_;
  LlamaModel& llama = *s.model_->llama;
  const auto begin = Clock::now();
  std::vector<int32_t> tokens;
  int64_t from_pending = n;
  {
    std::lock_guard lock(s.mutex_);
    if (s.n_computed_ < s.n_settled()) {
      tokens.push_back(s.tokens_.back());
      --from_pending;
    }
    tokens.insert(tokens.end(), s.pending_.begin(), s.pending_.begin() + from_pending);
    s.tokens_.reserve(s.tokens_.size() + static_cast<size_t>(from_pending));
  }
  const int64_t first = s.n_computed_;
  std::vector<float> last, logits, scores;
  QUIRE_TRY(s.kv_->reserve(first, n));
  QUIRE_TRY(llama.forward({tokens, first, s.strategy_.get(), s.rope_.get(), s.kv_.get(), &cancel_}));
  QUIRE_TRY(read_logits(n, last, logits, scores));
  if (options_.score) {
    const float before =
        s.last_logits_.empty() ? std::numeric_limits<float>::quiet_NaN() : log_probability(s.last_logits_, tokens[0]);
    scores.insert(scores.begin(), before);
  }
  const auto kept = s.strategy_->retained(first + n);
  make_room(s.kept_logits_, logits.size());
  make_room(s.kept_scores_, scores.size());

  // From here on nothing fails: the block is read as a whole or not at all.
  std::unique_lock lock(s.mutex_);
  s.kept_logits_.insert(s.kept_logits_.end(), logits.begin(), logits.end());
  s.kept_scores_.insert(s.kept_scores_.end(), scores.begin(), scores.end());
  s.tokens_.insert(s.tokens_.end(), s.pending_.begin(), s.pending_.begin() + from_pending);
  s.pending_.erase(s.pending_.begin(), s.pending_.begin() + from_pending);
  s.n_computed_ += n;
  s.last_logits_ = std::move(last);
  lock.unlock();
  int64_t dropped_from = 0;
  for (const KeyRange& range : kept) {
    s.kv_->evict(dropped_from, range.begin);
    dropped_from = range.end;
  }
  lock.lock();
  const int64_t elapsed = nanoseconds(Clock::now() - begin);
  (from_pending > 0 ? s.stats_.prefill_ns : s.stats_.decode_ns) += elapsed;
  s.stats_.n_prefilled += from_pending;
  s.stats_.scratch_bytes = llama.scratch_bytes();
  s.update_stats();
  prompt_done_ += from_pending;
  if (from_pending > 0 && !cancel_.cancelled()) {
    StreamEvent event;
    event.type = StreamEvent::Type::kPrefill;
    event.position = s.n_settled();
    event.total = prompt_total_;
    event.done = prompt_done_;
    const double seconds = static_cast<double>(nanoseconds(Clock::now() - started_)) * 1e-9;
    event.n_per_second = seconds > 0 ? static_cast<double>(prompt_done_) / seconds : 0;
    progress_ = std::move(event);
    update_wait_event();
    changed_.notify_all();
  }
  return {};
}

// Fills `last` with the logits after the block's last token and, as wanted, all rows and the scores of its tokens from
// the second on.
Status GenerationStream::read_logits(int64_t n, std::vector<float>& last, std::vector<float>& logits,
                                     std::vector<float>& scores) {
  Session& s = *session_;
  LlamaModel& llama = *s.model_->llama;
  const auto vocab = static_cast<size_t>(llama.config().vocab_size);
  const auto check = [&](const std::vector<float>& rows) {
    if (std::all_of(rows.begin(), rows.end(), [](float x) { return std::isfinite(x); })) return Status();
    return Status(Code::kNumeric,
                  "the model's logits are not finite in the block from position " + std::to_string(s.n_computed_),
                  s.n_computed_);
  };
  last.resize(vocab);
  if (!options_.score && !options_.keep_logits) {
    QUIRE_TRY(llama.logits(n - 1, 1, &cancel_, last.data()));
    return check(last);
  }
  constexpr int64_t kRows = 32;
  std::vector<float> rows;
  for (int64_t row = 0; row < n; row += kRows) {
    const int64_t count = std::min(kRows, n - row);
    rows.resize(static_cast<size_t>(count) * vocab);
    QUIRE_TRY(llama.logits(row, count, &cancel_, rows.data()));
    QUIRE_TRY(check(rows));
    if (options_.keep_logits) logits.insert(logits.end(), rows.begin(), rows.end());
    for (int64_t r = 0; options_.score && r < count && row + r + 1 < n; ++r) {
      const int64_t next = row + r + 1 - (s.n_computed_ < s.n_settled() ? 1 : 0);
      scores.push_back(
          log_probability({&rows[static_cast<size_t>(r) * vocab], vocab}, s.pending_[static_cast<size_t>(next)]));
    }
  }
  std::copy(rows.end() - static_cast<int64_t>(vocab), rows.end(), last.begin());
  return {};
}

Status GenerationStream::generate() {
  Session& s = *session_;
  std::lock_guard lock(s.mutex_);
  if (cancel_.cancelled()) return {};
  if (n_generated_ >= options_.max_tokens) {
    finish(FinishReason::kMaxTokens);
    return {};
  }
  if (s.n_settled() >= limit_) {
    finish(FinishReason::kReach);
    return {};
  }
  const Sample sample = sampler_.sample(s.last_logits_, s.n_settled());
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
  event.position = session_->n_settled();
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
  s.tokens_.push_back(token_->token);
  current_ = *std::exchange(token_, std::nullopt);
  current_.position = s.n_settled();
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
