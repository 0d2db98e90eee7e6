// Products of a warpgroup, four warps that follow each other: wgmma of Hopper (sm_90a). As device.h for the rest, it
// has one body for nvcc and another for the emulation.
//
// Products are begun, and done when they are waited for. From begin_products() to wait_for_products() nobody touches
// what they add to, nor the registers that they multiply; they read shared memory in between.
#pragma once

#include "kernels/cuda/device.h"

namespace quire::cuda {

// A tile in shared memory as wgmma is told of it ("matrix descriptor"): rows of 128 bytes, groups of 8 rows one behind
// the other, and in each row the 16-byte runs exchanged by the row's number ("128-byte swizzle").
constexpr int kRowOfTile = 128, kRowsOfGroup = 8;
__device__ __forceinline__ uint64_t tile_at(uint32_t address, uint32_t leading, uint32_t stride) {
  constexpr uint64_t kSwizzled = uint64_t{1} << 62;
  const auto in_units = [](uint32_t bytes) { return static_cast<uint64_t>((bytes & 0x3ffffu) >> 4); };
  return in_units(address) | in_units(leading) << 16 | in_units(stride) << 32 | kSwizzled;
}

#if defined(__CUDACC__)

// In device code: whether this architecture has wgmma.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool kHasWarpgroups = true;
#else
constexpr bool kHasWarpgroups = false;
#endif

// What the thread wrote to shared memory is seen by products behind the next barrier.
__device__ __forceinline__ void show_to_products() {
  if constexpr (kHasWarpgroups) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The compiler moves no use of the registers over this.
template <int kN>
__device__ __forceinline__ void hold(float (&d)[kN][4]) {
  QUIRE_UNROLL for (int n = 0; n < kN; ++n) {
    QUIRE_UNROLL for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(d[n][e])::"memory");
  }
}

// Before products that add to d.
template <int kN>
__device__ __forceinline__ void begin_products(float (&d)[kN][4]) {
  hold(d);
  if constexpr (kHasWarpgroups) asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Products that were begun since the last call are a group.
__device__ __forceinline__ void commit_products() {
  if constexpr (kHasWarpgroups) asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits for the groups but the last kButTheLast; d: what those that are done add to.
template <int kButTheLast, int kN>
__device__ __forceinline__ void wait_for_products(float (&d)[kN][4]) {
  if constexpr (kHasWarpgroups) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kButTheLast) : "memory");
  hold(d);
}

#define QUIRE_SUMS_OF_4(d, n)                                                                                          \
  "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3]), "+f"(d[n + 1][0]), "+f"(d[n + 1][1]), "+f"(d[n + 1][2]), \
      "+f"(d[n + 1][3]), "+f"(d[n + 2][0]), "+f"(d[n + 2][1]), "+f"(d[n + 2][2]), "+f"(d[n + 2][3]),                   \
      "+f"(d[n + 3][0]), "+f"(d[n + 3][1]), "+f"(d[n + 3][2]), "+f"(d[n + 3][3])
#define QUIRE_NAMES_OF_32                                                                          \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25," \
  "%26,%27,%28,%29,%30,%31"
#define QUIRE_NAMES_OF_64                                                                             \
  QUIRE_NAMES_OF_32                                                                                   \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55," \
  "%56,%57,%58,%59,%60,%61,%62,%63"
#define QUIRE_WGMMA_64(type, transposed)                                                                           \
  asm volatile("{.reg .pred adds;setp.ne.b32 adds,%37,0;wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type \
               " {" QUIRE_NAMES_OF_32 "},{%32,%33,%34,%35},%36,adds,1,1," transposed ";}"                          \
               : QUIRE_SUMS_OF_4(d, 0), QUIRE_SUMS_OF_4(d, 4)                                                      \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tile), "r"(static_cast<int>(adds)))
#define QUIRE_WGMMA_128(type, transposed)                                                                           \
  asm volatile("{.reg .pred adds;setp.ne.b32 adds,%69,0;wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type \
               " {" QUIRE_NAMES_OF_64 "},{%64,%65,%66,%67},%68,adds,1,1," transposed ";}"                           \
               : QUIRE_SUMS_OF_4(d, 0), QUIRE_SUMS_OF_4(d, 4), QUIRE_SUMS_OF_4(d, 8), QUIRE_SUMS_OF_4(d, 12)        \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tile), "r"(static_cast<int>(adds)))

__device__ __forceinline__ uint32_t place_in_shared(const void* p) { return shared_address(p); }

// D += A B, or D = A B unless `adds`, of 64 x 8 kN, k = 16: each warp has 16 rows of A and D, and its lanes have of
// them what they have in multiply_tile(), of D for each 8 columns. B is in shared memory: by columns (tile_of_keys), or
// transposed by rows (tile_of_values).
template <bool kTransposed, int kN, typename T>
__device__ __forceinline__ void multiply_rows_together(float (&d)[kN][4], const unsigned (&a)[4], uint64_t tile,
                                                       bool adds, T) {
  static_assert(kN == 8 || kN == 16);
  if constexpr (!kHasWarpgroups) {
    __trap();
  } else if constexpr (kN == 8 && std::is_same_v<T, bf16>) {
    if constexpr (kTransposed) {
      QUIRE_WGMMA_64("bf16", "1");
    } else {
      QUIRE_WGMMA_64("bf16", "0");
    }
  } else if constexpr (kN == 8) {
    if constexpr (kTransposed) {
      QUIRE_WGMMA_64("f16", "1");
    } else {
      QUIRE_WGMMA_64("f16", "0");
    }
  } else if constexpr (std::is_same_v<T, bf16>) {
    static_assert(kTransposed);
    QUIRE_WGMMA_128("bf16", "1");
  } else {
    static_assert(kTransposed);
    QUIRE_WGMMA_128("f16", "1");
  }
}

#undef QUIRE_WGMMA_128
#undef QUIRE_WGMMA_64
#undef QUIRE_NAMES_OF_64
#undef QUIRE_NAMES_OF_32
#undef QUIRE_SUMS_OF_4

#else

constexpr bool kHasWarpgroups = true;

inline void show_to_products() { emulation::show_to_products(); }
template <int kN>
void begin_products(float (&)[kN][4]) {
  emulation::begin_products();
}
inline void commit_products() { emulation::commit_products(); }
template <int kButTheLast, int kN>
void wait_for_products(float (&)[kN][4]) {
  emulation::wait_for_products(kButTheLast);
}

inline uint32_t place_in_shared(const void* p) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(p) - emulation::shared_memory());
}

// A tile as its descriptor tells of it.
template <bool kTransposed, typename T>
struct SharedTile {
  explicit SharedTile(uint64_t tile) {
    const auto bytes = [&](int bit) { return static_cast<uint32_t>(tile >> bit & 0x3fff) << 4; };
    address = bytes(0), leading = bytes(16), stride = bytes(32);
  }

  // Channels of a row, of rows in groups of 8; transposed, the rows are those of k.
  float element(int k, int column) const {
    const auto row = static_cast<uint32_t>(kTransposed ? k : column),
               along = static_cast<uint32_t>(kTransposed ? column : k);
    uint32_t at = address + row / kRowsOfGroup * stride + row % kRowsOfGroup * kRowOfTile;
    at += kTransposed ? along / 64 * leading + along % 64 * 2 : along * 2;
    at ^= (at >> 7 & 7) << 4;
    uint16_t bits;
    std::memcpy(&bits, shared + at, sizeof bits);
    return widen(bits, T());
  }

  const unsigned char* shared = emulation::shared_memory();
  uint32_t address, leading, stride;
};

template <bool kTransposed, int kN, typename T>
void multiply_rows_together(float (&d)[kN][4], const unsigned (&a)[4], uint64_t tile, bool adds, T type) {
  struct Rows {  // of A: g and g + 8
    float of[2][16];
  } rows;
  const auto& slots = emulation::meet(kWholeWarp, a, sizeof a, "multiply_rows_together");
  const int g = emulation::lane() / 4, t = 2 * (emulation::lane() % 4);
  for (int k = 0; k < 16; ++k) {
    unsigned of[4];
    std::memcpy(of, slots.bytes[4 * g + k % 8 / 2], sizeof of);
    for (int side = 0; side < 2; ++side) {
      rows.of[side][k] = widen(static_cast<uint16_t>(of[side + k / 8 * 2] >> (k % 2 * 16)), type);
    }
  }
  emulation::begin_product(&d[0][0], 4 * kN, [=](float* sums) {
    const SharedTile<kTransposed, T> right(tile);
    for (int n = 0; n < 2 * kN; ++n) {
      const int column = n / 2 * 8 + t + n % 2;
      float of_column[16];
      for (int k = 0; k < 16; ++k) of_column[k] = right.element(k, column);
      for (int side = 0; side < 2; ++side) {
        float& total = sums[n / 2 * 4 + side * 2 + n % 2];
        float sum = adds ? total : 0.0f;
        for (int k = 0; k < 16; ++k) sum += rows.of[side][k] * of_column[k];
        total = sum;
      }
    }
  });
}

#endif

// Columns are rows of keys, and k goes along them: from 64 channels' beginning or a multiple of 16 of them on.
__device__ __forceinline__ uint64_t tile_of_keys(const void* first) {
  return tile_at(place_in_shared(first), 16, kRowsOfGroup * kRowOfTile);
}
// Columns go along rows of values, 64 in a row, the next 64 in rows that follow all kRows of them; k: 16 rows from
// `first` on.
template <int kRows>
__device__ __forceinline__ uint64_t tile_of_values(const void* first) {
  return tile_at(place_in_shared(first), kRows * kRowOfTile, kRowsOfGroup * kRowOfTile);
}

}  // namespace quire::cuda
