#include "lib/support/os_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

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

}  // namespace quire
