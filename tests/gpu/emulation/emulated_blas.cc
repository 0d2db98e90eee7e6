// kernels/cuda/blas.h without cuBLASLt: in the place of kernels/cuda/blas.cc.
#include "kernels/cuda/blas.h"

#include <cstring>

#include "kernels/cuda/device_api.h"
#include "lib/support/element.h"
#include "tests/gpu/emulation/runtime.h"

namespace quire::cuda {
namespace {

void multiply(DeviceRows x, int64_t n_rows, const DeviceMatrix& w, const float* bias, bool add, DeviceRows y,
              void* workspace) {
  std::memset(workspace, 0xFF, kBlasWorkspace);
  const auto wide = [&](const void* row) {
    std::vector<float> values(static_cast<size_t>(w.k));
    for (int64_t i = 0; i < w.k; ++i) values[static_cast<size_t>(i)] = load_element(w.type, row, i);
    return values;
  };
  std::vector<std::vector<float>> rows;
  for (int64_t r = 0; r < n_rows; ++r) {
    rows.push_back(wide(static_cast<const char*>(x.data) + row_bytes(x.type, r * x.stride)));
  }
  for (int64_t j = 0; j < w.n; ++j) {
    const std::vector<float> weights = wide(static_cast<const char*>(w.data) + j * w.row_bytes);
    for (int64_t r = 0; r < n_rows; ++r) {
      const int64_t at = r * y.stride + j;
      float sum = bias != nullptr ? bias[j] : 0.0f;
      if (add) sum += load_element(y.type, y.data, at);
      for (size_t i = 0; i < weights.size(); ++i) sum += rows[static_cast<size_t>(r)][i] * weights[i];
      store_element(y.type, y.data, at, sum);
    }
  }
}

}  // namespace

bool open_blas(char* why, size_t size) {
  if (why != nullptr && size > 0) *why = '\0';
  return true;
}

int blas_matmul(Stream stream, DeviceRows x, int64_t n_rows, const DeviceMatrix& w, const float* bias, bool add,
                DeviceRows y, void* workspace) {
  const bool narrow = w.type == ElementType::kBF16 || w.type == ElementType::kF16;
  if (!narrow || x.type != w.type || (y.type != w.type && y.type != ElementType::kF32)) return cudaErrorNotSupported;
  return emulation::perform("cublasLtMatmul", [&] {
    emulation::State& state = emulation::state();
    ++state.use.n_blas_products;
    ++state.use.n_launches;
    emulation::expect_queueable(stream);
    if (!emulation::lies_in(state.device[stream->device], workspace, kBlasWorkspace)) {
      emulation::die("a product's working memory is not device memory");
    }
    if (emulation::strikes(state.faults.launch)) return cudaErrorLaunchOutOfResources;
    return emulation::queue_kernel_work(stream,
                                        [=] { return multiply(x, n_rows, w, bias, add, y, workspace), cudaSuccess; });
  });
}

}  // namespace quire::cuda
