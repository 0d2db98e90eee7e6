// The host's allocator fails at its n-th call, for every n: the call says OUT_OF_MEMORY, nothing leaks, and what was
// there before goes on.
#include <gtest/gtest.h>

#include <map>

#include "tests/abi/harness.h"
#include "tests/fault/bpe_models.h"
#include "tests/source_path.h"
#include "tests/unit/model/temporary_folder.h"

namespace quire::test {
namespace {

constexpr int32_t kVocab = 64;
constexpr int64_t kNew = 12;

class AllocatorFault : public testing::TestWithParam<bool> {
 protected:
  bool all_later() const { return GetParam(); }
  void fail_at(int64_t n) { memory_.fail_at(n, all_later()); }
  void fail_loads(const std::string& path, const LoadWay& way = {});

  HostMemory memory_;  // what a failed call took goes back on the engine thread, perhaps a moment after the call
};

TEST_P(AllocatorFault, Load) { fail_loads(model_directory("short_128")); }

TEST_P(AllocatorFault, LoadModelsWithBpe) {
  const BpeModels models;
  for (const std::string& path : {models.gguf(), models.gguf_parts(), models.directory()}) {
    for (const LoadWay& way : kLoadWays) {
      SCOPED_TRACE(path + ", load " + std::to_string(way.load) + ", type " + std::to_string(way.weight_type));
      fail_loads(path, way);
    }
  }
}

// Loads with a failure at each allocation in turn.
void AllocatorFault::fail_loads(const std::string& path, const LoadWay& way) {
  quire_model_options options;
  quire_model_options_init(&options, sizeof options);
  options.load = way.load;
  options.weight_type = way.weight_type;
  auto runtime = make_runtime(2, &memory_);
  int64_t n = 0;
  for (quire_status status = QUIRE_ERROR_OUT_OF_MEMORY; status != QUIRE_OK;) {
    quire_model* model = nullptr;
    Outcome outcome;
    fail_at(++n);
    status = quire_model_load(runtime.get(), path.data(), path.size(), &options, &model, &outcome.error);
    outcome.status = status;
    memory_.fail_at(0);
    const Owned<quire_model> owner(model);
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
  const std::string path = source_path("tests/golden/adapters/everything");
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

// A session that has read a text is forked, saved and loaded, and another one that reads the text takes over what it
// has. Each allocation of all that fails in turn, until a call says so; then there is memory again, and the same call
// succeeds. Answers are as ever, the first session and its snapshot as they were, and nothing leaks.
TEST_P(AllocatorFault, ForkLoadAndTakeOver) {
  const std::string selecting = "longheads(chunk=16, chunks=4)";
  constexpr size_t kRead = 100, kMore = 7;
  enum { kFirst, kFork, kLoaded, kSecond, kSessions };  // they go on in different ways
  const TemporaryFolder folder;
  const std::string path = folder.file("saved.quire"), spill = folder.path();
  const std::vector<int32_t> prompt = some_tokens(kRead, kVocab);
  std::vector<int32_t> more[kSessions];
  std::vector<int32_t> expected[kSessions][2];  // an answer, and how it goes on
  {
    const auto runtime = make_runtime(2);
    const auto model = load_model(runtime.get(), "short_128");
    for (uint32_t s = 0; s < kSessions; ++s) {
      more[s] = some_tokens(kMore, kVocab, 10 + s);
      const auto session = make_session(model.get(), selecting, 24);
      feed(session.get(), prompt);
      feed(session.get(), more[s]);
      for (auto& answer : expected[s]) answer = generate(session.get(), kNew).tokens;
      ASSERT_EQ(expected[s][1].size(), static_cast<size_t>(kNew));
    }
  }
  for (const bool spills : {false, true}) {
    SCOPED_TRACE(spills ? "spilling" : "in memory");
    int64_t n = 0, n_taken = 0;
    std::map<std::string, int> n_failed;  // by what was done
    do {
      auto runtime = make_runtime(2, &memory_);  // anew: what it keeps beside sessions hides no leak
      auto model = load_model(runtime.get(), "short_128");
      quire_session_options options = session_options(selecting, 24);
      if (spills) {
        options.kv_file_directory = spill.data();
        options.kv_file_directory_len = spill.size();
      }
      quire_session_options alone = options;  // reads the snapshot, not what others hold
      alone.flags = QUIRE_SESSION_NO_PREFIX_REUSE;
      auto first = make_session(model.get(), options);
      feed(first.get(), prompt);
      ASSERT_EQ(generate(first.get(), 0).outcome.status, QUIRE_OK);
      const std::vector<float> logits = last_logits(first.get(), kVocab);

      bool failed = false;
      const auto good = [&](const std::string& what, quire_status status) {
        if (status == QUIRE_OK) return true;
        EXPECT_EQ(status, QUIRE_ERROR_OUT_OF_MEMORY) << what;
        EXPECT_FALSE(failed) << what << ": there was memory again";
        memory_.fail_at(0);
        failed = true;
        ++n_failed[what];
        return false;
      };
      const auto make = [&](const std::string& what, const auto& call) {
        quire_session* made = nullptr;
        if (!good(what, call(&made))) {
          EXPECT_EQ(made, nullptr) << what;
          EXPECT_EQ(call(&made), QUIRE_OK) << what;
        }
        return Owned<quire_session>(made);
      };
      const auto answer = [&](const std::string& what, int which, quire_session* session, size_t n_read) {
        feed(session, more[which]);
        Generated run = generate(session, kNew);
        if (!good(what, run.outcome.status)) {
          const auto [n_tokens, n_pending] = position(session);
          EXPECT_EQ(n_tokens + n_pending, static_cast<int64_t>(kRead + kMore + run.tokens.size())) << what;
          EXPECT_GE(n_tokens, static_cast<int64_t>(n_read)) << what;
          const Generated rest = generate(session, kNew - static_cast<int64_t>(run.tokens.size()));
          EXPECT_EQ(rest.outcome.status, QUIRE_OK) << what << ": " << rest.outcome.text();
          run.tokens.insert(run.tokens.end(), rest.tokens.begin(), rest.tokens.end());
        }
        EXPECT_EQ(run.tokens, expected[which][0]) << what;
      };
      const auto save = [&] { return quire_session_save(first.get(), path.data(), path.size(), nullptr, nullptr); };

      const int64_t before = memory_.n_allocations();
      fail_at(++n);
      auto fork = make("fork", [&](auto** out) { return quire_session_fork(first.get(), out, nullptr); });
      answer("fork's answer", kFork, fork.get(), kRead);
      if (!good("save", save())) {
        EXPECT_EQ(save(), QUIRE_OK);
      }
      auto loaded = make("load", [&](auto** out) {
        return quire_session_load(model.get(), path.data(), path.size(), &alone, out, nullptr);
      });
      answer("loaded session's answer", kLoaded, loaded.get(), kRead);
      auto second =
          make("create", [&](auto** out) { return quire_session_create(model.get(), &options, out, nullptr); });
      feed(second.get(), prompt);
      answer("answer behind a prefix", kSecond, second.get(), 0);
      memory_.fail_at(0);
      n_taken = memory_.n_allocations() - before;

      EXPECT_GT(stats(second.get()).n_reused, 0);
      EXPECT_EQ(quire_snapshot_verify(path.data(), path.size(), nullptr, nullptr), QUIRE_OK);
      EXPECT_EQ(position(first.get()), std::pair(int64_t{kRead}, int64_t{0}));
      EXPECT_EQ(last_logits(first.get(), kVocab), logits);
      feed(first.get(), more[kFirst]);
      EXPECT_EQ(generate(first.get(), kNew).tokens, expected[kFirst][0]);
      Owned<quire_session>* const sessions[kSessions] = {&first, &fork, &loaded, &second};
      for (int s = 0; s < kSessions; ++s) {
        EXPECT_EQ(generate(sessions[s]->get(), kNew).tokens, expected[s][1]) << s;
      }
      for (auto* const session : sessions) session->reset();
      model.reset();
      runtime.reset();
      EXPECT_TRUE(memory_.wait_destroyed());
      EXPECT_EQ(memory_.bytes(), 0);
      ASSERT_FALSE(HasFailure()) << "allocation " << n;
    } while (n < n_taken);  // a failure may be no call's: what is sent for ahead, or to be pinned, is asked for again
    for (const char* const what : {"fork's answer", "load", "loaded session's answer", "answer behind a prefix"}) {
      EXPECT_GT(n_failed[what], all_later() ? 2 : 1) << what;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Mode, AllocatorFault, testing::Bool(),
                         [](const auto& info) { return info.param ? "AllLater" : "Once"; });

}  // namespace
}  // namespace quire::test
