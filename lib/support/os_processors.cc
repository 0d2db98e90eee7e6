#include "lib/support/os_processors.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string_view>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

namespace quire {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

// The path of this process's group below the mount, as the line "0::PATH" says.
std::string group_path(const std::string& membership) {
  std::ifstream file(membership);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) return line.substr(3);
  }
  return {};
}

// A number in a group's file, or `otherwise`: "max" says that there is no limit.
int64_t read_number(std::istream& file, int64_t otherwise) {
  int64_t number = 0;
  return file >> number && number >= 0 ? number : otherwise;
}

int64_t read_number(const std::string& path, int64_t otherwise) {
  std::ifstream file(path);
  return read_number(file, otherwise);
}

// Bytes of copies of files, which the system drops where memory is short.
int64_t file_bytes(const std::string& group) {
  std::ifstream file(group + "/memory.stat");
  std::string key;
  for (int64_t bytes = 0; file >> key >> bytes;) {
    if (key == "inactive_file") return bytes;
  }
  return 0;
}

void apply_group(const std::string& group, GroupLimits* limits) {
  std::ifstream cpu(group + "/cpu.max");  // microseconds of all its threads together in each period
  const int64_t quota = read_number(cpu, kNone), period = read_number(cpu, 0);
  if (quota != kNone && period > 0) {
    const int64_t n = std::clamp<int64_t>((quota - 1) / period + 1, 1, std::numeric_limits<int>::max());
    limits->n_processors =
        std::min(limits->n_processors == 0 ? static_cast<int>(n) : limits->n_processors, static_cast<int>(n));
  }
  const int64_t memory = read_number(group + "/memory.max", kNone);
  if (memory == kNone) return;
  const int64_t used = read_number(group + "/memory.current", 0) - file_bytes(group);
  const int64_t left = std::clamp<int64_t>(memory - used, 0, memory);
  limits->memory_left = limits->memory_bytes == 0 ? left : std::min(limits->memory_left, left);
  limits->memory_bytes = limits->memory_bytes == 0 ? memory : std::min(limits->memory_bytes, memory);
}

}  // namespace

GroupLimits os_group_limits(const std::string& membership, const std::string& mount) {
  GroupLimits limits;
  for (std::string path = group_path(membership); !path.empty(); path.resize(path.rfind('/'))) {
    apply_group(mount + path, &limits);
  }
  apply_group(mount, &limits);  // what a container sees as the root has limits, too
  return limits;
}

int os_usable_processors() {
  int n = static_cast<int>(std::thread::hardware_concurrency());
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) n = CPU_COUNT(&set);
#endif
  const int of_groups = os_group_limits().n_processors;
  return std::max(1, of_groups > 0 ? std::min(n, of_groups) : n);
}

}  // namespace quire
