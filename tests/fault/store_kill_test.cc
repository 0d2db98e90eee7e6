// Processes that put into a store are killed at each of their calls: another process, which reads there meanwhile, goes
// on, and finds whole entries alone.
//
// QUIRE_FAULT_RUNS (default 6) says at how many calls of each kind, evenly spread; 0: at each.
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>

#include <filesystem>
#include <string>

#include "tests/fault/file_calls.h"
#include "tests/fault/store_reader.h"
#include "tests/unit/model/temporary_folder.h"

extern char** environ;

namespace quire::test {
namespace {

pid_t start_putter(const std::string& path, FileCall call, int64_t n) {
  std::string program = QUIRE_PUTTER, directory = path, kind = std::to_string(static_cast<int>(call)),
              number = std::to_string(n);
  char* const arguments[] = {program.data(), directory.data(), kind.data(), number.data(), nullptr};
  pid_t pid = -1;
  return ::posix_spawn(&pid, program.c_str(), nullptr, nullptr, arguments, environ) == 0 ? pid : -1;
}

// Its exit status; -1: it was killed.
int end_of(pid_t pid) {
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

struct Kind {
  const char* name;
  FileCall call;
  int64_t n_calls;  // at least, of a put
  bool grows;       // an entry that is there, rather than a new one
};

std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }

class StoreKill : public testing::TestWithParam<Kind> {
 protected:
  TemporaryFolder folder_;
  const std::string path_ = folder_.file("store");
  StoreReader reader_{path_};
};

TEST_P(StoreKill, LeavesAWholeStore) {
  const auto [name, call, n_calls, grows] = GetParam();
  const std::vector<float> expected = last_logits(reader_.read(kLongText).get(), kStoreVocab);
  const int64_t n_before = grows ? kShortText : 0;
  int n_killed = 0;
  for (int64_t n = 1;; n += fault_stride(n_calls)) {
    SCOPED_TRACE(std::string(name) + " " + std::to_string(n));
    reader_.clear();
    if (grows) {
      ASSERT_EQ(reader_.put(reader_.read(kShortText).get()).status, QUIRE_OK);
    }
    const auto session = reader_.read(kShortText);  // has the entry open
    const int end = end_of(start_putter(path_, call, n));
    if (end == 0) break;
    ASSERT_EQ(end, -1);
    ++n_killed;
    ASSERT_EQ(reader_.read_on(session.get()), expected);
    const int64_t n_found = reader_.n_found();
    ASSERT_TRUE(n_found == n_before || n_found == kLongText) << n_found;
    reader_.expect_whole(n_found > 0, grows && n_found == n_before);
    ASSERT_EQ(reader_.put(session.get()).status, QUIRE_OK);
    ASSERT_EQ(reader_.n_found(), kLongText);
    reader_.expect_whole(1);
  }
  EXPECT_GE(n_killed, std::min<int64_t>(n_calls, 6));
  EXPECT_EQ(reader_.n_found(), kLongText);
  reader_.expect_whole(1);
}
INSTANTIATE_TEST_SUITE_P(Calls, StoreKill,
                         testing::Values(Kind{"write", FileCall::kAppend, 40, false},
                                         Kind{"sync", FileCall::kSync, 2, false},
                                         Kind{"rename", FileCall::kRename, 2, false},
                                         Kind{"append", FileCall::kWrite, 20, true},
                                         Kind{"append_sync", FileCall::kSync, 2, true}),
                         [](const auto& info) { return std::string(info.param.name); });

// Two processes put the same at once: there is one entry, and both say that it is there.
TEST(StoreKillOfNone, TwoPutTheSame) {
  const TemporaryFolder folder;
  const std::string path = folder.file("store");
  StoreReader reader(path);
  const pid_t first = start_putter(path, FileCall::kRename, INT64_MAX);
  const pid_t second = start_putter(path, FileCall::kRename, INT64_MAX);
  EXPECT_EQ(reader.put(reader.read(kLongText).get()).status, QUIRE_OK);
  EXPECT_EQ(end_of(first), 0);
  EXPECT_EQ(end_of(second), 0);
  EXPECT_EQ(reader.n_found(), kLongText);
  reader.expect_whole(1);
}

}  // namespace
}  // namespace quire::test
