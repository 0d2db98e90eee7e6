// Weight matrices of the CPU backend, and rows as their products want them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "lib/backend/operations.h"
#include "lib/support/allocator.h"

namespace quire::cpu {

// Rows of a matrix that are packed in one type; neighbouring parts that are multiplied alike are one.
struct PackedRows {
  int64_t first_row = 0;
  int64_t n = 0;
  ElementType type = ElementType::kF32;
  ElementType rounding = ElementType::kF32;  // what rows are rounded to: kF32 (they are not), kBF16, kInt8
  size_t begin = 0;                          // byte of the matrix's memory
};

class CpuMatrix : public Matrix {
 public:
  // Without its memory, of `bytes`.
  CpuMatrix(std::span<const MatrixPart> parts, int64_t k);

  const std::byte* packed(const PackedRows& run) const { return data + run.begin; }
  // Of a matrix that has memory of its own.
  std::byte* writable(const PackedRows& run) const { return static_cast<std::byte*>(memory.data()) + run.begin; }

  const std::byte* data = nullptr;   // of `memory`, or of what `keep` holds alive
  HostMemory memory;                 // empty: the matrix is mapped
  std::shared_ptr<const void> keep;  // of a mapped one
  std::vector<PackedRows> runs;
};

// n rows of k elements, rounded as a matrix's runs want them. Those that none wants are null.
struct RoundedRows {
  Int8Rows int8{};
  uint16_t* bf16 = nullptr;  // [n][bf16_stride()]
  int64_t k = 0;

  int64_t bf16_stride() const { return bf16_row_stride(k); }
  // Rounds `source`, f32 [k], to row `row` of each.
  void round(const float* source, int64_t row) const;
};

// Where the parts of RoundedRows lie in memory: codes of 8-bit rows, their groups, rows of bf16.
class RoundedLayout {
 public:
  RoundedLayout(const CpuMatrix& matrix, int64_t n);

  RoundedRows rows(std::byte* memory) const;

  size_t bytes = 0;

 private:
  int64_t n_, k_;
  bool int8_ = false, bf16_ = false;
  size_t groups_at_ = 0, bf16_at_ = 0;
};

}  // namespace quire::cpu
