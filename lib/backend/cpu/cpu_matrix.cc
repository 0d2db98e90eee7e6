#include "lib/backend/cpu/cpu_matrix.h"

#include "lib/support/quantization.h"

namespace quire::cpu {
namespace {

// What rows are rounded to for a part: what it allows, if there is such a product.
ElementType rounding_for(const MatrixPart& part) {
  const bool int8 = is_quantized(part.type) && part.activations == ElementType::kInt8;
  const bool bf16 = part.type == ElementType::kBF16 && part.activations == ElementType::kBF16;
  return int8 || bf16 ? part.activations : ElementType::kF32;
}

}  // namespace

CpuMatrix::CpuMatrix(std::span<const MatrixPart> parts, int64_t row_length) {
  k = row_length;
  for (const MatrixPart& part : parts) {
    const ElementType rounding = rounding_for(part);
    if (runs.empty() || runs.back().type != part.type || runs.back().rounding != rounding) {
      runs.push_back({n, 0, part.type, rounding, 0});
    }
    runs.back().n += part.rows;
    n += part.rows;
  }
  for (PackedRows& run : runs) {
    run.begin = bytes;
    // Whole cache lines, so that the vectors of the next run are aligned, too.
    bytes += static_cast<size_t>(round_up(static_cast<int64_t>(packed_bytes(run.type, run.n, k)), 64));
  }
}

void RoundedRows::round(const float* source, int64_t row) const {
  if (int8.codes) quantize_row(source, row, int8);
  if (bf16) round_row_bf16(source, k, bf16 + row * bf16_stride());
}

RoundedLayout::RoundedLayout(const CpuMatrix& matrix, int64_t n) : n_(n), k_(matrix.k) {
  for (const PackedRows& run : matrix.runs) {
    int8_ |= run.rounding == ElementType::kInt8;
    bf16_ |= run.rounding == ElementType::kBF16;
  }
  const auto elements = static_cast<size_t>(n * k_);
  groups_at_ = int8_ ? elements : 0;
  bf16_at_ = int8_ ? groups_at_ + elements / static_cast<size_t>(kQuantizedGroup) * sizeof(Int8Group) : 0;
  bytes = bf16_ ? bf16_at_ + static_cast<size_t>(n * bf16_row_stride(k_)) * sizeof(uint16_t) : bf16_at_;
}

RoundedRows RoundedLayout::rows(std::byte* memory) const {
  RoundedRows rows;
  rows.k = k_;
  if (int8_) {
    rows.int8 = {reinterpret_cast<int8_t*>(memory), reinterpret_cast<Int8Group*>(memory + groups_at_), n_, k_};
  }
  if (bf16_) rows.bf16 = reinterpret_cast<uint16_t*>(memory + bf16_at_);
  return rows;
}

}  // namespace quire::cpu
