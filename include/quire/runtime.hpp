// SPDX-License-Identifier: MIT
//
// Runtimes: threads, memory, devices and the log; and what long calls are watched and stopped with.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "quire/handle.hpp"

namespace quire {
inline namespace v0 {

using RuntimeStats = quire_runtime_stats;
using DeviceInfo = quire_device_info;

// Stops a long call (loading, saving, quantizing) from another thread. Any thread.
class Cancel : public Handle<quire_cancel, quire_cancel_retain, quire_cancel_release> {
 public:
  using Handle::Handle;
  static Result<Cancel> create() { return detail::made<Cancel>(quire_cancel_create); }
  // Asks the calls that were given this object to stop, now and later.
  void trigger() const { quire_cancel_trigger(get()); }
};

// Called with what is done and all there is, in bytes, on the thread of the call. If it throws, the
// call is cancelled, its error has the exception as its cause, and value() throws that. The Cancel
// of the call's options, if there is one, is triggered for that, and stops later calls that are
// given it. A call whose last report throws has done its work: a file that it writes may be there.
using Progress = std::function<void(std::int64_t done, std::int64_t total)>;

namespace detail {

// The progress callback and the cancel handle of one call.
class LongCall {
 public:
  LongCall(const Progress& progress, const Cancel& cancel) : progress_(progress), cancel_(cancel) {
    // A callback that throws needs a handle to stop the call with.
    if (progress_ && !cancel_) {
      if (auto own = Cancel::create()) cancel_ = std::move(*own);
    }
  }
  LongCall(const LongCall&) = delete;
  LongCall& operator=(const LongCall&) = delete;

  template <typename Options>
  void put_into(Options* options) {
    options->cancel = cancel_.get();
    options->progress = progress_ ? &report : nullptr;
    options->progress_user_data = this;
  }
  // The result of the call, or the exception that its callback threw.
  template <typename T>
  Result<T> result(Result<T> result) const {
    if (!thrown_) return result;
    Error error(Status::kCancelled, "the progress callback threw: " + what(thrown_));
    error.set_cause(thrown_);
    return error;
  }

 private:
  static void report(void* self, std::int64_t done, std::int64_t total) {
    const auto* call = static_cast<const LongCall*>(self);
    if (call->thrown_) return;
    contain([&] { call->progress_(done, total); },
            [&](std::exception_ptr exception) {
              call->thrown_ = std::move(exception);
              call->cancel_.trigger();
            });
  }

  const Progress& progress_;
  Cancel cancel_;
  mutable std::exception_ptr thrown_;  // by a callback, whatever the caller says is const
};

}  // namespace detail

// Where the memory of weights, KV caches and scratch comes from: both or neither. They run on any
// thread, and must not call Quire. alloc returns null where there is no memory, which is also what
// an exception means.
struct Allocator {
  std::function<void*(std::size_t size, std::size_t alignment)> alloc = {};
  std::function<void(void* memory, std::size_t size, std::size_t alignment)> free = {};
};

// As quire_runtime_options: 0 is each one's default.
struct RuntimeOptions {
  std::int32_t n_threads = 0;
  std::int32_t n_io_threads = 0;
  std::int32_t n_kept_log_lines = 0;
  LogLevel log_level = LogLevel::kDefault;
  // Runs on any thread, and must not call Quire. What it throws is dropped: nobody waits for it.
  std::function<void(LogLevel level, std::string_view message)> log = {};
  Allocator allocator = {};
  std::int64_t kv_device_budget_bytes = 0;
  std::int64_t kv_host_budget_bytes = 0;
  std::int64_t kv_compressed_budget_bytes = 0;
  std::int64_t kv_file_budget_bytes = 0;
  std::int64_t prefix_cache_bytes = 0;
};

// A line that was kept (RuntimeOptions::n_kept_log_lines).
struct LogLine {
  LogLevel level = LogLevel::kDefault;
  std::string text = {};
  std::int64_t n_lost = 0;  // lines lost between the one before and this one, for want of room
};

namespace detail {

using Log = std::function<void(LogLevel, std::string_view)>;

inline void log_message(void* log, std::int32_t level, const char* message, std::size_t size) {
  contain(
      [&] {
        (*static_cast<Log*>(log))(static_cast<LogLevel>(level), {message, size});
      },
      [](const std::exception_ptr&) {});
}
inline void* allocate(void* allocator, std::size_t size, std::size_t alignment) {
  void* memory = nullptr;
  contain([&] { memory = static_cast<Allocator*>(allocator)->alloc(size, alignment); },
          [](const std::exception_ptr&) {});
  return memory;
}
inline void free_memory(void* allocator, void* memory, std::size_t size, std::size_t alignment) {
  contain([&] { static_cast<Allocator*>(allocator)->free(memory, size, alignment); },
          [](const std::exception_ptr&) {});
}
// A quire_destroy_callback for what lies on the heap.
template <typename T>
void destroy(void* object) {
  delete static_cast<T*>(object);
}

}  // namespace detail

// Threads and memory; everything else hangs off one. Any thread.
class Runtime : public Handle<quire_runtime, quire_runtime_retain, quire_runtime_release> {
 public:
  using Handle::Handle;

  static Result<Runtime> create(const RuntimeOptions& options = {}) {
    // The library has them until it calls their destroy function; a call that fails never had them.
    auto log = options.log ? std::make_unique<detail::Log>(options.log) : nullptr;
    const bool own_memory = options.allocator.alloc || options.allocator.free;
    auto allocator = own_memory ? std::make_unique<Allocator>(options.allocator) : nullptr;
    const quire_runtime_options c = convert(options, log.get(), allocator.get());
    auto runtime = detail::made<Runtime>(quire_runtime_create, &c);
    if (runtime) {
      (void)log.release();
      (void)allocator.release();
    }
    return runtime;
  }

  // Cancels everything that runs, and returns when no thread and no session's memory is left. Not
  // from a callback.
  Result<void> close() { return detail::call(quire_runtime_close, get()); }
  Result<RuntimeStats> stats() const {
    return detail::filled<RuntimeStats>(quire_runtime_get_stats, get());
  }
  // The oldest line of the log that was kept and not taken yet; none: there is no more.
  Result<std::optional<LogLine>> take_log_line() {
    std::int32_t level = 0;
    LogLine line;
    auto text =
        detail::copied<std::string>(quire_runtime_take_log_line, get(), &level, &line.n_lost);
    if (!text) return text.error();
    if (level == 0) return std::optional<LogLine>();
    line.level = static_cast<LogLevel>(level);
    line.text = std::move(*text);
    return std::optional<LogLine>(std::move(line));
  }
  // What models can run on, in the order in which "auto" prefers them, the unusable ones (no
  // QUIRE_DEVICE_USABLE in `flags`) included.
  Result<std::vector<DeviceInfo>> devices() const {
    std::int32_t n = 0;
    auto counted = detail::call(quire_runtime_get_device_count, get(), &n);
    if (!counted) return counted.error();
    std::vector<DeviceInfo> all;
    for (std::int32_t i = 0; i < n; ++i) {
      auto info = detail::filled<DeviceInfo>(quire_runtime_get_device_info, get(), i);
      if (!info) return info.error();
      all.push_back(*info);
    }
    return all;
  }

 private:
  static quire_runtime_options convert(const RuntimeOptions& options, detail::Log* log,
                                       Allocator* allocator) {
    auto c = detail::initialised(quire_runtime_options_init);
    c.n_threads = options.n_threads;
    c.n_io_threads = options.n_io_threads;
    c.n_kept_log_lines = options.n_kept_log_lines;
    c.log_level = static_cast<std::int32_t>(options.log_level);
    if (log) {
      c.log = detail::log_message;
      c.log_user_data = log;
      c.log_destroy = detail::destroy<detail::Log>;
    }
    if (allocator) {
      c.alloc = allocator->alloc ? detail::allocate : nullptr;
      c.free = allocator->free ? detail::free_memory : nullptr;
      c.alloc_user_data = allocator;
      c.alloc_destroy = detail::destroy<Allocator>;
    }
    c.kv_device_budget_bytes = options.kv_device_budget_bytes;
    c.kv_host_budget_bytes = options.kv_host_budget_bytes;
    c.kv_compressed_budget_bytes = options.kv_compressed_budget_bytes;
    c.kv_file_budget_bytes = options.kv_file_budget_bytes;
    c.prefix_cache_bytes = options.prefix_cache_bytes;
    return c;
  }
};

}  // namespace v0
}  // namespace quire
