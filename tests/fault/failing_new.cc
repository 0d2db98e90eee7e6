#include "tests/fault/failing_new.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> n_calls{0};
std::atomic<int64_t> first_failure{0};
std::atomic<int64_t> last_failure{0};
std::atomic<int64_t> n_failures{0};
std::atomic<int64_t> n_live{0};

bool fails() {
  if (!counting.load(std::memory_order_relaxed)) return false;
  const int64_t call = ++n_calls;
  if (call < first_failure || call > last_failure) return false;
  ++n_failures;
  return true;
}

void* allocate(std::size_t size, std::size_t alignment) noexcept {
  if (fails()) return nullptr;
  void* memory = nullptr;
  if (posix_memalign(&memory, std::max(alignment, sizeof(void*)), size ? size : 1) != 0) return nullptr;
  ++n_live;
  return memory;
}

void release(void* memory) noexcept {
  if (memory) --n_live;
  std::free(memory);
}

void* allocate_or_throw(std::size_t size, std::size_t alignment) {
  void* memory = allocate(size, alignment);
  if (!memory) throw std::bad_alloc();
  return memory;
}

constexpr std::size_t kDefault = alignof(std::max_align_t);

}  // namespace

void* operator new(std::size_t size) { return allocate_or_throw(size, kDefault); }
void* operator new[](std::size_t size) { return allocate_or_throw(size, kDefault); }
void* operator new(std::size_t size, std::align_val_t a) {
  return allocate_or_throw(size, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t size, std::align_val_t a) {
  return allocate_or_throw(size, static_cast<std::size_t>(a));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size, kDefault); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return allocate(size, kDefault); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }

namespace quire::test {

FailingNew::FailingNew(int64_t first, int64_t last) {
  n_calls = 0;
  n_failures = 0;
  first_failure = first;
  last_failure = last;
  counting = true;
}

FailingNew::~FailingNew() { counting = false; }

int64_t n_new_calls() { return n_calls; }
int64_t n_new_failures() { return n_failures; }
int64_t n_new_blocks() { return n_live; }

int64_t step_between_failures(int64_t total, int64_t most) {
  const char* wanted = std::getenv("QUIRE_FAULT_RUNS");
  const int64_t runs = wanted ? std::atoll(wanted) : most;
  return runs > 0 ? std::max<int64_t>(1, total / runs) : 1;
}

}  // namespace quire::test
