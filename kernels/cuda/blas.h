// Products by cuBLASLt, which is opened when it is first asked for: it is half a gigabyte, and a machine may lack it.
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
