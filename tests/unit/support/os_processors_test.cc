#include "lib/support/os_processors.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "lib/support/os_memory.h"
#include "lib/support/thread_pool.h"

namespace quire {
namespace {

// A process in the group /a/b, and directories of groups.
class Groups : public testing::Test {
 protected:
  Groups() {
    std::string name = testing::TempDir() + "quire-groups-XXXXXX";
    root_ = mkdtemp(name.data());
    std::filesystem::create_directories(root_ + "/a/b");
    write("membership", "4:memory:/elsewhere\n0::/a/b\n");
  }
  ~Groups() override { std::filesystem::remove_all(root_); }

  void write(const std::string& file, const std::string& text) { std::ofstream(root_ + "/" + file) << text; }
  GroupLimits limits() const { return os_group_limits(root_ + "/membership", root_); }

  std::string root_;
};

TEST_F(Groups, HaveNoLimitsWhereNoneAreSaid) {
  EXPECT_EQ(limits().n_processors, 0);
  EXPECT_EQ(limits().memory_bytes, 0);
  write("a/b/cpu.max", "max 100000\n");
  write("a/b/memory.max", "max\n");
  write("a/b/memory.current", "5000\n");
  EXPECT_EQ(limits().n_processors, 0);
  EXPECT_EQ(limits().memory_bytes, 0);
  EXPECT_EQ(os_group_limits(root_ + "/nothing", root_ + "/nowhere").n_processors, 0);
}

TEST_F(Groups, TheLeastLimitOfAllHolds) {
  write("a/b/cpu.max", "400000 100000\n");
  EXPECT_EQ(limits().n_processors, 4);
  write("a/cpu.max", "150000 100000\n");  // one and a half
  EXPECT_EQ(limits().n_processors, 2);
  write("cpu.max", "10000 100000\n");  // what a container has at its root
  EXPECT_EQ(limits().n_processors, 1);
}

TEST_F(Groups, CopiesOfFilesAreLeft) {
  write("a/b/memory.max", "1000000\n");
  write("a/b/memory.current", "700000\n");
  write("a/b/memory.stat", "anon 500000\nfile 200000\ninactive_file 150000\nactive_file 50000\n");
  EXPECT_EQ(limits().memory_bytes, 1000000);
  EXPECT_EQ(limits().memory_left, 450000);
  write("a/memory.max", "2000000\n");  // shared with others, which have most of it
  write("a/memory.current", "1900000\n");
  EXPECT_EQ(limits().memory_bytes, 1000000);
  EXPECT_EQ(limits().memory_left, 100000);
  write("a/b/memory.current", "1100000\n");
  write("a/b/memory.stat", "");
  EXPECT_EQ(limits().memory_left, 0);
}

// The threads of a process that is kept to one processor would take turns.
TEST(Processors, AreThoseOfTheAffinity) {
  const int before = os_usable_processors();
  EXPECT_GE(before, 1);
  EXPECT_EQ(thread_count(0), before);
  EXPECT_EQ(thread_count(5), 5);
  std::thread([] {
    cpu_set_t all, one;
    ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &all)) ++cpu;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);  // of this thread
    EXPECT_EQ(os_usable_processors(), 1);
    EXPECT_EQ(thread_count(0), 1);
  }).join();
}

TEST(Memory, NoMoreIsLeftThanThereIs) {
  const MemorySize size = os_memory_size();
  EXPECT_GT(size.total, 0);
  EXPECT_GE(size.available, 0);
  EXPECT_LE(size.available, size.total);
}

}  // namespace
}  // namespace quire
