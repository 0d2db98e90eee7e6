// Memory and queues of one compute device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/support/status.h"
#include "lib/support/types.h"

namespace quire {

// Memory of a backend. It must live until everything that was queued on it is done.
class Buffer {
 public:
  virtual ~Buffer() = default;
  // The address of staging memory; nullptr for the memory of a device that the host cannot touch.
  virtual void* host() const = 0;
  size_t size() const { return size_; }

 protected:
  explicit Buffer(size_t size) : size_(size) {}

 private:
  size_t size_;
};

enum class MemoryKind {
  kDevice,   // where operations work
  kStaging,  // host memory from which copies to and from the device run at full speed
};

// Bytes of staging memory, and where in a buffer they go.
struct StagedUpload {
  const Buffer* from = nullptr;
  size_t from_offset = 0;
  Buffer* to = nullptr;
  size_t to_offset = 0;
  size_t bytes = 0;
};

// An in-order queue of operations. After one of them failed, those behind it are not run, and every fence behind it
// says so: a failed queue is good for nothing but to be destroyed. Its destructor waits for what still runs.
class Queue {
 public:
  virtual ~Queue() = default;
};

// A point in a queue: done when everything that was queued before it is done, or will never run because something
// before it failed. It may outlive the queue.
class Fence {
 public:
  virtual ~Fence() = default;
  virtual bool done() const = 0;
  // Waits until it is done. The first failure of what was queued before it: kCancelled (Exec::cancel was set),
  // kOutOfMemory, kDevice.
  virtual Status wait() const = 0;
};

// Rows of elements in a buffer: row r begins at element offset + r * stride. Activations have the backend's row_type().
struct Rows {
  Buffer* buffer = nullptr;
  int64_t offset = 0;
  int64_t stride = 0;
  ElementType type = ElementType::kF32;

  Rows at(int64_t row) const { return {buffer, offset + row * stride, stride, type}; }
  Rows column(int64_t c) const { return {buffer, offset + c, stride, type}; }
};

}  // namespace quire
