// SPDX-License-Identifier: MIT
//
// Snapshots: how a session is saved, where to, and what a snapshot says of itself.
#pragma once

#include <algorithm>
#include <mutex>

#include "quire/session_options.hpp"

namespace quire {
inline namespace v0 {

struct SnapshotOptions {
  bool whole = false;  // saving writes all of the session, wherever its past is
  Progress progress = {};
  Cancel cancel = {};
};

// Where a snapshot goes to, from its first byte to its last, on the thread of the call. A callback
// fails by its result or by an exception, which becomes the cause of the call's error.
struct SnapshotWriter {
  // Appends all of the bytes.
  std::function<Result<void>(Span<const unsigned char> bytes)> write = {};
  // Once, behind the last byte. May be empty.
  std::function<Result<void>()> commit = {};
  // Once, if the call fails after one of those was called. May be empty.
  std::function<void()> abort = {};
  std::string name = {};  // what messages call it
};

// Where a snapshot comes from: bytes that can be read in any order, and do not change. `read` fills
// as much of the buffer as it likes, at least a byte, and returns how much. It runs on several
// threads at once, for as long as a session that was loaded from here lives, or one that took over
// parts of it.
struct SnapshotReader {
  std::int64_t n_bytes = 0;
  std::function<Result<std::size_t>(std::int64_t offset, Span<unsigned char> buffer)> read = {};
  std::string name = {};
};

namespace detail {

// quire_snapshot_options of one call. It must not outlive the options.
class CSnapshotOptions {
 public:
  explicit CSnapshotOptions(const SnapshotOptions& options)
      : call_(options.progress, options.cancel) {
    c_ = initialised(quire_snapshot_options_init);
    c_.flags = options.whole ? QUIRE_SNAPSHOT_WHOLE : 0u;
    call_.put_into(&c_);
  }
  const quire_snapshot_options* get() const { return &c_; }
  const LongCall& call() const { return call_; }

 private:
  LongCall call_;
  quire_snapshot_options c_;
};

// What a callback that fails says in its quire_error.
inline void tell(const Error& error, quire_error* err) {
  err->os_error = error.os_error();
  const std::size_t n = std::min(error.message().size(), sizeof err->message - 1);
  std::copy_n(error.message().data(), n, err->message);
  err->message[n] = '\0';
}

// The first exception that a reader's or a writer's callbacks threw.
class Thrown {
 public:
  // body() -> Result<T>; on failure *err says why, and there is no value.
  template <typename T, typename Body>
  std::optional<T> run(const Body& body, quire_error* err) noexcept {
    std::optional<T> value;
    contain(
        [&] {
          if (auto result = body()) {
            value = *std::move(result);
          } else {
            tell(result.error(), err);
          }
        },
        [&](std::exception_ptr exception) {
          tell(Error(Status::kIo, what(exception)), err);
          const std::lock_guard<std::mutex> lock(mutex_);
          if (!first_) first_ = std::move(exception);
        });
    return value;
  }
  template <typename T>
  Result<T> result(Result<T> result) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!result && first_) result.error().set_cause(first_);
    return result;
  }

 private:
  std::mutex mutex_;
  std::exception_ptr first_;
};

// A SnapshotReader as C calls it.
class CReader {
 public:
  explicit CReader(const SnapshotReader& reader) : reader_(reader) {}

  quire_snapshot_reader convert(quire_destroy_callback destroy) {
    auto c = initialised(quire_snapshot_reader_init);
    c.n_bytes = reader_.n_bytes;
    c.read = reader_.read ? &read : nullptr;
    c.destroy = destroy;
    c.user_data = this;
    c.name = data_or_null(reader_.name);
    c.name_len = reader_.name.size();
    return c;
  }
  Thrown& thrown() { return thrown_; }

 private:
  static std::int64_t read(void* self, std::int64_t offset, void* buffer, std::size_t n,
                           quire_error* err) {
    auto* r = static_cast<CReader*>(self);
    const auto body = [&] {
      return r->reader_.read(offset, {static_cast<unsigned char*>(buffer), n});
    };
    const auto got = r->thrown_.run<std::size_t>(body, err);
    return got ? static_cast<std::int64_t>(*got) : -1;
  }

  SnapshotReader reader_;
  Thrown thrown_;
};

// A SnapshotWriter as C calls it, during one call.
class CWriter {
 public:
  explicit CWriter(const SnapshotWriter& writer) : writer_(writer) {}

  quire_snapshot_writer convert() {
    auto c = initialised(quire_snapshot_writer_init);
    c.write = writer_.write ? &write : nullptr;
    c.commit = writer_.commit ? &commit : nullptr;
    c.abort = writer_.abort ? &abort : nullptr;
    c.user_data = this;
    c.name = data_or_null(writer_.name);
    c.name_len = writer_.name.size();
    return c;
  }
  Thrown& thrown() { return thrown_; }

 private:
  // Result<void> has no value to keep; here it is a success that can be counted.
  template <typename Body>
  bool good(const Body& body, quire_error* err) {
    const auto counted = [&]() -> Result<bool> {
      auto result = body();
      if (!result) return result.error();
      return true;
    };
    return thrown_.run<bool>(counted, err).has_value();
  }
  static std::int64_t write(void* self, const void* bytes, std::size_t n, quire_error* err) {
    auto* w = static_cast<CWriter*>(self);
    const auto body = [&] {
      return w->writer_.write({static_cast<const unsigned char*>(bytes), n});
    };
    return w->good(body, err) ? static_cast<std::int64_t>(n) : -1;
  }
  static std::int32_t commit(void* self, quire_error* err) {
    auto* w = static_cast<CWriter*>(self);
    return w->good([&] { return w->writer_.commit(); }, err) ? 0 : -1;
  }
  static void abort(void* self) {
    contain([&] { static_cast<CWriter*>(self)->writer_.abort(); },
            [](const std::exception_ptr&) {});
  }

  const SnapshotWriter& writer_;
  Thrown thrown_;
};

}  // namespace detail

// What a snapshot says of itself, without a model, as JSON (quire_snapshot_describe).
inline Result<std::string> describe_snapshot(std::string_view path) {
  return detail::copied<std::string>(quire_snapshot_describe, path.data(), path.size());
}
inline Result<std::string> describe_snapshot(const SnapshotReader& reader) {
  detail::CReader r(reader);
  const auto c = r.convert(nullptr);
  return r.thrown().result(detail::copied<std::string>(quire_snapshot_describe_from, &c));
}

// Reads all of a snapshot and compares its checksums; the error says what is damaged.
inline Result<void> verify_snapshot(std::string_view path, const SnapshotOptions& options = {}) {
  const detail::CSnapshotOptions c(options);
  return c.call().result(detail::call(quire_snapshot_verify, path.data(), path.size(), c.get()));
}
inline Result<void> verify_snapshot(const SnapshotReader& reader,
                                    const SnapshotOptions& options = {}) {
  const detail::CSnapshotOptions c(options);
  detail::CReader r(reader);
  const auto from = r.convert(nullptr);
  return c.call().result(
      r.thrown().result(detail::call(quire_snapshot_verify_from, &from, c.get())));
}

}  // namespace v0
}  // namespace quire
