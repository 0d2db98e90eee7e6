// Which products the emulated cuBLASLt knows, and their sums.
#include <algorithm>
#include <vector>

#include "lib/support/element.h"
#include "tests/gpu/emulation/cublaslt_objects.h"

namespace quire::emulation {
namespace {

ElementType element_type(cudaDataType type) {
  return type == CUDA_R_32F ? ElementType::kF32 : type == CUDA_R_16F ? ElementType::kF16 : ElementType::kBF16;
}

bool is_known(cudaDataType type) { return type == CUDA_R_32F || type == CUDA_R_16F || type == CUDA_R_16BF; }

struct Size {
  uint64_t rows, columns;
  bool operator==(const Size&) const = default;
};
Size size_of(const Layout& layout, int32_t transposed = CUBLAS_OP_N) {
  return transposed == CUBLAS_OP_T ? Size{layout.columns, layout.rows} : Size{layout.rows, layout.columns};
}

// A matrix line by line. columns: lines are its columns, otherwise its rows.
std::vector<float> lines_of(const Layout& layout, const void* matrix, bool columns) {
  const auto n_lines = static_cast<int64_t>(columns ? layout.columns : layout.rows);
  const auto length = static_cast<int64_t>(columns ? layout.rows : layout.columns);
  const int64_t between = columns ? layout.stride : 1, step = columns ? 1 : layout.stride;
  const ElementType type = element_type(layout.type);
  std::vector<float> all;
  all.reserve(static_cast<size_t>(n_lines * length));
  for (int64_t line = 0; line < n_lines; ++line) {
    for (int64_t i = 0; i < length; ++i) all.push_back(load_element(type, matrix, line * between + i * step));
  }
  return all;
}

}  // namespace

size_t element_bytes_of(cudaDataType type) { return element_bytes(element_type(type)); }

size_t extent_of(const Layout& layout) {
  const uint64_t elements = (layout.columns - 1) * static_cast<uint64_t>(layout.stride) + layout.rows;
  return elements * element_bytes_of(layout.type);
}

cublasStatus_t check(const Problem& problem) {
  const auto& [device, operation, a, b, c, d] = problem;
  for (const Layout& layout : {a, b, c, d}) {
    if (!is_known(layout.type)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (layout.rows == 0 || layout.columns == 0) return CUBLAS_STATUS_INVALID_VALUE;
    if (layout.stride < 0 || static_cast<uint64_t>(layout.stride) < layout.rows) return CUBLAS_STATUS_INVALID_VALUE;
  }
  const Size left = size_of(a, operation.transposed_a), right = size_of(b, operation.transposed_b), result = size_of(d);
  if (left.columns != right.rows || result != Size{left.rows, right.columns} || size_of(c) != result) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool in_floats = operation.compute == CUBLAS_COMPUTE_32F && operation.scale == CUDA_R_32F;
  const bool of_one_type = a.type == b.type && c.type == d.type && (d.type == a.type || d.type == CUDA_R_32F);
  return in_floats && of_one_type ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

void multiply(const Problem& problem, float alpha, const void* a, const void* b, float beta, const void* c, void* d,
              bool round_parts) {
  const auto& [device, operation, a_layout, b_layout, c_layout, d_layout] = problem;
  const std::vector<float> left = lines_of(a_layout, a, operation.transposed_a == CUBLAS_OP_T);
  const std::vector<float> right = lines_of(b_layout, b, operation.transposed_b == CUBLAS_OP_N);
  const auto rows = static_cast<int64_t>(d_layout.rows), columns = static_cast<int64_t>(d_layout.columns);
  const int64_t k = static_cast<int64_t>(left.size()) / rows;
  const ElementType type = element_type(d_layout.type);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const float *const x = &left[static_cast<size_t>(i * k)], *const y = &right[static_cast<size_t>(j * k)];
      const auto part = [&](int64_t begin, int64_t end) {
        float sum = 0;
        for (int64_t l = begin; l < end; ++l) sum += x[l] * y[l];
        if (round_parts) store_element(type, &sum, 0, sum), sum = load_element(type, &sum, 0);
        return sum;
      };
      float sum = alpha * (part(0, k / 2) + part(k / 2, k));
      // What C holds does not matter where it is multiplied with zero.
      if (beta != 0) sum += beta * load_element(type, c, i + j * c_layout.stride);
      store_element(type, d, i + j * d_layout.stride, sum);
    }
  }
}

}  // namespace quire::emulation
