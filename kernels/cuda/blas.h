// Products by cuBLASLt, which a machine may lack: it is opened where a backend is made.
#pragma once

#include <cstddef>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/matmul.h"

namespace quire::cuda {

// DeviceApi has what they promise.
bool open_blas(char* why, size_t size);
int blas_matmul(Stream stream, DeviceRows x, int64_t n_rows, const DeviceMatrix& w, const float* bias, bool add,
                DeviceRows y, void* workspace);

}  // namespace quire::cuda
