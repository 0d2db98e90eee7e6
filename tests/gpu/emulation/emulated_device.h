// A device for tests: the plugin's own table of functions (kernels/cuda/plugin.cc), over a CUDA runtime that is
// emulated (runtime.h) with kernels that run on the CPU (block.h), and the host's memory.
//
// There are two of them, which share what there is of memory.
//
// They work late, as devices may: what is queued on a stream runs when somebody waits for it or asks for an event
// behind it, so that memory that is given back or overwritten too early shows. Fresh memory is all ones: NaN, and far
// out of range as an index.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/cuda/device_api.h"

namespace quire::emulation {

// The table; any thread. It knows no cuBLASLt.
const cuda::DeviceApi& device_api();
// The same with an emulated cuBLASLt (cublaslt.h), which the plugin opens as it opens the real one: the first time that
// it is asked for, and from the file that QUIRE_CUBLASLT names, which is set here.
const cuda::DeviceApi& device_api_with_blas();
// The same with what another file has in its place. The plugin opens one file a process.
cuda::DeviceApi device_api_with_blas_of(const char* file);

// What goes wrong, and how much there is, from now on: the n-th call fails, and those behind it do not. 0: none.
struct DeviceFaults {
  int64_t call = 0;        // of any function of the runtime that may fail
  int64_t allocation = 0;  // of device memory: out of memory
  int64_t host_allocation = 0;
  bool pins_nothing = false;  // no memory of the host can be pinned
  int64_t launch = 0;         // is refused
  int64_t kernel = 0;         // fails when it runs, and its stream with it
  bool for_good = false;      // then every call fails from there on, as those of a CUDA context do
  int64_t graph = 0;          // the beginning or the end of making one fails
  int64_t graph_launch = 0;   // finds no memory
  int64_t blas_call = 0;      // of any function of cuBLASLt, with this status of its
  int blas_status = 14;       // an internal error
  int64_t download = 0;       // is refused
  int64_t late_download = 0;  // fails when it runs, likewise
  // What the device has; 0: 1 GiB. More is not allocated.
  int64_t memory_bytes = 0;
  bool hides_free_memory = false;  // asking what is free fails
  // The host captures a stream of its own in the mode that forbids other threads what could disturb it.
  bool host_captures = false;
};
void set_device_faults(const DeviceFaults& faults);
// Those that are still to come.
DeviceFaults device_faults();
// The function that DeviceFaults::call made fail last.
std::string failed_call();

// What there is on the machine, from now on.
struct Machine {
  int driver_version = 13000;  // 0: no driver
  int driver_error = 0;        // of the runtime's: what the driver ends all calls with
  int n_devices = 2;           // at most
  int major = 9, minor = 0;    // compute capability
  bool has_pools = true;       // of memory
};
void set_machine(const Machine& machine);

// How often an event is said not to be done before what is in front of it runs: a GPU seldom has done what it was asked
// a moment ago. 0 at first.
void set_late_answers(int64_t n);

// Since the program began: what was allocated and not given back, and calls.
struct DeviceUse {
  int64_t bytes = 0;
  int64_t host_bytes = 0;
  int64_t n_streams = 0;
  int64_t n_pools = 0;  // of memory, each with a stream of its own; they stay
  int64_t n_events = 0;
  int64_t n_recorded = 0;  // events, as often as each was
  int64_t n_graphs = 0;    // that can be launched
  int64_t n_graphs_in_the_making = 0;
  int64_t n_calls = 0;        // of all functions of the runtime that may fail
  int64_t n_asked_free = 0;   // how often it was asked what is free
  int64_t n_allocations = 0;  // made in all, of the device's memory
  int64_t n_launches = 0;     // of kernels, those that become parts of a graph too; not those of graphs
  int64_t n_graph_launches = 0;
  int64_t n_gathers = 0;        // of the launches
  int64_t n_blas_products = 0;  // likewise
  int64_t n_blas_calls = 0;     // of all functions of cuBLASLt
  int64_t n_blas_searches = 0;  // of these: for an algorithm
  int64_t n_blas_objects = 0;   // descriptors, layouts and preferences that were not destroyed
  int64_t n_uploads = 0;        // copies
  int64_t n_downloads = 0;
  int64_t n_refused = 0;  // of these
  int64_t n_waits = 0;    // of the host for a stream
  int64_t bytes_downloaded = 0;
};
DeviceUse device_use();

}  // namespace quire::emulation
