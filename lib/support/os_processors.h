// Processors and memory that the operating system lets this process have: a machine's, or less.
#pragma once

#include <cstdint>
#include <string>

namespace quire {

// Limits of the control groups that this process is in (Linux, version 2): its own one and all above it.
struct GroupLimits {
  int n_processors = 0;      // of so many the whole time, rounded up; 0: no limit
  int64_t memory_bytes = 0;  // 0: no limit
  int64_t memory_left = 0;   // where there is one: without taking memory from processes, but for copies of files
};
// membership: where the system names the groups; mount: where they are directories. Any thread.
GroupLimits os_group_limits(const std::string& membership = "/proc/self/cgroup",
                            const std::string& mount = "/sys/fs/cgroup");

// How many threads of this process can run at once, by its affinity and its groups; at least 1. Any thread.
int os_usable_processors();

}  // namespace quire
