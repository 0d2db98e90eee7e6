// Part of new_fault_test.cc: texts that a store of documents or the runtime keeps for later sessions.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>

#include "tests/fault/new_fault.h"
#include "tests/fault/store_reader.h"
#include "tests/unit/model/temporary_folder.h"

namespace quire::test {
namespace {

// A document is put into a store, found, described, and loaded from there; whatever fails, the directory is whole, and
// another one puts it and reads on.
TEST_P(NewFault, KeepingADocumentInAStore) {
  const TemporaryFolder folder;
  const std::string path = folder.file("store"), model = model_directory("text_256"), spill = folder.path();
  StoreReader reader(path);
  Application first;
  first.flags = 0;
  ASSERT_TRUE(first.open(model.c_str()));
  quire_session_options so;
  quire_session_options_init(&so, sizeof so);
  so.strategy = kSelecting;
  so.strategy_len = std::strlen(kSelecting);
  so.flags = QUIRE_SESSION_NO_PREFIX_REUSE;  // what the store has is read from there
  so.kv_file_directory = spill.data();
  so.kv_file_directory_len = spill.size();
  constexpr int32_t kRead = 100;
  int32_t ids[kRead + 10];
  for (int32_t i = 0; i < kRead + 10; ++i) ids[i] = 3 + i * i % 300;
  ASSERT_EQ(quire_session_create(first.model, &so, &first.session, nullptr), QUIRE_OK);
  ASSERT_EQ(quire_session_feed_tokens(first.session, ids, kRead, nullptr), QUIRE_OK);
  ASSERT_EQ(generate(first.session, 0).outcome.status, QUIRE_OK);
  quire_store_match match;
  quire_store_match_init(&match, sizeof match);
  const auto find = [&](quire_store* store) {
    return quire_store_find(store, first.model, &so, ids, kRead + 10, &match, nullptr);
  };
  const auto round_trip = [&](Result* result) {
    Application second;
    second.flags = 0;
    second.model = first.model;
    quire_store* store = nullptr;
    char text[4096];
    size_t n = 0;
    if (second.good(quire_store_open(path.data(), path.size(), nullptr, &store, nullptr), "store_open") &&
        second.good(quire_store_put(store, first.session, "A title", 7, nullptr, &match, nullptr), "store_put") &&
        second.good(find(store), "store_find") &&
        second.good(quire_store_describe(store, text, sizeof text, &n, nullptr), "store_describe") &&
        second.good(quire_store_load(store, first.model, &so, ids, kRead + 10, nullptr, &second.session, nullptr),
                    "store_load") &&
        second.good(quire_session_feed_tokens(second.session, ids + kRead, 10, nullptr), "feed_tokens")) {
      second.generate();
    }
    quire_store_release(store);
    *result = second.result;
    second.model = nullptr;  // it is the first one's
  };
  const int64_t n_open = n_open_files();
  Result expected;
  int64_t total = 0;
  for (int i = 0; i < 2; ++i) {  // what is made once is made in the first run
    reader.clear();
    const FailingNew none;
    round_trip(&expected);
    total = n_new_calls();
  }
  ASSERT_EQ(expected.status, QUIRE_OK) << expected.call;
  const int64_t step = step_between_failures(total, kMostRuns);
  int64_t n_failed = 0, n_put = 0;
  for (int64_t n = 1; n <= total; n += step) {
    reader.clear();
    Result result;
    {
      const FailingNew failing(n, last(n));
      round_trip(&result);
    }
    ASSERT_TRUE(is_good_or_out_of_memory(result)) << "allocation " << n;
    n_failed += result.status != QUIRE_OK;
    if (result.status == QUIRE_OK) {
      ASSERT_EQ(std::memcmp(result.tokens, expected.tokens, sizeof result.tokens), 0) << "allocation " << n;
    }
    ASSERT_TRUE(wait_for_open_files(n_open)) << "allocation " << n << ": " << result.call;
    for (const auto& file : std::filesystem::directory_iterator(path)) {  // who opens the store removes these, too
      ASSERT_NE(file.path().extension(), ".tmp") << "allocation " << n << " left " << file.path();
    }
    quire_store* store = nullptr;
    ASSERT_EQ(quire_store_open(path.data(), path.size(), nullptr, &store, nullptr), QUIRE_OK);
    const Owned<quire_store> owner(store);
    ASSERT_EQ(find(store), QUIRE_OK);
    const bool is_there = match.n_tokens > 0;
    ASSERT_TRUE(is_there || std::strcmp(result.call, "store_open") == 0 || std::strcmp(result.call, "store_put") == 0)
        << "allocation " << n << ": " << result.call;
    if (is_there) {
      ASSERT_EQ(match.n_tokens, kRead);
    }
    n_put += is_there;
    reader.expect_whole(is_there ? 1 : 0);
    ASSERT_FALSE(HasFailure()) << "allocation " << n << ": " << result.call;
  }
  EXPECT_GT(n_failed, 0);
  EXPECT_GT(n_put, 0);
  std::printf("%lld allocations; failed at %lld, the document was there after %lld\n", static_cast<long long>(total),
              static_cast<long long>(n_failed), static_cast<long long>(n_put));
  Result again;
  round_trip(&again);
  ASSERT_EQ(again.status, QUIRE_OK) << again.call;
  ASSERT_EQ(std::memcmp(again.tokens, expected.tokens, sizeof again.tokens), 0);
}

// Sessions read texts and are released; the runtime keeps one of the texts for the next session, and lets the other one
// go. Whatever fails, what it keeps stays within its limit, and can be taken over.
TEST_P(NewFault, KeepingReleasedSessions) {
  const std::string model = model_directory("text_256");
  constexpr int64_t kLimit = 120'000;
  Application first;
  ASSERT_TRUE(first.open(model.c_str(), kLimit));
  int32_t ids[2][100];
  for (int32_t i = 0; i < 100; ++i) {
    ids[0][i] = 3 + i * i % 300;
    ids[1][i] = 3 + i * i % 299;
  }
  const auto kept = [&] {
    quire_runtime_stats stats{};
    stats.struct_size = sizeof stats;
    EXPECT_EQ(quire_runtime_get_stats(first.runtime, &stats, nullptr), QUIRE_OK);
    return stats;
  };
  // A session reads one of the texts, and answers.
  const auto read = [&](int which, Result* result) {
    Application reader;
    reader.flags = 0;
    reader.model = first.model;
    quire_session_options so;
    quire_session_options_init(&so, sizeof so);
    so.strategy = kSelecting;
    so.strategy_len = std::strlen(kSelecting);
    so.prefill_block = 16;
    if (reader.good(quire_session_create(first.model, &so, &reader.session, nullptr), "session_create") &&
        reader.good(quire_session_feed_tokens(reader.session, ids[which], 100, nullptr), "feed_tokens")) {
      reader.generate();
    }
    *result = reader.result;
    reader.model = nullptr;  // it is the first one's
  };
  constexpr int kTexts[] = {0, 0, 1, 0};  // taken over, pushed out, and read again
  Result expected[2];
  int64_t total = 0;
  for (int i = 0; i < 2; ++i) {  // what is made once is made in the first run
    const FailingNew none;
    for (const int which : kTexts) read(which, &expected[which]);
    total = n_new_calls();
  }
  for (const Result& result : expected) ASSERT_EQ(result.status, QUIRE_OK) << result.call;
  ASSERT_EQ(kept().prefix_cache_texts, 1);
  ASSERT_GT(kept().prefix_cache_tokens, 0);
  const int64_t step = step_between_failures(total, kMostRuns);
  int64_t n_failed = 0;
  for (int64_t n = 1; n <= total; n += step) {
    Result results[std::size(kTexts)];
    {
      const FailingNew failing(n, last(n));
      for (size_t i = 0; i < std::size(kTexts); ++i) read(kTexts[i], &results[i]);
    }
    for (size_t i = 0; i < std::size(kTexts); ++i) {
      const Result& result = results[i];
      ASSERT_TRUE(is_good_or_out_of_memory(result)) << "allocation " << n;
      n_failed += result.status != QUIRE_OK;
      if (result.status == QUIRE_OK) {
        ASSERT_EQ(std::memcmp(result.tokens, expected[kTexts[i]].tokens, sizeof result.tokens), 0)
            << "allocation " << n;
      }
    }
    ASSERT_LE(kept().prefix_cache_bytes, kLimit) << "allocation " << n;
    // A text that was read and kept is taken over.
    Result again;
    read(1, &again);
    const int64_t before = kept().prefix_cache_tokens;
    read(1, &again);
    ASSERT_EQ(again.status, QUIRE_OK) << "allocation " << n;
    ASSERT_EQ(std::memcmp(again.tokens, expected[1].tokens, sizeof again.tokens), 0) << "allocation " << n;
    ASSERT_GT(kept().prefix_cache_tokens, before) << "allocation " << n;
  }
  EXPECT_GT(n_failed, 0);
  std::printf("%lld allocations; failed at %lld\n", static_cast<long long>(total), static_cast<long long>(n_failed));
}

}  // namespace
}  // namespace quire::test
