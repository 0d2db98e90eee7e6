// Launches of kernels of the emulated CUDA runtime.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/gpu/emulation/block.h"
#include "tests/gpu/emulation/runtime.h"

namespace quire::emulation {
namespace {

// Of the program or a library, as nvcc puts a kernel's constants into the device's code.
bool is_constant(const void* memory) {
  Dl_info where;
  return dladdr(memory, &where) != 0;
}

bool is_possible(dim3 grid, dim3 block) {
  constexpr unsigned kMostBlocks = 0x7fffffff, kMostBlocksBeside = 65535;
  constexpr uint64_t kMostThreads = 1024, kMostThreadsDeep = 64;
  const uint64_t n_threads = uint64_t{block.x} * block.y * block.z;
  const bool has_blocks = grid.x >= 1 && grid.y >= 1 && grid.z >= 1;
  return has_blocks && grid.x <= kMostBlocks && grid.y <= kMostBlocksBeside && grid.z <= kMostBlocksBeside &&
         n_threads >= 1 && n_threads <= kMostThreads && block.z <= kMostThreadsDeep;
}

}  // namespace

void register_kernel(const void* function, Kernel kernel) {
  const std::lock_guard lock(state().mutex);
  state().kernels.try_emplace(function, std::move(kernel));
}

KernelCall::KernelCall(const void* function, const Kernel& kernel, dim3 grid, dim3 block, void* const* parameters,
                       size_t shared_bytes, int device)
    : function_(function), kernel_(kernel), grid_(grid), block_(block), shared_bytes_(shared_bytes), device_(device) {
  size_t end = 0;
  for (const Kernel::Parameter& parameter : kernel.parameters) {
    offsets_.push_back((end + parameter.alignment - 1) / parameter.alignment * parameter.alignment);
    end = offsets_.back() + parameter.bytes;
  }
  bytes_.resize((end + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t));
  auto* const bytes = reinterpret_cast<char*>(bytes_.data());
  for (size_t p = 0; p < offsets_.size(); ++p) {
    std::memcpy(bytes + offsets_[p], parameters[p], kernel.parameters[p].bytes);
  }
}

cudaError_t KernelCall::run() const {
  std::vector<const void*> values;
  for (const size_t offset : offsets_) values.push_back(reinterpret_cast<const char*>(bytes_.data()) + offset);
  // Threads of the OS that run blocks look at what there is of memory while this one, which waits for them, keeps it
  // as it is.
  const auto reaches = [&](const void* memory, size_t bytes) {
    const auto is_in = [&](const void* first, const void* end) { return first <= memory && memory < end; };
    return lies_in(state().device[device_], memory, bytes) || lies_in(state().host, memory, bytes) ||
           is_in(bytes_.data(), bytes_.data() + bytes_.size()) || is_in(values.data(), values.data() + values.size()) ||
           is_constant(memory);
  };
  try {
    launch(
        {grid_.x, grid_.y, grid_.z}, {block_.x, block_.y, block_.z}, shared_bytes_,
        [&] { kernel_.call(function_, values.data()); }, reaches);
    return cudaSuccess;
  } catch (const Fault& fault) {
    std::fprintf(stderr, "emulated device: %s\n", fault.what());
    return cudaErrorLaunchFailure;
  }
}

std::shared_ptr<const KernelCall> prepare_kernel(const void* function, dim3 grid, dim3 block, void* const* parameters,
                                                 size_t shared_bytes, cudaError_t invalid_configuration,
                                                 cudaError_t& error) {
  const int device = this_thread().device;
  const auto kernel = state().kernels.find(function);
  const auto asked = state().shared_limits.find({function, device});
  const size_t limit = asked == state().shared_limits.end()
                           ? kSharedWithoutAsking
                           : std::max(kSharedWithoutAsking, static_cast<size_t>(asked->second));
  ++state().use.n_launches;
  error = cudaSuccess;
  if (kernel == state().kernels.end()) {
    error = cudaErrorInvalidDeviceFunction;
  } else if (!is_possible(grid, block)) {
    error = invalid_configuration;
  } else if (shared_bytes > limit || (parameters == nullptr && !kernel->second.parameters.empty())) {
    error = cudaErrorInvalidValue;
  } else if (strikes(state().faults.launch)) {
    error = cudaErrorLaunchOutOfResources;
  }
  if (error != cudaSuccess) return nullptr;
  return std::make_shared<const KernelCall>(function, kernel->second, grid, block, parameters, shared_bytes, device);
}

}  // namespace quire::emulation

using namespace quire::emulation;

extern "C" {

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  return perform("cudaFuncSetAttribute", [&] {
    if (const cudaError_t forbidden = captured_elsewhere(); forbidden != cudaSuccess) return forbidden;
    if (!state().kernels.contains(function)) return cudaErrorInvalidDeviceFunction;
    const bool possible = value >= 0 && static_cast<size_t>(value) <= kMostSharedMemory;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || !possible) return cudaErrorInvalidValue;
    const auto [limit, first] = state().shared_limits.try_emplace({function, this_thread().device}, value);
    // The real one allows it. But another thread may be about to launch the kernel with the limit that there was.
    if (!first && limit->second != value) die("a kernel's limit of shared memory is changed");
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** parameters, size_t shared_bytes,
                             cudaStream_t stream) {
  return perform("cudaLaunchKernel", [&] {
    cudaError_t error = cudaSuccess;
    const auto call =
        prepare_kernel(function, grid, block, parameters, shared_bytes, cudaErrorInvalidConfiguration, error);
    return call != nullptr ? queue_kernel_work(stream, [call] { return call->run(); }) : error;
  });
}

}  // extern "C"
