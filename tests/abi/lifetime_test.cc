// Handles go in any order, on any thread, with a stream computing: nothing leaks, hangs or is used after it went.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "tests/abi/harness.h"

namespace quire::test {
namespace {

constexpr int32_t kVocab = 64;

struct Handles {
  Owned<quire_runtime> runtime;
  Owned<quire_model> model;
  Owned<quire_tokenizer> tokenizer;
  Owned<quire_session> session;
  Owned<quire_stream> stream;
};

// All five, the stream in the middle of a prompt that would take a while.
Handles computing(HostMemory& memory) {
  Handles h;
  h.runtime = make_runtime(2, &memory);
  h.model = load_model(h.runtime.get(), "short_128");
  quire_tokenizer* tokenizer = nullptr;
  EXPECT_EQ(quire_model_get_tokenizer(h.model.get(), &tokenizer, nullptr), QUIRE_OK);
  h.tokenizer.reset(tokenizer);
  h.session = make_session(h.model.get(), "dca", 16);
  feed(h.session.get(), some_tokens(3000, kVocab));
  h.stream = open_stream(h.session.get(), greedy(100));
  return h;
}

void release(Handles& h, int which) {
  const std::array<std::function<void()>, 5> releases{[&] { h.runtime.reset(); }, [&] { h.model.reset(); },
                                                      [&] { h.tokenizer.reset(); }, [&] { h.session.reset(); },
                                                      [&] { h.stream.reset(); }};
  releases[static_cast<size_t>(which)]();
}

TEST(Lifetime, EveryOrderOfReleases) {
  std::array<int, 5> order{0, 1, 2, 3, 4};
  int n = 0;
  do {
    HostMemory memory;
    Handles h = computing(memory);
    if (n++ % 2 == 0) {
      for (const int which : order) release(h, which);
    } else {
      for (const int which : order) std::thread([&] { release(h, which); }).join();
    }
    ASSERT_TRUE(memory.wait_destroyed()) << "order " << testing::PrintToString(order);
    ASSERT_EQ(memory.bytes(), 0);
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(n, 120);
}

TEST(Lifetime, ReleasesAtOnce) {
  for (int round = 0; round < 30; ++round) {
    HostMemory memory;
    Handles h = computing(memory);
    std::vector<std::thread> threads;
    for (int which = 0; which < 5; ++which) threads.emplace_back([&, which] { release(h, which); });
    for (auto& thread : threads) thread.join();
    ASSERT_TRUE(memory.wait_destroyed());
    ASSERT_EQ(memory.bytes(), 0);
  }
}

TEST(Lifetime, RuntimeCloseWithEverythingAlive) {
  for (int round = 0; round < 20; ++round) {
    HostMemory memory;
    Handles h = computing(memory);
    auto idle = make_session(h.model.get(), "full");
    quire_event event;
    if (round % 2 == 1) {
      ASSERT_EQ(next(h.stream.get(), &event), QUIRE_OK);
    }
    ASSERT_EQ(quire_runtime_close(h.runtime.get(), nullptr), QUIRE_OK);
    const int64_t open = memory.bytes();
    EXPECT_EQ(next(h.stream.get(), &event), QUIRE_ERROR_CLOSED);
    EXPECT_EQ(quire_session_get_token_counts(idle.get(), nullptr, nullptr, nullptr), QUIRE_ERROR_CLOSED);
    h.session.reset();
    h.stream.reset();
    EXPECT_EQ(memory.bytes(), open);  // close had freed what they held
    idle.reset();
    h = Handles();
    EXPECT_EQ(memory.bytes(), 0);
  }
}

// A reader that waits forever is woken by closing the session or the runtime.
TEST(Lifetime, CloseWakesAWaitingReader) {
  for (const bool whole_runtime : {false, true}) {
    HostMemory memory;
    Handles h = computing(memory);
    quire_status last = QUIRE_OK;
    std::thread reader([&] {
      quire_event event;
      while ((last = next(h.stream.get(), &event)) == QUIRE_OK) {
      }
    });
    if (whole_runtime) {
      EXPECT_EQ(quire_runtime_close(h.runtime.get(), nullptr), QUIRE_OK);
    } else {
      EXPECT_EQ(quire_session_close(h.session.get(), nullptr), QUIRE_OK);
    }
    reader.join();
    EXPECT_TRUE(last == QUIRE_ERROR_CLOSED || last == QUIRE_END) << quire_get_status_name(last);
  }
}

TEST(Lifetime, CloseFromSeveralThreads) {
  HostMemory memory;
  Handles h = computing(memory);
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      const quire_status status = t % 3 == 0   ? quire_stream_close(h.stream.get(), nullptr)
                                  : t % 3 == 1 ? quire_session_close(h.session.get(), nullptr)
                                               : quire_runtime_close(h.runtime.get(), nullptr);
      EXPECT_EQ(status, QUIRE_OK);
    });
  }
  for (auto& thread : threads) thread.join();
}

// How far a load has come, by its reports of progress.
class LoadWatch {
 public:
  static void report(void* self, int64_t, int64_t) {
    auto* watch = static_cast<LoadWatch*>(self);
    const std::lock_guard lock(watch->mutex_);
    ++watch->n_reports_;
    watch->changed_.notify_all();
  }
  void end() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  // Waits for the n-th report, or for the end of a load that has fewer.
  void wait_for_report(int n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ || n_reports_ >= n; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int n_reports_ = 0;
  bool ended_ = false;
};

// A load that is under way when the runtime closes ends, and uses neither cancel handle nor callback afterwards.
TEST(Lifetime, CloseDuringLoad) {
  for (int round = 0; round < 20; ++round) {
    HostMemory memory;
    auto runtime = make_runtime(2, &memory);
    LoadWatch watch;
    std::thread loader([&, keep = [&] {
      quire_runtime_retain(runtime.get());
      return runtime.get();
    }()] {
      const Owned<quire_runtime> own(keep);
      quire_model* model = nullptr;
      quire_model_options options;
      quire_model_options_init(&options, sizeof options);
      options.progress = LoadWatch::report;
      options.progress_user_data = &watch;
      const std::string path = model_directory("text_256");
      const quire_status status = quire_model_load(own.get(), path.data(), path.size(), &options, &model, nullptr);
      EXPECT_TRUE(status == QUIRE_OK || status == QUIRE_ERROR_CLOSED) << quire_get_status_name(status);
      quire_model_release(model);
      watch.end();
    });
    watch.wait_for_report(round);
    EXPECT_EQ(quire_runtime_close(runtime.get(), nullptr), QUIRE_OK);
    loader.join();
    runtime.reset();
    ASSERT_TRUE(memory.wait_destroyed());
    ASSERT_EQ(memory.bytes(), 0);
  }
}

// The event's text outlives cancel and statistics, and goes with the next event or the stream.
TEST(Lifetime, EventTextStays) {
  auto runtime = make_runtime(2);
  const auto model = load_model(runtime.get(), "text_256");
  const auto session = make_session(model.get(), "full");
  feed(session.get(), some_tokens(40, 320));
  const auto stream = open_stream(session.get(), greedy(50));
  quire_event event;
  do {
    ASSERT_EQ(next(stream.get(), &event), QUIRE_OK);
  } while (event.text_len == 0);
  const std::string text(event.text, event.text_len);
  int64_t handle = -1;
  int32_t kind = 0;
  ASSERT_EQ(quire_stream_get_wait_handle(stream.get(), &handle, &kind, nullptr), QUIRE_OK);
  pollfd next_token{static_cast<int>(handle), POLLIN, 0};
  ASSERT_EQ(poll(&next_token, 1, 60'000), 1);  // the engine has made the next token
  (void)stats(session.get());
  EXPECT_EQ(quire_stream_cancel(stream.get(), nullptr), QUIRE_OK);
  EXPECT_EQ(std::string(event.text, event.text_len), text);
}

}  // namespace
}  // namespace quire::test
