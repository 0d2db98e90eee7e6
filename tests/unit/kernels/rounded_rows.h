// Rows as 8-bit numbers for the kernel tests.
#pragma once

#include "tests/unit/kernels/quantized_blocks.h"

namespace quire::cpu {

// n rows of k elements as 8-bit numbers, and memory for them. The reference rounds them if `by_scalar`.
class RoundedRows {
 public:
  RoundedRows(const std::vector<float>& x, int64_t k, bool by_scalar = false)
      : codes_(x.size()), groups_(x.size() / kQuantizedGroup) {
    rows_ = {codes_.data(), groups_.data(), static_cast<int64_t>(x.size()) / k, k};
    for (int64_t r = 0; r < rows_.n; ++r) {
      (by_scalar ? scalar::quantize_row : quantize_row)(x.data() + r * k, r, rows_);
    }
  }
  const Int8Rows& operator*() const { return rows_; }
  const Int8Rows* operator->() const { return &rows_; }

  double value(int64_t row, int64_t j) const {
    return static_cast<double>(rows_.group(row, j / kQuantizedGroup).scale) * *rows_.codes_of(row, j);
  }
  bool operator==(const RoundedRows& other) const {
    return codes_ == other.codes_ &&
           std::memcmp(groups_.data(), other.groups_.data(), groups_.size() * sizeof(Int8Group)) == 0;
  }

 private:
  std::vector<int8_t> codes_;
  std::vector<Int8Group> groups_;
  Int8Rows rows_{};
};

}  // namespace quire::cpu
