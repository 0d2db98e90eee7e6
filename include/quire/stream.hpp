// SPDX-License-Identifier: MIT
//
// Streams: what was fed is processed, then tokens are generated, and events tell of both.
#pragma once

#include "quire/stream_options.hpp"

namespace quire {
inline namespace v0 {

using TokenLogprob = quire_token_logprob;

// What a stream reports. Which members mean something depends on the kind: quire_event in quire.h.
// Texts and log probabilities live until the stream's next event, or the stream's end.
class Event {
 public:
  Event() : c_(detail::initialised(quire_event_init)) {}

  EventKind kind() const { return static_cast<EventKind>(c_.kind); }
  // Of the answer: all texts, of whatever event, one after the other are the answer.
  std::string_view text() const { return {c_.text, c_.text_len}; }
  std::int32_t token() const { return c_.token; }
  float logprob() const { return c_.logprob; }
  Span<const TokenLogprob> top_logprobs() const { return {c_.top_logprobs, c_.n_top_logprobs}; }
  std::int64_t n_tokens() const { return c_.n_tokens; }
  // Of the end.
  Finish finish() const { return static_cast<Finish>(c_.finish_reason); }
  std::int32_t stop_index() const { return c_.stop_index; }
  // Of the prompt's processing.
  std::int64_t total() const { return c_.total; }
  std::int64_t done() const { return c_.done; }
  std::int64_t reused() const { return c_.reused; }
  std::int64_t moved() const { return c_.moved; }
  double n_per_second() const { return c_.n_per_second; }
  ReuseMiss reuse_miss() const { return static_cast<ReuseMiss>(c_.reuse_miss); }
  // Of warnings and notices: for a person, and for a program.
  std::string_view message() const { return {c_.message, c_.message_len}; }
  MessageCode code() const { return static_cast<MessageCode>(c_.code); }

  const quire_event& c() const { return c_; }
  quire_event* get() { return &c_; }

 private:
  quire_event c_;
};

// A file descriptor (kind kFd) that is readable while an event waits. It belongs to the stream.
struct WaitHandle {
  std::int64_t handle = -1;
  WaitKind kind = WaitKind::kFd;
};

// An input range of events: `for (const Event& event : stream)`. The range ends with the stream, or
// with a failure: look at failure() behind the loop. Leaving the loop early loses nothing: a stream
// whose last reference goes stops by itself. One thread at a time, but for cancel, close, the stops
// that are added, and the wait handle: any thread, each with a copy of its own if it may outlive
// the others. Iterators do not survive a move of their stream.
class Stream : public Handle<quire_stream, quire_stream_retain, quire_stream_release> {
 public:
  using Handle::Handle;

  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Event;
    using difference_type = std::ptrdiff_t;
    using pointer = const Event*;
    using reference = const Event&;

    Iterator() = default;
    reference operator*() const { return stream_->event_; }
    pointer operator->() const { return &stream_->event_; }
    Iterator& operator++() {
      if (!stream_->advance()) stream_ = nullptr;
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& a, const Iterator& b) { return a.stream_ == b.stream_; }
    friend bool operator!=(const Iterator& a, const Iterator& b) { return a.stream_ != b.stream_; }

   private:
    friend Stream;
    explicit Iterator(Stream* stream) : stream_(stream) {}
    Stream* stream_ = nullptr;
  };
  using iterator = Iterator;

  // Starts to process what is pending and then to generate. Returns at once.
  static Result<Stream> open(Session& session, const StreamOptions& options = {}) {
    const detail::CStreamOptions c(options);
    return detail::made<Stream>(quire_stream_open, session.get(), c.get());
  }

  // Waits for the next event.
  Iterator begin() { return advance() ? Iterator(this) : Iterator(); }
  Iterator end() { return Iterator(); }
  // Why the range ended before the stream did; none: it did not.
  const std::optional<Error>& failure() const { return failure_; }
  // The text of all events that are left.
  Result<std::string> read_all() {
    std::string text;
    for (const Event& event : *this) text += event.text();
    if (failure_) return *failure_;
    return text;
  }

  // The next event in *event (kOk), or kEnd; after the timeout kTimeout. Negative: for ever.
  Result<Status> next(Event* event, std::chrono::milliseconds timeout) {
    quire_error error;
    const auto most = std::chrono::milliseconds(INT32_MAX);
    const auto ms =
        static_cast<std::int32_t>(std::clamp(timeout, -std::chrono::milliseconds(1), most).count());
    const quire_status status = quire_stream_next(get(), ms, event->get(), &error);
    if (status < 0) return Error(error);
    return static_cast<Status>(status);
  }

  // Asks the stream to stop: its next event is then the end. Undelivered tokens are forgotten.
  Result<void> cancel() { return detail::call(quire_stream_cancel, get()); }
  // Stops the stream, and waits until no thread works for it. Not from a callback.
  Result<void> close() { return detail::call(quire_stream_close, get()); }
  // More that ends the answer, for all tokens that were not delivered yet.
  Result<void> add_stop_ids(Span<const std::int32_t> ids) {
    return detail::call(quire_stream_add_stop_ids, get(), ids.data(), ids.size());
  }
  Result<void> add_stop_strings(const std::vector<std::string>& strings) {
    const auto all = detail::texts(strings);
    return detail::call(quire_stream_add_stop_strings, get(), all.data(), all.size());
  }
  Result<WaitHandle> wait_handle() const {
    WaitHandle found;
    std::int32_t kind = 0;
    auto done = detail::call(quire_stream_get_wait_handle, get(), &found.handle, &kind);
    if (!done) return done.error();
    found.kind = static_cast<WaitKind>(kind);
    return found;
  }
  // With StreamOptions::constrain, before the first token and after each: token t may come next if
  // bit t % 32 of allowed[t / 32] is set. No words: any may. (Experimental in quire.h.)
  Result<void> allow(Span<const std::uint32_t> allowed) {
    return detail::call(quire_stream_allow, get(), allowed.data(), allowed.size());
  }

 private:
  // Whether there is another event, which is then in event_.
  bool advance() {
    quire_error error;
    const quire_status status = quire_stream_next(get(), -1, event_.get(), &error);
    if (status < 0) failure_ = Error(error);
    return status == QUIRE_OK;
  }

  Event event_;
  std::optional<Error> failure_;
};

}  // namespace v0
}  // namespace quire
