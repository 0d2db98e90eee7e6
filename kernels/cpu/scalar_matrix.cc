// Scalar references of the matrix product and of packing.
#include <cmath>

#include "kernels/cpu/element.h"
#include "kernels/cpu/kernels.h"

namespace quire::cpu::scalar {
namespace {

// Index of W[row][j] in the packed matrix.
int64_t packed_index(ElementType type, int64_t row, int64_t j, int64_t k) {
  const int64_t panel = row / kPanel, column = row % kPanel;
  if (type != ElementType::kBF16) return (panel * k + j) * kPanel + column;
  return ((panel * ceil_div(k, 2) + j / 2) * kPanel + column) * 2 + j % 2;
}

}  // namespace

void pack_rows(ElementType source_type, const void* source, int64_t row_stride, int64_t rows, int64_t k,
               ElementType packed_type, void* packed, int64_t first_row) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t j = 0; j < k; ++j) {
      const float w = load_element(source_type, source, row * row_stride + j);
      store_element(packed_type, packed, packed_index(packed_type, first_row + row, j, k), w);
    }
    if (packed_type == ElementType::kBF16 && k % 2 != 0) {
      store_element(packed_type, packed, packed_index(packed_type, first_row + row, k, k), 0.0f);
    }
  }
}

void gemm(const float* x, int64_t ldx, int64_t m, ElementType type, const void* packed, int64_t n, int64_t k,
          int64_t panel_begin, int64_t panel_end, const float* bias, bool accumulate, float* y, int64_t ldy) {
  const int64_t last = panel_end * kPanel < n ? panel_end * kPanel : n;
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t c = panel_begin * kPanel; c < last; ++c) {
      float sum = 0.0f;
      for (int64_t j = 0; j < k; ++j) {
        sum = std::fma(x[r * ldx + j], load_element(type, packed, packed_index(type, c, j, k)), sum);
      }
      if (bias != nullptr) sum += bias[c];
      float& out = y[r * ldy + c];
      out = accumulate ? out + sum : sum;
    }
  }
}

}  // namespace quire::cpu::scalar
