// Packing of weight matrices into panels of kPanel columns (layout in kernels.h).
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/packed_block.h"
#include "lib/support/quantization.h"

namespace quire::cpu {
namespace {

constexpr int64_t kTile = kMostBlockElements;  // elements of k converted at a time: whole blocks of every type

// Columns [first, first + n) of a panel.
struct Columns {
  int64_t first, n;
};

// Writes `units` units of each of the tile's rows as columns of the panel: unit u of column c goes to [u][c]. A unit is
// one element, the two of a bf16 pair, or a unit of a block.
template <class Unit>
void transpose(const char* tile, int64_t tile_row_bytes, Columns columns, int64_t units, char* panel) {
  for (int64_t u = 0; u < units; ++u) {
    for (int64_t c = 0; c < columns.n; ++c) {
      std::memcpy(panel + (u * kPanel + columns.first + c) * static_cast<int64_t>(sizeof(Unit)),
                  tile + c * tile_row_bytes + u * static_cast<int64_t>(sizeof(Unit)), sizeof(Unit));
    }
  }
}

// The same for whole blocks, `bytes` of each row.
void transpose_blocks(ElementType type, char* tile, int64_t tile_row_bytes, Columns columns, int64_t bytes,
                      char* panel) {
  const auto block = static_cast<int64_t>(block_format(type).bytes);
  for (int64_t at = 0; at < bytes; at += block) {
    for (int64_t c = 0; c < columns.n; ++c) order_bits<true>(type, tile + c * tile_row_bytes + at);
    for (int64_t b = 0; b < block; b += packed_unit_bytes(type, b)) {
      char* const row = tile + at + b;
      char* const to = panel + (at + b) * kPanel;
      if (packed_unit_bytes(type, b) == 2) {
        transpose<uint16_t>(row, tile_row_bytes, columns, 1, to);
      } else {
        transpose<uint32_t>(row, tile_row_bytes, columns, 1, to);
      }
    }
  }
}

// Elements of a row, which begin a block of both types, in another type.
void convert_elements(ElementType source_type, const char* source, ElementType type, char* out, int64_t n) {
  if (!is_quantized(source_type) && !is_quantized(type)) return convert(source_type, source, type, out, n);
  if (source_type == type) {
    std::memcpy(out, source, row_bytes(type, n));
    return;
  }
  float wide[kTile];
  dequantize(source_type, source, n, wide);
  if (is_quantized(type)) {
    quantize(wide, n, type, out);
  } else {
    convert(ElementType::kF32, wide, type, out, n);
  }
}

// Packs rows of the source as columns of one panel.
void pack_columns(ElementType source_type, const char* source, int64_t source_row_bytes, Columns columns, int64_t k,
                  ElementType type, char* panel) {
  constexpr int64_t kTileRowBytes = kTile * static_cast<int64_t>(sizeof(float));
  alignas(64) char tile[kPanel * kTileRowBytes];
  for (int64_t k0 = 0; k0 < k; k0 += kTile) {
    const int64_t count = std::min(kTile, k - k0);
    const auto bytes = static_cast<int64_t>(row_bytes(type, count));
    for (int64_t c = 0; c < columns.n; ++c) {
      char* row = tile + c * kTileRowBytes;
      convert_elements(source_type, source + c * source_row_bytes + row_bytes(source_type, k0), type, row, count);
      if (count % 2 != 0) std::memset(row + bytes, 0, sizeof(uint16_t));  // the partner of a bf16
    }
    char* out = panel + static_cast<int64_t>(row_bytes(type, k0)) * kPanel;  // k0 is even, so this holds for pairs too
    switch (type) {
      case ElementType::kF32:
        transpose<uint32_t>(tile, kTileRowBytes, columns, count, out);
        break;
      case ElementType::kF16:
        transpose<uint16_t>(tile, kTileRowBytes, columns, count, out);
        break;
      case ElementType::kBF16:
        transpose<uint32_t>(tile, kTileRowBytes, columns, ceil_div(count, 2), out);
        break;
      default:
        transpose_blocks(type, tile, kTileRowBytes, columns, bytes, out);
        break;
    }
  }
}

}  // namespace

size_t packed_bytes(ElementType type, int64_t n, int64_t k) {
  const int64_t depth = type == ElementType::kBF16 ? round_up(k, 2) : k;
  return static_cast<size_t>(round_up(n, kPanel)) * row_bytes(type, depth);
}

void pack_rows(ElementType source_type, const void* source, int64_t row_stride, int64_t rows, int64_t k,
               ElementType packed_type, void* packed, int64_t first_row) {
  const auto source_row_bytes = static_cast<int64_t>(row_bytes(source_type, row_stride));
  const auto panel_bytes = static_cast<int64_t>(packed_bytes(packed_type, kPanel, k));
  for (int64_t row = 0; row < rows;) {
    const int64_t first = (first_row + row) % kPanel;
    const Columns columns = {first, std::min(rows - row, kPanel - first)};
    pack_columns(source_type, static_cast<const char*>(source) + row * source_row_bytes, source_row_bytes, columns, k,
                 packed_type, static_cast<char*>(packed) + (first_row + row) / kPanel * panel_bytes);
    row += columns.n;
  }
}

}  // namespace quire::cpu
