// Errors, devices, and what every call of the emulated CUDA runtime begins and ends with.
#include "tests/gpu/emulation/runtime.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace quire::emulation {

// The values of the stand-in's header are those of the real one, with which this is compiled as well.
static_assert(cudaErrorInvalidValue == 1 && cudaErrorMemoryAllocation == 2 && cudaErrorInitializationError == 3 &&
              cudaErrorInvalidConfiguration == 9 && cudaErrorInsufficientDriver == 35 &&
              cudaErrorInvalidDeviceFunction == 98 && cudaErrorNoDevice == 100 && cudaErrorInvalidDevice == 101 &&
              cudaErrorInvalidResourceHandle == 400 && cudaErrorNotReady == 600 &&
              cudaErrorLaunchOutOfResources == 701 && cudaErrorLaunchFailure == 719 && cudaErrorNotSupported == 801 &&
              cudaErrorStreamCaptureUnsupported == 900 && cudaErrorGraphExecUpdateFailure == 910 &&
              cudaErrorUnknown == 999);
static_assert(cudaMemcpyHostToDevice == 1 && cudaMemcpyDeviceToHost == 2 && cudaMemcpyDeviceToDevice == 3);
static_assert(cudaDevAttrMultiProcessorCount == 16 && cudaDevAttrMaxSharedMemoryPerBlockOptin == 97 &&
              cudaFuncAttributeMaxDynamicSharedMemorySize == 8);
static_assert(cudaStreamNonBlocking == 1 && cudaEventDisableTiming == 2 && cudaStreamCaptureModeGlobal == 0 &&
              cudaStreamCaptureModeRelaxed == 2);
static_assert(cudaEnableDefault == 0 && cudaDriverEntryPointSuccess == 0 && cudaDriverEntryPointSymbolNotFound == 1);
static_assert(cudaGraphExecUpdateErrorTopologyChanged == 2 && cudaGraphExecUpdateErrorUnsupportedFunctionChange == 7);

State& state() {
  static State& one = *new State;
  return one;
}

ThreadState& this_thread() {
  thread_local ThreadState own;
  return own;
}

void die(const char* what) {
  std::fprintf(stderr, "emulated device: %s\n", what);
  std::abort();
}

int64_t memory_bytes() {
  const int64_t bytes = state().faults.memory_bytes;
  return bytes > 0 ? bytes : int64_t{1} << 30;
}

cudaError_t keep(cudaError_t error) {
  if (error != cudaSuccess) this_thread().last_error = error;
  return error;
}

cudaError_t planned_failure(const char* name) {
  ++state().use.n_calls;
  if (!strikes(state().faults.call)) return cudaSuccess;
  state().failed_call = name;
  return cudaErrorUnknown;
}

cudaError_t missing_device() {
  const Machine& machine = state().machine;
  if (machine.driver_version < CUDART_VERSION) return cudaErrorInsufficientDriver;
  if (machine.driver_error != 0) return static_cast<cudaError_t>(machine.driver_error);
  return machine.n_devices == 0 ? cudaErrorNoDevice : cudaSuccess;
}

void expect_device() {
  if (this_thread().left_devices) die("a thread that has left the devices uses one without choosing it");
}

cudaError_t captured_elsewhere() {
  const bool forbidden = state().faults.host_captures && this_thread().capture_mode == cudaStreamCaptureModeGlobal;
  return forbidden ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

void set_device_faults(const DeviceFaults& faults) {
  const std::lock_guard lock(state().mutex);
  state().faults = faults;
  state().failure = cudaSuccess;
  // The device may have less from now on.
  for (const auto& [handle, pool] : state().pools) pool->reserved = pool->used;
}

DeviceFaults device_faults() {
  const std::lock_guard lock(state().mutex);
  return state().faults;
}

void set_machine(const Machine& machine) {
  const std::lock_guard lock(state().mutex);
  state().machine = machine;
}

void set_late_answers(int64_t n) {
  const std::lock_guard lock(state().mutex);
  state().n_late_answers = n;
}

DeviceUse device_use() {
  const std::lock_guard lock(state().mutex);
  DeviceUse use = state().use;
  use.n_streams = static_cast<int64_t>(state().streams.size());
  use.n_events = static_cast<int64_t>(state().events.size());
  use.n_graphs = static_cast<int64_t>(state().executables.size());
  use.n_graphs_in_the_making = static_cast<int64_t>(state().graphs.size());
  return use;
}

std::string failed_call() {
  const std::lock_guard lock(state().mutex);
  return state().failed_call;
}

}  // namespace quire::emulation

using namespace quire::emulation;

namespace {

// A device's primary context.
void* context_of(int device) {
  static std::array<char, kDevices> contexts;
  return &contexts[static_cast<size_t>(device)];
}

// The driver's functions, which return a CUresult.
int get_context(void** out) {
  *out = this_thread().context;
  return 0;
}
int set_context(void* context) {
  this_thread().context = context;
  this_thread().left_devices = true;
  return 0;
}

}  // namespace

extern "C" {

// ---- errors

cudaError_t cudaGetLastError() { return std::exchange(this_thread().last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return this_thread().last_error; }

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorInvalidDeviceFunction:
      return "invalid device function";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorLaunchOutOfResources:
      return "too many resources requested for launch";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorUnknown:
      return "unknown error";
    default:
      return "unrecognized error code";
  }
}

// ---- devices

cudaError_t cudaRuntimeGetVersion(int* version) {
  return answer("cudaRuntimeGetVersion", [&] {
    *version = CUDART_VERSION;
    return cudaSuccess;
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  return answer("cudaDriverGetVersion", [&] {
    *version = state().machine.driver_version;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceCount(int* count) {
  return answer("cudaGetDeviceCount", [&] {
    *count = state().machine.n_devices;
    return missing_device();
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return answer("cudaGetDeviceProperties", [&] {
    if (const cudaError_t missing = missing_device(); missing != cudaSuccess) return missing;
    const Machine& machine = state().machine;
    if (device < 0 || device >= machine.n_devices) return cudaErrorInvalidDevice;
    std::snprintf(properties->name, sizeof properties->name, "emulated");
    properties->totalGlobalMem = static_cast<size_t>(memory_bytes());
    properties->major = machine.major;
    properties->minor = machine.minor;
    properties->multiProcessorCount = 6;
    return cudaSuccess;
  });
}

// To kernels that adapt to the device it says the least that there may be, so that they have to go the longer way: few
// blocks of threads through all there is, and long rows in parts.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return answer("cudaDeviceGetAttribute", [&] {
    if (const cudaError_t missing = missing_device(); missing != cudaSuccess) return missing;
    if (device < 0 || device >= state().machine.n_devices) return cudaErrorInvalidDevice;
    switch (attribute) {
      case cudaDevAttrMultiProcessorCount:
        *value = 1;
        return cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = 99 << 10;
        return cudaSuccess;
      case cudaDevAttrMemoryPoolsSupported:
        *value = state().machine.has_pools ? 1 : 0;
        return cudaSuccess;
      default:
        return cudaErrorInvalidValue;
    }
  });
}

cudaError_t cudaSetDevice(int device) {
  return answer("cudaSetDevice", [&] {
    if (const cudaError_t missing = missing_device(); missing != cudaSuccess) return missing;
    if (device < 0 || device >= state().machine.n_devices) return cudaErrorInvalidDevice;
    this_thread().device = device;
    this_thread().context = context_of(device);
    this_thread().left_devices = false;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return answer("cudaGetDevice", [&] {
    *device = this_thread().device;
    return missing_device();
  });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return answer("cudaThreadExchangeStreamCaptureMode", [&] {
    std::swap(*mode, this_thread().capture_mode);
    return cudaSuccess;
  });
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned int version,
                                             unsigned long long flags, cudaDriverEntryPointQueryResult* result) {
  return answer("cudaGetDriverEntryPointByVersion", [&] {
    const std::string_view wanted = name;
    *function = wanted == "cuCtxGetCurrent"   ? reinterpret_cast<void*>(get_context)
                : wanted == "cuCtxSetCurrent" ? reinterpret_cast<void*>(set_context)
                                              : nullptr;
    if (version > CUDART_VERSION || flags != cudaEnableDefault) return cudaErrorInvalidValue;
    *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return missing_device();
  });
}

}  // extern "C"
