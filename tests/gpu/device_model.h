// Models on the emulated device, or on a GPU (tests/gpu/test_device.h).
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "lib/backend/cuda/cuda_backend.h"
#include "tests/gpu/emulation/block.h"
#include "tests/gpu/test_device.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {

inline Devices::Wrap on_test_device(int index = 0, const cuda::DeviceApi& api = test_device(),
                                    const cuda::CudaOptions& cuda = {}) {
  return [index, &api, cuda](std::unique_ptr<Backend>) {
    // Never destroyed: the engine may let the last session go when main() has returned.
    static Allocator& allocator = *new Allocator;
    return take(cuda::create_cuda_backend(allocator, api, index, cuda));
  };
}

inline std::shared_ptr<Model> on_device(const std::string& name, int index = 0,
                                        const cuda::DeviceApi& api = test_device(),
                                        const cuda::CudaOptions& cuda = {}) {
  emulation::set_launch_options({.schedule = emulation::Schedule::kAhead, .n_threads = 2});
  RuntimeOptions options;
  options.n_threads = 1;
  options.wrap_backend = on_test_device(index, api, cuda);
  return load(name, std::move(options));
}

}  // namespace quire::test
