// The caller's half of a stream.
#include "lib/session/stream.h"

#include <algorithm>
#include <utility>

namespace quire {

Result<NextResult> GenerationStream::next(int32_t timeout_ms, const StreamEvent** event) {
  MutexLock lock(mutex_);
  const auto until = Clock::now() + std::chrono::milliseconds(std::max(timeout_ms, 0));
  bool in_time = timeout_ms != 0;
  while (check_open().ok() && !end_delivered_ && events_.empty()) {
    if (!in_time) return NextResult::kTimeout;
    if (timeout_ms < 0) {
      changed_.wait(mutex_);
    } else {
      in_time = changed_.wait_until(mutex_, until);
    }
  }
  QUIRE_TRY(check_open());
  if (end_delivered_) return NextResult::kEnd;
  if (!events_.messages.empty()) {
    deliver_message();
  } else if (events_.progress) {
    current_ = *std::exchange(events_.progress, std::nullopt);
  } else if (!events_.tokens.empty()) {
    deliver_token();
  } else {
    end_delivered_ = true;
    session_->stream_ended(*this);
    update_wait_event();
    if (!events_.failure.ok()) return std::exchange(events_.failure, Status());
    current_ = *std::exchange(events_.end, std::nullopt);
  }
  update_wait_event();
  *event = &current_;
  return NextResult::kEvent;
}

void GenerationStream::deliver_message() {
  current_ = {};
  current_.message = std::move(events_.messages.front());
  events_.messages.pop_front();
  current_.type = current_.message.is_warning() ? StreamEvent::Type::kWarning : StreamEvent::Type::kNotice;
  current_.n_tokens = first_settled_;
  session_->message_delivered(current_.message.code);
}

void GenerationStream::deliver_token() {
  UndeliveredToken& token = events_.tokens.front();
  current_ = std::move(token.event);
  events_.tokens.pop_front();
  ++n_delivered_;
  session_->count_delivered();
  runtime()->scheduler().wake();
}

Status GenerationStream::check_open() const {
  QUIRE_TRY(session_->check_open());
  return closed_ ? Status(Code::kClosed, "the stream was closed") : Status();
}

Status GenerationStream::cancel() {
  MutexLock lock(mutex_);
  QUIRE_TRY(session_->check_open());
  cancel_locked();
  return {};
}

void GenerationStream::cancel_locked() {
  if (finished_ || cancel_.cancelled()) return;
  cancelled_at_ = Clock::now();
  events_.drop();
  update_wait_event();
  cancel_.cancel();
  tasks_at_cancel_ = in_step_ ? runtime()->pool().tasks_started() : -1;
  runtime()->scheduler().wake();
}

void GenerationStream::close() {
  MutexLock lock(mutex_);
  cancel_locked();
  changed_.notify_all();  // who waits for an event sees that the session closes
  while (!finished_) changed_.wait(mutex_);
  closed_ = true;
  session_->stream_ended(*this);
  update_wait_event();
  changed_.notify_all();
}

void GenerationStream::engine_stopped() {
  MutexLock lock(mutex_);
  finished_ = true;
  session_->stream_finished(*this);
  changed_.notify_all();
}

void GenerationStream::abandon() {
  MutexLock lock(mutex_);
  if (finished_) {
    session_->stream_ended(*this);
  } else {
    session_->stream_released(*this);
    cancel_locked();
  }
}

Result<int> GenerationStream::wait_descriptor() {
  MutexLock lock(mutex_);
  QUIRE_TRY(check_open());
  if (!wait_event_) {
    QUIRE_ASSIGN(wait_event_, WaitEvent::create());
    update_wait_event();
  }
  return wait_event_->descriptor();
}

const std::shared_ptr<Runtime>& GenerationStream::runtime() const { return session_->model().runtime; }

void GenerationStream::update_wait_event() {
  if (!wait_event_) return;
  if (closed_ || end_delivered_ || !events_.empty() || !session_->check_open().ok()) {
    wait_event_->set();
  } else {
    wait_event_->clear();
  }
}

}  // namespace quire
