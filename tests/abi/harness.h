// RAII over quire.h for the tests that use it from several threads or make it fail.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "quire/quire.h"

namespace quire::test {

struct Deleter {
  void operator()(quire_runtime* h) const { quire_runtime_release(h); }
  void operator()(quire_model* h) const { quire_model_release(h); }
  void operator()(quire_tokenizer* h) const { quire_tokenizer_release(h); }
  void operator()(quire_adapter* h) const { quire_adapter_release(h); }
  void operator()(quire_session* h) const { quire_session_release(h); }
  void operator()(quire_store* h) const { quire_store_release(h); }
  void operator()(quire_stream* h) const { quire_stream_release(h); }
  void operator()(quire_cancel* h) const { quire_cancel_release(h); }
};
template <typename Handle>
using Owned = std::unique_ptr<Handle, Deleter>;

// A status with the record that came with it.
struct Outcome {
  quire_status status = QUIRE_OK;
  quire_error error{};

  std::string text() const { return std::string(quire_get_status_name(status)) + ": " + error.message; }
};

// The host's memory: counts, checks that frees match, and can fail.
class HostMemory {
 public:
  HostMemory() = default;
  // Teardown runs on the runtime's threads: waits for it, and everything must have come back.
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // Blocks until destroyed() would be true; false after ten seconds.
  bool wait_destroyed();
  // Blocks until the library holds so many bytes; false after ten seconds. For memory that goes back on its threads.
  bool wait_for_bytes(int64_t bytes);
  int64_t bytes() const { return bytes_.load(); }
  int64_t n_allocations() const { return n_allocations_.load(); }
  // The n-th allocation from now on fails (1: the next), or it and all later ones. 0: none.
  void fail_at(int64_t n, bool all_later = false);
  // Called inside each call of the library's for memory, and each that gives memory back. Set before a runtime is made.
  std::function<void()> in_allocate, in_free;
  quire_runtime_options options(int32_t n_threads);

 private:
  static void* allocate(void* self, size_t size, size_t alignment);
  static void free(void* self, void* memory, size_t size, size_t alignment);
  static void destroy(void* self);
  bool fails();

  std::atomic<int64_t> bytes_{0};
  std::atomic<int64_t> n_allocations_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t countdown_ = 0;
  bool all_later_ = false;
  bool destroyed_ = true;
};

// A place in a callback where one thread stops until another lets it go on.
class Pause {
 public:
  void arm();   // the next thread that comes here stops
  void here();  // goes on at once if no thread is to stop
  void wait_for_arrival();
  void release();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool armed_ = false, arrived_ = false, released_ = false;
};

// Runs body on a thread of its own. If it does not come back within a minute, it hangs: the program ends and says so.
void expect_to_finish(const char* what, const std::function<void()>& body);

std::string model_directory(const std::string& name);  // of the tiny models

Owned<quire_runtime> make_runtime(int32_t n_threads, HostMemory* memory = nullptr);
quire_status load_model(quire_runtime* runtime, const std::string& path, Owned<quire_model>* model,
                        Outcome* outcome = nullptr);
Owned<quire_model> load_model(quire_runtime* runtime, const std::string& name);  // a tiny model; must succeed
Owned<quire_model> load_beacon_model(quire_runtime* runtime);  // text_256 with a beacon plug-in; must succeed
quire_session_options session_options(const std::string& strategy, int32_t prefill_block = 0);
Owned<quire_session> make_session(quire_model* model, const std::string& strategy, int32_t prefill_block = 0);
Owned<quire_session> make_session(quire_model* model, const quire_session_options& options);
std::vector<int32_t> some_tokens(size_t n, int32_t vocab_size, uint32_t seed = 1);
void feed(quire_session* session, const std::vector<int32_t>& ids);
std::pair<int64_t, int64_t> position(const quire_session* session);  // tokens, pending
quire_session_stats stats(const quire_session* session);
quire_tier_stats tier_stats(const quire_session* session, int32_t tier);
std::vector<float> last_logits(const quire_session* session, int32_t vocab_size);

quire_stream_options greedy(int64_t max_tokens);  // ignores end-of-text
Owned<quire_stream> open_stream(quire_session* session, const quire_stream_options& options);
quire_status next(quire_stream* stream, quire_event* event, Outcome* outcome = nullptr, int32_t timeout_ms = -1);

struct Generated {
  std::vector<int32_t> tokens;
  int32_t finish = QUIRE_FINISH_NONE;
  Outcome outcome;  // the failure, if there was one
};
// Reads the stream to its end or failure, and one `next` beyond, which must say END.
Generated read_to_end(quire_stream* stream);
Generated generate(quire_session* session, int64_t max_tokens);
Generated generate(quire_session* session, const quire_stream_options& options);

}  // namespace quire::test
