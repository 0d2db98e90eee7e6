// Sessions of one model, used in random order from several threads: made for the sanitizers. a seed (tests/seed.h)
// repeats the order of a run's calls, though not their timing.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <random>
#include <thread>

#include "tests/abi/harness.h"
#include "tests/seed.h"

namespace quire::test {
namespace {

constexpr int32_t kVocab = 64;
constexpr const char* kStrategies[] = {"full", "dca", "longheads(chunk=16, chunks=4)",
                                       "streaming_llm(sinks=4, recent=60)"};

// Half of them keep little of their cache in memory.
Owned<quire_session> new_session(quire_model* model, size_t number) {
  const std::string strategy = kStrategies[number % std::size(kStrategies)];
  quire_session_options options = session_options(strategy, 24);
  const std::string directory = testing::TempDir();
  if (number % 8 >= 4) {
    options.kv_file_directory = directory.data();
    options.kv_file_directory_len = directory.size();
    options.kv_host_budget_bytes = 150000;
  }
  quire_session* session = nullptr;
  Outcome outcome;
  outcome.status = quire_session_create(model, &options, &session, &outcome.error);
  EXPECT_EQ(outcome.status, QUIRE_OK) << outcome.text();
  return Owned<quire_session>(session);
}

// A session and its stream. `alone` is held for calls that one thread at a time may make, and for nothing else.
class Slot {
 public:
  std::mutex alone;

  std::shared_ptr<quire_session> session() {
    const std::lock_guard lock(handles_);
    return session_;
  }
  std::shared_ptr<quire_stream> stream() {
    const std::lock_guard lock(handles_);
    return stream_;
  }
  // What was there before goes after the lock.
  void set(std::shared_ptr<quire_session> to) {
    const std::lock_guard lock(handles_);
    session_.swap(to);
  }
  void set(std::shared_ptr<quire_stream> to) {
    const std::lock_guard lock(handles_);
    stream_.swap(to);
  }

 private:
  std::mutex handles_;  // the pointers below; nothing of the library's is called under it
  // Shared: the last user's thread releases the handle.
  std::shared_ptr<quire_session> session_;
  std::shared_ptr<quire_stream> stream_;
};

// Handles that the host's allocator releases from inside its callbacks, on whatever thread the library calls it.
class ReleasedInCallbacks {
 public:
  void add(std::shared_ptr<void> handle) {
    std::lock_guard lock(mutex_);
    handles_.push_back(std::move(handle));
  }
  void release_one() {
    std::shared_ptr<void> handle;  // goes after the lock
    std::lock_guard lock(mutex_);
    if (handles_.empty()) return;
    handle = std::move(handles_.back());
    handles_.pop_back();
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<void>> handles_;
};

bool one_of(quire_status status, std::initializer_list<quire_status> expected) {
  return std::find(expected.begin(), expected.end(), status) != expected.end();
}

class User {
 public:
  User(quire_model* model, std::array<Slot, 8>& slots, ReleasedInCallbacks& released, uint32_t number)
      : model_(model), slots_(slots), released_(released), random_(seeded_random(number)) {}

  void call_something() {
    const size_t number = below(slots_.size());
    Slot& slot = slots_[number];
    if (below(3) == 0) return call_any_thread(slot, number);
    const std::lock_guard lock(slot.alone);
    call_alone(slot);
  }

 private:
  size_t below(size_t n) { return random_() % n; }
  void expect(quire_status status, std::initializer_list<quire_status> expected) {
    EXPECT_TRUE(one_of(status, expected)) << quire_get_status_name(status);
  }

  // No lock: another thread may be in any call on this session or its stream.
  void call_any_thread(Slot& slot, size_t number) {
    const auto session = slot.session();
    const auto stream = slot.stream();
    switch (below(8)) {
      case 0:
        if (stream) expect(quire_stream_cancel(stream.get(), nullptr), {QUIRE_OK, QUIRE_ERROR_CLOSED});
        break;
      case 1:
        if (stream) expect(quire_stream_close(stream.get(), nullptr), {QUIRE_OK});
        break;
      case 2: {
        int64_t handle = 0;
        int32_t kind = 0;
        if (!stream) break;
        expect(quire_stream_get_wait_handle(stream.get(), &handle, &kind, nullptr), {QUIRE_OK, QUIRE_ERROR_CLOSED});
        break;
      }
      case 3:
        slot.set(std::shared_ptr<quire_stream>());
        break;
      case 4:
        if (stream) released_.add(stream);
        slot.set(std::shared_ptr<quire_stream>());
        break;
      case 5:
        if (below(3) == 0) expect(quire_session_close(session.get(), nullptr), {QUIRE_OK});
        break;
      case 6:
        if (below(3) != 0) break;
        released_.add(session);
        slot.set(std::shared_ptr<quire_session>(new_session(model_, number).release(), Deleter()));
        break;
      default: {
        quire_tier_stats now{};
        now.struct_size = sizeof now;
        expect(quire_session_get_tier_stats(session.get(), QUIRE_TIER_HOST, &now, nullptr),
               {QUIRE_OK, QUIRE_ERROR_CLOSED});
        EXPECT_LE(now.bytes, now.bytes_peak);
      }
    }
  }

  void call_alone(Slot& slot) {
    const auto session = slot.session();
    switch (below(7)) {
      case 0:
      case 1: {
        const auto ids = some_tokens(1 + below(90), kVocab, random_());
        expect(quire_session_feed_tokens(session.get(), ids.data(), ids.size(), nullptr),
               {QUIRE_OK, QUIRE_ERROR_BUSY, QUIRE_ERROR_CLOSED});
        break;
      }
      case 2:
      case 3: {
        quire_stream_options options = greedy(static_cast<int64_t>(below(30)));
        if (below(3) == 0) options.deadline_ms = 1 + static_cast<int64_t>(below(8));
        quire_stream* stream = nullptr;
        expect(quire_stream_open(session.get(), &options, &stream, nullptr),
               {QUIRE_OK, QUIRE_ERROR_BUSY, QUIRE_ERROR_EMPTY, QUIRE_ERROR_CLOSED});
        if (stream) slot.set(std::shared_ptr<quire_stream>(stream, Deleter()));
        break;
      }
      case 4:
      case 5:
        read_some(slot);
        break;
      default: {
        int64_t n_tokens = 0, n_pending = 0;
        if (quire_session_get_token_counts(session.get(), &n_tokens, &n_pending, nullptr) != QUIRE_OK) break;
        const auto n = static_cast<int64_t>(below(static_cast<size_t>(n_tokens + n_pending + 1)));
        expect(quire_session_truncate(session.get(), n_tokens + n_pending > 300 ? 20 : n, nullptr),
               {QUIRE_OK, QUIRE_ERROR_BUSY, QUIRE_ERROR_CLOSED, QUIRE_ERROR_INVALID_ARGUMENT});
      }
    }
  }

  void read_some(Slot& slot) {
    const auto stream = slot.stream();
    if (!stream) return;
    quire_event event;
    for (size_t n = below(40); n > 0; --n) {
      const quire_status status = next(stream.get(), &event, nullptr, 20);
      expect(status, {QUIRE_OK, QUIRE_END, QUIRE_TIMEOUT, QUIRE_ERROR_CLOSED});
      if (status != QUIRE_OK && status != QUIRE_TIMEOUT) return slot.set(std::shared_ptr<quire_stream>());
    }
  }

  quire_model* model_;
  std::array<Slot, 8>& slots_;
  ReleasedInCallbacks& released_;
  std::mt19937 random_;
};

std::vector<int32_t> sample_of(quire_session* session) {
  feed(session, some_tokens(120, kVocab));
  const Generated run = generate(session, 10);
  EXPECT_EQ(run.outcome.status, QUIRE_OK) << run.outcome.text();
  return run.tokens;
}

TEST(Stress, SessionsUsedInRandomOrder) {
  SCOPED_TRACE(seed_trace());
  ReleasedInCallbacks released;
  HostMemory memory;
  memory.in_allocate = memory.in_free = [&] { released.release_one(); };
  auto runtime = make_runtime(2, &memory);
  auto model = load_model(runtime.get(), "short_128");
  std::array<Slot, 8> slots;
  std::array<std::vector<int32_t>, 8> expected;
  for (size_t s = 0; s < slots.size(); ++s) {
    expected[s] = sample_of(new_session(model.get(), s).get());
    slots[s].set(std::shared_ptr<quire_session>(new_session(model.get(), s).release(), Deleter()));
  }
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      User user(model.get(), slots, released, t);
      for (int call = 0; call < 300; ++call) user.call_something();
    });
  }
  for (auto& thread : threads) thread.join();
  for (int call = 0; call < 2000; ++call) released.release_one();
  // Whatever was done to them, sessions that are not closed are as good as new ones.
  for (size_t s = 0; s < slots.size(); ++s) {
    slots[s].set(std::shared_ptr<quire_stream>());
    const auto session = slots[s].session();
    const quire_status status = quire_session_truncate(session.get(), 0, nullptr);
    EXPECT_TRUE(one_of(status, {QUIRE_OK, QUIRE_ERROR_CLOSED})) << quire_get_status_name(status);
    if (status == QUIRE_OK) {
      EXPECT_EQ(sample_of(session.get()), expected[s]) << "session " << s;
    }
  }
}

// Sessions that share steps, and their handles: released in a random order, each on one of three threads.
TEST(Stress, HandlesGoWhileSessionsShareSteps) {
  SCOPED_TRACE(seed_trace());
  std::mt19937 random = seeded_random();
  for (int round = 0; round < 25; ++round) {
    HostMemory memory;
    auto runtime = make_runtime(2, &memory);
    auto model = load_model(runtime.get(), "short_128");
    std::vector<Owned<quire_session>> sessions;
    std::vector<Owned<quire_stream>> streams;
    std::vector<std::function<void()>> releases = {[&] { runtime.reset(); }, [&] { model.reset(); }};
    for (size_t s = 0; s < 6; ++s) {
      sessions.push_back(new_session(model.get(), s));
      feed(sessions.back().get(), some_tokens(20, kVocab));
      streams.push_back(open_stream(sessions.back().get(), greedy(1000)));
      releases.emplace_back([&sessions, s] { sessions[s].reset(); });
      releases.emplace_back([&streams, s] { streams[s].reset(); });
    }
    for (int token = 0; token < 3; ++token) {
      quire_event event;
      for (const auto& stream : streams) EXPECT_EQ(next(stream.get(), &event), QUIRE_OK);
    }
    std::shuffle(releases.begin(), releases.end(), random);
    std::atomic<size_t> at{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        for (size_t r = at++; r < releases.size(); r = at++) releases[r]();
      });
    }
    for (auto& thread : threads) thread.join();
    ASSERT_TRUE(memory.wait_destroyed());
    ASSERT_EQ(memory.bytes(), 0);
  }
}

}  // namespace
}  // namespace quire::test
