// Where large memory (weights, KV cache, scratch) comes from: the host's callbacks or the system.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace quire {

class Allocator {
 public:
  using AllocFn = void* (*)(void* user, size_t size, size_t alignment);
  using FreeFn = void (*)(void* user, void* memory, size_t size, size_t alignment);
  static constexpr size_t kAlignment = 64;  // a cache line, and the widest vector

  Allocator() = default;  // the system's memory
  Allocator(AllocFn alloc, FreeFn free, void* user) : alloc_(alloc), free_(free), user_(user) {}
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  // Memory aligned to kAlignment, or nullptr. Any thread.
  void* allocate(size_t size);
  void deallocate(void* memory, size_t size);
  // Bytes now held.
  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  AllocFn alloc_ = nullptr;
  FreeFn free_ = nullptr;
  void* user_ = nullptr;
  std::atomic<int64_t> bytes_{0};
};

// One block of memory, owned.
class HostMemory {
 public:
  HostMemory() = default;
  HostMemory(Allocator& allocator, size_t size)
      : allocator_(&allocator), data_(allocator.allocate(size)), size_(data_ ? size : 0) {}
  HostMemory(HostMemory&& other) noexcept { swap(other); }
  HostMemory& operator=(HostMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~HostMemory() {
    if (data_) allocator_->deallocate(data_, size_);
  }

  void* data() const { return data_; }
  size_t size() const { return size_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  void swap(HostMemory& other) noexcept {
    auto* a = allocator_;
    auto* d = data_;
    auto s = size_;
    allocator_ = other.allocator_, data_ = other.data_, size_ = other.size_;
    other.allocator_ = a, other.data_ = d, other.size_ = s;
  }
  Allocator* allocator_ = nullptr;
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace quire
