// Closing, releasing and asking at the worst moments: while another thread is inside the host's allocator.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <thread>

#include "tests/abi/harness.h"

namespace quire::test {
namespace {

constexpr int32_t kVocab = 64;

class Schedule : public testing::Test {
 protected:
  Schedule() {
    memory_.in_allocate = [this] { pause_.here(); };
    memory_.in_free = [this] { release_one(); };
    runtime_ = make_runtime(2, &memory_);
    model_ = load_model(runtime_.get(), "short_128");
  }

  Owned<quire_session> fed_session(size_t n = 90) {
    auto session = make_session(model_.get(), "full", 16);
    feed(session.get(), some_tokens(n, kVocab));
    return session;
  }

  // The next call that gives memory back releases this handle meanwhile.
  template <typename Handle>
  void release_in_free(Owned<Handle>& handle) {
    std::lock_guard lock(mutex_);
    to_release_.emplace_back(std::shared_ptr<Handle>(handle.release(), Deleter()));
  }
  size_t n_to_release() {
    std::lock_guard lock(mutex_);
    return to_release_.size();
  }
  void release_one() {
    std::shared_ptr<void> handle;  // goes after the lock
    std::lock_guard lock(mutex_);
    if (to_release_.empty()) return;
    handle.swap(to_release_.front());
    to_release_.erase(to_release_.begin());
  }

  // The memory's end waits until the library has used it for the last time, and until then its callbacks use these.
  std::mutex mutex_;
  std::vector<std::shared_ptr<void>> to_release_;
  Pause pause_;
  HostMemory memory_;
  Owned<quire_runtime> runtime_;
  Owned<quire_model> model_;
};

// A close that waits for the engine lets nothing begin: not a call, and not the next stream, which would compute on
// memory that the close is about to free.
TEST_F(Schedule, NothingBeginsWhileASessionCloses) {
  const auto session = fed_session();
  pause_.arm();
  const auto stream = open_stream(session.get(), greedy(5));
  pause_.wait_for_arrival();  // the engine makes room for the first block
  std::thread closer([&] { EXPECT_EQ(quire_session_close(session.get(), nullptr), QUIRE_OK); });
  quire_status status = QUIRE_ERROR_BUSY;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (status == QUIRE_ERROR_BUSY && std::chrono::steady_clock::now() < until) {
    status = quire_session_feed_tokens(session.get(), nullptr, 0, nullptr);
    std::this_thread::yield();
  }
  EXPECT_EQ(status, QUIRE_ERROR_CLOSED) << "the close has not begun";
  quire_event event;
  EXPECT_EQ(next(stream.get(), &event), QUIRE_ERROR_CLOSED);
  const quire_stream_options options = greedy(5);
  quire_stream* another = nullptr;
  EXPECT_EQ(quire_stream_open(session.get(), &options, &another, nullptr), QUIRE_ERROR_CLOSED);
  EXPECT_EQ(quire_session_reset(session.get(), nullptr), QUIRE_ERROR_CLOSED);
  pause_.release();
  closer.join();
  EXPECT_EQ(quire_session_close(session.get(), nullptr), QUIRE_OK);
}

// A close cancels a call that another thread is in, and waits for its end.
TEST_F(Schedule, ACloseWaitsForACall) {
  const auto session = make_session(model_.get(), "full");
  std::atomic<bool> closed{false};
  pause_.arm();
  std::thread filler([&] { EXPECT_EQ(quire_session_fill_random(session.get(), 200, 1, nullptr), QUIRE_ERROR_CLOSED); });
  pause_.wait_for_arrival();
  std::thread closer([&] {
    EXPECT_EQ(quire_session_close(session.get(), nullptr), QUIRE_OK);
    closed = true;
  });
  quire_status status = QUIRE_OK;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (status == QUIRE_OK && std::chrono::steady_clock::now() < until) {
    status = quire_session_get_token_counts(session.get(), nullptr, nullptr, nullptr);
    std::this_thread::yield();
  }
  EXPECT_EQ(status, QUIRE_ERROR_CLOSED) << "the close has not begun";
  EXPECT_FALSE(closed);
  pause_.release();
  filler.join();
  closer.join();
}

// Statistics answer while a long call works: the host's allocator may take as long as it likes.
TEST_F(Schedule, StatisticsAnswerWhileACallWorks) {
  const auto session = make_session(model_.get(), "full");
  pause_.arm();
  std::thread filler([&] { EXPECT_EQ(quire_session_fill_random(session.get(), 200, 1, nullptr), QUIRE_OK); });
  pause_.wait_for_arrival();
  expect_to_finish("statistics during quire_session_fill_random", [&] {
    EXPECT_EQ(position(session.get()), std::make_pair(int64_t{0}, int64_t{0}));
    EXPECT_EQ(stats(session.get()).n_tokens, 0);
  });
  pause_.release();
  filler.join();
  EXPECT_EQ(position(session.get()), std::make_pair(int64_t{200}, int64_t{0}));
}

// Handles may be released inside callbacks: whatever call gives memory back, no lock is held meanwhile.
TEST_F(Schedule, TheLastStreamHandleGoesInsideFree) {
  const auto session = fed_session();
  const auto run = [&](const char* what, const std::function<void()>& call) {
    Owned<quire_stream> stream = open_stream(session.get(), greedy(2));
    EXPECT_EQ(read_to_end(stream.get()).outcome.status, QUIRE_OK);
    release_in_free(stream);
    expect_to_finish(what, call);
    EXPECT_EQ(n_to_release(), 0u) << what << " gave no memory back";
  };
  run("quire_session_truncate", [&] { EXPECT_EQ(quire_session_truncate(session.get(), 40, nullptr), QUIRE_OK); });
  feed(session.get(), some_tokens(60, kVocab));
  run("quire_session_reset", [&] { EXPECT_EQ(quire_session_reset(session.get(), nullptr), QUIRE_OK); });
  feed(session.get(), some_tokens(60, kVocab));
  run("quire_session_close", [&] { EXPECT_EQ(quire_session_close(session.get(), nullptr), QUIRE_OK); });
}

TEST_F(Schedule, HandlesGoInsideFreeWhenAFillIsUndone) {
  const auto session = fed_session();
  Owned<quire_stream> stream = open_stream(session.get(), greedy(2));
  EXPECT_EQ(read_to_end(stream.get()).outcome.status, QUIRE_OK);
  EXPECT_EQ(quire_session_reset(session.get(), nullptr), QUIRE_OK);
  release_in_free(stream);
  expect_to_finish("quire_session_fill_random", [&] {
    memory_.fail_at(4, true);
    EXPECT_EQ(quire_session_fill_random(session.get(), 120, 1, nullptr), QUIRE_ERROR_OUT_OF_MEMORY);
    memory_.fail_at(0);
  });
  EXPECT_EQ(n_to_release(), 0u);
  EXPECT_EQ(position(session.get()), std::make_pair(int64_t{0}, int64_t{0}));
}

TEST_F(Schedule, HandlesGoInsideFreeWhenTheRuntimeCloses) {
  auto session = fed_session();
  EXPECT_EQ(generate(session.get(), 2).outcome.status, QUIRE_OK);  // now it holds several records in each layer
  Owned<quire_stream> stream = open_stream(session.get(), greedy(50));
  quire_event event;
  EXPECT_EQ(next(stream.get(), &event), QUIRE_OK);
  release_in_free(stream);
  release_in_free(session);
  release_in_free(model_);
  expect_to_finish("quire_runtime_close", [&] { EXPECT_EQ(quire_runtime_close(runtime_.get(), nullptr), QUIRE_OK); });
  EXPECT_EQ(n_to_release(), 0u);
}

// What is kept of closed sessions goes without a lock: while the host takes its memory back, others are told how much
// there is.
TEST(KeptTexts, GoWithoutALock) {
  Pause pause;
  HostMemory memory;
  memory.in_free = [&] { pause.here(); };
  quire_runtime_options options = memory.options(2);
  options.prefix_cache_bytes = 40000;  // of a text and a part of another one
  quire_runtime* made = nullptr;
  ASSERT_EQ(quire_runtime_create(&options, &made, nullptr), QUIRE_OK);
  const Owned<quire_runtime> runtime(made);
  const auto model = load_model(runtime.get(), "short_128");
  const auto kept_bytes = [&] {
    quire_runtime_stats stats{};
    stats.struct_size = sizeof stats;
    EXPECT_EQ(quire_runtime_get_stats(runtime.get(), &stats, nullptr), QUIRE_OK);
    return stats.prefix_cache_bytes;
  };
  Owned<quire_session> sessions[2];
  for (uint32_t i = 0; i < 2; ++i) {
    sessions[i] = make_session(model.get(), "full(kv_chunk=16)", 16);
    feed(sessions[i].get(), some_tokens(64, kVocab, i));  // whole chunks
    EXPECT_EQ(generate(sessions[i].get(), 0).outcome.status, QUIRE_OK);
  }
  EXPECT_EQ(quire_session_close(sessions[0].get(), nullptr), QUIRE_OK);
  EXPECT_GT(kept_bytes(), 20000);
  pause.arm();
  std::thread close([&] { EXPECT_EQ(quire_session_close(sessions[1].get(), nullptr), QUIRE_OK); });
  pause.wait_for_arrival();
  auto answer = std::async(std::launch::async, kept_bytes);
  EXPECT_EQ(answer.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  pause.release();
  close.join();
  EXPECT_GT(answer.get(), 0);
  EXPECT_LE(kept_bytes(), options.prefix_cache_bytes);
}

// The last handle of a model goes inside the free callback of what is kept of its sessions: all of that goes first.
TEST(KeptTexts, GoBeforeTheirModel) {
  std::mutex mutex;
  std::shared_ptr<quire_model> last;
  HostMemory memory;
  memory.in_free = [&] {
    std::shared_ptr<quire_model> gone;  // goes after the lock
    const std::lock_guard lock(mutex);
    gone.swap(last);
  };
  quire_runtime_options options = memory.options(2);
  options.prefix_cache_bytes = 1 << 20;
  quire_runtime* made = nullptr;
  ASSERT_EQ(quire_runtime_create(&options, &made, nullptr), QUIRE_OK);
  const Owned<quire_runtime> runtime(made);
  auto model = load_model(runtime.get(), "short_128");
  {
    const auto session = make_session(model.get(), "full(kv_chunk=16)", 16);
    feed(session.get(), some_tokens(64, kVocab));
    EXPECT_EQ(generate(session.get(), 0).outcome.status, QUIRE_OK);
    EXPECT_EQ(quire_session_close(session.get(), nullptr), QUIRE_OK);
  }
  {
    const std::lock_guard lock(mutex);
    last.reset(model.release(), Deleter());
  }
  expect_to_finish("quire_runtime_close", [&] { EXPECT_EQ(quire_runtime_close(runtime.get(), nullptr), QUIRE_OK); });
  const std::lock_guard lock(mutex);
  EXPECT_EQ(last, nullptr);
}

}  // namespace
}  // namespace quire::test
