// Narrow records of old text out of full ones, with the numbers of the CPU backend (kernels/cpu/kernels.h), bit for
// bit. A block per chunk (x) and KV head (y).
#include <limits>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/narrow_record.h"
#include "kernels/cuda/types.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;

// A head of a chunk: where its full keys lie, with the values behind them, and where its narrow ones go.
template <typename T>
struct Head {
  __device__ explicit Head(const NarrowKv& args)
      : parts(narrow_head(args.shape, args.type)),
        l(args.shape.chunk),
        d(args.shape.head_dim),
        keys(static_cast<const T*>(args.records[args.first_chunk + blockIdx.x]) + int64_t{2} * blockIdx.y * l * d),
        values(keys + l * d),
        out(static_cast<uint8_t*>(args.out[args.first_chunk + blockIdx.x]) + blockIdx.y * parts.bytes) {}

  const NarrowHead parts;
  const int64_t l;
  const int d;
  const T* const keys;
  const T* const values;
  uint8_t* const out;
};

// ---- int8

// What numbers that share a scale have in common.
struct Magnitude {
  float most;
  int all_numbers;

  __device__ __forceinline__ void add(float x) {
    const float magnitude = fabsf(x);
    most = magnitude > most ? magnitude : most;
    all_numbers = all_numbers != 0 && x == x ? 1 : 0;
  }
  __device__ __forceinline__ void add(const Magnitude& other) {
    most = other.most > most ? other.most : most;
    all_numbers = all_numbers != 0 && other.all_numbers != 0 ? 1 : 0;
  }
  __device__ __forceinline__ float scale() const {
    return all_numbers != 0 ? most / 127.0f : std::numeric_limits<float>::quiet_NaN();
  }
  __device__ __forceinline__ float inverse() const { return most > 0 ? 127.0f / most : 0.0f; }
};

// To nearest even, within [-127, 127]; of what is no number 127.
__device__ __forceinline__ int8_t to_int8(float x) {
  x = x < 127.0f ? x : 127.0f;
  x = x > -127.0f ? x : -127.0f;
  return static_cast<int8_t>(static_cast<int>(rintf(x)));
}

// Lanes have up to kChannels channels, warps tokens. A channel of keys is looked through by all warps before any of it
// is written.
template <typename T, int kChannels>
__global__ void __launch_bounds__(kThreads) narrow_int8_kernel(NarrowKv args) {
  QUIRE_SHARED_MEMORY(memory);
  Magnitude* const partial = reinterpret_cast<Magnitude*>(memory);  // [kWarps][d]
  const Head<T> head(args);
  const int d = head.d, lane = lane_of_warp(), warp = warp_of_block();
  Magnitude own[kChannels];
  QUIRE_UNROLL for (int c = 0; c < kChannels; ++c) own[c] = {0, 1};
  for (int64_t j = warp; j < head.l; j += kWarps) {
    QUIRE_UNROLL for (int c = 0; c < kChannels; ++c) {
      const int channel = lane + c * kWarpSize;
      if (channel < d) own[c].add(to_float(head.keys[j * d + channel]));
    }
  }
  QUIRE_UNROLL for (int c = 0; c < kChannels; ++c) {
    const int channel = lane + c * kWarpSize;
    if (channel < d) partial[warp * d + channel] = own[c];
  }
  __syncthreads();
  float inverse[kChannels] = {};
  QUIRE_UNROLL for (int c = 0; c < kChannels; ++c) {
    const int channel = lane + c * kWarpSize;
    if (channel >= d) continue;
    for (int w = 0; w < kWarps; ++w) own[c].add(partial[w * d + channel]);
    inverse[c] = own[c].inverse();
    if (warp == 0) reinterpret_cast<float*>(head.out + head.parts.key_scales)[channel] = own[c].scale();
  }
  int8_t* const keys = reinterpret_cast<int8_t*>(head.out + head.parts.keys);
  int8_t* const values = reinterpret_cast<int8_t*>(head.out + head.parts.values);
  for (int64_t j = warp; j < head.l; j += kWarps) {
    Magnitude token{0, 1};
    float value[kChannels] = {};
    QUIRE_UNROLL for (int c = 0; c < kChannels; ++c) {
      const int channel = lane + c * kWarpSize;
      if (channel >= d) continue;
      keys[j * d + channel] = to_int8(to_float(head.keys[j * d + channel]) * inverse[c]);
      value[c] = to_float(head.values[j * d + channel]);
      token.add(value[c]);
    }
    QUIRE_UNROLL for (int by = kWarpSize / 2; by > 0; by /= 2) {
      token.add(
          Magnitude{__shfl_xor_sync(kWholeWarp, token.most, by), __shfl_xor_sync(kWholeWarp, token.all_numbers, by)});
    }
    if (lane == 0) reinterpret_cast<float*>(head.out + head.parts.value_scales)[j] = token.scale();
    QUIRE_UNROLL for (int c = 0; c < kChannels; ++c) {
      const int channel = lane + c * kWarpSize;
      if (channel < d) values[j * d + channel] = to_int8(value[c] * token.inverse());
    }
  }
}

// ---- int4

// Makes a group of `count` numbers; what is missing to a whole one has the code 0.
template <typename Number>
__device__ __forceinline__ void store_group(int count, const Number& number, uint8_t* out, const Int4Place& at) {
  constexpr int kGroup = static_cast<int>(kInt4Group), kHalf = static_cast<int>(kInt4CodeBytes);
  float x[kGroup];
  QUIRE_UNROLL for (int k = 0; k < kGroup; ++k) x[k] = k < count ? number(k) : 0.0f;
  float low = x[0], high = x[0];
  bool all_finite = true;
  QUIRE_UNROLL for (int k = 0; k < kGroup; ++k) {
    if (k >= count) continue;
    low = x[k] < low ? x[k] : low;
    high = x[k] > high ? x[k] : high;
    all_finite = all_finite && fabsf(x[k]) <= std::numeric_limits<float>::max();
  }
  const Int4Scale group = Int4Scale::of(low, high, all_finite);
  unsigned codes[kHalf / 4] = {};
  QUIRE_UNROLL for (int k = 0; k < kGroup; ++k) {
    if (k < count) codes[k % kHalf / 4] |= static_cast<unsigned>(group.code(x[k])) << (k % 4 * 8 + k / kHalf * 4);
  }
  store_8(out + at.code, uint2{codes[0], codes[1]});
  store_8(out + at.code + 8, uint2{codes[2], codes[3]});
  *reinterpret_cast<uint16_t*>(out + at.scale) = group.scale;
  *reinterpret_cast<uint16_t*>(out + at.minimum) = group.minimum;
}

__device__ __forceinline__ int at_most_a_group(int64_t n) { return static_cast<int>(n < kInt4Group ? n : kInt4Group); }

// A thread makes a group at a time: of keys the next thread has the next channel, of values the next group of a token.
template <typename T>
__global__ void __launch_bounds__(kThreads) narrow_int4_kernel(NarrowKv args) {
  const Head<T> head(args);
  const int d = head.d, groups = static_cast<int>(ceil_div(d, kInt4Group));
  for (int64_t i = threadIdx.x; i < ceil_div(head.l, kInt4Group) * d; i += kThreads) {
    const int64_t first = i / d * kInt4Group, channel = i % d;
    const T* const keys = head.keys + first * d + channel;
    store_group(
        at_most_a_group(head.l - first), [&](int k) { return to_float(keys[int64_t{k} * d]); },
        head.out + head.parts.keys, int4_key_place(first, channel, d));
  }
  for (int64_t i = threadIdx.x; i < head.l * groups; i += kThreads) {
    const int64_t token = i / groups, first = i % groups * kInt4Group;
    const T* const values = head.values + token * d + first;
    store_group(
        at_most_a_group(d - first), [&](int k) { return to_float(values[k]); }, head.out + head.parts.values,
        int4_value_place(token, first, d));
  }
}

}  // namespace

int narrow_kv(Stream stream, const NarrowKv& args) {
  if (args.n_chunks == 0) return 0;
  const bool known = args.type == ElementType::kInt8 || args.type == ElementType::kInt4;
  if (!can_attend(args.shape) || args.shape.chunk % kInt4Tokens != 0 || !known) return kUnknownType;
  const dim3 grid(static_cast<unsigned>(args.n_chunks), static_cast<unsigned>(args.shape.n_kv_heads));
  return with_type(args.shape.type, [&](auto kv) {
    using T = decltype(kv);
    if (args.type == ElementType::kInt4) return launch(narrow_int4_kernel<T>, grid, kThreads, 0, stream, args);
    const auto to_int8 = [&](auto kernel) {
      const size_t partial = static_cast<size_t>(kWarps * args.shape.head_dim) * sizeof(Magnitude);
      return launch(kernel, grid, kThreads, partial, stream, args);
    };
    return is_large_head(args.shape.head_dim) ? to_int8(narrow_int8_kernel<T, kMostHeadDim / kWarpSize>)
                                              : to_int8(narrow_int8_kernel<T, 128 / kWarpSize>);
  });
}

}  // namespace quire::cuda
