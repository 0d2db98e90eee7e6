#include "lib/support/allocator.h"

#include <cstdlib>

namespace quire {

void* Allocator::allocate(size_t size) {
  if (size == 0) size = 1;
  void* memory = nullptr;
  if (alloc_) {
    memory = alloc_(user_, size, kAlignment);
  } else if (posix_memalign(&memory, kAlignment, size) != 0) {
    memory = nullptr;
  }
  if (memory) bytes_.fetch_add(static_cast<int64_t>(size), std::memory_order_relaxed);
  return memory;
}

void Allocator::deallocate(void* memory, size_t size) {
  if (size == 0) size = 1;
  bytes_.fetch_sub(static_cast<int64_t>(size), std::memory_order_relaxed);
  if (free_) {
    free_(user_, memory, size, kAlignment);
  } else {
    std::free(memory);
  }
}

}  // namespace quire
