// The emulated device as a plugin that libquire.so finds, and what the emulated runtime keeps for a thread.
#include "tests/gpu/emulation/emulated_device.h"
#include "tests/gpu/emulation/runtime.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

// As a host's own CUDA code chooses a device for the calling thread.
EXPORTED int emulated_choose(int device) {
  (void)quire::emulation::device_api();  // of which quire_cuda_entry is
  return cudaSetDevice(device);
}

EXPORTED void* emulated_context() { return quire::emulation::this_thread().context; }

EXPORTED int emulated_capture_mode() { return quire::emulation::this_thread().capture_mode; }
