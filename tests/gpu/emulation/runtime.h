// The emulated CUDA runtime: what the files that implement the functions of cuda/cuda_runtime_api.h share.
//
// It is as strict as the real one is documented to be. Where the real one leaves undefined what happens, or where a
// call is none that the plugin may make (kernels/cuda/device_api.h), the program ends with a message.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/gpu/emulation/emulated_device.h"
#include "tests/gpu/emulation/kernel_registry.h"

namespace quire::emulation {

using Work = std::function<cudaError_t()>;

constexpr int kDevices = 2;
// What every launch may have, and what one may have that asked for it.
constexpr size_t kSharedWithoutAsking = size_t{48} << 10, kMostSharedMemory = size_t{227} << 10;

// A kernel with its parameters, which were copied when it was launched or added to a graph.
class KernelCall {
 public:
  KernelCall(const void* function, const Kernel& kernel, dim3 grid, dim3 block, void* const* parameters,
             size_t shared_bytes, int device);
  int device() const { return device_; }
  cudaError_t run() const;

 private:
  const void* const function_;
  const Kernel& kernel_;
  const dim3 grid_, block_;
  const size_t shared_bytes_;
  const int device_;
  std::vector<std::max_align_t> bytes_;
  std::vector<size_t> offsets_;  // of each parameter
};

// Everything that was queued on a stream up to some time. A default one is nothing.
struct Point {
  std::shared_ptr<CUstream_st> stream;
  int64_t number = 0;

  bool done() const;
  // Runs it, and says how it ended.
  cudaError_t finish() const;
};

}  // namespace quire::emulation

struct CUstream_st {
  int device = 0;
  std::deque<quire::emulation::Work> waiting;
  int64_t n_done = 0;
  cudaError_t failure = cudaSuccess;  // of its work: none runs any more
};

struct CUevent_st {
  int device = 0;
  quire::emulation::Point recorded;
  int64_t n_asked = 0;  // since it was recorded
};

struct CUgraphNode_st {
  const CUgraph_st* graph = nullptr;
  std::shared_ptr<const quire::emulation::KernelCall> call;
  std::vector<size_t> dependencies;  // places of nodes of the graph
};

struct CUgraph_st {
  std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
};

struct CUgraphExec_st {
  std::vector<CUgraphNode_st> nodes;
  quire::emulation::Point last_launch;
};

struct CUmemPoolHandle_st {
  int device = 0;
  uint64_t threshold = 0;
  uint64_t used = 0, reserved = 0;
  std::map<const void*, size_t> pieces{};
  std::map<cudaStream_t, uint64_t> not_waited_for{};  // bytes released in each stream since the host last waited for it
  uint64_t unused() const { return reserved - used; }
};

namespace quire::emulation {

struct State {
  std::recursive_mutex mutex;
  DeviceFaults faults;
  Machine machine;
  DeviceUse use;
  const char* failed_call = "";
  int64_t n_late_answers = 0;
  cudaError_t failure = cudaSuccess;  // of every call, since a kernel failed for good
  std::map<const void*, size_t> device[kDevices], host;
  std::map<cudaStream_t, std::shared_ptr<CUstream_st>> streams;
  std::map<cudaEvent_t, std::unique_ptr<CUevent_st>> events;
  std::map<cudaGraph_t, std::unique_ptr<CUgraph_st>> graphs;
  std::map<cudaGraphExec_t, std::unique_ptr<CUgraphExec_st>> executables;
  std::map<cudaMemPool_t, std::unique_ptr<CUmemPoolHandle_st>> pools;
  std::map<const void*, Kernel> kernels;
  std::map<std::pair<const void*, int>, int> shared_limits;  // by kernel and device
};
// Never destroyed: a library's thread may release memory when main() has returned.
State& state();

// What belongs to a thread.
struct ThreadState {
  int device = 0;
  void* context = nullptr;    // the driver's
  bool left_devices = false;  // the driver was told of another context than the runtime has
  cudaError_t last_error = cudaSuccess;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
  int n_graphs = 0;  // that it is making
};
ThreadState& this_thread();

[[noreturn]] void die(const char* what);

// Whether the fault is for this call.
inline bool strikes(int64_t& countdown) { return countdown > 0 && --countdown == 0; }

// How much memory the device has.
int64_t memory_bytes();

// ---- what every call begins and ends with

// Keeps an error for cudaGetLastError().
cudaError_t keep(cudaError_t error);
// Counts the call, and says whether it is the one that is to fail.
cudaError_t planned_failure(const char* name);
// Why nothing can be done on any device.
cudaError_t missing_device();

// A call that needs no device, and is answered also when the device has failed.
template <typename Do>
cudaError_t answer(const char* name, const Do& what) {
  const std::lock_guard lock(state().mutex);
  const cudaError_t failure = planned_failure(name);
  return keep(failure != cudaSuccess ? failure : what());
}

// Ends the program where the thread's context is the host's, which the call would work on.
void expect_device();

// A call that a device works on.
template <typename Do>
cudaError_t perform(const char* name, const Do& what) {
  expect_device();
  return answer(name, [&] {
    cudaError_t failure = missing_device();
    if (failure == cudaSuccess) failure = state().failure;
    return failure != cudaSuccess ? failure : what();
  });
}

// A call that ends something. It does so also where it says that something failed before.
template <typename Do>
cudaError_t end(const char* name, const Do& what) {
  expect_device();
  const std::lock_guard lock(state().mutex);
  if (const cudaError_t missing = missing_device(); missing != cudaSuccess) return keep(missing);
  const cudaError_t planned = planned_failure(name);
  what();
  return keep(planned != cudaSuccess ? planned : state().failure);
}

// Whether a call that a stream capture of another thread forbids may be made: it may not by a thread that has not said
// that it does not mind.
cudaError_t captured_elsewhere();

// ---- streams

// The object behind a handle, which must be one that exists.
const std::shared_ptr<CUstream_st>& find(cudaStream_t stream);
CUevent_st& find(cudaEvent_t event);
CUgraph_st& find(cudaGraph_t graph);
CUgraphExec_st& find(cudaGraphExec_t executable);

Point end_of(cudaStream_t stream);
void queue(cudaStream_t stream, Work work);
// Of what is no kernel: it cannot be a part of the graph that the thread is making, and is of the thread's device.
void expect_queueable(cudaStream_t stream);
// A kernel's work, which may be refused, or fail when it runs, as the faults say.
cudaError_t queue_kernel_work(cudaStream_t stream, Work work);

// Whether [p, p + bytes) lies in one piece of memory of the kind.
bool lies_in(const std::map<const void*, size_t>& kind, const void* p, size_t bytes);

// ---- kernels

// Checks a launch. Returns null and says why where it is refused. invalid_configuration: for grids and blocks that no
// device has.
std::shared_ptr<const KernelCall> prepare_kernel(const void* function, dim3 grid, dim3 block, void* const* parameters,
                                                 size_t shared_bytes, cudaError_t invalid_configuration,
                                                 cudaError_t& error);

}  // namespace quire::emulation
