// Tile registers: two-dimensional registers of bytes, which one instruction multiplies with each other (AMX). A product
// in 8-bit integers is exact in any order, so rows that go through them get the bits that they get elsewhere.
#pragma once

#include <cstdint>

#include "kernels/cpu/kernels.h"

namespace quire::cpu {

constexpr int kTileRegisterRows = 16;

// What `ldtilecfg` reads.
struct alignas(64) TileShapes {
  static constexpr int kRowBytes = 64;  // of a register at most

  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int n_rows, int n_bytes) {
    rows[tile] = static_cast<uint8_t>(n_rows);
    row_bytes[tile] = static_cast<uint16_t>(n_bytes);
  }
};
static_assert(sizeof(TileShapes) == 64);

// The registers of a set: sums of the panel's columns [0, 16) and [16, 32), and the rows. Both sets share those of the
// weights.
struct TileSet {
  int left, right, rows;
};
constexpr TileSet kTileSets[] = {{0, 1, 4}, {2, 3, 5}};
constexpr int kLeftWeights = 6, kRightWeights = 7;

inline TileShapes tile_shapes(int quads) {
  TileShapes shapes;
  for (const TileSet& set : kTileSets) {
    shapes.set(set.left, kTileRegisterRows, TileShapes::kRowBytes);
    shapes.set(set.right, kTileRegisterRows, TileShapes::kRowBytes);
    shapes.set(set.rows, kTileRegisterRows, 4 * quads);
  }
  shapes.set(kLeftWeights, quads, TileShapes::kRowBytes);
  shapes.set(kRightWeights, quads, TileShapes::kRowBytes);
  return shapes;
}

#if defined(__x86_64__)
// The instructions of AMX. Not the intrinsics, which want compiler options for the whole file.
struct AmxUnit {
  static void shape(const TileShapes& shapes) { __asm__ volatile("ldtilecfg %0" : : "m"(shapes)); }
  static void release() { __asm__ volatile("tilerelease"); }

  template <int kTile>
  static void zero() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  static void load(const void* from, int64_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  static void store(void* to, int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  // sum += signed * unsigned, of bytes.
  template <int kSum, int kSigned, int kUnsigned>
  static void add_products() {
    __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kSigned), "i"(kUnsigned));
  }
};
#endif

// The tile registers of a thread, while this lives, of a Unit as AmxUnit.
template <class Unit>
class Tiles {
 public:
  static constexpr bool kExist = true;

  // For products of so many quads, four bytes each; at most 16.
  explicit Tiles(int quads) { unit_.shape(tile_shapes(quads)); }
  ~Tiles() { unit_.release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  // products = x w^T. x: kTileRegisterRows rows of signed bytes; w: `quads` rows of kPanel quads of unsigned bytes;
  // products: kTileRegisterRows rows of kPanel 32-bit integers. Strides in bytes. kSet: 0 and 1 in turn.
  template <int kSet>
  void multiply(const int8_t* x, int64_t x_stride, const uint8_t* w, int64_t w_stride, int32_t* products,
                int64_t stride) {
    constexpr TileSet kTiles = kTileSets[kSet];
    unit_.template zero<kTiles.left>();
    unit_.template zero<kTiles.right>();
    unit_.template load<kTiles.rows>(x, x_stride);
    unit_.template load<kLeftWeights>(w, w_stride);
    unit_.template load<kRightWeights>(w + TileShapes::kRowBytes, w_stride);
    unit_.template add_products<kTiles.left, kTiles.rows, kLeftWeights>();
    unit_.template add_products<kTiles.right, kTiles.rows, kRightWeights>();
    unit_.template store<kTiles.left>(products, stride);
    unit_.template store<kTiles.right>(products + kTileRegisterRows, stride);
  }

 private:
  Unit unit_;
};

// There are none.
struct NoTiles {
  static constexpr bool kExist = false;
  explicit NoTiles(int /*quads*/) {}
};

// Those of Target::kAvx3Amx.
#if QUIRE_AMX && defined(__x86_64__)
using AmxTiles = Tiles<AmxUnit>;
#else
using AmxTiles = NoTiles;
#endif

}  // namespace quire::cpu
