// Each system call of putting into a store fails in turn, as by a full disk: the call says so, or the entry is there
// all the same; what was there before is there, or the new entry, whole; and what is found goes on to the same logits.
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "tests/fault/file_calls.h"
#include "tests/fault/store_reader.h"
#include "tests/unit/model/temporary_folder.h"

namespace quire::test {
namespace {

class StoreFault : public testing::Test {
 protected:
  // Puts the long text, behind the short one where that is there.
  Outcome put_with(const FileFault& fault, int64_t* n_faults) {
    const auto session = reader_.read(kLongText);
    FailingFiles failing(fault);
    const Outcome outcome = reader_.put(session.get());
    *n_faults = failing.n_faults();
    return outcome;
  }
  int64_t count_calls(FileCall call) {
    const auto session = reader_.read(kLongText);
    FailingFiles none;
    EXPECT_EQ(reader_.put(session.get()).status, QUIRE_OK);
    return none.n_calls(call);
  }
  // grows: the store has the short text before.
  void start(bool grows) {
    reader_.clear();
    if (grows) {
      ASSERT_EQ(reader_.put(reader_.read(kShortText).get()).status, QUIRE_OK);
    }
  }
  void fail_each(FileCall call, int error, bool grows) {
    start(grows);
    const int64_t n_calls = count_calls(call), n_before = grows ? kShortText : 0;
    ASSERT_GT(n_calls, 0) << "the calls do not pass through this test";
    int n_refused = 0;
    for (int64_t n = 1; n <= n_calls; n += fault_stride(n_calls)) {
      SCOPED_TRACE("call " + std::to_string(n) + " of " + std::to_string(n_calls));
      start(grows);
      int64_t n_faults = 0;
      const Outcome outcome = put_with({call, n, n, 1, error}, &n_faults);
      ASSERT_EQ(n_faults, 1);
      const int64_t n_found = reader_.n_found();
      ASSERT_TRUE(n_found == n_before || n_found == kLongText) << n_found;
      if (outcome.status == QUIRE_OK) {
        ASSERT_EQ(n_found, kLongText);
      } else {
        ASSERT_EQ(outcome.status, QUIRE_ERROR_IO) << outcome.text();
        ASSERT_EQ(outcome.error.os_error, error);
        ASSERT_NE(outcome.text().find(path_), std::string::npos) << outcome.text();
        ++n_refused;
      }
      reader_.expect_whole(n_found > 0);
      // The next one succeeds, on whatever is there.
      const auto session = reader_.read(kLongText);
      ASSERT_EQ(last_logits(session.get(), kStoreVocab), expected_);
      ASSERT_EQ(reader_.put(session.get()).status, QUIRE_OK);
      ASSERT_EQ(reader_.n_found(), kLongText);
      reader_.expect_whole(1);
    }
    EXPECT_GT(n_refused, 0);
  }

  TemporaryFolder folder_;
  const std::string path_ = folder_.file("store");
  StoreReader reader_{path_};
  const std::vector<float> expected_ = last_logits(reader_.read(kLongText).get(), kStoreVocab);
};

TEST_F(StoreFault, EachWriteOfANewEntry) { fail_each(FileCall::kAppend, ENOSPC, false); }
TEST_F(StoreFault, EachSyncOfANewEntry) { fail_each(FileCall::kSync, EIO, false); }
TEST_F(StoreFault, EachRenameOfANewEntry) { fail_each(FileCall::kRename, EIO, false); }
TEST_F(StoreFault, EachWriteOfAnEntryThatGrows) { fail_each(FileCall::kWrite, ENOSPC, true); }
TEST_F(StoreFault, EachSyncOfAnEntryThatGrows) { fail_each(FileCall::kSync, EIO, true); }

// What cannot be read is not there: no wrong match, and no failure of what can be read.
TEST_F(StoreFault, EachReadOfFinding) {
  start(true);
  const std::vector<float> expected = last_logits(reader_.read(kLongText, 2).get(), kStoreVocab);
  for (int64_t n = 1;; ++n) {
    int64_t n_faults = 0, n_found = 0;
    {
      FailingFiles failing({FileCall::kRead, n, n, 1, EIO});
      n_found = reader_.n_found();
      n_faults = failing.n_faults();
    }
    ASSERT_TRUE(n_found == 0 || n_found == kShortText) << n_found;
    ASSERT_EQ(reader_.n_found(), kShortText);
    reader_.expect_whole(1);
    if (n_faults > 0) continue;
    ASSERT_EQ(n_found, kShortText);
    ASSERT_GT(n, 5) << "the calls do not pass through this test";
    break;
  }
}

}  // namespace
}  // namespace quire::test
