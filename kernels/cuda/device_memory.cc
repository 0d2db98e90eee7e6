#include "kernels/cuda/device_memory.h"

#include <cuda_runtime_api.h>

#include <array>
#include <mutex>
#include <utility>

namespace quire::cuda {
namespace {

// What is longer, as weights are, is seldom allocated, and wastes little of a page.
constexpr size_t kMostPooled = size_t{32} << 20;
// The pool keeps at most such a part of the device's memory that is not in use.
constexpr uint64_t kUnusedPart = 64;

// Never destroyed: memory is released until the process ends.
struct Pool {
  bool is_known = false;           // whether there is one
  cudaMemPool_t memory = nullptr;  // null: the device has none, and its memory comes from the driver
  // Pieces are allocated and released in its order. It is done when the host is told of a piece, which any stream may
  // use then.
  cudaStream_t stream = nullptr;
  uint64_t most_unused = 0;
};

// An error that is not of the calling thread's last call stays behind for cudaGetLastError() otherwise.
bool succeeded(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return error == cudaSuccess;
}

cudaError_t make(Pool& pool, int device) {
  int supported = 0;
  cudaError_t error = cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, device);
  if (error != cudaSuccess || supported == 0) return error;
  size_t free = 0, total = 0;
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  uint64_t keeps_all = UINT64_MAX;  // what it gives back release_memory() says
  cudaMemPool_t made = nullptr;
  error = cudaMemGetInfo(&free, &total);
  if (error == cudaSuccess) error = cudaMemPoolCreate(&made, &properties);
  if (error != cudaSuccess) return error;
  error = cudaMemPoolSetAttribute(made, cudaMemPoolAttrReleaseThreshold, &keeps_all);
  if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&pool.stream, cudaStreamNonBlocking);
  if (error != cudaSuccess) {
    (void)succeeded(cudaMemPoolDestroy(made));
    return error;
  }
  pool.most_unused = total / kUnusedPart;
  pool.memory = made;
  return cudaSuccess;
}

thread_local int thread_device = -1;  // none yet

// Of the thread's device. Null: it has none, and never will, so what was allocated without is released without. An
// error: nothing was allocated yet.
cudaError_t find_pool(const Pool** out) {
  static std::mutex mutex;
  static std::array<Pool, 64> pools;
  *out = nullptr;
  if (thread_device < 0 || static_cast<size_t>(thread_device) >= pools.size()) return cudaSuccess;
  Pool& pool = pools[static_cast<size_t>(thread_device)];
  const std::lock_guard lock(mutex);
  if (!pool.is_known) {
    if (const cudaError_t error = make(pool, thread_device); error != cudaSuccess) return error;
  }
  pool.is_known = true;
  if (pool.memory != nullptr) *out = &pool;
  return cudaSuccess;
}

// The same for a piece of so many bytes.
cudaError_t find_pool(size_t bytes, const Pool** out) {
  *out = nullptr;
  return bytes <= kMostPooled ? find_pool(out) : cudaSuccess;
}

struct Use {
  uint64_t used = 0, reserved = 0;
  uint64_t unused() const { return reserved > used ? reserved - used : 0; }
};

Use use_of(const Pool& pool) {
  Use use;
  const bool known = succeeded(cudaMemPoolGetAttribute(pool.memory, cudaMemPoolAttrUsedMemCurrent, &use.used)) &&
                     succeeded(cudaMemPoolGetAttribute(pool.memory, cudaMemPoolAttrReservedMemCurrent, &use.reserved));
  return known ? use : Use{};
}

}  // namespace

void set_thread_device(int device) { thread_device = device; }

int allocate_memory(size_t bytes, void** out) {
  const Pool* pool = nullptr;
  if (const cudaError_t error = find_pool(bytes, &pool); error != cudaSuccess) return error;
  if (pool == nullptr) {
    const cudaError_t error = cudaMalloc(out, bytes);
    if (error != cudaErrorMemoryAllocation) return error;
    cudaGetLastError();
    // The pool may have enough that is not in use. It keeps what was released and not waited for.
    if (!succeeded(find_pool(&pool)) || pool == nullptr) return error;
    (void)(succeeded(cudaStreamSynchronize(pool->stream)) && succeeded(cudaMemPoolTrimTo(pool->memory, 0)));
    return cudaMalloc(out, bytes);
  }
  if (const cudaError_t error = cudaMallocFromPoolAsync(out, bytes, pool->memory, pool->stream); error != cudaSuccess) {
    return error;
  }
  const cudaError_t error = cudaStreamSynchronize(pool->stream);
  if (error != cudaSuccess) (void)succeeded(cudaFreeAsync(std::exchange(*out, nullptr), pool->stream));
  return error;
}

int release_memory(void* memory, size_t bytes) {
  const Pool* pool = nullptr;
  if (const cudaError_t error = find_pool(bytes, &pool); error != cudaSuccess) return error;
  if (pool == nullptr) return cudaFree(memory);
  const cudaError_t error = cudaFreeAsync(memory, pool->stream);
  const Use use = use_of(*pool);
  if (use.unused() > pool->most_unused && succeeded(cudaStreamSynchronize(pool->stream))) {
    (void)succeeded(cudaMemPoolTrimTo(pool->memory, use.used + pool->most_unused / 2));
  }
  return error;
}

int64_t unused_in_pool() {
  const Pool* pool = nullptr;
  return !succeeded(find_pool(&pool)) || pool == nullptr ? 0 : static_cast<int64_t>(use_of(*pool).unused());
}

}  // namespace quire::cuda
