// The CUDA backend: operations of one device, by the plugin's table of functions (kernels/cuda/device_api.h).
//
// Rows are bf16, those that layers add to are f32. Records are rows of keys and values, as their neutral form.
//
// What it promises of results: the same step gives the same bits. A row's bits do depend on the company, for products
// of few rows and of many are made by other kernels, as is attention of few tiles and of many.
#pragma once

#include <memory>

#include "kernels/cuda/device_api.h"
#include "lib/backend/backend.h"
#include "lib/support/allocator.h"
#include "lib/support/thread_pool.h"

namespace quire::cuda {

// How much of a matrix is dequantised at a time for cuBLASLt, as bf16. It is enough columns of a large model's products
// to keep all processors busy, and little beside what such a model takes.
constexpr size_t kMostDequantizedBytes = size_t{64} << 20;

struct CudaOptions {
  // Its threads convert rows that load_rows() is given in another type, which is called where it may be run. Outlives
  // the backend and everything it made; may be null.
  ThreadPool* pool = nullptr;
  size_t most_dequantized_bytes = kMostDequantizedBytes;
  bool warpgroups = true;  // attention by wgmma, where the device has it (DeviceFacts::warpgroups)
};

// The allocator and the table must outlive the backend and everything it made. The allocator is for staging memory
// where no pinned memory is left. Errors: kUnsupported, if the plugin has no code for the device; kOutOfMemory,
// kDevice.
Result<std::unique_ptr<Backend>> create_cuda_backend(Allocator& allocator, const DeviceApi& api, int device,
                                                     const CudaOptions& options = {});

}  // namespace quire::cuda
