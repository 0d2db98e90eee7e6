// The host's allocator fails at its n-th call, for every n: the call says OUT_OF_MEMORY, nothing leaks, and what was
// there before goes on.
#include <gtest/gtest.h>

#include "tests/abi/harness.h"
#include "tests/fault/bpe_models.h"

namespace quire::test {
namespace {

constexpr int32_t kVocab = 64;
constexpr int64_t kNew = 12;

class AllocatorFault : public testing::TestWithParam<bool> {
 protected:
  bool all_later() const { return GetParam(); }
  void fail_at(int64_t n) { memory_.fail_at(n, all_later()); }
  void fail_loads(const std::string& path);

  HostMemory memory_;  // what a failed call took goes back on the engine thread, perhaps a moment after the call
};

TEST_P(AllocatorFault, Load) { fail_loads(model_directory("short_128")); }

TEST_P(AllocatorFault, LoadModelsWithBpe) {
  const BpeModels models;
  for (const std::string& path : {models.gguf(), models.gguf_parts(), models.directory()}) {
    SCOPED_TRACE(path);
    fail_loads(path);
  }
}

// Loads with a failure at each allocation in turn.
void AllocatorFault::fail_loads(const std::string& path) {
  auto runtime = make_runtime(2, &memory_);
  int64_t n = 0;
  for (quire_status status = QUIRE_ERROR_OUT_OF_MEMORY; status != QUIRE_OK;) {
    Owned<quire_model> model;
    Outcome outcome;
    fail_at(++n);
    status = load_model(runtime.get(), path, &model, &outcome);
    memory_.fail_at(0);
    ASSERT_TRUE(status == QUIRE_OK || status == QUIRE_ERROR_OUT_OF_MEMORY) << n << ": " << outcome.text();
    if (status != QUIRE_OK) {
      ASSERT_NE(outcome.error.message[0], '\0');
      ASSERT_TRUE(memory_.wait_for_bytes(0)) << n;
    }
  }
  EXPECT_GT(n, 8);  // a chunk's records of all layers are one allocation
  runtime.reset();
  EXPECT_TRUE(memory_.wait_destroyed());
}

TEST_P(AllocatorFault, PrefillAndDecode) {
  const std::vector<int32_t> prompt = some_tokens(100, kVocab);
  std::vector<int32_t> expected;
  {
    const auto runtime = make_runtime(2);
    const auto model = load_model(runtime.get(), "short_128");
    const auto session = make_session(model.get(), "full", 24);
    feed(session.get(), prompt);
    expected = generate(session.get(), kNew).tokens;
    ASSERT_EQ(expected.size(), static_cast<size_t>(kNew));
  }
  int64_t n = 0;
  for (bool failed = true; failed;) {
    auto runtime = make_runtime(2, &memory_);  // anew: with no scratch memory yet
    auto model = load_model(runtime.get(), "short_128");
    auto session = make_session(model.get(), "full", 24);
    feed(session.get(), prompt);
    fail_at(++n);
    Generated run = generate(session.get(), kNew);
    memory_.fail_at(0);
    failed = run.outcome.status != QUIRE_OK;
    if (failed) {
      ASSERT_EQ(run.outcome.status, QUIRE_ERROR_OUT_OF_MEMORY) << n << ": " << run.outcome.text();
      const auto [n_tokens, n_pending] = position(session.get());
      ASSERT_EQ(n_tokens + n_pending, static_cast<int64_t>(prompt.size() + run.tokens.size()));
      ASSERT_TRUE(n_pending == 0 || n_tokens % 24 == 0) << n_tokens;
      const Generated rest = generate(session.get(), kNew - static_cast<int64_t>(run.tokens.size()));
      ASSERT_EQ(rest.outcome.status, QUIRE_OK) << n << ": " << rest.outcome.text();
      run.tokens.insert(run.tokens.end(), rest.tokens.begin(), rest.tokens.end());
    }
    ASSERT_EQ(run.tokens, expected) << "after the failure of allocation " << n;
    session.reset();
    model.reset();
    runtime.reset();
    ASSERT_TRUE(memory_.wait_destroyed());
    ASSERT_EQ(memory_.bytes(), 0);
  }
  EXPECT_GT(n, 8);
}

// An adapter's loading, and a session's first pass with it; the model goes on.
TEST_P(AllocatorFault, Adapter) {
  const std::string path = std::string(QUIRE_SOURCE_DIR) + "/tests/golden/adapters/everything";
  std::vector<int32_t> expected;
  int64_t n = 0, n_failed_loads = 0, n_failed_sessions = 0, n_failed_runs = 0;
  for (bool failed = true; failed;) {
    auto runtime = make_runtime(2, &memory_);
    auto model = load_model(runtime.get(), "text_256");
    const int64_t before = memory_.bytes();
    quire_adapter* adapter = nullptr;
    Outcome outcome;
    fail_at(n);  // first of all without a failure
    outcome.status = quire_adapter_load(model.get(), path.data(), path.size(), nullptr, &adapter, &outcome.error);
    failed = outcome.status != QUIRE_OK;
    if (failed) {
      ++n_failed_loads;
      memory_.fail_at(0);
      ASSERT_EQ(outcome.status, QUIRE_ERROR_OUT_OF_MEMORY) << n << ": " << outcome.text();
      ASSERT_TRUE(memory_.wait_for_bytes(before)) << n;
    } else {
      const quire_session_adapter used{adapter, 1};
      quire_session_options options;
      quire_session_options_init(&options, sizeof options);
      options.adapters = &used;
      options.n_adapters = 1;
      quire_session* session = nullptr;
      if (const quire_status created = quire_session_create(model.get(), &options, &session, nullptr);
          created != QUIRE_OK) {
        ASSERT_EQ(created, QUIRE_ERROR_OUT_OF_MEMORY) << n;
        memory_.fail_at(0);
        failed = true;
        ++n_failed_sessions;
        ASSERT_EQ(quire_session_create(model.get(), &options, &session, nullptr), QUIRE_OK);
      }
      const Owned<quire_session> owner(session);
      quire_adapter_release(adapter);
      feed(session, some_tokens(50, 320));
      Generated run = generate(session, kNew);
      memory_.fail_at(0);
      if (run.outcome.status != QUIRE_OK) {
        failed = true;
        ++n_failed_runs;
        ASSERT_EQ(run.outcome.status, QUIRE_ERROR_OUT_OF_MEMORY) << n << ": " << run.outcome.text();
        const Generated rest = generate(session, kNew - static_cast<int64_t>(run.tokens.size()));
        ASSERT_EQ(rest.outcome.status, QUIRE_OK) << n << ": " << rest.outcome.text();
        run.tokens.insert(run.tokens.end(), rest.tokens.begin(), rest.tokens.end());
      }
      if (expected.empty()) expected = run.tokens;
      ASSERT_EQ(run.tokens, expected) << "after the failure of allocation " << n;
    }
    if (n++ == 0) failed = true;
    model.reset();
    runtime.reset();
    ASSERT_TRUE(memory_.wait_destroyed());
    ASSERT_EQ(memory_.bytes(), 0);
  }
  EXPECT_GT(n_failed_loads, 30);
  EXPECT_GE(n_failed_sessions, 1);  // no memory for RoPE tables
  EXPECT_GT(n_failed_runs, 3);
}

INSTANTIATE_TEST_SUITE_P(Mode, AllocatorFault, testing::Bool(),
                         [](const auto& info) { return info.param ? "AllLater" : "Once"; });

}  // namespace
}  // namespace quire::test
