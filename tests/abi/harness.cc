#include "tests/abi/harness.h"
#include "tests/source_path.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <thread>

namespace quire::test {

HostMemory::~HostMemory() {
  EXPECT_TRUE(wait_destroyed());
  EXPECT_EQ(bytes(), 0);
}

bool HostMemory::wait_destroyed() {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::seconds(10), [this] { return destroyed_; });
}

bool HostMemory::wait_for_bytes(int64_t bytes) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return bytes_ == bytes; });
}

void HostMemory::fail_at(int64_t n, bool all_later) {
  std::lock_guard lock(mutex_);
  countdown_ = n;
  all_later_ = all_later;
}

bool HostMemory::fails() {
  std::lock_guard lock(mutex_);
  if (countdown_ == 0) return false;
  if (--countdown_ > 0) return false;
  if (all_later_) countdown_ = 1;
  return true;
}

void* HostMemory::allocate(void* self, size_t size, size_t alignment) {
  auto* memory = static_cast<HostMemory*>(self);
  ++memory->n_allocations_;
  if (memory->in_allocate) memory->in_allocate();
  void* block = nullptr;
  if (memory->fails() || posix_memalign(&block, alignment, size) != 0) return nullptr;
  memory->bytes_ += static_cast<int64_t>(size);
  return block;
}

void HostMemory::free(void* self, void* block, size_t size, size_t) {
  auto* memory = static_cast<HostMemory*>(self);
  if (memory->in_free) memory->in_free();
  std::free(block);
  std::lock_guard lock(memory->mutex_);
  memory->bytes_ -= static_cast<int64_t>(size);
  memory->changed_.notify_all();
}

void HostMemory::destroy(void* self) {
  auto* memory = static_cast<HostMemory*>(self);
  std::lock_guard lock(memory->mutex_);
  memory->destroyed_ = true;
  memory->changed_.notify_all();
}

quire_runtime_options HostMemory::options(int32_t n_threads) {
  quire_runtime_options options;
  quire_runtime_options_init(&options, sizeof options);
  options.n_threads = n_threads;
  options.alloc = allocate;
  options.free = free;
  options.alloc_user_data = this;
  options.alloc_destroy = destroy;
  destroyed_ = false;
  return options;
}

void Pause::arm() {
  std::lock_guard lock(mutex_);
  armed_ = true;
  arrived_ = released_ = false;
}

void Pause::here() {
  std::unique_lock lock(mutex_);
  if (!armed_) return;
  armed_ = false;
  arrived_ = true;
  changed_.notify_all();
  changed_.wait(lock, [this] { return released_; });
}

void Pause::wait_for_arrival() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return arrived_; });
}

void Pause::release() {
  std::lock_guard lock(mutex_);
  armed_ = false;
  released_ = true;
  changed_.notify_all();
}

void expect_to_finish(const char* what, const std::function<void()>& body) {
  std::promise<void> finished;
  std::thread thread([&] {
    body();
    finished.set_value();
  });
  if (finished.get_future().wait_for(std::chrono::minutes(1)) != std::future_status::ready) {
    std::fprintf(stderr, "%s: does not come back\n", what);
    std::_Exit(1);
  }
  thread.join();
}

std::string model_directory(const std::string& name) { return source_path("tests/golden/models/" + name); }

Owned<quire_runtime> make_runtime(int32_t n_threads, HostMemory* memory) {
  quire_runtime_options options;
  quire_runtime_options_init(&options, sizeof options);
  options.n_threads = n_threads;
  if (memory) options = memory->options(n_threads);
  quire_runtime* runtime = nullptr;
  Outcome outcome;
  outcome.status = quire_runtime_create(&options, &runtime, &outcome.error);
  EXPECT_EQ(outcome.status, QUIRE_OK) << outcome.text();
  return Owned<quire_runtime>(runtime);
}

quire_status load_model(quire_runtime* runtime, const std::string& path, Owned<quire_model>* model, Outcome* outcome) {
  quire_model* handle = nullptr;
  const quire_status status =
      quire_model_load(runtime, path.data(), path.size(), nullptr, &handle, outcome ? &outcome->error : nullptr);
  model->reset(handle);
  if (outcome) outcome->status = status;
  return status;
}

Owned<quire_model> load_model(quire_runtime* runtime, const std::string& name) {
  Owned<quire_model> model;
  Outcome outcome;
  EXPECT_EQ(load_model(runtime, model_directory(name), &model, &outcome), QUIRE_OK) << outcome.text();
  return model;
}

Owned<quire_model> load_beacon_model(quire_runtime* runtime) {
  const std::string path = model_directory("text_256");
  const std::string plugin = source_path("tests/golden/beacon/plugin");
  quire_model_options options;
  quire_model_options_init(&options, sizeof options);
  options.beacon_path = plugin.data();
  options.beacon_path_len = plugin.size();
  quire_model* model = nullptr;
  Outcome outcome;
  outcome.status = quire_model_load(runtime, path.data(), path.size(), &options, &model, &outcome.error);
  EXPECT_EQ(outcome.status, QUIRE_OK) << outcome.text();
  return Owned<quire_model>(model);
}

quire_session_options session_options(const std::string& strategy, int32_t prefill_block) {
  quire_session_options options;
  quire_session_options_init(&options, sizeof options);
  options.strategy = strategy.data();
  options.strategy_len = strategy.size();
  options.overflow = QUIRE_OVERFLOW_EXTRAPOLATE;
  options.prefill_block = prefill_block;
  return options;
}

Owned<quire_session> make_session(quire_model* model, const std::string& strategy, int32_t prefill_block) {
  return make_session(model, session_options(strategy, prefill_block));
}

Owned<quire_session> make_session(quire_model* model, const quire_session_options& options) {
  quire_session* session = nullptr;
  Outcome outcome;
  outcome.status = quire_session_create(model, &options, &session, &outcome.error);
  EXPECT_EQ(outcome.status, QUIRE_OK) << outcome.text();
  return Owned<quire_session>(session);
}

std::vector<int32_t> some_tokens(size_t n, int32_t vocab_size, uint32_t seed) {
  std::vector<int32_t> ids(n);
  uint32_t state = seed * 2654435761u;
  for (int32_t& id : ids) {
    state = state * 1664525u + 1013904223u;
    id = 3 + static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(vocab_size - 3));
  }
  return ids;
}

void feed(quire_session* session, const std::vector<int32_t>& ids) {
  Outcome outcome;
  outcome.status = quire_session_feed_tokens(session, ids.data(), ids.size(), &outcome.error);
  ASSERT_EQ(outcome.status, QUIRE_OK) << outcome.text();
}

std::pair<int64_t, int64_t> position(const quire_session* session) {
  int64_t n_tokens = -1, n_pending = -1;
  EXPECT_EQ(quire_session_get_token_counts(session, &n_tokens, &n_pending, nullptr), QUIRE_OK);
  return {n_tokens, n_pending};
}

quire_tier_stats tier_stats(const quire_session* session, int32_t tier) {
  quire_tier_stats now{};
  now.struct_size = sizeof now;
  EXPECT_EQ(quire_session_get_tier_stats(session, tier, &now, nullptr), QUIRE_OK);
  return now;
}

quire_session_stats stats(const quire_session* session) {
  quire_session_stats stats{};
  stats.struct_size = sizeof stats;
  EXPECT_EQ(quire_session_get_stats(session, &stats, nullptr), QUIRE_OK);
  return stats;
}

std::vector<float> last_logits(const quire_session* session, int32_t vocab_size) {
  std::vector<float> row(static_cast<size_t>(vocab_size));
  Outcome outcome;
  outcome.status = quire_session_get_logits(session, -1, 1, row.data(), row.size(), nullptr, &outcome.error);
  EXPECT_EQ(outcome.status, QUIRE_OK) << outcome.text();
  return row;
}

quire_stream_options greedy(int64_t max_tokens) {
  quire_stream_options options;
  quire_stream_options_init(&options, sizeof options);
  options.flags = QUIRE_STREAM_IGNORE_EOS;
  options.max_tokens = max_tokens;
  options.max_undelivered = 1;  // what the engine calls, and when, then does not depend on how soon a token is taken
  return options;
}

Owned<quire_stream> open_stream(quire_session* session, const quire_stream_options& options) {
  quire_stream* stream = nullptr;
  Outcome outcome;
  outcome.status = quire_stream_open(session, &options, &stream, &outcome.error);
  EXPECT_EQ(outcome.status, QUIRE_OK) << outcome.text();
  return Owned<quire_stream>(stream);
}

quire_status next(quire_stream* stream, quire_event* event, Outcome* outcome, int32_t timeout_ms) {
  quire_event_init(event, sizeof *event);
  const quire_status status = quire_stream_next(stream, timeout_ms, event, outcome ? &outcome->error : nullptr);
  if (outcome) outcome->status = status;
  return status;
}

Generated read_to_end(quire_stream* stream) {
  Generated run;
  quire_event event;
  while (next(stream, &event, &run.outcome) == QUIRE_OK) {
    if (event.kind == QUIRE_EVENT_TOKEN) run.tokens.push_back(event.token);
    if (event.kind == QUIRE_EVENT_END) run.finish = event.finish_reason;
  }
  if (run.outcome.status == QUIRE_END) {
    run.outcome = Outcome();
  } else {
    EXPECT_EQ(next(stream, &event), QUIRE_END);
  }
  return run;
}

Generated generate(quire_session* session, const quire_stream_options& options) {
  const auto stream = open_stream(session, options);
  return stream ? read_to_end(stream.get()) : Generated();
}

Generated generate(quire_session* session, int64_t max_tokens) { return generate(session, greedy(max_tokens)); }

}  // namespace quire::test
