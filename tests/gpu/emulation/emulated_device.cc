#include "tests/gpu/emulation/emulated_device.h"

#include <dlfcn.h>

#include <cstdlib>

#include "tests/gpu/emulation/cublaslt.h"
#include "tests/gpu/emulation/runtime.h"

namespace quire::emulation {
namespace {

const cuda::DeviceApi& plugin_api() { return *quire_cuda_entry(cuda::kDeviceApiVersion); }

// The launch says of no address what it is to the kernel, so they are looked at here.
int gather(cuda::Stream stream, const cuda::GatherList& list) {
  {
    const std::lock_guard lock(state().mutex);
    const auto& device = state().device[find(stream)->device];
    for (int c = 0; c < list.n; ++c) {
      const auto& [from, to, bytes] = list.copies[c];
      for (const void* place : {from, static_cast<const void*>(to)}) {
        const auto size = static_cast<size_t>(bytes);
        if (!lies_in(device, place, size) && !lies_in(state().host, place, size)) {
          die("a kernel is to gather where the device cannot");
        }
      }
    }
    ++state().use.n_gathers;
  }
  return plugin_api().gather(stream, list);
}

cuda::DeviceApi make_api() {
  cuda::DeviceApi api = plugin_api();
  api.gather = gather;
  return api;
}

}  // namespace

const cuda::DeviceApi& device_api() {
  static const cuda::DeviceApi api = [] {
    cuda::DeviceApi without = make_api();
    without.open_blas = nullptr;
    without.blas_matmul = nullptr;
    return without;
  }();
  return api;
}

cuda::DeviceApi device_api_with_blas_of(const char* file) {
  setenv("QUIRE_CUBLASLT", file, 1);
  // The plugin opens the same file once more, and is given the same library.
  if (void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
    const auto connect = reinterpret_cast<decltype(&quire_connect_cublaslt)>(dlsym(library, "quire_connect_cublaslt"));
    if (connect != nullptr) connect(&blas_functions());
  }
  return make_api();
}

// QUIRE_EMULATED_CUBLASLT: the emulated one's file.
const cuda::DeviceApi& device_api_with_blas() {
  static const cuda::DeviceApi api = device_api_with_blas_of(QUIRE_EMULATED_CUBLASLT);
  return api;
}

}  // namespace quire::emulation
