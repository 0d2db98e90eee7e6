// Scalar references of the matrix product and of packing.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "kernels/cpu/code_scale.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/packed_block.h"
#include "lib/support/element.h"
#include "lib/support/quantization.h"

namespace quire::cpu::scalar {
namespace {

// Index of W[row][j] in the packed matrix of a type that is not quantised.
int64_t packed_index(ElementType type, int64_t row, int64_t j, int64_t k) {
  const int64_t panel = row / kPanel, column = row % kPanel;
  if (type != ElementType::kBF16) return (panel * k + j) * kPanel + column;
  return ((panel * ceil_div(k, 2) + j / 2) * kPanel + column) * 2 + j % 2;
}

// Calls use(index in the packed matrix, byte of the blocks, bytes) for each unit of n elements from j on, whole blocks.
template <typename Use>
void for_units(ElementType type, int64_t row, int64_t j, int64_t n, int64_t k, const Use& use) {
  const auto block = static_cast<int64_t>(block_format(type).bytes), bytes = static_cast<int64_t>(row_bytes(type, n));
  const int64_t panel = row / kPanel * static_cast<int64_t>(row_bytes(type, k)) * kPanel;
  const int64_t begin = static_cast<int64_t>(row_bytes(type, j));
  for (int64_t at = 0; at < bytes;) {
    const int64_t unit = packed_unit_bytes(type, at % block);
    use(panel + (begin + at) * kPanel + row % kPanel * unit, at, static_cast<size_t>(unit));
    at += unit;
  }
}

// order_bits() of all blocks of n elements.
template <bool kPack>
void order_bits_of(ElementType type, std::byte* blocks, int64_t n) {
  const BlockFormat format = block_format(type);
  for (int64_t i = 0; i < n / format.elements; ++i) order_bits<kPack>(type, blocks + i * format.bytes);
}

// A block of a row, of any two types: widened and rounded.
void convert_block(ElementType source_type, const void* source, int64_t n, ElementType type, std::byte* out) {
  if (source_type == type) {
    std::memcpy(out, source, row_bytes(type, n));
    return;
  }
  float wide[kMostBlockElements];
  dequantize(source_type, source, n, wide);
  quantize(wide, n, type, out);
}

void pack_quantized(ElementType source_type, const std::byte* source, int64_t k, ElementType packed_type,
                    std::byte* packed, int64_t row) {
  const int64_t step = std::min(k, kMostBlockElements);
  std::byte blocks[kMostBlockElements * sizeof(float)];
  for (int64_t j = 0; j < k; j += step) {
    const int64_t n = std::min(step, k - j);
    convert_block(source_type, source + row_bytes(source_type, j), n, packed_type, blocks);
    order_bits_of<true>(packed_type, blocks, n);
    for_units(packed_type, row, j, n, k,
              [&](int64_t index, int64_t at, size_t bytes) { std::memcpy(packed + index, blocks + at, bytes); });
  }
}

// The blocks of n elements of a row, from j on, as they were before they were packed.
void unpack_blocks(ElementType type, const void* packed, int64_t row, int64_t j, int64_t n, int64_t k,
                   std::byte* blocks) {
  const auto* from = static_cast<const std::byte*>(packed);
  for_units(type, row, j, n, k,
            [&](int64_t index, int64_t at, size_t bytes) { std::memcpy(blocks + at, from + index, bytes); });
  order_bits_of<false>(type, blocks, n);
}

// W[row][j, j + n) of the packed matrix.
void unpack(ElementType type, const void* packed, int64_t row, int64_t j, int64_t n, int64_t k, float* out) {
  if (!is_quantized(type)) {
    for (int64_t i = 0; i < n; ++i) out[i] = load_element(type, packed, packed_index(type, row, j + i, k));
    return;
  }
  std::byte blocks[kMostBlockElements * sizeof(float)];
  unpack_blocks(type, packed, row, j, n, k, blocks);
  dequantize(type, blocks, n, out);
}

// Adds the terms of a group to the sum.
float add_group(ElementType type, const QuantizedGroup& w, const int8_t* codes, const Int8Group& x, float sum) {
  const int parts = scales_of(type), elements = static_cast<int>(kQuantizedGroup) / parts;
  for (int part = 0; part < parts; ++part) {
    int32_t products = 0;
    for (int j = part * elements; j < (part + 1) * elements; ++j) products += codes[j] * (w.code[j] - zero_code(type));
    sum = std::fma(static_cast<float>(products), x.scale * w.scale[part], sum);
  }
  if (!has_offset(type)) return sum;
  if (parts == 1) return std::fma(x.sum, w.offset[0], sum);
  for (int part = 0; part < parts; ++part) {
    sum = std::fma(x.scale * static_cast<float>(x.code_sum[part]), w.offset[part], sum);
  }
  return sum;
}

}  // namespace

void pack_rows(ElementType source_type, const void* source, int64_t row_stride, int64_t rows, int64_t k,
               ElementType packed_type, void* packed, int64_t first_row) {
  for (int64_t row = 0; row < rows; ++row) {
    const auto* from = static_cast<const std::byte*>(source) + row_bytes(source_type, row * row_stride);
    if (is_quantized(packed_type)) {
      pack_quantized(source_type, from, k, packed_type, static_cast<std::byte*>(packed), first_row + row);
      continue;
    }
    float wide[kMostBlockElements];
    for (int64_t j = 0; j < k; ++j) {
      const int64_t at = j % kMostBlockElements;
      if (at == 0) {
        dequantize(source_type, from + row_bytes(source_type, j), std::min(kMostBlockElements, k - j), wide);
      }
      store_element(packed_type, packed, packed_index(packed_type, first_row + row, j, k), wide[at]);
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
      float w[kMostBlockElements];
      for (int64_t j = 0; j < k; ++j) {
        const int64_t at = j % kMostBlockElements;
        if (at == 0) unpack(type, packed, c, j, std::min(kMostBlockElements, k - j), k, w);
        sum = std::fma(x[r * ldx + j], w[at], sum);
      }
      if (bias != nullptr) sum += bias[c];
      float& out = y[r * ldy + c];
      out = accumulate ? out + sum : sum;
    }
  }
}

void round_row_bf16(const float* source, int64_t k, uint16_t* row) {
  for (int64_t j = 0; j < k; ++j) row[j] = to_bf16(source[j]);
  if (k % 2 != 0) row[k] = 0;
}

void gemm_bf16(const uint16_t* x, int64_t ldx, int64_t m, const void* packed, int64_t n, int64_t k, int64_t panel_begin,
               int64_t panel_end, const float* bias, bool accumulate, float* y, int64_t ldy) {
  const auto product = [&](int64_t r, int64_t c, int64_t j, float sum) {
    const float w = load_element(ElementType::kBF16, packed, packed_index(ElementType::kBF16, c, j, k));
    return std::fma(from_bf16(x[r * ldx + j]), w, sum);
  };
  const int64_t last = std::min(panel_end * kPanel, n);
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t c = panel_begin * kPanel; c < last; ++c) {
      float sum = 0.0f;
      for (int64_t j = 0; j < round_up(k, 2); j += 2) sum = product(r, c, j, product(r, c, j + 1, sum));
      if (bias != nullptr) sum += bias[c];
      float& out = y[r * ldy + c];
      out = accumulate ? out + sum : sum;
    }
  }
}

void quantize_row(const float* source, int64_t row, const Int8Rows& x) {
  for (int64_t j = 0; j < x.k; j += kQuantizedGroup) {
    int32_t greatest = 0;
    for (int64_t i = 0; i < kQuantizedGroup; ++i) {
      const float magnitude = std::fabs(source[j + i]);
      int32_t bits;
      std::memcpy(&bits, &magnitude, sizeof bits);
      greatest = std::max(greatest, bits);
    }
    const CodeScale scale = code_scale(greatest, 127);
    Int8Group& group = x.group(row, j / kQuantizedGroup);
    group = {scale.scale, 0, {0, 0}};
    for (int64_t i = 0; i < kQuantizedGroup; ++i) {
      const float code = scale.inverse == 0 ? 0 : std::nearbyint(source[j + i] * scale.inverse);
      *x.codes_of(row, j + i) = static_cast<int8_t>(std::clamp(code, -127.0f, 127.0f));
      group.code_sum[i / 16] += *x.codes_of(row, j + i);
    }
    group.sum = group.scale * static_cast<float>(group.code_sum[0] + group.code_sum[1]);
  }
}

void gemm_int8(const Int8Rows& x, int64_t row, int64_t m, ElementType type, const void* packed, int64_t n,
               int64_t panel_begin, int64_t panel_end, const float* bias, bool accumulate, float* y, int64_t ldy) {
  const int64_t last = std::min(panel_end * kPanel, n), block = block_format(type).elements;
  std::byte bytes[kMostBlockElements * sizeof(float)];
  for (int64_t c = panel_begin * kPanel; c < last; ++c) {
    for (int64_t r = 0; r < m; ++r) {
      float sum = 0;
      for (int64_t j = 0; j < x.k; j += kQuantizedGroup) {
        if (j % block == 0) unpack_blocks(type, packed, c, j, block, x.k, bytes);
        sum = add_group(type, group_of_block(type, bytes, static_cast<int>(j % block / kQuantizedGroup)),
                        x.codes_of(row + r, j), x.group(row + r, j / kQuantizedGroup), sum);
      }
      if (bias != nullptr) sum += bias[c];
      float& out = y[r * ldy + c];
      out = accumulate ? out + sum : sum;
    }
  }
}

}  // namespace quire::cpu::scalar
