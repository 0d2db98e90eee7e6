// Part of new_fault_test.cc: sessions that are edited, forked, saved, or take over what another one has read.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/fault/new_fault.h"
#include "tests/unit/model/temporary_folder.h"

namespace quire::test {
namespace {

// Opens a session that takes nothing over from others, and feeds it. prefill_block 0: as many tokens as usual.
void feed_unshared(quire_model* model, const char* strategy, int32_t prefill_block, std::span<const int32_t> ids,
                   quire_session** session) {
  quire_session_options options;
  quire_session_options_init(&options, sizeof options);
  options.strategy = strategy;
  options.strategy_len = std::strlen(strategy);
  options.flags = QUIRE_SESSION_NO_PREFIX_REUSE;
  options.prefill_block = prefill_block;
  ASSERT_EQ(quire_session_create(model, &options, session, nullptr), QUIRE_OK);
  ASSERT_EQ(quire_session_feed_tokens(*session, ids.data(), ids.size(), nullptr), QUIRE_OK);
}

// A text is edited, and chunks of the one before are taken over; what fails leaves the session as it was, or at a token
// boundary, from which it goes on to the same answer.
TEST_P(NewFault, EditingATextAndTakingOverItsChunks) {
  const std::string model = model_directory("text_256");
  Application first;
  first.strategy = "dca_topk(chunk=16, chunks=6, sticky=2, kv_chunk=16)";
  first.flags = 0;
  ASSERT_TRUE(first.open(model.c_str()));
  int32_t ids[150];
  for (int32_t i = 0; i < 150; ++i) ids[i] = 3 + i * i % 300;
  feed_unshared(first.model, first.strategy, 0, ids, &first.session);
  ASSERT_FALSE(HasFatalFailure());
  first.generate();
  ASSERT_EQ(first.result.status, QUIRE_OK) << first.result.call;
  quire_stream_release(first.stream);
  first.stream = nullptr;
  quire_edit_options options;
  quire_edit_options_init(&options, sizeof options);
  options.reuse = QUIRE_EDIT_APPROXIMATE;
  const auto edit_and_read = [&](Application* second) {
    if (second->good(quire_session_edit_tokens(second->session, ids + 9, 141, &options, nullptr, nullptr), "edit")) {
      second->generate();
    }
  };
  const auto fork = [&](Application* second) {
    second->flags = 0;
    ASSERT_EQ(quire_session_fork(first.session, &second->session, nullptr), QUIRE_OK);
  };
  Result expected;
  int64_t total = 0;
  for (int i = 0; i < 2; ++i) {  // what is made once is made in the first run
    Application second;
    fork(&second);
    const FailingNew none;
    edit_and_read(&second);
    expected = second.result;
    total = n_new_calls();
  }
  ASSERT_EQ(expected.status, QUIRE_OK) << expected.call;
  const int64_t step = step_between_failures(total, kMostRuns);
  int64_t n_failed = 0, n_resumed = 0;
  for (int64_t n = 1; n <= total; n += step) {
    Application second;
    fork(&second);
    {
      const FailingNew failing(n, last(n));
      edit_and_read(&second);
    }
    Result& result = second.result;
    ASSERT_TRUE(is_good_or_out_of_memory(result)) << "allocation " << n;
    if (result.status != QUIRE_OK) {
      ++n_failed;
      if (std::strcmp(result.call, "edit") == 0) {
        int64_t n_tokens = 0, n_pending = 0;
        ASSERT_EQ(quire_session_get_token_counts(second.session, &n_tokens, &n_pending, nullptr), QUIRE_OK);
        ASSERT_EQ(n_tokens, 150 + kNew) << "allocation " << n;
        ASSERT_EQ(n_pending, 0) << "allocation " << n;
        edit_and_read(&second);
      } else {
        second.resume();
        ++n_resumed;
      }
    }
    ASSERT_EQ(result.status, QUIRE_OK) << "allocation " << n << ": " << result.call;
    ASSERT_EQ(std::memcmp(result.tokens, expected.tokens, sizeof result.tokens), 0) << "allocation " << n;
  }
  EXPECT_GT(n_failed, 0);
  EXPECT_GT(n_resumed, 0);
}

// What lies behind the windows of some layers is dropped while a text is read; what fails leaves the session at the end
// of a block, from which it goes on to the same answer.
TEST_P(NewFault, DroppingWhatLiesBehindWindows) {
  const std::string model = model_directory("qwen2_window_layers");
  Application first;
  first.strategy = "full(kv_chunk=16)";
  first.flags = 0;
  ASSERT_TRUE(first.open(model.c_str()));
  const std::vector<int32_t> ids(211, 5);  // and what is generated ends in the same chunk
  const auto fed = [&](Application* second) {
    second->flags = 0;
    feed_unshared(first.model, first.strategy, 24, ids, &second->session);
  };
  Result expected;
  int64_t total = 0;
  for (int i = 0; i < 2; ++i) {  // what is made once is made in the first run
    Application second;
    fed(&second);
    const FailingNew none;
    second.generate();
    expected = second.result;
    total = n_new_calls();
    quire_session_stats stats;
    stats.struct_size = sizeof stats;
    ASSERT_EQ(quire_session_get_stats(second.session, &stats, nullptr), QUIRE_OK);
    ASSERT_GT(stats.kv_chunks_dropped, 0);
  }
  ASSERT_EQ(expected.status, QUIRE_OK) << expected.call;
  const int64_t step = step_between_failures(total, kMostRuns);
  int64_t n_resumed = 0;
  for (int64_t n = 1; n <= total; n += step) {
    Application second;
    fed(&second);
    {
      const FailingNew failing(n, last(n));
      second.generate();
    }
    Result& result = second.result;
    ASSERT_TRUE(is_good_or_out_of_memory(result)) << "allocation " << n;
    if (result.status != QUIRE_OK) {
      second.resume();
      ++n_resumed;
    }
    ASSERT_EQ(result.status, QUIRE_OK) << "allocation " << n << ": " << result.call;
    ASSERT_EQ(std::memcmp(result.tokens, expected.tokens, sizeof result.tokens), 0) << "allocation " << n;
    // Without memory for a block, what is kept beside what is seen goes.
    ASSERT_LE(result.kv_bytes, expected.kv_bytes) << "allocation " << n;
  }
  EXPECT_GT(n_resumed, 0);
}

// A session is forked, saved, loaded and read on; what fails leaves no file, no memory, and the first session as it
// was.
void fork_save_and_load(bool all_later, const char* kv_directory) {
  const TemporaryFolder folder;
  const std::string path = folder.file("saved.quire");
  const std::string model = model_directory("text_256");
  Application first;
  first.kv_directory = kv_directory;
  first.run(model.c_str());
  ASSERT_EQ(first.result.status, QUIRE_OK) << first.result.call;
  quire_stream_release(first.stream);
  first.stream = nullptr;
  const auto round_trip = [&](Result* result) {
    Application second;
    const auto give_back = [&] {  // it is the first one's
      *result = second.result;
      second.model = nullptr;
    };
    second.model = first.model;
    quire_session* forked = nullptr;
    if (second.good(quire_session_fork(first.session, &forked, nullptr), "fork") &&
        second.good(quire_session_save(first.session, path.data(), path.size(), nullptr, nullptr), "save") &&
        second.good(quire_session_load(first.model, path.data(), path.size(), nullptr, &second.session, nullptr),
                    "load")) {
      second.generate();
    }
    quire_session_release(forked);
    give_back();
  };
  Result expected;
  int64_t total = 0;
  for (int i = 0; i < 2; ++i) {  // what is made once is made in the first run
    const FailingNew none;
    round_trip(&expected);
    total = n_new_calls();
  }
  ASSERT_EQ(expected.status, QUIRE_OK) << expected.call;
  const int64_t step = step_between_failures(total, kMostRuns);
  int64_t n_failed = 0;
  for (int64_t n = 1; n <= total; n += step) {
    Result result;
    {
      const FailingNew failing(n, all_later ? INT64_MAX : n);
      round_trip(&result);
    }
    ASSERT_TRUE(is_good_or_out_of_memory(result)) << "allocation " << n;
    n_failed += result.status != QUIRE_OK;
    if (result.status == QUIRE_OK) {
      ASSERT_EQ(std::memcmp(result.tokens, expected.tokens, sizeof result.tokens), 0) << "allocation " << n;
    }
    ASSERT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), std::filesystem::directory_iterator()),
              1)
        << "allocation " << n << " left a file";
    ASSERT_EQ(quire_snapshot_verify(path.data(), path.size(), nullptr, nullptr), QUIRE_OK) << "allocation " << n;
  }
  EXPECT_GT(n_failed, 0);
  std::printf("%lld allocations; failed at %lld\n", static_cast<long long>(total), static_cast<long long>(n_failed));
  // The first session is as it was.
  Result again;
  round_trip(&again);
  ASSERT_EQ(std::memcmp(again.tokens, expected.tokens, sizeof again.tokens), 0);
}

TEST_P(NewFault, ForkingSavingAndLoadingASession) { fork_save_and_load(GetParam(), nullptr); }

TEST_P(NewFault, ForkingSavingAndLoadingASpillingSession) {
  const TemporaryFolder spill;
  fork_save_and_load(GetParam(), spill.path().c_str());
}

// A session reads a text, and another one takes it over; each may have a directory for a spill file.
struct TakeOver {
  const char* directory = nullptr;
  const char* second_directory = nullptr;
  int64_t n_allocations = 0, n_reused = 0, n_failed = 0;  // of the last second session; of all
  Result expected{};

  quire_status read(const Application& first, int64_t from, int64_t to, bool resumes = true) {
    Application second;
    second.model = first.model;
    second.kv_directory = second_directory;
    second.strategy = kSelecting;
    second.flags = 0;
    {
      const FailingNew failing(from, to);
      second.read();
    }
    n_allocations = n_new_calls();
    const quire_status status = second.result.status;
    const bool in_stream = second.session && std::strncmp(second.result.call, "stream", 6) == 0;
    if (status != QUIRE_OK && in_stream && resumes) second.resume();
    quire_session_stats stats{};
    stats.struct_size = sizeof stats;
    if (second.session) quire_session_get_stats(second.session, &stats, nullptr);
    n_reused = stats.n_reused;
    n_failed += status != QUIRE_OK;
    second.model = nullptr;  // it is the first one's
    if (second.result.status == QUIRE_OK) {
      EXPECT_EQ(std::memcmp(second.result.tokens, expected.tokens, sizeof expected.tokens), 0) << "allocation " << from;
    }
    return status;
  }

  using Failures = std::vector<std::pair<int64_t, int64_t>>;  // first and last allocation
  // With each of these failures in turn, after which the first session is as it was. Returns the bytes that the model
  // holds when all sessions are gone.
  int64_t run(const Failures& failures, int64_t expected_bytes = -1) {
    const std::string model = model_directory("text_256");
    Application first;
    first.kv_directory = directory;
    first.strategy = kSelecting;
    first.flags = 0;
    first.run(model.c_str());
    EXPECT_EQ(first.result.status, QUIRE_OK) << first.result.call;
    quire_stream_release(first.stream);
    first.stream = nullptr;
    expected = first.result;
    {
      // Where a failure leaves a text to be read and no token to be generated, logits are ranked, in memory that the
      // model keeps. So it has this memory from here on.
      Application reader;
      reader.model = first.model;
      reader.strategy = kSelecting;
      reader.flags = 0;
      reader.result.n_tokens = kNew;
      reader.read();
      EXPECT_EQ(reader.result.status, QUIRE_OK) << reader.result.call;
      reader.model = nullptr;
    }
    for (const auto& [from, to] : failures) {
      const quire_status status = read(first, from, to, failures.size() > 1);
      EXPECT_TRUE(status == QUIRE_OK || status == QUIRE_ERROR_OUT_OF_MEMORY)
          << "allocation " << from << " gave " << quire_get_status_name(status);
    }
    if (failures.size() != 1) {
      EXPECT_EQ(read(first, 0, 0), QUIRE_OK);
      EXPECT_GT(n_reused, 0);
    }
    EXPECT_EQ(quire_session_close(first.session, nullptr), QUIRE_OK);
    quire_session_release(first.session);
    first.session = nullptr;
    // The library may still be letting go of the second one: on a busy machine not soon.
    const int most_waits = expected_bytes < 0 ? 500 : 10'000;
    for (int wait = 0; wait < most_waits && n_allocator_bytes() != expected_bytes; ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return n_allocator_bytes();
  }
};

void take_over(bool all_later, TakeOver story) {
  const int64_t bytes = story.run({});
  const int64_t total = story.n_allocations, step = step_between_failures(total, kMostRuns);
  TakeOver::Failures failures;
  for (int64_t n = 1; n <= total; n += step) failures.emplace_back(n, all_later ? INT64_MAX : n);
  EXPECT_EQ(story.run(failures, bytes), bytes) << "memory is left behind";
  EXPECT_GT(story.n_failed, 0);
  // By itself, so that nothing that follows makes up for it.
  for (const auto& failure : failures) {
    ASSERT_EQ(story.run({failure}, bytes), bytes) << "allocation " << failure.first << ": memory is left behind";
  }
  std::printf("%lld allocations; failed at %lld\n", static_cast<long long>(total),
              static_cast<long long>(story.n_failed));
}

TEST_P(NewFault, TakingOverAPrefix) { take_over(GetParam(), {}); }

TEST_P(NewFault, TakingOverThePrefixOfASpillingSession) {
  const TemporaryFolder spill;
  take_over(GetParam(), {.directory = spill.path().c_str()});
}

// Which takes a copy of each chunk.
TEST_P(NewFault, TakingOverAPrefixByASpillingSession) {
  const TemporaryFolder spill;
  take_over(GetParam(), {.second_directory = spill.path().c_str()});
}

}  // namespace
}  // namespace quire::test
