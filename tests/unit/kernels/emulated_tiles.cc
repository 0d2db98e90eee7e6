#include "tests/unit/kernels/emulated_tiles.h"

#include <array>
#include <atomic>
#include <cstring>
#include <stdexcept>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/unit/kernels/emulated_tiles.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/gemm_int8-inl.h"

#ifndef QUIRE_EMULATED_UNIT
#define QUIRE_EMULATED_UNIT
namespace quire::cpu {
namespace {

std::atomic<int64_t> n_products{0};

// What the manual of the processor says of each instruction, and what it forbids.
class EmulatedUnit {
 public:
  void shape(const TileShapes& shapes) {
    require(shapes.palette == 1 && shapes.start_row == 0, "the palette");
    for (int t = 0; t < 8; ++t) {
      require(shapes.rows[t] <= 16 && shapes.row_bytes[t] <= 64 && shapes.row_bytes[t] % 4 == 0, "a tile's size");
      require((shapes.rows[t] == 0) == (shapes.row_bytes[t] == 0), "a tile without rows or columns");
      tiles_[static_cast<size_t>(t)] = {shapes.rows[t], shapes.row_bytes[t], {}};
    }
    for (int t = 8; t < 16; ++t) require(shapes.rows[t] == 0 && shapes.row_bytes[t] == 0, "a ninth tile");
    for (const uint8_t reserved : shapes.reserved) require(reserved == 0, "reserved bytes");
    shaped_ = true;
  }
  void release() {
    require(shaped_, "registers that are not shaped");
    shaped_ = false;
  }
  template <int kTile>
  void zero() {
    for (auto& row : tile(kTile).bytes) row.fill(0);
  }
  template <int kTile>
  void load(const void* from, int64_t stride) {
    Tile& to = tile(kTile);
    zero<kTile>();
    for (size_t r = 0; r < to.rows; ++r) {
      std::memcpy(to.bytes[r].data(), static_cast<const char*>(from) + static_cast<int64_t>(r) * stride, to.row_bytes);
    }
  }
  template <int kTile>
  void store(void* to, int64_t stride) {
    const Tile& from = tile(kTile);
    for (size_t r = 0; r < from.rows; ++r) {
      std::memcpy(static_cast<char*>(to) + static_cast<int64_t>(r) * stride, from.bytes[r].data(), from.row_bytes);
    }
  }
  template <int kSum, int kSigned, int kUnsigned>
  void add_products() {
    static_assert(kSum != kSigned && kSum != kUnsigned && kSigned != kUnsigned);
    Tile& sum = tile(kSum);
    const Tile &x = tile(kSigned), &w = tile(kUnsigned);
    require(x.rows == sum.rows && w.row_bytes == sum.row_bytes && x.row_bytes == 4 * w.rows, "shapes that do not fit");
    for (size_t m = 0; m < sum.rows; ++m) {
      for (size_t n = 0; n < sum.row_bytes / 4; ++n) {
        int32_t total;
        std::memcpy(&total, &sum.bytes[m][4 * n], sizeof total);
        for (size_t k = 0; k < w.rows; ++k) {
          for (size_t b = 0; b < 4; ++b) total += static_cast<int8_t>(x.bytes[m][4 * k + b]) * w.bytes[k][4 * n + b];
        }
        std::memcpy(&sum.bytes[m][4 * n], &total, sizeof total);
      }
    }
    ++n_products;
  }

 private:
  struct Tile {
    size_t rows = 0, row_bytes = 0;
    std::array<std::array<uint8_t, 64>, 16> bytes{};
  };

  static void require(bool holds, const char* what) {
    if (!holds) throw std::logic_error(what);
  }
  Tile& tile(size_t t) {
    require(shaped_ && tiles_[t].rows > 0, "a tile that is not shaped");
    return tiles_[t];
  }

  std::array<Tile, 8> tiles_;
  bool shaped_ = false;
};

}  // namespace
}  // namespace quire::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace quire::cpu::HWY_NAMESPACE {
#if HWY_TARGET == HWY_AVX3
void gemm_int8_emulated(const Int8Rows& x, int64_t row, int64_t m, ElementType type, const void* packed, int64_t n,
                        int64_t panel_begin, int64_t panel_end, const float* bias, bool accumulate, float* y,
                        int64_t ldy) {
  gemm_int8_with<true, Tiles<EmulatedUnit>>(x, row, m, type, packed, n, panel_begin, panel_end, bias, accumulate, y,
                                            ldy);
}
// The instructions are compiled, and run only where kernels use them.
[[maybe_unused, gnu::used]] constexpr auto* kByInstructions = &gemm_int8_with<true, Tiles<AmxUnit>>;
#endif
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::cpu {
decltype(&gemm_int8) const emulated_gemm_int8 = HWY_CHOOSE_AVX3(gemm_int8_emulated);

int64_t n_emulated_products() { return n_products; }
}  // namespace quire::cpu
#endif
