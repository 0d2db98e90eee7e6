// A program that saves is killed at any moment: what stands at the path is one of the snapshots that it saved, whole.
//
// QUIRE_KILLS (default 20) says how often.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <thread>

#include "tests/abi/harness.h"
#include "tests/seed.h"
#include "tests/unit/model/temporary_folder.h"

extern char** environ;

namespace quire::test {
namespace {

// A process that has said that it saved once.
pid_t start_saver(const std::string& path) {
  int ends[2];
  if (::pipe(ends) != 0) return -1;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addclose(&actions, ends[0]);
  std::string program = QUIRE_SAVER, argument = path;
  char* const arguments[] = {program.data(), argument.data(), nullptr};
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, program.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  char said[8];
  const bool ready = error == 0 && ::read(ends[0], said, sizeof said) > 0;
  ::close(ends[0]);
  return ready ? pid : -1;
}

TEST(SnapshotKill, LeavesAWholeSnapshot) {
  const char* wanted = std::getenv("QUIRE_KILLS");
  const int kills = wanted ? std::atoi(wanted) : 20;
  const auto runtime = make_runtime(1);
  const auto model = load_model(runtime.get(), "short_128");
  SCOPED_TRACE(seed_trace());
  std::mt19937 random = seeded_random();
  std::uniform_int_distribution<int> delay(0, 3000);
  int n_interrupted = 0;
  for (int kill = 0; kill < kills; ++kill) {
    const TemporaryFolder folder;
    const std::string path = folder.file("saved.quire");
    const pid_t pid = start_saver(path);
    ASSERT_GT(pid, 0);
    std::this_thread::sleep_for(std::chrono::microseconds(delay(random)));
    ASSERT_EQ(::kill(pid, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFSIGNALED(status)) << "it ended by itself: " << WEXITSTATUS(status);
    Outcome outcome;
    outcome.status = quire_snapshot_verify(path.data(), path.size(), nullptr, &outcome.error);
    ASSERT_EQ(outcome.status, QUIRE_OK) << outcome.text();
    quire_session* session = nullptr;
    outcome.status = quire_session_load(model.get(), path.data(), path.size(), nullptr, &session, &outcome.error);
    ASSERT_EQ(outcome.status, QUIRE_OK) << outcome.text();
    const Owned<quire_session> loaded(session);
    EXPECT_EQ(position(session).first, 401);
    EXPECT_EQ(generate(session, 2).outcome.status, QUIRE_OK);
    // A file that it was writing.
    n_interrupted +=
        std::distance(std::filesystem::directory_iterator(folder.path()), std::filesystem::directory_iterator()) > 1;
  }
  EXPECT_GT(n_interrupted, 0) << "no kill came during a save";
}

}  // namespace
}  // namespace quire::test
