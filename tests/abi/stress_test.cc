// Sessions of one model, used in random order from several threads: made for the sanitizers. QUIRE_TEST_SEED repeats
// the order of a run's calls, though not their timing.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <random>
#include <thread>

#include "tests/abi/harness.h"

namespace quire::test {
namespace {

constexpr int32_t kVocab = 64;
constexpr const char* kStrategies[] = {"full", "dca", "longheads(chunk=16, chunks=4)",
                                       "streaming_llm(sinks=4, recent=60)"};

uint32_t fresh_seed() {
  const char* fixed = std::getenv("QUIRE_TEST_SEED");
  return fixed ? static_cast<uint32_t>(std::strtoul(fixed, nullptr, 10)) : std::random_device()();
}

// Half of them keep little of their cache in memory.
Owned<quire_session> new_session(quire_model* model, size_t number) {
  const std::string strategy = kStrategies[number % std::size(kStrategies)];
  quire_session_options options = session_options(strategy, 24);
  const std::string directory = testing::TempDir();
  if (number % 8 >= 4) {
    options.spill_directory = directory.data();
    options.spill_directory_len = directory.size();
    options.kv_budget_bytes = 150000;
  }
  quire_session* session = nullptr;
  Outcome outcome;
  outcome.status = quire_session_create(model, &options, &session, &outcome.error);
  EXPECT_EQ(outcome.status, QUIRE_OK) << outcome.text();
  return Owned<quire_session>(session);
}

// A session and its stream. Calls that one thread at a time may make are made under `mutex`; handles are shared, so
// that the last user's thread releases them.
struct Slot {
  std::mutex mutex;
  std::mutex handles;
  std::shared_ptr<quire_session> session;
  std::shared_ptr<quire_stream> stream;

  std::shared_ptr<quire_session> get_session() {
    std::lock_guard lock(handles);
    return session;
  }
  std::shared_ptr<quire_stream> get_stream() {
    std::lock_guard lock(handles);
    return stream;
  }
  void set(std::shared_ptr<quire_session> to) {
    std::lock_guard lock(handles);
    session.swap(to);
  }
  void set(std::shared_ptr<quire_stream> to) {
    std::lock_guard lock(handles);
    stream.swap(to);
  }
};

bool one_of(quire_status status, std::initializer_list<quire_status> expected) {
  return std::find(expected.begin(), expected.end(), status) != expected.end();
}

class User {
 public:
  User(quire_model* model, std::array<Slot, 8>& slots, uint32_t seed) : model_(model), slots_(slots), random_(seed) {}

  void call_something() {
    const size_t number = below(slots_.size());
    Slot& slot = slots_[number];
    const auto session = slot.get_session();
    if (const size_t which = below(12); which < 2) {
      if (const auto stream = slot.get_stream()) {
        expect(quire_stream_cancel(stream.get(), nullptr), {QUIRE_OK, QUIRE_ERROR_CLOSED});
      }
      return;
    } else if (which == 2) {
      quire_session_stats now{};
      now.struct_size = sizeof now;
      expect(quire_session_get_stats(session.get(), &now, nullptr), {QUIRE_OK, QUIRE_ERROR_CLOSED});
      EXPECT_LE(now.kv_bytes, now.kv_bytes_peak);
      return;
    }
    std::lock_guard lock(slot.mutex);
    alone(slot, *session, number);
  }

 private:
  size_t below(size_t n) { return random_() % n; }
  void expect(quire_status status, std::initializer_list<quire_status> expected) {
    EXPECT_TRUE(one_of(status, expected)) << quire_status_name(status);
  }

  void alone(Slot& slot, quire_session& session, size_t number) {
    switch (below(9)) {
      case 0:
      case 1: {
        const auto ids = some_tokens(1 + below(90), kVocab, random_());
        expect(quire_session_feed_tokens(&session, ids.data(), ids.size(), nullptr),
               {QUIRE_OK, QUIRE_ERROR_BUSY, QUIRE_ERROR_CLOSED});
        break;
      }
      case 2:
      case 3: {
        const quire_stream_options options = greedy(static_cast<int64_t>(below(30)));
        quire_stream* stream = nullptr;
        expect(quire_stream_open(&session, &options, &stream, nullptr),
               {QUIRE_OK, QUIRE_ERROR_BUSY, QUIRE_ERROR_EMPTY, QUIRE_ERROR_CLOSED});
        if (stream) slot.set(std::shared_ptr<quire_stream>(stream, Deleter()));
        break;
      }
      case 4:
      case 5:
        read_some(slot);
        break;
      case 6:
        if (below(2) == 0) {
          slot.set(std::shared_ptr<quire_stream>());
        } else if (const auto stream = slot.get_stream()) {
          expect(quire_stream_close(stream.get(), nullptr), {QUIRE_OK, QUIRE_ERROR_CLOSED});
        }
        break;
      case 7: {
        int64_t n_tokens = 0, n_pending = 0;
        if (quire_session_count_tokens(&session, &n_tokens, &n_pending, nullptr) != QUIRE_OK) break;
        const auto n = static_cast<int64_t>(below(static_cast<size_t>(n_tokens + n_pending + 1)));
        expect(quire_session_truncate(&session, n_tokens + n_pending > 300 ? 20 : n, nullptr),
               {QUIRE_OK, QUIRE_ERROR_BUSY, QUIRE_ERROR_CLOSED, QUIRE_ERROR_INVALID_ARGUMENT});
        break;
      }
      default:
        if (below(3) == 0) expect(quire_session_close(&session, nullptr), {QUIRE_OK});
        if (below(3) == 0) slot.set(std::shared_ptr<quire_session>(new_session(model_, number).release(), Deleter()));
    }
  }

  void read_some(Slot& slot) {
    const auto stream = slot.get_stream();
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
  std::mt19937 random_;
};

std::vector<int32_t> sample_of(quire_session* session) {
  feed(session, some_tokens(120, kVocab));
  const Generated run = generate(session, 10);
  EXPECT_EQ(run.outcome.status, QUIRE_OK) << run.outcome.text();
  return run.tokens;
}

TEST(Stress, SessionsUsedInRandomOrder) {
  const uint32_t seed = fresh_seed();
  SCOPED_TRACE("QUIRE_TEST_SEED=" + std::to_string(seed));
  HostMemory memory;
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
      User user(model.get(), slots, seed + t);
      for (int call = 0; call < 300; ++call) user.call_something();
    });
  }
  for (auto& thread : threads) thread.join();
  // Whatever was done to them, sessions that are not closed are as good as new ones.
  for (size_t s = 0; s < slots.size(); ++s) {
    slots[s].set(std::shared_ptr<quire_stream>());
    const auto session = slots[s].get_session();
    const quire_status status = quire_session_truncate(session.get(), 0, nullptr);
    EXPECT_TRUE(one_of(status, {QUIRE_OK, QUIRE_ERROR_CLOSED})) << quire_status_name(status);
    if (status == QUIRE_OK) {
      EXPECT_EQ(sample_of(session.get()), expected[s]) << "session " << s;
    }
  }
}

// Sessions that share steps, and their handles: released in a random order, each on one of three threads.
TEST(Stress, HandlesGoWhileSessionsShareSteps) {
  const uint32_t seed = fresh_seed();
  SCOPED_TRACE("QUIRE_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
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
