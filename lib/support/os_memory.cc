#include "lib/support/os_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "lib/support/os_processors.h"

namespace quire {
namespace {

constexpr size_t kHugePage = size_t{1} << 21;
constexpr size_t kSmallPage = 4096;

}  // namespace

void* os_allocate(size_t size, size_t alignment) {
  const bool large = size >= kHugePage;
  void* memory = nullptr;
  if (posix_memalign(&memory, large ? std::max(alignment, kHugePage) : alignment, size) != 0) return nullptr;
#if defined(MADV_HUGEPAGE)
  // Advice only: a system that does not follow it gives small pages.
  if (large) (void)madvise(memory, size / kSmallPage * kSmallPage, MADV_HUGEPAGE);
#endif
  return memory;
}

void os_free(void* memory) { std::free(memory); }

MemorySize os_memory_size() {
  const auto page = static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  const auto bytes = [&](int name) { return std::max<int64_t>(0, static_cast<int64_t>(sysconf(name))) * page; };
  MemorySize size;
  size.total = bytes(_SC_PHYS_PAGES);
  size.available = bytes(_SC_AVPHYS_PAGES);
  // Linux counts pages that only hold copies of files as used; its own estimate does not.
  std::ifstream file("/proc/meminfo");
  for (std::string key; file >> key; file.ignore(256, '\n')) {
    int64_t kib = 0;
    if (key == "MemAvailable:" && file >> kib) size.available = kib * 1024;
  }
  const GroupLimits limits = os_group_limits();
  if (limits.memory_bytes > 0) {
    size.total = std::min(size.total, limits.memory_bytes);
    size.available = std::min(size.available, limits.memory_left);
  }
  return size;
}

}  // namespace quire
