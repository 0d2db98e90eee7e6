// The file tier's slots, and what can be seen of its file from outside.

#include "lib/kv/file_tier.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <numeric>

#include "tests/unit/kv/spill_directory.h"

namespace quire::test {
namespace {

constexpr int64_t kRecord = 5000;

std::unique_ptr<FileTier> make(const SpillDirectory& directory, int64_t budget_records = 0) {
  auto file = FileTier::create(directory.path(), kRecord, budget_records * kRecord);
  EXPECT_TRUE(file.ok()) << file.status().message();
  return std::move(*file);
}

std::vector<int64_t> take(FileTier& file, int64_t n) {
  auto slots = file.take_slots(n);
  EXPECT_TRUE(slots.ok()) << slots.status().message();
  return std::move(*slots);
}

std::vector<char> filled(char letter) { return std::vector<char>(kRecord, letter); }

TEST(FileTier, GivesBackWhatWasWritten) {
  const SpillDirectory directory;
  const auto file = make(directory);
  const auto slots = take(*file, 20);
  EXPECT_GE(file->bytes(), 20 * kRecord);
  std::vector<int64_t> ascending(20);
  std::iota(ascending.begin(), ascending.end(), 0);
  EXPECT_EQ(slots, ascending);
  for (int s = 19; s >= 0; --s) ASSERT_TRUE(file->write(s, filled(static_cast<char>('a' + s)).data()).ok());
  ASSERT_TRUE(file->write(7, filled('Z').data()).ok());
  std::vector<char> record(kRecord);
  for (int s = 0; s < 20; ++s) {
    ASSERT_TRUE(file->read(s, record.data()).ok());
    EXPECT_EQ(record, filled(s == 7 ? 'Z' : static_cast<char>('a' + s)));
  }
}

TEST(FileTier, HandsOutFreedSlotsAgain) {
  const SpillDirectory directory;
  const auto file = make(directory, 4);
  take(*file, 4);
  const Status refused = file->take_slots(1).status();
  EXPECT_EQ(refused.code(), Code::kBudget);
  EXPECT_NE(refused.message().find(std::to_string(5 * kRecord)), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find(std::to_string(4 * kRecord)), std::string::npos) << refused.message();
  file->free_slot(2);
  file->free_slot(0);
  EXPECT_EQ(file->take_slots(3).status().code(), Code::kBudget);
  const auto again = take(*file, 2);
  EXPECT_EQ(again[0] + again[1], 2);
  EXPECT_EQ(file->bytes(), 4 * kRecord);
}

TEST(FileTier, NeverGrowsBeyondItsBudget) {
  const SpillDirectory directory;
  const auto file = make(directory, 3000);  // more than it grows by at a time
  for (int64_t s = 0; s < 3000; ++s) {
    ASSERT_EQ(take(*file, 1), std::vector<int64_t>{s});
    ASSERT_LE(file->bytes(), 3000 * kRecord);
  }
  EXPECT_EQ(file->take_slots(1).status().code(), Code::kBudget);
}

TEST(FileTier, IsPrivateAndHasNoName) {
  const SpillDirectory directory;
  const auto file = make(directory);
  take(*file, 3);
  EXPECT_EQ(directory.n_names(), 0);
  int found = 0;
  for (int fd = 0; fd < 1024; ++fd) {  // the open file that lies in the directory
    char target[4096];
    const ssize_t n = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), target, sizeof target);
    if (n <= 0 || std::string(target, static_cast<size_t>(n)).find(directory.path() + "/") != 0) continue;
    ++found;
    struct stat status {};
    ASSERT_EQ(::fstat(fd, &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0600u);
    EXPECT_EQ(status.st_nlink, 0u);
    EXPECT_EQ(status.st_size, file->bytes());
    EXPECT_GE(status.st_blocks * 512, 3 * kRecord);  // the space is there before it is used
  }
  EXPECT_EQ(found, 1);
}

TEST(FileTier, AFullDiskChangesNothing) {
  const SpillDirectory directory;
  const auto file = make(directory);
  take(*file, 1);
  const int64_t bytes = file->bytes(), slots = bytes / kRecord;
  for (int64_t s = 1; s < slots; ++s) ASSERT_EQ(take(*file, 1), std::vector<int64_t>{s});
  ASSERT_TRUE(file->write(0, filled('a').data()).ok());
  {
    const FullDisk full(bytes + 3 * kRecord - 1);
    const Status refused = file->take_slots(3).status();
    EXPECT_EQ(refused.code(), Code::kIo);
    EXPECT_NE(refused.message().find(directory.path()), std::string::npos) << refused.message();
    EXPECT_EQ(file->bytes(), bytes);
    take(*file, 2);  // the last of the disk
    EXPECT_EQ(file->bytes(), bytes + 2 * kRecord);
  }
  take(*file, 3);
  std::vector<char> record(kRecord);
  ASSERT_TRUE(file->read(0, record.data()).ok());
  EXPECT_EQ(record, filled('a'));
}

TEST(FileTier, NeedsADirectoryItMayWriteTo) {
  const SpillDirectory directory;
  const auto code = [](const std::string& path) { return FileTier::create(path, kRecord, 0).status().code(); };
  EXPECT_EQ(code(directory.path() + "/missing"), Code::kNotFound);
  EXPECT_EQ(code("/dev/null"), Code::kNotFound);
  EXPECT_EQ(code(std::string("/tmp\0", 5)), Code::kInvalidArgument);
  const WithoutRights nobody(directory.path());
  EXPECT_EQ(code(directory.path()), Code::kIo);
}

}  // namespace
}  // namespace quire::test
