// What the CUDA plugin gives the library: one table of functions, by one exported symbol. Plain C++.
//
// The library's CUDA backend (lib/backend/cuda) is written against this table alone, so it needs no CUDA to be built,
// and tests run it whole on the CPU: over the plugin's own table, with an emulated CUDA runtime (tests/gpu/emulation).
//
// Only plain data and functions cross: nothing throws, no memory that one side allocated is freed by the other but by
// the functions here. Both sides are built from one source; `version` tells plugins of another one apart.
//
// Errors: 0, or a number that error_text() explains. Threads: use_device() chooses the calling thread's device, on
// which all other calls of that thread work. Any thread may call any function; a stream is used by one thread at a
// time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/gather.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/rank_logits.h"
#include "kernels/cuda/selection.h"

struct CUevent_st;
struct CUgraphExec_st;

namespace quire::cuda {

using Event = CUevent_st*;
using Graph = CUgraphExec_st*;

constexpr uint32_t kDeviceApiVersion = 15;

// Why there is no device that can be used, from least to most that was found.
enum class Obstacle : int32_t {
  kNone = 0,
  kNoDriver = 1,   // none is installed
  kOldDriver = 2,  // older than this plugin's runtime asks for
  kNoDevice = 3,
  kOther = 4,  // `error` of the probe says it
};

struct Probe {
  Obstacle obstacle = Obstacle::kOther;
  int32_t error = 0;
  int32_t driver_version = 0;  // 1000 * major + 10 * minor; 0: none
  int32_t runtime_version = 0;
  int32_t n_devices = 0;
};

struct DeviceFacts {
  char name[256] = {};
  int32_t major = 0;  // compute capability
  int32_t minor = 0;
  int32_t n_processors = 0;
  // This plugin has code for it.
  bool usable = false;
  // It has wgmma, and this plugin has code for that: Attention::wide is for it.
  bool warpgroups = false;
  int64_t memory_bytes = 0;
};

struct DeviceApi {
  uint32_t version = kDeviceApiVersion;
  uint32_t bytes = sizeof(DeviceApi);

  const char* (*error_text)(int error) = nullptr;  // static
  bool (*is_out_of_memory)(int error) = nullptr;
  // These two start no context on any device, which would take memory there.
  int (*probe)(Probe* out) = nullptr;
  int (*describe)(int device, DeviceFacts* out) = nullptr;
  // Of the device's memory, by this process and others. Makes it the thread's device.
  int (*free_memory)(int device, int64_t* out) = nullptr;
  int (*use_device)(int device) = nullptr;
  // What the driver keeps for the calling thread, null if it has used no device. Starts no context.
  int (*get_context)(void** out) = nullptr;
  // The calling thread has this one again, and uses no device of the library's until it calls use_device().
  int (*leave_devices)(void* context) = nullptr;

  // ---- memory. Device memory and pinned host memory begin at multiples of 256 bytes.
  int (*allocate)(size_t bytes, void** out) = nullptr;
  // After the device has done everything that uses it. bytes: as it was allocated.
  int (*release)(void* memory, size_t bytes) = nullptr;
  int (*allocate_host)(size_t bytes, void** out) = nullptr;
  int (*release_host)(void* memory) = nullptr;
  // Queued; of host memory that is not pinned, the source may have been read when the call returns.
  int (*upload)(Stream stream, void* to, const void* from, size_t bytes) = nullptr;
  int (*download)(Stream stream, void* to, const void* from, size_t bytes) = nullptr;
  int (*copy)(Stream stream, void* to, const void* from, size_t bytes) = nullptr;
  int (*fill)(Stream stream, void* to, int byte, size_t bytes) = nullptr;

  // ---- order
  int (*create_stream)(Stream* out) = nullptr;
  int (*destroy_stream)(Stream stream) = nullptr;
  int (*finish_stream)(Stream stream) = nullptr;  // waits; the first failure of what was queued
  int (*create_event)(Event* out) = nullptr;
  int (*destroy_event)(Event event) = nullptr;
  int (*record_event)(Event event, Stream stream) = nullptr;
  // done: everything before it in its stream ran, or failed, which the returned error then says.
  int (*ask_event)(Event event, bool* done) = nullptr;
  int (*finish_event)(Event event) = nullptr;
  int (*wait_event)(Stream stream, Event event) = nullptr;  // `stream` goes on when the event is done

  // ---- graphs: work that is launched as one. Null, all four: there are none.
  // What this thread queues on the stream until end_graph() is not done, but becomes a graph. Only kernels may be
  // queued.
  int (*begin_graph)(Stream stream) = nullptr;
  // Makes the graph, or changes *graph, if it is one, whose earlier launches go on as they were. However it ends, work
  // on the stream is done again, and *graph is null or a graph that is to be destroyed.
  int (*end_graph)(Stream stream, Graph* graph) = nullptr;
  int (*launch_graph)(Graph graph, Stream stream) = nullptr;
  int (*destroy_graph)(Graph graph) = nullptr;  // launches that were queued go on

  // ---- kernels (kernels.h, gather.h, matmul.h, attention.h, selection.h, rank_logits.h)
  decltype(&cuda::rms_norm) rms_norm = nullptr;
  decltype(&cuda::head_norm) head_norm = nullptr;
  decltype(&cuda::scale_unrotated) scale_unrotated = nullptr;
  decltype(&cuda::gated_linear_unit) gated_linear_unit = nullptr;
  decltype(&cuda::embed) embed = nullptr;
  decltype(&cuda::copy_rows) copy_rows = nullptr;
  decltype(&cuda::copy_to_turn) copy_to_turn = nullptr;
  decltype(&cuda::scale_rows) scale_rows = nullptr;
  decltype(&cuda::write_row) write_row = nullptr;
  decltype(&cuda::store_kv) store_kv = nullptr;
  decltype(&cuda::move_kv) move_kv = nullptr;
  decltype(&cuda::narrow_kv) narrow_kv = nullptr;
  decltype(&cuda::gather) gather = nullptr;
  decltype(&cuda::matmul) matmul = nullptr;
  decltype(&cuda::dequantize_rows) dequantize_rows = nullptr;
  decltype(&cuda::attention) attention = nullptr;
  decltype(&cuda::attention_shares) attention_shares = nullptr;
  decltype(&cuda::keep_peaks) keep_peaks = nullptr;
  decltype(&cuda::summarise_keys) summarise_keys = nullptr;
  decltype(&cuda::attend_in_chunks) attend_in_chunks = nullptr;
  decltype(&cuda::score_chunks) score_chunks = nullptr;
  decltype(&cuda::choose_chunks) choose_chunks = nullptr;
  decltype(&cuda::list_chosen) list_chosen = nullptr;
  decltype(&cuda::rank_logits) rank_logits = nullptr;

  // ---- cuBLASLt. The plugin's own product serves where there is none. Null: this plugin knows none.
  // Opens it unless it is open, with what it needs on the current device; false: `why`, of `size` bytes, is text. It
  // may be tried again for a device; the library itself is looked for once a process.
  bool (*open_blas)(char* why, size_t size) = nullptr;
  // On a device that it was opened for: matmul() of bf16 or f16 rows and weights of one type, y of this type or f32;
  // any number of rows. A bias is rounded to the type of y before the product is added. It is matmul() where cuBLASLt
  // has no algorithm for such matrices. workspace: kBlasWorkspace bytes of device memory that no other stream uses
  // meanwhile.
  int (*blas_matmul)(Stream stream, DeviceRows x, int64_t n_rows, const DeviceMatrix& w, const float* bias, bool add,
                     DeviceRows y, void* workspace) = nullptr;
};

constexpr size_t kBlasWorkspace = size_t{32} << 20;

}  // namespace quire::cuda

// The plugin's only exported symbol. Null where `version` is not its own. The table is static.
extern "C" const quire::cuda::DeviceApi* quire_cuda_entry(uint32_t version);
