// Programs that save are killed at any moment: what stands at the path is the last snapshot that was saved, or the one
// that was being saved, whole.
//
// QUIRE_KILLS (default 12) says how often.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <thread>

#include "tests/abi/harness.h"
#include "tests/seed.h"
#include "tests/unit/model/temporary_folder.h"

extern char** environ;

namespace quire::test {
namespace {

// A process that saves, and what it says.
class Saver {
 public:
  Saver(const std::string& path, const char* mode) {
    int ends[2];
    if (::pipe(ends) != 0) return;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    std::string program = QUIRE_SAVER, argument = path, word = mode;
    char* const arguments[] = {program.data(), argument.data(), word.data(), nullptr};
    if (::posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, environ) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    said_ = ends[0];
  }
  ~Saver() {
    if (pid_ > 0) kill();
    ::close(said_);
  }
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // The next number of tokens that it saved; -1: it is gone.
  int64_t next() {
    int64_t n_tokens = 0;
    return ::read(said_, &n_tokens, sizeof n_tokens) == sizeof n_tokens ? n_tokens : -1;
  }
  // Whether it was the signal that ended it.
  bool kill() {
    int status = 0;
    const bool sent = ::kill(pid_, SIGKILL) == 0 && ::waitpid(pid_, &status, 0) == pid_;
    pid_ = -1;
    return sent && WIFSIGNALED(status);
  }

 private:
  pid_t pid_ = -1;
  int said_ = -1;
};

class SnapshotKill : public testing::TestWithParam<const char*> {
 protected:
  static int kills() {
    const char* wanted = std::getenv("QUIRE_KILLS");
    return wanted ? std::atoi(wanted) : 12;
  }
  // Whether to kill once more: some kill must have come during a save, and a slow build is seldom at it.
  static bool goes_on(int kill, int n_interrupted) {
    return kill < kills() || (n_interrupted == 0 && kill < 30 * kills());
  }
  void wait_a_moment() { std::this_thread::sleep_for(std::chrono::microseconds(delay_(random_))); }
  // Verifies and loads what stands at the path, and returns its number of tokens. Of an append that was cut short
  // verifying says so.
  int64_t check(const std::string& path) {
    Outcome outcome;
    outcome.status = quire_snapshot_verify(path.data(), path.size(), nullptr, &outcome.error);
    EXPECT_EQ(outcome.status, has_torn_end(path) ? QUIRE_ERROR_BAD_FILE : QUIRE_OK) << outcome.text();
    quire_session* session = nullptr;
    outcome.status = quire_session_load(model_.get(), path.data(), path.size(), nullptr, &session, &outcome.error);
    EXPECT_EQ(outcome.status, QUIRE_OK) << outcome.text();
    if (!session) return -1;
    const Owned<quire_session> loaded(session);
    const int64_t n_tokens = position(session).first;
    EXPECT_EQ(generate(session, 2).outcome.status, QUIRE_OK);
    // What it goes on to can be saved there.
    outcome.status = quire_session_save(session, path.data(), path.size(), nullptr, &outcome.error);
    EXPECT_EQ(outcome.status, QUIRE_OK) << outcome.text();
    EXPECT_EQ(quire_snapshot_verify(path.data(), path.size(), nullptr, nullptr), QUIRE_OK);
    return n_tokens;
  }
  // A file beside it that it was writing, or an end that is no footer.
  static bool was_interrupted(const TemporaryFolder& folder, const std::string& path) {
    return std::distance(std::filesystem::directory_iterator(folder.path()), std::filesystem::directory_iterator()) >
               1 ||
           has_torn_end(path);
  }
  static bool has_torn_end(const std::string& path) {
    const auto size = std::filesystem::file_size(path);
    std::ifstream file(path, std::ios::binary);
    file.seekg(static_cast<std::streamoff>(size - 64));
    char footer[8] = {};
    file.read(footer, sizeof footer);
    return size % 64 != 0 || std::string_view(footer, sizeof footer) != "QUIREEND";
  }

  Owned<quire_runtime> runtime_ = make_runtime(1);
  Owned<quire_model> model_ = load_model(runtime_.get(), "short_128");
  std::mt19937 random_ = seeded_random();
  std::uniform_int_distribution<int> delay_{0, 3000};
};

TEST_P(SnapshotKill, LeavesAWholeSnapshot) {
  SCOPED_TRACE(seed_trace());
  int n_interrupted = 0;
  for (int kill = 0; goes_on(kill, n_interrupted); ++kill) {
    const TemporaryFolder folder;
    const std::string path = folder.file("saved.quire");
    Saver saver(path, GetParam());
    int64_t n_saved = saver.next();
    ASSERT_GT(n_saved, 0);
    wait_a_moment();
    ASSERT_TRUE(saver.kill()) << "it ended by itself";
    for (int64_t n = n_saved; n > 0; n = saver.next()) n_saved = n;
    n_interrupted += was_interrupted(folder, path);
    const int64_t n_found = check(path);
    ASSERT_TRUE(n_found == n_saved || n_found == n_saved + 1) << n_found << "; saved: " << n_saved;
  }
  EXPECT_GT(n_interrupted, 0) << "no kill came during a save";
}

// Two at once, on one file.
TEST_P(SnapshotKill, OfTwoLeavesAWholeSnapshot) {
  SCOPED_TRACE(seed_trace());
  for (int kill = 0; kill < kills() / 4; ++kill) {
    const TemporaryFolder folder;
    const std::string path = folder.file("saved.quire");
    Saver first(path, GetParam()), second(path, GetParam());
    for (int n = 0; n < 3; ++n) {
      ASSERT_GT(first.next(), 0);
      ASSERT_GT(second.next(), 0);
    }
    wait_a_moment();
    ASSERT_TRUE(first.kill()) << "it ended by itself";
    ASSERT_GT(second.next(), 0);
    ASSERT_TRUE(second.kill()) << "it ended by itself";
    check(path);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, SnapshotKill, testing::Values("whole", "append"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace quire::test
