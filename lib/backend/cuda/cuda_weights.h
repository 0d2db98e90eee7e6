// What never changes once it is on the device: matrices, tables, rotations.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "lib/backend/cuda/cuda_queue.h"
#include "lib/plan/rope_table.h"
#include "lib/support/mutex.h"
#include "lib/support/thread_pool.h"

namespace quire::cuda {

// Rows of consecutive parts of one type, each at a multiple of 16 bytes.
struct MatrixRun {
  int64_t first_row = 0;
  int64_t n = 0;
  ElementType type = ElementType::kF32;
  int64_t row_bytes = 0;
  size_t begin = 0;  // byte of the matrix's memory
};

class CudaMatrix : public Matrix {
 public:
  // Sets everything but the memory.
  CudaMatrix(std::span<const MatrixPart> parts, int64_t columns);
  DeviceMatrix rows(const MatrixRun& run) const {
    return {memory.data() + run.begin, run.n, k, run.row_bytes, run.type};
  }

  DeviceMemory memory;
  std::vector<MatrixRun> runs;
};

class CudaTable : public Table {
 public:
  DeviceMatrix rows_of() const { return {memory.data(), rows, columns, row_bytes, type}; }

  DeviceMemory memory;
  int64_t row_bytes = 0;
  ElementType type = ElementType::kF32;
};

// Angles are formed where they are needed; a pair has its part of a turn for a distance of 1.
class CudaRope : public Rope {
 public:
  const Turns* turns() const { return reinterpret_cast<const Turns*>(memory.data()); }

  std::vector<double> theta;
  int64_t chunk = 0;
  DeviceMemory memory;
};

inline const Turns* turns_of(const Rope* rope) { return rope ? static_cast<const CudaRope*>(rope)->turns() : nullptr; }

// The rotations in use. Any thread.
class CudaRopes {
 public:
  // Those with these frequencies and this chunk, or null.
  std::shared_ptr<const CudaRope> find(const RopeTable& table, int64_t chunk) QUIRE_EXCLUDES(mutex_);
  // Those in use that are equal to `made`, or else `made`, which is then in use.
  std::shared_ptr<const CudaRope> share(std::shared_ptr<const CudaRope> made) QUIRE_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  std::vector<std::weak_ptr<const CudaRope>> in_use_ QUIRE_GUARDED_BY(mutex_);  // some may be gone
};

// Brings data to the device, through pinned memory where it is not laid out as there. Any thread, but rows of another
// type only where the pool may be run.
class Loader {
 public:
  // pool: converts rows; null: the caller does.
  Loader(const CudaDevice& device, std::atomic<int64_t>& total, ThreadPool* pool)
      : device_(device), total_(total), pool_(pool) {}

  // n rows of k elements, as files have them, to rows of another type as kernels/cuda/weights.h has them, at multiples
  // of to_row_bytes; done when it returns.
  Status load(ElementType from_type, const void* from, int64_t n, int64_t k, ElementType to_type, int64_t to_row_bytes,
              std::byte* to);

 private:
  static constexpr size_t kBounceBytes = size_t{4} << 20;
  // A queue and memory of its own for each thread that loads; kept for the next one.
  struct Lane {
    DeviceMemory bounce;  // outlives what the queue does with it
    std::unique_ptr<CudaQueue> queue;
  };
  Result<std::unique_ptr<Lane>> take_lane() QUIRE_EXCLUDES(mutex_);
  void give_back(std::unique_ptr<Lane> lane) QUIRE_EXCLUDES(mutex_);
  Status copy(CudaQueue& queue, const void* from, std::byte* to, size_t bytes);

  const CudaDevice& device_;
  std::atomic<int64_t>& total_;
  ThreadPool* const pool_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Lane>> lanes_ QUIRE_GUARDED_BY(mutex_);
};

}  // namespace quire::cuda
