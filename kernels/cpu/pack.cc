// Packing of weight matrices into panels of kPanel columns (layout in kernels.h).
#include <cstring>

#include "kernels/cpu/kernels.h"

namespace quire::cpu {
namespace {

constexpr int64_t kTile = 128;  // elements of k converted at a time

// Writes `units` units of each of `columns` tile rows as columns of the panel: unit u of column c goes to
// [u][c]. A unit is one element, or the two of a bf16 pair.
template <class Unit>
void transpose(const char* tile, int64_t tile_row_bytes, int64_t columns, int64_t units, char* panel) {
  for (int64_t u = 0; u < units; ++u) {
    for (int64_t c = 0; c < columns; ++c) {
      std::memcpy(panel + (u * kPanel + c) * static_cast<int64_t>(sizeof(Unit)),
                  tile + c * tile_row_bytes + u * static_cast<int64_t>(sizeof(Unit)), sizeof(Unit));
    }
  }
}

// Packs `columns` rows of the source as neighbouring columns of one panel.
void pack_columns(ElementType source_type, const char* source, int64_t row_bytes, int64_t columns, int64_t k,
                  ElementType type, char* panel) {
  const int64_t source_bytes = static_cast<int64_t>(element_bytes(source_type));
  const int64_t bytes = static_cast<int64_t>(element_bytes(type));
  const int64_t tile_row_bytes = kTile * bytes;
  alignas(64) char tile[static_cast<size_t>(kPanel * kTile) * sizeof(float)];
  for (int64_t k0 = 0; k0 < k; k0 += kTile) {
    const int64_t count = k - k0 < kTile ? k - k0 : kTile;
    for (int64_t c = 0; c < columns; ++c) {
      char* row = tile + c * tile_row_bytes;
      convert(source_type, source + c * row_bytes + k0 * source_bytes, type, row, count);
      if (count % 2 != 0) std::memset(row + count * bytes, 0, static_cast<size_t>(bytes));
    }
    char* out = panel + k0 * kPanel * bytes;  // k0 is even, so this holds for pairs too
    switch (type) {
      case ElementType::kF32:
        transpose<uint32_t>(tile, tile_row_bytes, columns, count, out);
        break;
      case ElementType::kF16:
        transpose<uint16_t>(tile, tile_row_bytes, columns, count, out);
        break;
      case ElementType::kBF16:
        transpose<uint32_t>(tile, tile_row_bytes, columns, ceil_div(count, 2), out);
        break;
    }
  }
}

}  // namespace

size_t packed_bytes(ElementType type, int64_t n, int64_t k) {
  const int64_t depth = type == ElementType::kBF16 ? round_up(k, 2) : k;
  return static_cast<size_t>(round_up(n, kPanel)) * static_cast<size_t>(depth) * element_bytes(type);
}

void pack_rows(ElementType source_type, const void* source, int64_t row_stride, int64_t rows, int64_t k,
               ElementType packed_type, void* packed, int64_t first_row) {
  const int64_t row_bytes = row_stride * static_cast<int64_t>(element_bytes(source_type));
  const int64_t panel_bytes = static_cast<int64_t>(packed_bytes(packed_type, kPanel, k));
  const int64_t unit_bytes = packed_type == ElementType::kF16 ? 2 : 4;
  for (int64_t row = 0; row < rows;) {
    const int64_t column = (first_row + row) % kPanel;
    const int64_t columns = rows - row < kPanel - column ? rows - row : kPanel - column;
    char* panel = static_cast<char*>(packed) + (first_row + row) / kPanel * panel_bytes + column * unit_bytes;
    pack_columns(source_type, static_cast<const char*>(source) + row * row_bytes, row_bytes, columns, k, packed_type,
                 panel);
    row += columns;
  }
}

}  // namespace quire::cpu
