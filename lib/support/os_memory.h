// Memory as the operating system gives it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

// `size` bytes aligned to `alignment` (a power of two), or nullptr. Blocks of a huge page or more ask the system for
// huge pages where it has them: weights are read from end to end for every token, and the page walks of small pages
// cost memory speed, most of all in a virtual machine. Any thread.
void* os_allocate(size_t size, size_t alignment);
void os_free(void* memory);

// Of the machine, or what a control group lets this process have of it, in bytes; 0: not known. Any thread.
struct MemorySize {
  int64_t total = 0;
  int64_t available = 0;  // without swapping
};
MemorySize os_memory_size();

}  // namespace quire
