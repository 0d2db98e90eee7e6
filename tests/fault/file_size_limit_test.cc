// A limit for the size of the process's files (RLIMIT_FSIZE): spilling beyond it is an error like others. The system
// sends SIGXFSZ beside the error, which would end the host. Each test runs in a process of its own.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/abi/harness.h"
#include "tests/unit/kv/spill_directory.h"

namespace quire::test {
namespace {

constexpr int32_t kVocab = 64;
constexpr size_t kPrompt = 150;
constexpr int64_t kNew = 12;
constexpr int64_t kBudget = 40000;  // six records of 6 KiB, of the ten that the text takes

void limit_files(rlim_t bytes) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  limit.rlim_cur = bytes == RLIM_INFINITY ? limit.rlim_max : bytes;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
}

bool waits() {
  sigset_t waiting;
  sigemptyset(&waiting);
  sigpending(&waiting);
  return sigismember(&waiting, SIGXFSZ) == 1;
}

bool blocked() {
  sigset_t mask;
  sigemptyset(&mask);
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  return sigismember(&mask, SIGXFSZ) == 1;
}

void expect_default_action() {
  struct sigaction action {};
  ASSERT_EQ(::sigaction(SIGXFSZ, nullptr, &action), 0);
  EXPECT_EQ(action.sa_handler, SIG_DFL);
}

// Says which call, where, and what the limit is.
void expect_limit_error(const Outcome& outcome, const std::string& directory, const char* call, rlim_t limit) {
  EXPECT_EQ(outcome.status, QUIRE_ERROR_IO) << outcome.text();
  EXPECT_EQ(outcome.error.os_error, EFBIG);
  for (const std::string& part : {std::string(call), directory, std::string("RLIMIT_FSIZE"), std::to_string(limit)}) {
    EXPECT_NE(outcome.text().find(part), std::string::npos) << part << " in " << outcome.text();
  }
}

class Host {
 public:
  Host() {
    std::signal(SIGXFSZ, SIG_DFL);  // whatever it was started with
    options_ = session_options(strategy_, 24);
    options_.kv_file_directory = directory_.path().data();
    options_.kv_file_directory_len = directory_.path().size();
    options_.kv_host_budget_bytes = kBudget;
    session_ = make_session(model_.get(), options_);
    feed(session_.get(), some_tokens(kPrompt, kVocab));
    const auto undisturbed = make_session(model_.get(), strategy_, 24);
    feed(undisturbed.get(), some_tokens(kPrompt, kVocab));
    expected_ = generate(undisturbed.get(), kNew).tokens;
  }

  // The session stands at a token boundary and goes on as if nothing had been.
  void expect_to_go_on(std::vector<int32_t> tokens) {
    const auto [n_tokens, n_pending] = position(session_.get());
    EXPECT_EQ(n_tokens + n_pending, static_cast<int64_t>(kPrompt + tokens.size()));
    const Generated rest = generate(session_.get(), kNew - static_cast<int64_t>(tokens.size()));
    EXPECT_EQ(rest.outcome.status, QUIRE_OK) << rest.outcome.text();
    tokens.insert(tokens.end(), rest.tokens.begin(), rest.tokens.end());
    EXPECT_EQ(tokens, expected_);
    EXPECT_GT(tier_stats(session_.get(), QUIRE_TIER_FILE).bytes_written, 0);
  }

  SpillDirectory directory_;
  Owned<quire_runtime> runtime_ = make_runtime(2);
  Owned<quire_model> model_ = load_model(runtime_.get(), "short_128");
  const std::string strategy_ = "full";
  quire_session_options options_{};
  Owned<quire_session> session_;
  std::vector<int32_t> expected_;
};

void the_file_cannot_grow() {
  for (const rlim_t limit : {5000, 50000}) {  // less than a record, and some of the text
    Host host;
    limit_files(limit);
    const Generated run = generate(host.session_.get(), kNew);
    limit_files(RLIM_INFINITY);
    expect_limit_error(run.outcome, host.directory_.path(), "bytes more than", limit);
    EXPECT_EQ(position(host.session_.get()).first > 0, limit == 50000);
    host.expect_to_go_on(run.tokens);
    expect_default_action();
  }
}

// The limit comes down when the file has its space already.
void the_file_cannot_be_written() {
  Host host;
  const auto stream = open_stream(host.session_.get(), greedy(kNew));
  quire_event event;
  do {
    ASSERT_EQ(next(stream.get(), &event), QUIRE_OK);
  } while (event.kind != QUIRE_EVENT_TOKEN);
  limit_files(1);
  Generated run = read_to_end(stream.get());
  limit_files(RLIM_INFINITY);
  run.tokens.insert(run.tokens.begin(), event.token);
  expect_limit_error(run.outcome, host.directory_.path(), "cannot write", 1);
  host.expect_to_go_on(run.tokens);
}

// On the caller's thread, whose mask and waiting signals stay as they are.
void filling_on_the_callers_thread(bool was_blocked, bool was_waiting) {
  Host host;
  const auto filled = make_session(host.model_.get(), host.options_);
  sigset_t signal;
  sigemptyset(&signal);
  sigaddset(&signal, SIGXFSZ);
  if (was_blocked) pthread_sigmask(SIG_BLOCK, &signal, nullptr);
  if (was_waiting) raise(SIGXFSZ);
  for (const rlim_t limit : {5000, 50000}) {
    limit_files(limit);
    Outcome outcome;
    outcome.status = quire_session_fill_random(filled.get(), 2000, 7, &outcome.error);
    limit_files(RLIM_INFINITY);
    expect_limit_error(outcome, host.directory_.path(), "bytes more than", limit);
    EXPECT_EQ(waits(), was_waiting);
    EXPECT_EQ(blocked(), was_blocked);
    EXPECT_EQ(position(filled.get()), std::make_pair(int64_t{0}, int64_t{0}));
  }
  expect_default_action();
  EXPECT_EQ(quire_session_fill_random(filled.get(), 2000, 7, nullptr), QUIRE_OK);
  EXPECT_EQ(generate(filled.get(), 2).tokens.size(), 2u);
  host.expect_to_go_on({});
}

// A model whose packed weights cannot be kept is loaded as without them.
void packed_weights_cannot_be_kept() {
  Host host;
  std::string logged;
  quire_runtime_options options;
  quire_runtime_options_init(&options, sizeof options);
  options.n_threads = 2;
  options.log_user_data = &logged;
  options.log = [](void* all, int32_t, const char* message, size_t length) {
    static_cast<std::string*>(all)->append(message, length).append("\n");
  };
  quire_runtime* handle = nullptr;
  ASSERT_EQ(quire_runtime_create(&options, &handle, nullptr), QUIRE_OK);
  const Owned<quire_runtime> runtime(handle);
  const std::string path = model_directory("short_128"), packed = host.directory_.path();
  quire_model_options loading;
  quire_model_options_init(&loading, sizeof loading);
  loading.packed_directory = packed.data();
  loading.packed_directory_len = packed.size();
  quire_model* model = nullptr;
  limit_files(5000);
  const quire_status status = quire_model_load(runtime.get(), path.data(), path.size(), &loading, &model, nullptr);
  limit_files(RLIM_INFINITY);
  ASSERT_EQ(status, QUIRE_OK);
  const Owned<quire_model> owner(model);
  for (const std::string part : {"packed weights are not kept", "RLIMIT_FSIZE"}) {
    EXPECT_NE(logged.find(part), std::string::npos) << logged;
  }
  const auto session = make_session(model, host.strategy_, 24);
  feed(session.get(), some_tokens(kPrompt, kVocab));
  EXPECT_EQ(generate(session.get(), kNew).tokens, host.expected_);
  for (const auto& file : std::filesystem::directory_iterator(packed)) {
    EXPECT_NE(file.path().extension(), ".packed");
    EXPECT_NE(file.path().extension(), ".tmp");
  }
  expect_default_action();
}

// The parent shows what the child writes to stderr.
[[noreturn]] void leave() {
  const testing::TestResult& result = *testing::UnitTest::GetInstance()->current_test_info()->result();
  for (int i = 0; i < result.total_part_count(); ++i) {
    const auto& part = result.GetTestPartResult(i);
    std::fprintf(stderr, "%s:%d: %s\n", part.file_name(), part.line_number(), part.message());
  }
  std::_Exit(testing::Test::HasFailure() ? 1 : 0);
}

class FileSizeLimit : public testing::Test {
 protected:
  // The child is started anew, not forked from a process with threads.
  FileSizeLimit() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(FileSizeLimit, TheFileCannotGrow) {
  EXPECT_EXIT((the_file_cannot_grow(), leave()), testing::ExitedWithCode(0), "");
}

TEST_F(FileSizeLimit, TheFileCannotBeWritten) {
  EXPECT_EXIT((the_file_cannot_be_written(), leave()), testing::ExitedWithCode(0), "");
}

TEST_F(FileSizeLimit, PackedWeightsCannotBeKept) {
  EXPECT_EXIT((packed_weights_cannot_be_kept(), leave()), testing::ExitedWithCode(0), "");
}

TEST_F(FileSizeLimit, FillingOnTheCallersThread) {
  EXPECT_EXIT((filling_on_the_callers_thread(false, false), leave()), testing::ExitedWithCode(0), "");
}

TEST_F(FileSizeLimit, FillingWhereTheCallerBlocksTheSignal) {
  EXPECT_EXIT((filling_on_the_callers_thread(true, false), leave()), testing::ExitedWithCode(0), "");
}

TEST_F(FileSizeLimit, FillingWhereTheSignalWaitsAlready) {
  EXPECT_EXIT((filling_on_the_callers_thread(true, true), leave()), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace quire::test
