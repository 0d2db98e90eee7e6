// Each system call of saving and loading fails in turn: the call or the stream says so, what stood at the path stays,
// the session stands at a token boundary, and goes on to the same tokens and logits, bit for bit.
//
// QUIRE_FAULT_RUNS (default 20) says at how many calls of each kind, evenly spread, one fails; 0: at each.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/abi/harness.h"
#include "tests/fault/file_calls.h"
#include "tests/unit/model/temporary_folder.h"

namespace quire::test {
namespace {

constexpr int32_t kVocab = 64;
constexpr size_t kPrompt = 150;
constexpr int64_t kNew = 12;

std::string read_file(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

int64_t stride(int64_t n_calls) {
  const char* wanted = std::getenv("QUIRE_FAULT_RUNS");
  const int64_t runs = wanted ? std::atoll(wanted) : 20;
  return runs > 0 ? std::max<int64_t>(1, n_calls / runs) : 1;
}

struct Kind {
  const char* strategy;
  int32_t n_io_threads;
};

std::ostream& operator<<(std::ostream& out, const Kind& kind) {
  return out << kind.strategy << ", " << kind.n_io_threads << " I/O threads";
}

class SnapshotFault : public testing::TestWithParam<Kind> {
 protected:
  SnapshotFault() {
    session_ = make_session(model_.get(), GetParam().strategy);
    feed(session_.get(), some_tokens(kPrompt, kVocab));
    EXPECT_EQ(generate(session_.get(), 1).outcome.status, QUIRE_OK);
  }

  static Owned<quire_runtime> make_runtime() {
    quire_runtime_options options;
    quire_runtime_options_init(&options, sizeof options);
    options.n_threads = 2;
    options.n_io_threads = GetParam().n_io_threads;
    quire_runtime* runtime = nullptr;
    EXPECT_EQ(quire_runtime_create(&options, &runtime, nullptr), QUIRE_OK);
    return Owned<quire_runtime>(runtime);
  }
  // Whole, unless the flags say that it may be appended.
  Outcome save(uint32_t flags = QUIRE_SNAPSHOT_WHOLE) {
    quire_snapshot_options options;
    quire_snapshot_options_init(&options, sizeof options);
    options.flags = flags;
    Outcome outcome;
    outcome.status = quire_session_save(session_.get(), path_.data(), path_.size(), &options, &outcome.error);
    return outcome;
  }
  int64_t n_files() const {
    return std::distance(std::filesystem::directory_iterator(folder_.path()), std::filesystem::directory_iterator());
  }
  bool verify() const { return quire_snapshot_verify(path_.data(), path_.size(), nullptr, nullptr) == QUIRE_OK; }
  Owned<quire_session> load(Outcome* outcome) {
    quire_session* session = nullptr;
    quire_session_options options;
    quire_session_options_init(&options, sizeof options);
    options.flags = QUIRE_SESSION_NO_PREFIX_REUSE;  // what was saved is in memory still
    outcome->status = quire_session_load(model_.get(), path_.data(), path_.size(), &options, &session, &outcome->error);
    return Owned<quire_session>(session);
  }
  // Of one kind, while `body` runs.
  template <typename Body>
  static int64_t count_calls(FileCall call, const Body& body) {
    FailingFiles none;
    body();
    return none.n_calls(call);
  }

  TemporaryFolder folder_;
  const std::string path_ = folder_.file("saved.quire");
  Owned<quire_runtime> runtime_ = make_runtime();
  Owned<quire_model> model_ = load_model(runtime_.get(), "short_128");
  Owned<quire_session> session_;
};

TEST_P(SnapshotFault, EachCallOfSaving) {
  ASSERT_EQ(save().status, QUIRE_OK);
  const std::string before = read_file(path_);
  feed(session_.get(), some_tokens(3, kVocab, 7));
  for (const FileCall call : {FileCall::kAppend, FileCall::kSync, FileCall::kRename}) {
    std::filesystem::copy_file(path_, folder_.file("old"), std::filesystem::copy_options::overwrite_existing);
    const int64_t n_calls = count_calls(call, [&] { ASSERT_EQ(save().status, QUIRE_OK); });
    std::filesystem::rename(folder_.file("old"), path_);
    ASSERT_GT(n_calls, 0) << "the calls do not pass through this test";
    for (const int error : {EIO, ENOSPC}) {
      for (int64_t n = 1; n <= n_calls; n += stride(n_calls)) {
        SCOPED_TRACE("call " + std::to_string(n) + " of " + std::to_string(n_calls));
        const bool last_sync = call == FileCall::kSync && n == 2;  // of the directory: the file is there
        Outcome outcome;
        {
          FailingFiles failing({call, n, n, 1, error});
          outcome = save();
          ASSERT_EQ(failing.n_faults(), 1);
        }
        ASSERT_EQ(outcome.status, QUIRE_ERROR_IO) << outcome.text();
        ASSERT_EQ(outcome.error.os_error, error);
        ASSERT_NE(outcome.text().find(path_), std::string::npos) << outcome.text();
        ASSERT_EQ(read_file(path_) == before, !last_sync);
        if (last_sync) {
          Outcome loading;
          ASSERT_NE(load(&loading), nullptr) << loading.text();
          std::ofstream(path_, std::ios::binary) << before;
        }
        ASSERT_EQ(n_files(), 1);  // nothing is left beside it
      }
    }
  }
  const auto [n_tokens, n_pending] = position(session_.get());
  EXPECT_EQ(n_tokens, static_cast<int64_t>(kPrompt) + 1);
  EXPECT_EQ(n_pending, 3);
  // Short writes and interruptions are not seen.
  for (const int64_t each : {1, 2}) {
    FailingFiles failing({FileCall::kAppend, 1, INT64_MAX, each, 0});
    ASSERT_EQ(save().status, QUIRE_OK);
    EXPECT_GT(failing.n_faults(), 0);
  }
  Outcome loading;
  const auto loaded = load(&loading);
  ASSERT_NE(loaded, nullptr) << loading.text();
  EXPECT_EQ(position(loaded.get()), position(session_.get()));
}

// The same where what is new goes behind the old snapshot.
TEST_P(SnapshotFault, EachCallOfAppending) {
  ASSERT_EQ(save().status, QUIRE_OK);
  const std::string before = read_file(path_);
  ASSERT_EQ(generate(session_.get(), 3).outcome.status, QUIRE_OK);
  const std::vector<float> logits = last_logits(session_.get(), kVocab);
  // The file is again what the session was saved to, perhaps with what a crash left behind it.
  const auto start = [&](const char* torn) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << before << torn;
  };
  for (const FileCall call : {FileCall::kWrite, FileCall::kSync, FileCall::kTruncate, FileCall::kRead}) {
    const int error = call == FileCall::kWrite ? ENOSPC : EIO;
    for (int64_t n = 1;; ++n) {
      SCOPED_TRACE("call " + std::to_string(n) + " of kind " + std::to_string(static_cast<int>(call)));
      // Saving moves the mark of the past: each time a fork is saved.
      quire_session* forked = nullptr;
      ASSERT_EQ(quire_session_fork(session_.get(), &forked, nullptr), QUIRE_OK);
      const Owned<quire_session> fork(forked);
      start(call == FileCall::kTruncate ? "half a block" : "");
      Outcome outcome;
      int64_t n_faults = 0;
      {
        FailingFiles failing({call, n, n, 1, error});
        outcome.status = quire_session_save(fork.get(), path_.data(), path_.size(), nullptr, &outcome.error);
        n_faults = failing.n_faults();
      }
      const std::string after = read_file(path_);
      ASSERT_TRUE(verify());
      ASSERT_EQ(n_files(), 1);
      if (n_faults == 0) {  // no such call any more
        ASSERT_EQ(outcome.status, QUIRE_OK) << outcome.text();
        ASSERT_TRUE(after.size() > before.size() && after.starts_with(before));
        const bool seen = call == FileCall::kSync ? n == 3 : n > (call == FileCall::kTruncate ? 1 : 4);
        ASSERT_TRUE(seen) << n << ": the calls do not pass through this test";
        break;
      }
      if (call == FileCall::kRead || call == FileCall::kTruncate) {
        ASSERT_EQ(outcome.status, QUIRE_OK) << outcome.text();
        // Another file takes its place.
        ASSERT_FALSE(call == FileCall::kTruncate && after.starts_with(before));
        continue;
      }
      ASSERT_EQ(outcome.status, QUIRE_ERROR_IO) << outcome.text();
      ASSERT_EQ(outcome.error.os_error, error);
      ASSERT_NE(outcome.text().find(path_), std::string::npos) << outcome.text();
      const bool last_sync = call == FileCall::kSync && n == 2;  // the new one is there, perhaps for good
      ASSERT_EQ(after == before, !last_sync);
      // The next save succeeds, on whatever is there.
      outcome.status = quire_session_save(fork.get(), path_.data(), path_.size(), nullptr, &outcome.error);
      ASSERT_EQ(outcome.status, QUIRE_OK) << outcome.text();
      ASSERT_TRUE(read_file(path_).starts_with(before));
      Outcome loading;
      const auto loaded = load(&loading);
      ASSERT_NE(loaded, nullptr) << loading.text();
      ASSERT_EQ(position(loaded.get()), position(session_.get()));
      const std::vector<float> own = last_logits(loaded.get(), kVocab);
      ASSERT_EQ(std::memcmp(own.data(), logits.data(), own.size() * sizeof(float)), 0);
    }
  }
  // Short writes and interruptions are not seen.
  start("half a block");
  {
    FailingFiles failing({FileCall::kWrite, 1, INT64_MAX, 2, 0});
    ASSERT_EQ(save(0).status, QUIRE_OK);
    EXPECT_GT(failing.n_faults(), 0);
  }
  EXPECT_TRUE(read_file(path_).starts_with(before));
  EXPECT_TRUE(verify());
}

TEST_P(SnapshotFault, EachReadOfLoading) {
  ASSERT_EQ(save().status, QUIRE_OK);
  const int64_t n_calls = count_calls(FileCall::kRead, [&] {
    Outcome outcome;
    ASSERT_NE(load(&outcome), nullptr);
  });
  ASSERT_GT(n_calls, 3);
  for (int64_t n = 1; n <= n_calls; ++n) {
    Outcome outcome;
    {
      FailingFiles failing({FileCall::kRead, n, n, 1, EIO});
      ASSERT_EQ(load(&outcome), nullptr);
    }
    ASSERT_EQ(outcome.status, QUIRE_ERROR_IO) << outcome.text();
    ASSERT_EQ(outcome.error.os_error, EIO);
    ASSERT_NE(outcome.text().find(path_), std::string::npos) << outcome.text();
  }
}

// Records are read while the loaded session computes.
TEST_P(SnapshotFault, EachReadOfARecord) {
  ASSERT_EQ(save().status, QUIRE_OK);
  const Generated expected = generate(session_.get(), kNew);
  const std::vector<float> logits = last_logits(session_.get(), kVocab);
  Outcome loading;
  auto loaded = load(&loading);
  const int64_t n_calls =
      count_calls(FileCall::kRead, [&] { ASSERT_EQ(generate(loaded.get(), kNew).tokens, expected.tokens); });
  ASSERT_GT(n_calls, 5);
  int64_t n_seen = 0;
  for (int64_t n = 1; n <= n_calls; n += stride(n_calls)) {
    SCOPED_TRACE("call " + std::to_string(n) + " of " + std::to_string(n_calls));
    loaded = load(&loading);
    Generated run;
    {
      FailingFiles failing({FileCall::kRead, n, n, 1, EIO});
      run = generate(loaded.get(), kNew);
    }
    // An I/O thread reads ahead of need: what fails then is read again.
    if (run.outcome.status != QUIRE_OK) {
      ++n_seen;
      ASSERT_EQ(run.outcome.status, QUIRE_ERROR_IO) << run.outcome.text();
      ASSERT_EQ(run.outcome.error.os_error, EIO);
      ASSERT_NE(run.outcome.text().find(path_), std::string::npos) << run.outcome.text();
      const Generated rest = generate(loaded.get(), kNew - static_cast<int64_t>(run.tokens.size()));
      ASSERT_EQ(rest.outcome.status, QUIRE_OK) << rest.outcome.text();
      run.tokens.insert(run.tokens.end(), rest.tokens.begin(), rest.tokens.end());
    }
    ASSERT_EQ(run.tokens, expected.tokens);
    const std::vector<float> own = last_logits(loaded.get(), kVocab);
    ASSERT_EQ(std::memcmp(own.data(), logits.data(), own.size() * sizeof(float)), 0);
  }
  EXPECT_GT(n_seen, 0);
}

INSTANTIATE_TEST_SUITE_P(Strategies, SnapshotFault,
                         testing::Values(Kind{"full(kv_chunk=16)", -1}, Kind{"longheads(chunk=16, chunks=4)", -1},
                                         Kind{"dca(kv_chunk=16)", 0}, Kind{"longheads(chunk=16, chunks=4)", 0}),
                         [](const auto& info) {
                           const std::string name = info.param.strategy;
                           return name.substr(0, name.find('(')) + (info.param.n_io_threads < 0 ? "" : "_io_thread");
                         });

}  // namespace
}  // namespace quire::test
