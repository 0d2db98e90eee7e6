// What kernels are written with, beside CUDA C++ itself. It and warpgroup.h alone have one body for nvcc and another
// for the emulation, in which kernels run on the CPU for tests (tests/gpu/emulation/).
//
// A kernel uses dynamic shared memory only (QUIRE_SHARED_MEMORY), is launched by launch() or launch_varying(), and has
// no PTX of its own.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define QUIRE_UNROLL _Pragma("unroll")
#define QUIRE_ROLLED _Pragma("unroll 1")
// n: a constant expression.
#define QUIRE_PRAGMA(text) _Pragma(#text)
#define QUIRE_UNROLL_BY(n) QUIRE_PRAGMA(unroll n)
#define QUIRE_SHARED_MEMORY(name) extern __shared__ __align__(1024) unsigned char name[]

#else

#include <cuda_on_host.h>

#define QUIRE_UNROLL
#define QUIRE_ROLLED
#define QUIRE_UNROLL_BY(n)
#define QUIRE_SHARED_MEMORY(name) unsigned char* const name = ::quire::emulation::shared_memory()

#endif

#include "kernels/cuda/graphs.h"

namespace quire::cuda {

using bf16 = __nv_bfloat16;
using f16 = __half;

constexpr int kWarpSize = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;
// Shared memory that a block may have on every device that kernels are made for.
constexpr size_t kLeastSharedMemory = size_t{99} << 10;

// By which the runtime knows a kernel.
template <typename... Parameters>
const void* address_of(void (*kernel)(Parameters...)) {
#if defined(__CUDACC__)
  return reinterpret_cast<const void*>(kernel);
#else
  return emulation::known_kernel(kernel);
#endif
}

// Of the calling thread's device; `otherwise` where it cannot be asked.
inline int device_attribute(cudaDeviceAttr attribute, int otherwise) {
  int device = 0, value = 0;
  const bool known =
      cudaGetDevice(&device) == cudaSuccess && cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess;
  if (!known) cudaGetLastError();  // else it is the error of a later call
  return known ? value : otherwise;
}
inline int n_processors() { return device_attribute(cudaDevAttrMultiProcessorCount, 1); }
// That a block may have.
inline size_t most_shared_memory() {
  return static_cast<size_t>(
      device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, static_cast<int>(kLeastSharedMemory)));
}

// Queues the kernel, which may take up to `most_shared_bytes`. Returns cudaSuccess (0) or what was wrong with the
// launch.
template <typename... Parameters, typename... Arguments>
int launch_within(size_t most_shared_bytes, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                  cudaStream_t stream, Arguments... arguments) {
  constexpr size_t kWithoutAsking = 48 << 10;
  if (most_shared_bytes > kWithoutAsking) {
    const cudaError_t error = cudaFuncSetAttribute(address_of(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   static_cast<int>(most_shared_bytes));
    if (error != cudaSuccess) return error;
  }
  const auto queue = [&](Parameters... parameters) {
    void* places[] = {const_cast<void*>(static_cast<const void*>(&parameters))...};
    return queue_kernel(address_of(kernel), grid, block, places, shared_bytes, stream);
  };
  return queue(arguments...);
}

// A kernel that takes as much shared memory in all of its launches.
template <typename... Parameters, typename... Arguments>
int launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
           Arguments... arguments) {
  return launch_within(shared_bytes, kernel, grid, block, shared_bytes, stream, arguments...);
}

// One whose launches differ in it, up to most_shared_memory(). The limit that is asked for belongs to the kernel on
// this device and is always the same, as another thread may launch it at the same time.
template <typename... Parameters, typename... Arguments>
int launch_varying(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                   Arguments... arguments) {
  return launch_within(most_shared_memory(), kernel, grid, block, shared_bytes, stream, arguments...);
}

#if defined(__CUDACC__)

// D += A B for a tile of 16 x 8, k = 16. Lane (g, t) = (lane / 4, lane % 4) holds pairs of elements:
//   a[0]: A[g][2t..], a[1]: A[g+8][2t..], a[2]: A[g][2t+8..], a[3]: A[g+8][2t+8..];  b0: B[2t..][g], b1: B[2t+8..][g];
//   d[0], d[1]: D[g][2t..], d[2], d[3]: D[g+8][2t..].
__device__ __forceinline__ void multiply_tile(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, bf16) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply_tile(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, f16) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
// Four tiles of 8 x 8 16-bit elements from shared memory. Lane l gives the address of row l % 8 of tile l / 8 (16-byte
// aligned), and gets of tile m the pair of elements (g, 2t..) in r[m]; transposed: (2t.., g).
__device__ __forceinline__ void load_tiles(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void load_tiles_transposed(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// 16 bytes, both aligned so.
__device__ __forceinline__ void load_16(void* to, const void* from) {
  *static_cast<uint4*>(to) = *static_cast<const uint4*>(from);
}
// 4 or 8 bytes, aligned so.
__device__ __forceinline__ unsigned load_4(const void* from) { return *static_cast<const unsigned*>(from); }
__device__ __forceinline__ void store_4(void* to, unsigned v) { *static_cast<unsigned*>(to) = v; }
__device__ __forceinline__ uint2 load_8(const void* from) { return *static_cast<const uint2*>(from); }
__device__ __forceinline__ void store_8(void* to, uint2 v) { *static_cast<uint2*>(to) = v; }

// Begins to copy 16 bytes from global to shared memory, or zeros if `whole` is false. Both are 16-byte aligned.
__device__ __forceinline__ void copy_16_async(void* target, const void* source, bool whole) {
  const int bytes = whole ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(shared_address(target)), "l"(source), "r"(bytes)
               : "memory");
}
// What was begun since the last call is a group.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for the thread's own groups but the last kButTheLast; others see them after a barrier.
template <int kButTheLast>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kButTheLast) : "memory");
}

// 2^x, within 2 units in the last place; 0 of -infinity.
// v, as a number of its own each time: what a loop makes of it is not made before the loop, and kept in registers.
__device__ __forceinline__ int made_anew(int v) {
  asm volatile("" : "+r"(v));
  return v;
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
  return y;
}

// Of x from -pi to pi, within 2^-20.
__device__ __forceinline__ void sine_and_cosine_fast(float x, float* sine, float* cosine) {
  __sincosf(x, sine, cosine);
}

// Two elements in 32 bits, rounded to nearest even.
__device__ __forceinline__ unsigned pack(float low, float high, bf16) {
  unsigned r;
  asm("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ unsigned pack(float low, float high, f16) {
  unsigned r;
  asm("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

#else

inline float widen(uint16_t bits, bf16) { return from_bf16(bits); }
inline float widen(uint16_t bits, f16) { return from_f16(bits); }
inline unsigned pack(float low, float high, bf16) { return to_bf16(low) | static_cast<unsigned>(to_bf16(high)) << 16; }
inline unsigned pack(float low, float high, f16) { return to_f16(low) | static_cast<unsigned>(to_f16(high)) << 16; }

struct TileOperands {
  unsigned a[4], b[2];
  float d[4];
};

template <typename T>
void multiply_tile(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, T type) {
  TileOperands own{{a[0], a[1], a[2], a[3]}, {b0, b1}, {d[0], d[1], d[2], d[3]}};
  const auto multiply = [&](emulation::Slots& slots, unsigned) {
    float left[16][16], right[16][8], sum[16][8];
    const auto low = [&](unsigned v) { return widen(static_cast<uint16_t>(v), type); };
    const auto high = [&](unsigned v) { return widen(static_cast<uint16_t>(v >> 16), type); };
    for (int lane = 0; lane < kWarpSize; ++lane) {
      TileOperands of;
      std::memcpy(&of, slots.bytes[lane], sizeof of);
      const int g = lane / 4, t = 2 * (lane % 4);
      for (int r = 0; r < 4; ++r) {
        const int row = g + 8 * (r % 2), k = t + 8 * (r / 2);
        left[row][k] = low(of.a[r]), left[row][k + 1] = high(of.a[r]);
        sum[g + 8 * (r / 2)][t + r % 2] = of.d[r];
      }
      for (int r = 0; r < 2; ++r) right[t + 8 * r][g] = low(of.b[r]), right[t + 8 * r + 1][g] = high(of.b[r]);
    }
    for (int i = 0; i < 16; ++i) {
      for (int k = 0; k < 16; ++k) {
        for (int j = 0; j < 8; ++j) sum[i][j] += left[i][k] * right[k][j];
      }
    }
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const int g = lane / 4, t = 2 * (lane % 4);
      const float of[4] = {sum[g][t], sum[g][t + 1], sum[g + 8][t], sum[g + 8][t + 1]};
      std::memcpy(slots.bytes[lane] + offsetof(TileOperands, d), of, sizeof of);
    }
  };
  const auto& slots = emulation::meet(kWholeWarp, &own, sizeof own, "multiply_tile", multiply);
  std::memcpy(d, slots.bytes[emulation::lane()] + offsetof(TileOperands, d), sizeof d);
}

inline void load_tiles(unsigned (&r)[4], const void* row, bool transposed) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) emulation::fail("load_tiles of a misaligned row");
  const char* const name = transposed ? "load_tiles_transposed" : "load_tiles";
  const auto& slots = emulation::meet(kWholeWarp, &row, sizeof row, name);
  const int g = emulation::lane() / 4, t = 2 * (emulation::lane() % 4);
  for (int m = 0; m < 4; ++m) {
    const auto element = [&](int i, int j) {
      const unsigned char* of;
      std::memcpy(&of, slots.bytes[8 * m + i], sizeof of);
      uint16_t bits;
      std::memcpy(&bits, of + 2 * j, sizeof bits);
      return static_cast<unsigned>(bits);
    };
    r[m] = transposed ? element(t, g) | element(t + 1, g) << 16 : element(g, t) | element(g, t + 1) << 16;
  }
}
inline void load_tiles(unsigned (&r)[4], const void* row) { load_tiles(r, row, false); }
inline void load_tiles_transposed(unsigned (&r)[4], const void* row) { load_tiles(r, row, true); }

inline void load_16(void* to, const void* from) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % 16 != 0)
    emulation::fail("a misaligned load");
  std::memcpy(to, from, 16);
}
inline unsigned load_4(const void* from) {
  if (reinterpret_cast<uintptr_t>(from) % 4 != 0) emulation::fail("a misaligned load");
  unsigned v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
inline void store_4(void* to, unsigned v) {
  if (reinterpret_cast<uintptr_t>(to) % 4 != 0) emulation::fail("a misaligned store");
  std::memcpy(to, &v, sizeof v);
}
inline uint2 load_8(const void* from) {
  if (reinterpret_cast<uintptr_t>(from) % 8 != 0) emulation::fail("a misaligned load");
  uint2 v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
inline void store_8(void* to, uint2 v) {
  if (reinterpret_cast<uintptr_t>(to) % 8 != 0) emulation::fail("a misaligned store");
  std::memcpy(to, &v, sizeof v);
}
inline void copy_16_async(void* target, const void* source, bool whole) {
  emulation::copy_async(target, source, 16, whole);
}
inline int made_anew(int v) { return v; }
inline void commit_copies() { emulation::commit_copies(); }
template <int kButTheLast>
void wait_for_copies() {
  emulation::wait_for_copies(kButTheLast);
}
inline float exp2_fast(float x) { return std::exp2(x); }
inline void sine_and_cosine_fast(float x, float* sine, float* cosine) {
  *sine = std::sin(x);
  *cosine = std::cos(x);
}

#endif

// ---- the same for both

__device__ __forceinline__ float low_of(unsigned pair, bf16) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_of(unsigned pair, bf16) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ float low_of(unsigned pair, f16) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(pair)));
}
__device__ __forceinline__ float high_of(unsigned pair, f16) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> 16)));
}
__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(bf16 v) { return __bfloat162float(v); }
__device__ __forceinline__ float to_float(f16 v) { return __half2float(v); }
__device__ __forceinline__ void from_float(float v, float& out) { out = v; }
__device__ __forceinline__ void from_float(float v, bf16& out) { out = __float2bfloat16_rn(v); }
__device__ __forceinline__ void from_float(float v, f16& out) { out = __float2half_rn(v); }

__device__ __forceinline__ int warp_of_block() { return static_cast<int>(threadIdx.x) / kWarpSize; }
__device__ __forceinline__ int lane_of_warp() { return static_cast<int>(threadIdx.x) % kWarpSize; }

// The sum over the lanes of a warp, in one order whatever the values: all lanes have it.
__device__ __forceinline__ float warp_sum(float v) {
  QUIRE_UNROLL for (int by = kWarpSize / 2; by > 0; by /= 2) v += __shfl_xor_sync(kWholeWarp, v, by);
  return v;
}

}  // namespace quire::cuda
