// One device behind the plugin's table of functions, and memory on it.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "kernels/cuda/device_api.h"
#include "lib/backend/memory.h"
#include "lib/support/allocator.h"

namespace quire::cuda {

// Any thread. Must outlive all that was made with it.
class CudaDevice {
 public:
  CudaDevice(const DeviceApi& api, int index, Allocator& allocator) : api_(api), index_(index), allocator_(allocator) {}

  const DeviceApi& api() const { return api_; }
  int index() const { return index_; }
  Allocator& allocator() const { return allocator_; }
  std::string name() const { return "cuda:" + std::to_string(index_); }
  // Makes it the calling thread's device: before all other calls of the table. A thread of the host's has its own back
  // at the end of the host's call.
  Status use() const;
  // What an error of the table's functions means; `what` failed.
  Status check(int error, const char* what) const;

 private:
  const DeviceApi& api_;
  const int index_;
  Allocator& allocator_;
};

// Memory of a device, or host memory that it copies from and to at full speed. Where no host memory can be pinned it is
// plain memory: copies are slower, and kernels cannot read it.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  static Result<DeviceMemory> make(const CudaDevice& device, size_t bytes, MemoryKind kind);
  DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  // Nothing that is queued works on it any more.
  ~DeviceMemory();

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t size() const { return size_; }
  bool is_plain() const { return bool(plain_); }

 private:
  void swap(DeviceMemory& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(kind_, other.kind_);
    std::swap(plain_, other.plain_);
  }

  const CudaDevice* device_ = nullptr;
  void* data_ = nullptr;
  size_t size_ = 0;
  MemoryKind kind_ = MemoryKind::kDevice;
  HostMemory plain_;  // none: the memory was allocated through the table
};

}  // namespace quire::cuda
