// Memory and copies of the emulated CUDA runtime. Fresh memory is all ones: NaN, and far out of range as an index.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/gpu/emulation/runtime.h"

namespace quire::emulation {
namespace {

constexpr size_t kAlignment = 256;

cudaError_t allocate(std::map<const void*, size_t>& kind, int64_t& bytes_held, int64_t& fault, size_t bytes,
                     void** out) {
  if (const cudaError_t forbidden = captured_elsewhere(); forbidden != cudaSuccess) return forbidden;
  if (strikes(fault)) return cudaErrorMemoryAllocation;
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* const memory = std::aligned_alloc(kAlignment, rounded);
  if (memory == nullptr) return cudaErrorMemoryAllocation;
  std::memset(memory, 0xFF, rounded);
  kind[memory] = bytes;
  bytes_held += static_cast<int64_t>(bytes);
  *out = memory;
  return cudaSuccess;
}

// At once, although the real one may wait for the device: what still uses it finds NaN, or is seen by tools.
void release(std::map<const void*, size_t>& kind, int64_t& bytes_held, void* memory) {
  if (memory == nullptr) return;
  const auto at = kind.find(memory);
  if (at == kind.end()) die("memory is released that is not its own");
  bytes_held -= static_cast<int64_t>(at->second);
  std::memset(memory, 0xFF, at->second);
  kind.erase(at);
  std::free(memory);
}

cudaError_t upload(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  ++state().use.n_uploads;
  if (!lies_in(state().device[stream->device], to, bytes)) die("an upload to what is not device memory");
  if (lies_in(state().host, from, bytes)) {
    queue(stream, [=] { return std::memcpy(to, from, bytes), cudaSuccess; });
    return cudaSuccess;
  }
  // Of other memory of the host the source has been read when the call returns.
  const auto* bytes_of = static_cast<const char*>(from);
  queue(stream, [to, copy = std::vector<char>(bytes_of, bytes_of + bytes)] {
    return std::memcpy(to, copy.data(), copy.size()), cudaSuccess;
  });
  return cudaSuccess;
}

cudaError_t download(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  ++state().use.n_downloads;
  if (strikes(state().faults.download)) return ++state().use.n_refused, cudaErrorUnknown;
  if (!lies_in(state().device[stream->device], from, bytes)) die("a download of what is not device memory");
  state().use.bytes_downloaded += static_cast<int64_t>(bytes);
  if (strikes(state().faults.late_download)) {
    queue(stream, [] { return cudaErrorLaunchFailure; });
  } else {
    queue(stream, [=] { return std::memcpy(to, from, bytes), cudaSuccess; });
  }
  return cudaSuccess;
}

}  // namespace

namespace {

CUmemPoolHandle_st& find(cudaMemPool_t pool) {
  if (!state().pools.contains(pool)) die("a memory pool that there is not");
  return *state().pools[pool];
}

// What the driver calls free: what pools have counts as taken.
int64_t free_bytes() {
  int64_t free = memory_bytes() - state().use.bytes;
  for (const auto& [handle, pool] : state().pools) free -= static_cast<int64_t>(pool->unused());
  return std::max<int64_t>(0, free);
}

cudaError_t allocate_on_device(size_t bytes, int64_t room, void** memory) {
  ++state().use.n_allocations;
  if (static_cast<int64_t>(bytes) > room) return cudaErrorMemoryAllocation;
  return allocate(state().device[this_thread().device], state().use.bytes, state().faults.allocation, bytes, memory);
}

void release_on_device(void* memory) {
  const bool first = state().device[0].contains(memory);
  release(state().device[first ? 0 : 1], state().use.bytes, memory);
}

}  // namespace

bool lies_in(const std::map<const void*, size_t>& kind, const void* p, size_t bytes) {
  auto after = kind.upper_bound(p);
  if (after == kind.begin()) return false;
  --after;
  const auto offset = static_cast<size_t>(static_cast<const char*>(p) - static_cast<const char*>(after->first));
  return offset + bytes <= after->second;
}

}  // namespace quire::emulation

using namespace quire::emulation;

extern "C" {

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return perform("cudaMemGetInfo", [&] {
    ++state().use.n_asked_free;
    if (state().faults.hides_free_memory) return cudaErrorInvalidValue;
    *total = static_cast<size_t>(memory_bytes());
    *free = static_cast<size_t>(free_bytes());
    return cudaSuccess;
  });
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  return perform("cudaMalloc", [&] { return allocate_on_device(bytes, free_bytes(), memory); });
}

cudaError_t cudaFree(void* memory) {
  if (const cudaError_t forbidden = captured_elsewhere(); forbidden != cudaSuccess) return keep(forbidden);
  return end("cudaFree", [&] {
    for (const auto& [handle, pool] : state().pools) {
      if (pool->pieces.contains(memory)) die("a piece of a pool is released as other memory");
    }
    release_on_device(memory);
  });
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  return perform("cudaMemPoolCreate", [&] {
    const bool known = properties->allocType == cudaMemAllocationTypePinned &&
                       properties->handleTypes == cudaMemHandleTypeNone &&
                       properties->location.type == cudaMemLocationTypeDevice;
    if (!known || !state().machine.has_pools) return cudaErrorNotSupported;
    auto made = std::make_unique<CUmemPoolHandle_st>();
    made->device = properties->location.id;
    *pool = made.get();
    state().pools[*pool] = std::move(made);
    ++state().use.n_pools;
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  return end("cudaMemPoolDestroy", [&] {
    if (!find(pool).pieces.empty()) die("a memory pool is destroyed that is in use");
    state().pools.erase(pool);
    --state().use.n_pools;
  });
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return perform("cudaMemPoolSetAttribute", [&] {
    if (attribute != cudaMemPoolAttrReleaseThreshold) return cudaErrorInvalidValue;
    find(pool).threshold = *static_cast<const uint64_t*>(value);
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return perform("cudaMemPoolGetAttribute", [&] {
    const bool of_used = attribute == cudaMemPoolAttrUsedMemCurrent;
    if (!of_used && attribute != cudaMemPoolAttrReservedMemCurrent) return cudaErrorInvalidValue;
    *static_cast<uint64_t*>(value) = of_used ? find(pool).used : find(pool).reserved;
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes) {
  return perform("cudaMemPoolTrimTo", [&] {
    CUmemPoolHandle_st& trimmed = find(pool);
    uint64_t kept = trimmed.used;
    for (const auto& [stream, released] : trimmed.not_waited_for) kept += released;
    trimmed.reserved = std::min(trimmed.reserved, std::max<uint64_t>(kept, bytes));
    return cudaSuccess;
  });
}

// At once, as everything of this kind: the real one allocates and releases in the stream's order.
cudaError_t cudaMallocFromPoolAsync(void** memory, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  return perform("cudaMallocFromPoolAsync", [&] {
    CUmemPoolHandle_st& from = find(pool);
    if (find(stream)->device != from.device || from.device != this_thread().device) {
      die("a piece of a pool of another device");
    }
    const auto unused = static_cast<int64_t>(from.unused());
    const cudaError_t error = allocate_on_device(bytes, free_bytes() + unused, memory);
    if (error != cudaSuccess) return error;
    from.pieces[*memory] = bytes;
    from.used += bytes;
    from.reserved = std::max(from.reserved, from.used);
    from.not_waited_for.erase(stream);  // may be what it has now
    return cudaSuccess;
  });
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  return end("cudaFreeAsync", [&] {
    (void)find(stream);
    const auto of =
        std::ranges::find_if(state().pools, [&](const auto& p) { return p.second->pieces.contains(memory); });
    if (of == state().pools.end()) die("memory is released to a pool that is no piece of one");
    CUmemPoolHandle_st& pool = *of->second;
    pool.used -= pool.pieces[memory];
    pool.not_waited_for[stream] += pool.pieces[memory];
    pool.pieces.erase(memory);
    pool.reserved = std::max(pool.used, std::min(pool.reserved, pool.threshold));
    release_on_device(memory);
  });
}

cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  return perform("cudaMallocHost", [&] {
    if (state().faults.pins_nothing) return cudaErrorMemoryAllocation;
    return allocate(state().host, state().use.host_bytes, state().faults.host_allocation, bytes, memory);
  });
}

cudaError_t cudaFreeHost(void* memory) {
  if (const cudaError_t forbidden = captured_elsewhere(); forbidden != cudaSuccess) return keep(forbidden);
  return end("cudaFreeHost", [&] { release(state().host, state().use.host_bytes, memory); });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return perform("cudaMemcpyAsync", [&] {
    expect_queueable(stream);
    if (kind == cudaMemcpyHostToDevice) return upload(to, from, bytes, stream);
    if (kind == cudaMemcpyDeviceToHost) return download(to, from, bytes, stream);
    if (kind != cudaMemcpyDeviceToDevice) die("a copy of a kind that the plugin has no use for");
    const auto& memory = state().device[stream->device];
    if (!lies_in(memory, to, bytes) || !lies_in(memory, from, bytes)) die("a copy of what is not device memory");
    const auto *const first = static_cast<char*>(to), *const second = static_cast<const char*>(from);
    if (first < second + bytes && second < first + bytes) die("a copy onto a part of itself");
    queue(stream, [=] { return std::memcpy(to, from, bytes), cudaSuccess; });
    return cudaSuccess;
  });
}

cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream) {
  return perform("cudaMemsetAsync", [&] {
    expect_queueable(stream);
    if (!lies_in(state().device[stream->device], to, bytes)) die("what is filled is not device memory");
    queue(stream, [=] { return std::memset(to, byte, bytes), cudaSuccess; });
    return cudaSuccess;
  });
}

}  // extern "C"
