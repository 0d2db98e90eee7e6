// The plugin libquire-cuda.so: the table of device_api.h over the CUDA runtime, which is linked into it.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string_view>

#include "kernels/cuda/blas.h"
#include "kernels/cuda/device_api.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/graphs.h"

namespace quire::cuda {
namespace {

// "90a" is for that architecture alone; "90-real" for 9.x from 9.0 on; "90-virtual" for all from 9.0 on.
bool runs_on(std::string_view architecture, int major, int minor) {
  const bool intermediate = architecture.ends_with("-virtual");
  int number = 0;
  size_t at = 0;
  for (; at < architecture.size() && architecture[at] >= '0' && architecture[at] <= '9'; ++at) {
    number = 10 * number + (architecture[at] - '0');
  }
  const bool exact = at < architecture.size() && architecture[at] == 'a';
  const int here = 10 * major + minor;
  if (exact) return here == number;
  return intermediate ? here >= number : major == number / 10 && here >= number;
}

// QUIRE_CUDA_ARCHITECTURES: the architectures that CMakeLists.txt compiles the kernels for, with commas.
bool has_code_for(int major, int minor) {
  std::string_view rest = QUIRE_CUDA_ARCHITECTURES;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(','), rest.size());
    if (runs_on(rest.substr(0, end), major, minor)) return true;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return false;
}

// An error that is not of the calling thread's last call stays behind for cudaGetLastError() otherwise.
int said(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

const char* error_text(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

bool is_out_of_memory(int error) { return error == cudaErrorMemoryAllocation; }

int probe(Probe* out) {
  *out = Probe{};
  if (const int error = said(cudaRuntimeGetVersion(&out->runtime_version)); error != 0) return error;
  // Succeeds with 0 where there is no driver.
  if (const int error = said(cudaDriverGetVersion(&out->driver_version)); error != 0) return error;
  out->error = said(cudaGetDeviceCount(&out->n_devices));
  if (out->error == cudaErrorInsufficientDriver) {
    out->obstacle = out->driver_version == 0 ? Obstacle::kNoDriver : Obstacle::kOldDriver;
  } else if (out->error == cudaErrorNoDevice || (out->error == 0 && out->n_devices == 0)) {
    out->obstacle = Obstacle::kNoDevice;
  } else {
    out->obstacle = out->error == 0 ? Obstacle::kNone : Obstacle::kOther;
  }
  if (out->obstacle != Obstacle::kNone) out->n_devices = 0;
  return 0;
}

int describe(int device, DeviceFacts* out) {
  *out = DeviceFacts{};
  cudaDeviceProp properties{};
  if (const int error = said(cudaGetDeviceProperties(&properties, device)); error != 0) return error;
  std::memcpy(out->name, properties.name, std::min(sizeof out->name - 1, std::strlen(properties.name)));
  out->major = properties.major;
  out->minor = properties.minor;
  out->n_processors = properties.multiProcessorCount;
  out->usable = has_code_for(properties.major, properties.minor);
  const bool has_wgmma = std::string_view(QUIRE_CUDA_ARCHITECTURES).find("90a") != std::string_view::npos;
  out->warpgroups = properties.major == 9 && has_wgmma;
  out->memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  return 0;
}

// A host that captures a graph of its own, on a stream and thread of its own, may do so in the mode that forbids all
// threads of the process, save those that are "relaxed", what could disturb it: allocating, asking events, loading
// kernels. A call that is refused so would fail, and break the host's capture too.
thread_local bool relaxed = false;
thread_local cudaStreamCaptureMode mode_before = cudaStreamCaptureModeGlobal;  // while `relaxed`

int use_device(int device) {
  set_thread_device(device);
  int error = said(cudaSetDevice(device));
  if (error == 0 && !relaxed) {
    // Not before the device is chosen: it would start a context on the first one.
    mode_before = cudaStreamCaptureModeRelaxed;
    error = said(cudaThreadExchangeStreamCaptureMode(&mode_before));
    relaxed = error == 0;
  }
  return error;
}

// Functions of the driver, by which a thread that has no context is told from one that uses the first device: the
// runtime says the same of both, and would start a context there when told to use it again.
template <typename... Arguments>
int call_driver(const char* name, Arguments... arguments) {
  constexpr unsigned kVersion = 12000;  // since when, at the latest, the function is as it is called here
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const int error = said(cudaGetDriverEntryPointByVersion(name, &function, kVersion, cudaEnableDefault, &result));
  if (error != 0 || result != cudaDriverEntryPointSuccess) return error != 0 ? error : cudaErrorNotSupported;
  return reinterpret_cast<int (*)(Arguments...)>(function)(arguments...);
}

int get_context(void** out) { return call_driver("cuCtxGetCurrent", out); }

int leave_devices(void* context) {
  int error = 0;
  if (relaxed) {
    error = said(cudaThreadExchangeStreamCaptureMode(&mode_before));
    relaxed = false;
  }
  const int other = call_driver("cuCtxSetCurrent", context);
  return error != 0 ? error : other;
}

int free_memory(int device, int64_t* out) {
  if (const int error = use_device(device); error != 0) return error;
  size_t free = 0, total = 0;
  if (const int error = said(cudaMemGetInfo(&free, &total)); error != 0) return error;
  *out = static_cast<int64_t>(free) + unused_in_pool();
  return 0;
}

// ---- memory

int allocate_host(size_t bytes, void** out) { return said(cudaMallocHost(out, bytes)); }
int release_host(void* memory) { return said(cudaFreeHost(memory)); }

int upload(Stream stream, void* to, const void* from, size_t bytes) {
  return said(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream));
}
int download(Stream stream, void* to, const void* from, size_t bytes) {
  return said(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream));
}
int copy(Stream stream, void* to, const void* from, size_t bytes) {
  return said(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
}
int fill(Stream stream, void* to, int byte, size_t bytes) { return said(cudaMemsetAsync(to, byte, bytes, stream)); }

// ---- order

int create_stream(Stream* out) { return said(cudaStreamCreateWithFlags(out, cudaStreamNonBlocking)); }
int destroy_stream(Stream stream) { return said(cudaStreamDestroy(stream)); }
int finish_stream(Stream stream) { return said(cudaStreamSynchronize(stream)); }
int create_event(Event* out) { return said(cudaEventCreateWithFlags(out, cudaEventDisableTiming)); }
int destroy_event(Event event) { return said(cudaEventDestroy(event)); }
int record_event(Event event, Stream stream) { return said(cudaEventRecord(event, stream)); }
int ask_event(Event event, bool* done) {
  const cudaError_t error = cudaEventQuery(event);
  *done = error != cudaErrorNotReady;
  return *done ? said(error) : (cudaGetLastError(), 0);
}
int finish_event(Event event) { return said(cudaEventSynchronize(event)); }
int wait_event(Stream stream, Event event) { return said(cudaStreamWaitEvent(stream, event, 0)); }

// ---- graphs

int launch_graph(Graph graph, Stream stream) { return said(cudaGraphLaunch(graph, stream)); }
int destroy_graph(Graph graph) { return said(cudaGraphExecDestroy(graph)); }

// Functions of other files with a failed call taken back from the thread, as said() does.
template <auto function>
struct Said;
template <typename... Arguments, int (*function)(Arguments...)>
struct Said<function> {
  static int call(Arguments... arguments) { return said(static_cast<cudaError_t>(function(arguments...))); }
};
template <auto function>
constexpr auto kSaid = &Said<function>::call;

constexpr DeviceApi kApi = {
    .version = kDeviceApiVersion,
    .bytes = sizeof(DeviceApi),
    .error_text = error_text,
    .is_out_of_memory = is_out_of_memory,
    .probe = probe,
    .describe = describe,
    .free_memory = free_memory,
    .use_device = use_device,
    .get_context = get_context,
    .leave_devices = leave_devices,
    .allocate = kSaid<&cuda::allocate_memory>,
    .release = kSaid<&cuda::release_memory>,
    .allocate_host = allocate_host,
    .release_host = release_host,
    .upload = upload,
    .download = download,
    .copy = copy,
    .fill = fill,
    .create_stream = create_stream,
    .destroy_stream = destroy_stream,
    .finish_stream = finish_stream,
    .create_event = create_event,
    .destroy_event = destroy_event,
    .record_event = record_event,
    .ask_event = ask_event,
    .finish_event = finish_event,
    .wait_event = wait_event,
    .begin_graph = kSaid<&cuda::begin_graph>,
    .end_graph = kSaid<&cuda::end_graph>,
    .launch_graph = launch_graph,
    .destroy_graph = destroy_graph,
    .rms_norm = kSaid<&cuda::rms_norm>,
    .head_norm = kSaid<&cuda::head_norm>,
    .scale_unrotated = kSaid<&cuda::scale_unrotated>,
    .gated_linear_unit = kSaid<&cuda::gated_linear_unit>,
    .embed = kSaid<&cuda::embed>,
    .copy_rows = kSaid<&cuda::copy_rows>,
    .copy_to_turn = kSaid<&cuda::copy_to_turn>,
    .scale_rows = kSaid<&cuda::scale_rows>,
    .write_row = kSaid<&cuda::write_row>,
    .store_kv = kSaid<&cuda::store_kv>,
    .move_kv = kSaid<&cuda::move_kv>,
    .narrow_kv = kSaid<&cuda::narrow_kv>,
    .gather = kSaid<&cuda::gather>,
    .matmul = kSaid<&cuda::matmul>,
    .dequantize_rows = kSaid<&cuda::dequantize_rows>,
    .attention = kSaid<&cuda::attention>,
    .attention_shares = kSaid<&cuda::attention_shares>,
    .keep_peaks = kSaid<&cuda::keep_peaks>,
    .summarise_keys = kSaid<&cuda::summarise_keys>,
    .attend_in_chunks = kSaid<&cuda::attend_in_chunks>,
    .score_chunks = kSaid<&cuda::score_chunks>,
    .choose_chunks = kSaid<&cuda::choose_chunks>,
    .list_chosen = kSaid<&cuda::list_chosen>,
    .rank_logits = kSaid<&cuda::rank_logits>,
    .open_blas = open_blas,
    .blas_matmul = kSaid<&cuda::blas_matmul>,
};

}  // namespace
}  // namespace quire::cuda

extern "C" __attribute__((visibility("default"))) const quire::cuda::DeviceApi* quire_cuda_entry(uint32_t version) {
  return version == quire::cuda::kDeviceApiVersion ? &quire::cuda::kApi : nullptr;
}
