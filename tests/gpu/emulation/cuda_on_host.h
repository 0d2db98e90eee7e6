// The names of CUDA C++ that kernels use, for an ordinary compiler (block.h says how they run).
//
// What is not here kernels may not use: static shared memory, <<<>>>, cooperative groups, CUB.
#pragma once

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <cuda_runtime_api.h>

#include "lib/support/element.h"
#include "tests/gpu/emulation/block.h"
#include "tests/gpu/emulation/kernel_registry.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

#define threadIdx (::quire::emulation::thread_index())
#define blockIdx (::quire::emulation::block_index())
#define blockDim (::quire::emulation::block_size())
#define gridDim (::quire::emulation::grid_size())

// ---- 16-bit floats: their bits, as lib/support/element.h converts them
struct __nv_bfloat16 {
  uint16_t bits;
};
struct __half {
  uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 v) { return quire::from_bf16(v.bits); }
inline __nv_bfloat16 __float2bfloat16_rn(float v) { return {quire::to_bf16(v)}; }
inline float __half2float(__half v) { return quire::from_f16(v.bits); }
inline __half __float2half_rn(float v) { return {quire::to_f16(v)}; }
inline __half __ushort_as_half(unsigned short bits) { return {bits}; }

// ---- barriers and collectives of a warp
inline void __syncthreads() { quire::emulation::barrier(); }
inline void __syncwarp(unsigned mask = quire::emulation::kAllLanes) {
  quire::emulation::meet(mask, nullptr, 0, "__syncwarp");
}

namespace quire::emulation {

template <typename T>
T shuffle(unsigned mask, T value, int from, const char* name) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kSlotBytes);
  if ((mask >> from & 1) == 0) fail(name, " from a lane that is not in the mask");
  T other;
  std::memcpy(&other, meet(mask, &value, sizeof value, name).bytes[from], sizeof other);
  return other;
}

inline unsigned ballot(unsigned mask, bool vote, const char* name) {
  unsigned own = vote ? 1 : 0;
  const auto count = [](Slots& slots, unsigned lanes) {
    unsigned votes = 0;
    for (int i = 0; i < kWarp; ++i) {
      if ((lanes >> i & 1) != 0 && slots.bytes[i][0] != 0) votes |= 1u << i;
    }
    for (auto& slot : slots.bytes) std::memcpy(slot + sizeof votes, &votes, sizeof votes);
  };
  unsigned votes;
  std::memcpy(&votes, meet(mask, &own, sizeof own, name, count).bytes[lane()] + sizeof own, sizeof votes);
  return votes;
}

}  // namespace quire::emulation

template <typename T>
T __shfl_sync(unsigned mask, T value, int from) {
  return quire::emulation::shuffle(mask, value, from & 31, "__shfl_sync");
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return quire::emulation::shuffle(mask, value, quire::emulation::lane() ^ lanes, "__shfl_xor_sync");
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by) {
  const int own = quire::emulation::lane(), from = own + static_cast<int>(by);
  return quire::emulation::shuffle(mask, value, from < 32 ? from : own, "__shfl_down_sync");
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by) {
  const int own = quire::emulation::lane(), from = own - static_cast<int>(by);
  return quire::emulation::shuffle(mask, value, from >= 0 ? from : own, "__shfl_up_sync");
}
inline int __reduce_add_sync(unsigned mask, int value) {
  for (int by = 16; by > 0; by /= 2) {
    value += quire::emulation::shuffle(mask, value, quire::emulation::lane() ^ by, "__reduce_add_sync");
  }
  return value;
}
inline unsigned __ballot_sync(unsigned mask, bool vote) {
  return quire::emulation::ballot(mask, vote, "__ballot_sync");
}
inline bool __any_sync(unsigned mask, bool vote) { return quire::emulation::ballot(mask, vote, "__any_sync") != 0; }
inline bool __all_sync(unsigned mask, bool vote) { return quire::emulation::ballot(mask, vote, "__all_sync") == mask; }

// ---- arithmetic
template <typename T>
T atomicAdd(T* target, T value) {
  return std::atomic_ref<T>(*target).fetch_add(value);
}
template <typename T>
T atomicOr(T* target, T value) {
  return std::atomic_ref<T>(*target).fetch_or(value);
}
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline int __popc(unsigned v) { return std::popcount(v); }
inline int __ffs(unsigned v) { return v == 0 ? 0 : std::countr_zero(v) + 1; }
inline unsigned __float_as_uint(float v) { return std::bit_cast<unsigned>(v); }
inline float __uint_as_float(unsigned v) { return std::bit_cast<float>(v); }
// Four bytes of x (0 to 3) and y (4 to 7): those that the nibbles of `selector` name.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = x | static_cast<uint64_t>(y) << 32;
  unsigned of = 0;
  for (int i = 0; i < 4; ++i) of |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return of;
}
// sum, plus the products of the signed bytes of a and b.
inline int __dp4a(int a, int b, int sum) {
  for (int i = 0; i < 32; i += 8) sum += static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i);
  return sum;
}
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float v) { return 1.0f / std::sqrt(v); }
inline void sincospif(float v, float* sine, float* cosine) {
  *sine = static_cast<float>(std::sin(v * 3.14159265358979323846));
  *cosine = static_cast<float>(std::cos(v * 3.14159265358979323846));
}
template <typename T>
T __ldg(const T* p) {
  return *p;
}
