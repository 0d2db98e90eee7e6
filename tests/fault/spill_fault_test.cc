// Each system call of the spill file fails in turn: the stream says so once, the session stands at a token boundary,
// and afterwards it goes on to the same tokens and logits, bit for bit. Short transfers and interruptions are not seen.
// The calls come from the engine thread, or from an I/O thread: there a failure that nobody waits for is not seen
// either, because what failed is done again when it is needed.
//
// QUIRE_FAULT_RUNS (default 20) says at how many calls of each kind, evenly spread, one fails; 0: at each.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <ostream>
#include <string>

#include "tests/abi/harness.h"
#include "tests/fault/file_calls.h"
#include "tests/unit/kv/spill_directory.h"

namespace quire::test {
namespace {

constexpr int32_t kVocab = 64;
constexpr size_t kPrompt = 150;
constexpr int64_t kNew = 12;
constexpr int32_t kBlock = 24;

struct Kind {
  const char* strategy;
  int64_t budget;
  int32_t n_io_threads;
  int64_t compressed = 0;
  bool narrows = false;  // old text
};

// The budgets are a few records each, of compressed memory too; longheads keeps representations beside them.
constexpr Kind kKinds[] = {{"full(kv_chunk=16)", 20000, -1},
                           {"dca(kv_chunk=16)", 20000, -1},
                           {"longheads(chunk=16, chunks=4)", 125000, -1},
                           {"full(kv_chunk=16)", 20000, 0},
                           {"dca(kv_chunk=16)", 30000, 0},
                           {"longheads(chunk=16, chunks=4)", 125000, 0},
                           {"dca(kv_chunk=16)", 20000, -1, 160000},
                           {"full(kv_chunk=16)", 24000, 0, 0, true},
                           {"dca(kv_chunk=16)", 24000, -1, 400000, true}};

Owned<quire_runtime> make_runtime(const Kind& kind) {
  quire_runtime_options options;
  quire_runtime_options_init(&options, sizeof options);
  options.n_threads = 2;
  options.n_io_threads = kind.n_io_threads;
  quire_runtime* runtime = nullptr;
  EXPECT_EQ(quire_runtime_create(&options, &runtime, nullptr), QUIRE_OK);
  return Owned<quire_runtime>(runtime);
}

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logits;
  Outcome outcome;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

int64_t n_descriptors() {
  namespace fs = std::filesystem;
  return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
}

class SpillFault : public testing::TestWithParam<Kind> {
 protected:
  SpillFault() {
    n_open_ = n_descriptors();
    undisturbed_ = answer(*make_session(model_.get(), in_memory()));
    EXPECT_EQ(undisturbed_.tokens.size(), static_cast<size_t>(kNew));
  }
  ~SpillFault() override {
    EXPECT_EQ(directory_.n_names(), 0);
    // Sessions end on the engine thread; when the runtime is closed, all of them have.
    EXPECT_EQ(quire_runtime_close(runtime_.get(), nullptr), QUIRE_OK);
    EXPECT_EQ(n_descriptors(), n_open_);
  }

  quire_session_options in_memory() const {
    quire_session_options options = session_options(strategy_, kBlock);
    if (GetParam().narrows) {
      options.kv_old_type = QUIRE_TYPE_INT8;
      options.old_after = QUIRE_OLD_AT_ONCE;
    }
    return options;
  }
  quire_session_options options() const {
    quire_session_options options = in_memory();
    options.kv_file_directory = directory_.path().data();
    options.kv_file_directory_len = directory_.path().size();
    options.kv_host_budget_bytes = GetParam().budget;
    options.kv_compressed_budget_bytes = GetParam().compressed;
    return options;
  }
  Owned<quire_session> spilling_session() { return make_session(model_.get(), options()); }

  static Answer generate_rest(quire_session* session, int64_t n) {
    Generated run = generate(session, n);
    return {std::move(run.tokens), run.outcome.status == QUIRE_OK ? last_logits(session, kVocab) : std::vector<float>(),
            run.outcome};
  }
  static Answer answer(quire_session& session) {
    feed(&session, some_tokens(kPrompt, kVocab));
    return generate_rest(&session, kNew);
  }

  // The run whose calls are counted.
  int64_t count_calls(FileCall call, int64_t refused = INT64_MAX) {
    const auto session = spilling_session();
    FailingFiles none;
    none.refuse_allocations_of(refused);
    const Answer whole = answer(*session);
    EXPECT_EQ(whole.tokens, undisturbed_.tokens);
    return none.n_calls(call);
  }

  static int64_t stride(int64_t n_calls) {
    const char* wanted = std::getenv("QUIRE_FAULT_RUNS");
    const int64_t runs = wanted ? std::atoll(wanted) : 20;
    return runs > 0 ? std::max<int64_t>(1, n_calls / runs) : 1;
  }

  // What was failed goes on without the fault.
  void expect_to_go_on(quire_session* session, Answer& first) {
    const auto [n_tokens, n_pending] = position(session);
    ASSERT_EQ(n_tokens + n_pending, static_cast<int64_t>(kPrompt + first.tokens.size()));
    ASSERT_TRUE(n_pending == 0 || n_tokens % kBlock == 0) << n_tokens;
    const Answer rest = generate_rest(session, kNew - static_cast<int64_t>(first.tokens.size()));
    ASSERT_EQ(rest.outcome.status, QUIRE_OK) << rest.outcome.text();
    first.tokens.insert(first.tokens.end(), rest.tokens.begin(), rest.tokens.end());
    ASSERT_EQ(first.tokens, undisturbed_.tokens);
    ASSERT_TRUE(same_bits(rest.logits, undisturbed_.logits));
  }

  // Call number n of a kind fails, alone or with all later ones, for each n.
  void fail_each(FileCall call, int error, bool all_later, int64_t refused = INT64_MAX) {
    const int64_t n_calls = count_calls(call, refused);
    ASSERT_GT(n_calls, 5) << "the calls do not pass through this test";
    int64_t n_seen = 0;
    for (int64_t n = 1; n <= n_calls; n += stride(n_calls)) {
      SCOPED_TRACE("call " + std::to_string(n) + " of " + std::to_string(n_calls));
      const auto session = spilling_session();
      Answer run;
      {
        FailingFiles failing({call, n, all_later ? INT64_MAX : n, 1, error});
        failing.refuse_allocations_of(refused);
        run = answer(*session);
        if (alone_) {
          ASSERT_EQ(failing.n_faults(), 1);
        }
      }
      if (!alone_ && run.outcome.status == QUIRE_OK) {
        ASSERT_EQ(run.tokens, undisturbed_.tokens);
        ASSERT_TRUE(same_bits(run.logits, undisturbed_.logits));
        continue;
      }
      ++n_seen;
      ASSERT_EQ(run.outcome.status, QUIRE_ERROR_IO) << run.outcome.text();
      ASSERT_EQ(run.outcome.error.os_error, error) << run.outcome.text();
      ASSERT_NE(run.outcome.text().find(directory_.path()), std::string::npos) << run.outcome.text();
      ASSERT_NO_FATAL_FAILURE(expect_to_go_on(session.get(), run));
    }
    // Of compressed memory, a single write that fails is never seen.
    if (GetParam().compressed == 0 || all_later || call != FileCall::kWrite) {
      EXPECT_GT(n_seen, 0);
    }
  }

  void expect_unseen(const FileFault& fault) {
    const auto session = spilling_session();
    FailingFiles failing(fault);
    const Answer run = answer(*session);
    EXPECT_GT(failing.n_faults(), 0);
    ASSERT_EQ(run.outcome.status, QUIRE_OK) << run.outcome.text();
    EXPECT_EQ(run.tokens, undisturbed_.tokens);
    EXPECT_TRUE(same_bits(run.logits, undisturbed_.logits));
  }

  const SpillDirectory directory_;
  const std::string strategy_ = GetParam().strategy;
  // Each call is one that the engine waits for, and that is not made again: compressed memory that cannot give a record
  // on to the file writes the one that came instead.
  const bool alone_ = GetParam().n_io_threads < 0 && GetParam().compressed == 0;
  Owned<quire_runtime> runtime_ = make_runtime(GetParam());
  Owned<quire_model> model_ = load_model(runtime_.get(), "short_128");
  int64_t n_open_ = 0;  // with a model, which keeps its file open
  Answer undisturbed_;
};

TEST_P(SpillFault, EachWrite) {
  for (const int error : {EIO, ENOSPC}) fail_each(FileCall::kWrite, error, false);
  fail_each(FileCall::kWrite, ENOSPC, true);
}

TEST_P(SpillFault, EachRead) {
  fail_each(FileCall::kRead, EIO, false);
  fail_each(FileCall::kRead, EIO, true);
}

// The file gets space for many records at once; on a nearly full disk, for those of one step.
TEST_P(SpillFault, EachAllocationOfANearlyFullDisk) {
  for (const int error : {ENOSPC, EIO}) fail_each(FileCall::kAllocate, error, false, 1 << 20);
  fail_each(FileCall::kAllocate, ENOSPC, true, 1 << 20);
}

// Where the file's growth by much fails, a little is asked for; a file that cannot be shortened after that is an error,
// too, and the next call grows it from where it was.
TEST_P(SpillFault, AFileThatCannotBeShortened) {
  const auto session = spilling_session();
  Answer run;
  {
    FailingFiles failing({FileCall::kTruncate, 1, INT64_MAX, 1, EIO});
    failing.refuse_allocations_of(0);
    run = answer(*session);
    EXPECT_GT(failing.n_faults(), 0);
  }
  EXPECT_EQ(run.outcome.status, QUIRE_ERROR_IO) << run.outcome.text();
  EXPECT_EQ(run.outcome.error.os_error, EIO);
  expect_to_go_on(session.get(), run);
}

TEST_P(SpillFault, ShortTransfersAndInterruptionsAreNotSeen) {
  for (const FileCall call : {FileCall::kWrite, FileCall::kRead}) {
    for (const int64_t stride : {1, 2, 3}) {
      expect_unseen({call, 1, INT64_MAX, stride, 0});
      if (stride > 1) expect_unseen({call, 1, INT64_MAX, stride, EINTR});
    }
  }
  expect_unseen({FileCall::kAllocate, 1, INT64_MAX, 2, EINTR});
  expect_unseen({FileCall::kAllocate, 1, 3, 1, EINTR});
}

TEST_P(SpillFault, FillingFailsAndLeavesTheSessionEmpty) {
  constexpr int64_t kFilled = 500;
  const auto filled = spilling_session();
  ASSERT_EQ(quire_session_fill_random(filled.get(), kFilled, 5, nullptr), QUIRE_OK);
  const Answer expected = generate_rest(filled.get(), 3);
  ASSERT_EQ(expected.tokens.size(), 3u);
  int64_t n_calls = 0;
  {
    const auto session = spilling_session();
    FailingFiles none;
    ASSERT_EQ(quire_session_fill_random(session.get(), kFilled, 5, nullptr), QUIRE_OK);
    n_calls = none.n_calls(FileCall::kWrite);
  }
  ASSERT_GT(n_calls, 5);
  const auto session = spilling_session();
  for (int64_t n = 1; n <= n_calls; n += stride(n_calls)) {
    Outcome outcome;
    {
      FailingFiles failing({FileCall::kWrite, n, GetParam().compressed > 0 ? INT64_MAX : n, 1, ENOSPC});
      outcome.status = quire_session_fill_random(session.get(), kFilled, 5, &outcome.error);
    }
    ASSERT_EQ(outcome.status, QUIRE_ERROR_IO) << n << ": " << outcome.text();
    ASSERT_EQ(outcome.error.os_error, ENOSPC);
    ASSERT_EQ(position(session.get()), std::make_pair(int64_t{0}, int64_t{0}));
  }
  ASSERT_EQ(quire_session_fill_random(session.get(), kFilled, 5, nullptr), QUIRE_OK);
  const Answer again = generate_rest(session.get(), 3);
  EXPECT_EQ(again.tokens, expected.tokens);
  EXPECT_TRUE(same_bits(again.logits, expected.logits));
}

TEST_P(SpillFault, TheFileCannotBeMade) {
  const quire_session_options options = this->options();
  const auto create = [&](const FileFault& fault, Outcome* outcome) {
    FailingFiles failing(fault);
    if (fault.call == FileCall::kMakeNamed) failing.refuse_nameless();
    quire_session* session = nullptr;
    outcome->status = quire_session_create(model_.get(), &options, &session, &outcome->error);
    EXPECT_EQ(failing.n_faults(), session && GetParam().narrows ? 2 : 1);  // narrow records have a file of their own
    return Owned<quire_session>(session);
  };
  for (const FileCall call : {FileCall::kOpenNameless, FileCall::kMakeNamed}) {
    for (const int error : {EMFILE, ENOSPC, EACCES, EIO}) {
      Outcome outcome;
      EXPECT_EQ(create({call, 1, INT64_MAX, 1, error}, &outcome), nullptr);
      EXPECT_EQ(outcome.status, QUIRE_ERROR_IO) << outcome.text();
      EXPECT_EQ(outcome.error.os_error, error);
      EXPECT_NE(outcome.text().find(directory_.path()), std::string::npos) << outcome.text();
    }
  }
  // A file system without nameless files: one with a name is made and the name removed.
  for (const int error : {EOPNOTSUPP, EISDIR, EINVAL}) {
    Outcome outcome;
    const auto session = create({FileCall::kOpenNameless, 1, INT64_MAX, 1, error}, &outcome);
    ASSERT_NE(session, nullptr) << outcome.text();
    EXPECT_EQ(directory_.n_names(), 0);
    const Answer run = answer(*session);
    EXPECT_EQ(run.tokens, undisturbed_.tokens);
  }
}

std::ostream& operator<<(std::ostream& out, const Kind& kind) {
  return out << kind.strategy << ", " << kind.n_io_threads << " I/O threads, " << kind.compressed << " compressed"
             << (kind.narrows ? ", old text narrow" : "");
}

INSTANTIATE_TEST_SUITE_P(Strategies, SpillFault, testing::ValuesIn(kKinds), [](const auto& info) {
  const std::string name = info.param.strategy;
  return name.substr(0, name.find('(')) + (info.param.n_io_threads < 0 ? "" : "_io_thread") +
         (info.param.compressed > 0 ? "_compressed" : "") + (info.param.narrows ? "_old_text" : "");
});

}  // namespace
}  // namespace quire::test
