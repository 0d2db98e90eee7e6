// The caller's half of a stream.
#include "lib/session/stream.h"

#include <algorithm>
#include <utility>

namespace quire {

Result<NextResult> GenerationStream::next(int32_t timeout_ms, const StreamEvent** event) {
  MutexLock lock(mutex_);
  const auto until = Clock::now() + std::chrono::milliseconds(std::max(timeout_ms, 0));
  bool in_time = timeout_ms != 0;
  auto nap = pace_.nap(options_.max_undelivered);
  while (can_wait()) {
    if (!in_time) {
      if (wait_event_ && wait_event_->is_set()) wait_event_->clear();  // the time came, no token did
      return NextResult::kTimeout;
    }
    if (nap > Clock::duration()) {
      const auto rested = Clock::now() + std::exchange(nap, Clock::duration());
      rested_.wait_until(mutex_, timeout_ms < 0 ? rested : std::min(rested, until));
    } else if (timeout_ms < 0) {
      changed_.wait(mutex_);
    } else {
      in_time = changed_.wait_until(mutex_, until);
    }
  }
  QUIRE_TRY(check_open());
  if (end_delivered_) return NextResult::kEnd;
  if (events_.empty()) {
    return Status(Code::kInvalidArgument, "the stream waits to be told which tokens may come next: quire_stream_allow");
  }
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
  rest_wait_event();
  *event = &current_;
  return NextResult::kEvent;
}

// Whether there is nothing to take, but something may come by itself.
bool GenerationStream::can_wait() const {
  return check_open().ok() && !end_delivered_ && events_.empty() && !needs_constraint_;
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
  delivered_ = std::move(token.after);
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
  needs_constraint_ = false;
  update_wait_event();
  cancel_.cancel();
  tasks_at_cancel_ = in_step_ ? runtime()->pool().tasks_started() : -1;
  runtime()->scheduler().wake();
}

Status GenerationStream::add_stops(StopSet more) {
  constexpr size_t kMostIds = 4096, kMostStrings = 64;
  MutexLock lock(mutex_);
  QUIRE_TRY(check_open());
  if (more.ids.size() > kMostIds - n_stop_ids_ || more.strings.size() > kMostStrings - n_stop_strings_) {
    return Status(Code::kInvalidArgument, "a stream has at most " + std::to_string(kMostIds) + " stop ids and " +
                                              std::to_string(kMostStrings) + " stop strings; it has " +
                                              std::to_string(n_stop_ids_) + " and " + std::to_string(n_stop_strings_));
  }
  if (finished_ || cancel_.cancelled() || more.ids.size() + more.strings.size() == 0) return {};
  // What can fail comes first.
  more_stops_.ids.reserve(more_stops_.ids.size() + more.ids.size());
  more_stops_.strings.reserve(more_stops_.strings.size() + more.strings.size());
  more_stops_.ids.insert(more_stops_.ids.end(), more.ids.begin(), more.ids.end());
  for (std::string& text : more.strings) more_stops_.strings.push_back(std::move(text));
  n_stop_ids_ += more.ids.size();
  n_stop_strings_ += more.strings.size();
  events_.tokens.clear();
  rewind_ = true;
  needs_constraint_ = false;
  update_wait_event();
  runtime()->scheduler().wake();
  return {};
}

Status GenerationStream::allow(AllowedTokens allowed) {
  const auto vocab = static_cast<size_t>(session_->model().llama->config().vocab_size);
  const auto invalid = [](const std::string& message) { return Status(Code::kInvalidArgument, message); };
  if (!allowed.empty()) {
    if (allowed.size() != (vocab + 31) / 32) {
      return invalid("n_words is " + std::to_string(allowed.size()) + "; expected 0 or " +
                     std::to_string((vocab + 31) / 32) + " for a vocabulary of " + std::to_string(vocab));
    }
    if (vocab % 32 != 0) allowed.back() &= (uint32_t{1} << vocab % 32) - 1;
    if (std::all_of(allowed.begin(), allowed.end(), [](uint32_t word) { return word == 0; })) {
      return invalid("no token of the vocabulary is allowed");
    }
  }
  auto shared = std::make_shared<const AllowedTokens>(std::move(allowed));
  MutexLock lock(mutex_);
  QUIRE_TRY(check_open());
  if (!options_.constrain) return invalid("the stream was not opened with QUIRE_STREAM_CONSTRAIN");
  if (finished_ || cancel_.cancelled()) return {};
  if (!events_.tokens.empty() || allowed_for_ == n_delivered_) {
    return invalid("token " + std::to_string(n_delivered_) + " of this stream has its constraint: take it first");
  }
  allowed_ = std::move(shared);
  allowed_for_ = n_delivered_;
  needs_constraint_ = false;
  update_wait_event();
  runtime()->scheduler().wake();
  return {};
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
  if (can_wait()) {
    wait_event_->clear();
  } else {
    wait_event_->set();
  }
}

// The same behind a delivered event, where a reader of fast tokens is left to rest.
void GenerationStream::rest_wait_event() {
  const auto nap = pace_.nap(options_.max_undelivered);
  if (wait_event_ && can_wait() && nap > Clock::duration()) {
    wait_event_->set_at(Clock::now() + nap);
  } else {
    update_wait_event();
  }
}

}  // namespace quire
