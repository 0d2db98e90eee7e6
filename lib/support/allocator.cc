#include "lib/support/allocator.h"

#include "lib/support/os_memory.h"

namespace quire {

void* Allocator::allocate(size_t size) {
  if (size == 0) size = 1;
  void* memory = alloc_ ? alloc_(user_, size, kAlignment) : os_allocate(size, kAlignment);
  if (memory) bytes_.fetch_add(static_cast<int64_t>(size), std::memory_order_relaxed);
  return memory;
}

void Allocator::deallocate(void* memory, size_t size) {
  if (size == 0) size = 1;
  bytes_.fetch_sub(static_cast<int64_t>(size), std::memory_order_relaxed);
  if (free_) {
    free_(user_, memory, size, kAlignment);
  } else {
    os_free(memory);
  }
}

}  // namespace quire
