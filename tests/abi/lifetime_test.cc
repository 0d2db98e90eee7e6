// Handles go in any order, on any thread, with a stream computing: nothing leaks, hangs or is used after it went.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
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

// A load that is under way when the runtime closes ends, and uses neither cancel handle nor callback afterwards.
TEST(Lifetime, CloseDuringLoad) {
  for (int round = 0; round < 20; ++round) {
    HostMemory memory;
    auto runtime = make_runtime(2, &memory);
    std::thread loader([&, keep = [&] {
      quire_runtime_retain(runtime.get());
      return runtime.get();
    }()] {
      const Owned<quire_runtime> own(keep);
      Owned<quire_model> model;
      const quire_status status = load_model(own.get(), model_directory("text_256"), &model);
      EXPECT_TRUE(status == QUIRE_OK || status == QUIRE_ERROR_CLOSED) << quire_get_status_name(status);
    });
    std::this_thread::sleep_for(std::chrono::microseconds(200 * round));
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
  std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the engine makes the next token meanwhile
  (void)stats(session.get());
  EXPECT_EQ(quire_stream_cancel(stream.get(), nullptr), QUIRE_OK);
  EXPECT_EQ(std::string(event.text, event.text_len), text);
}

}  // namespace
}  // namespace quire::test
