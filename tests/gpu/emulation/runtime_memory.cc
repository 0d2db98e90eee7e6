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
    if (state().faults.hides_free_memory) return cudaErrorInvalidValue;
    *total = static_cast<size_t>(memory_bytes());
    *free = static_cast<size_t>(std::max<int64_t>(0, memory_bytes() - state().use.bytes));
    return cudaSuccess;
  });
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  return perform("cudaMalloc", [&] {
    DeviceUse& use = state().use;
    ++use.n_allocations;
    if (use.bytes + static_cast<int64_t>(bytes) > memory_bytes()) return cudaErrorMemoryAllocation;
    return allocate(state().device[this_thread().device], use.bytes, state().faults.allocation, bytes, memory);
  });
}

cudaError_t cudaFree(void* memory) {
  if (const cudaError_t forbidden = captured_elsewhere(); forbidden != cudaSuccess) return keep(forbidden);
  return end("cudaFree", [&] {
    const bool first = state().device[0].contains(memory);
    release(state().device[first ? 0 : 1], state().use.bytes, memory);
  });
}

cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  return perform("cudaMallocHost", [&] {
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
