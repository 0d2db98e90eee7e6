// The application's memory under test: counted, and it can run out.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>

#include "lib/session/runtime.h"

namespace quire::test {

struct TestMemory {
  std::atomic<int64_t> left{INT64_MAX};  // allocations that succeed
  std::atomic<int64_t> bytes{0}, peak{0};
  std::function<void()> on_allocate;  // called before each allocation; changed while the engine is held

  // A runtime of two threads that takes its memory here. Static: a runtime's last memory goes back when it likes.
  RuntimeOptions runtime() {
    RuntimeOptions options;
    options.n_threads = 2;
    options.alloc = allocate;
    options.free = release;
    options.alloc_user = this;
    return options;
  }

 private:
  static void* allocate(void* user, size_t size, size_t alignment) {
    auto& self = *static_cast<TestMemory*>(user);
    if (self.on_allocate) self.on_allocate();
    if (self.left.fetch_sub(1) <= 0) return nullptr;
    const int64_t now = self.bytes += static_cast<int64_t>(size);
    int64_t before = self.peak;
    while (now > before && !self.peak.compare_exchange_weak(before, now)) {
    }
    return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  }

  static void release(void* user, void* memory, size_t size, size_t) {
    static_cast<TestMemory*>(user)->bytes -= static_cast<int64_t>(size);
    std::free(memory);
  }
};

}  // namespace quire::test
