// operator new fails at its n-th call, over everything an application does: each call gives OUT_OF_MEMORY or works,
// nothing leaks, the process lives. new_fault_sessions.cc and new_fault_keeping.cc have further parts of this test.
//
// QUIRE_FAULT_RUNS (default 150) says at how many places, evenly spread, allocation fails; 0: at each.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>

#include "tests/fault/new_fault.h"
#include "tests/unit/model/temporary_folder.h"

namespace quire::test {
namespace {

TEST_P(NewFault, EverywhereInTurn) {
  const std::string path = model_directory("text_256");
  Result expected;
  int64_t total = 0;
  {
    Application application;
    const FailingNew none;
    application.run(path.c_str());
    expected = application.result;
    total = n_new_calls();
  }
  ASSERT_EQ(expected.status, QUIRE_OK) << expected.call;
  ASSERT_EQ(expected.n_tokens, kNew);
  const int64_t step = step_between_failures(total, kMostRuns);
  int64_t n_failed = 0, n_resumed = 0;
  for (int64_t n = 1; n <= total; n += step) {
    Application application;
    bool failed = false;
    {
      const FailingNew failing(n, last(n));
      application.run(path.c_str());
      failed = n_new_failures() > 0;
    }
    const Result& result = application.result;
    ASSERT_TRUE(is_good_or_out_of_memory(result)) << "allocation " << n;
    n_failed += result.status != QUIRE_OK;
    if (failed && GetParam()) {
      ASSERT_NE(result.status, QUIRE_OK) << "allocation " << n;
    }
    if (result.status != QUIRE_OK && application.session && std::strncmp(result.call, "stream", 6) == 0) {
      application.resume();
      ++n_resumed;
      ASSERT_EQ(result.status, QUIRE_OK) << "allocation " << n << ": resumed " << result.call;
    }
    if (result.status == QUIRE_OK) {
      ASSERT_EQ(result.n_tokens, kNew) << "allocation " << n;
      ASSERT_EQ(std::memcmp(result.tokens, expected.tokens, sizeof result.tokens), 0) << "allocation " << n;
      ASSERT_EQ(result.kv_bytes, expected.kv_bytes) << "allocation " << n;
    }
  }
  EXPECT_GT(n_failed, 0);
  EXPECT_GT(n_resumed, 0);
  std::printf("%lld allocations; failed at %lld, of which %lld in a stream\n", static_cast<long long>(total),
              static_cast<long long>(n_failed), static_cast<long long>(n_resumed));
}

// Metadata, vocabularies, merges, expressions and headers are read, weights are mapped and quantised, and all of it
// goes back. A sample of places is shared out among the ways to load.
TEST_P(NewFault, LoadingModelsWithBpe) {
  constexpr int64_t kWays = std::size(kLoadWays);
  const BpeModels models;
  for (const std::string& path : {models.gguf(), models.gguf_parts(), models.directory()}) {
    for (int64_t w = 0; w < kWays; ++w) {
      const LoadWay& way = kLoadWays[w];
      SCOPED_TRACE(path + ", load " + std::to_string(way.load) + ", type " + std::to_string(way.weight_type));
      for (int i = 0; i < 2; ++i) {  // what is made once is made in the first run
        Application application;
        application.way = way;
        const FailingNew none;
        application.open(path.c_str());
        ASSERT_EQ(application.result.status, QUIRE_OK) << application.result.call;
      }
      const int64_t total = n_new_calls(), step = step_between_failures(kWays * total, kMostRuns),
                    live = n_new_blocks();
      int64_t n_failed = 0;
      for (int64_t n = 1 + w * step / kWays; n <= total; n += step) {
        Result result;
        {
          Application application;
          application.way = way;
          const FailingNew failing(n, last(n));
          application.open(path.c_str());
          result = application.result;
        }
        ASSERT_EQ(n_new_blocks(), live) << "allocation " << n << ": " << result.call << " leaks";
        ASSERT_TRUE(is_good_or_out_of_memory(result)) << "allocation " << n;
        n_failed += result.status != QUIRE_OK;
      }
      EXPECT_GT(n_failed, 0);
      std::printf("%lld allocations; failed at %lld\n", static_cast<long long>(total),
                  static_cast<long long>(n_failed));
    }
  }
}

// A model is loaded while its packed weights are written, and again while they are mapped; whatever fails, no other
// file is left, and what is there serves the next load.
TEST_P(NewFault, KeepingPackedWeights) {
  const TemporaryFolder folder;
  const std::string model = model_directory("text_256"), packed = folder.file("packed");
  const auto load_and_answer = [&](Result* result) {
    Application a;
    a.flags = 0;
    a.packed_directory = packed.c_str();
    a.run(model.c_str());
    *result = a.result;
  };
  const int64_t n_open = n_open_files();
  Result expected;
  int64_t totals[2] = {};        // allocations of a load that writes, and of one that maps
  for (int i = 0; i < 3; ++i) {  // what is made once in a process is made in the first run
    if (i < 2) std::filesystem::remove_all(packed);
    const FailingNew none;
    load_and_answer(&expected);
    totals[i / 2] = n_new_calls();
  }
  ASSERT_EQ(expected.status, QUIRE_OK) << expected.call;
  EXPECT_NE(totals[0], totals[1]);
  int64_t n_failed = 0, n_kept = 0;
  for (const bool writes : {true, false}) {
    const int64_t total = totals[writes ? 0 : 1], step = step_between_failures(total, kMostRuns);
    for (int64_t n = 1; n <= total; n += step) {
      if (writes) std::filesystem::remove_all(packed);
      Result result;
      {
        const FailingNew failing(n, last(n));
        load_and_answer(&result);
      }
      ASSERT_TRUE(is_good_or_out_of_memory(result)) << "allocation " << n;
      n_failed += result.status != QUIRE_OK;
      if (result.status == QUIRE_OK) {
        ASSERT_EQ(std::memcmp(result.tokens, expected.tokens, sizeof result.tokens), 0) << "allocation " << n;
      }
      ASSERT_TRUE(wait_for_open_files(n_open)) << "allocation " << n << ": " << result.call;
      if (!std::filesystem::exists(packed)) continue;
      for (const auto& file : std::filesystem::directory_iterator(packed)) {
        ASSERT_EQ(file.path().extension(), ".packed") << "allocation " << n;
        ++n_kept;
      }
    }
  }
  EXPECT_GT(n_failed, 0);
  EXPECT_GT(n_kept, 0);
  Result again;
  load_and_answer(&again);
  ASSERT_EQ(again.status, QUIRE_OK) << again.call;
  ASSERT_EQ(std::memcmp(again.tokens, expected.tokens, sizeof again.tokens), 0);
}

INSTANTIATE_TEST_SUITE_P(Mode, NewFault, testing::Bool(),
                         [](const auto& info) { return info.param ? "AllLater" : "Once"; });

}  // namespace
}  // namespace quire::test
