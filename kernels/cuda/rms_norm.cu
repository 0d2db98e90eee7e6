// RMS normalisation of rows: a block per row. Few long rows have larger blocks, so that all of a row is on its way at
// once, with its weights. What a thread cannot keep is read twice; the second time it comes from the cache.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/types.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kThreadsOfFew = 1024;
constexpr int64_t kFew = 64;                      // rows
constexpr int kElements = 4, kElementsOfFew = 8;  // that a thread keeps

template <bool kAdd, typename Out>
__device__ __forceinline__ void put(float value, Out& to) {
  if constexpr (kAdd) value += to_float(to);
  from_float(value, to);
}

// The first elements j of a thread, every kThreads-th one, and their weights. Weights come from far away, as all others
// of the model have been read since; so they are asked for together, before anything is waited for.
template <int kHeld, int kThreads>
struct Held {
  float values[kHeld], weights[kHeld];

  template <typename In>
  __device__ __forceinline__ Held(const In* row, const float* weight, int first, int64_t width) {
    QUIRE_UNROLL for (int e = 0; e < kHeld; ++e) {
      const int j = first + e * kThreads;
      values[e] = j < width ? to_float(row[j]) : 0.0f;
      weights[e] = j < width ? weight[j] : 0.0f;
    }
  }
  __device__ __forceinline__ float sum_of_squares() const {
    float sum = 0;
    QUIRE_UNROLL for (int e = 0; e < kHeld; ++e) sum += values[e] * values[e];
    return sum;
  }
  template <bool kAdd, typename Out>
  __device__ __forceinline__ void write(float factor, int first, int64_t width, Out* to) const {
    QUIRE_UNROLL for (int e = 0; e < kHeld; ++e) {
      const int j = first + e * kThreads;
      if (j < width) put<kAdd>(values[e] * factor * weights[e], to[j]);
    }
  }
};

template <int kThreads, bool kAdd, typename In, typename Out>
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(const In* x, int64_t x_stride, const float* weight,
                                                            float eps, int64_t width, Out* out, int64_t out_stride) {
  QUIRE_SHARED_MEMORY(shared);
  float* const sums = reinterpret_cast<float*>(shared);  // of the warps
  const In* const row = x + blockIdx.x * x_stride;
  Out* const to = out + blockIdx.x * out_stride;
  const int thread = static_cast<int>(threadIdx.x);
  constexpr int kOwnHeld = kThreads == kThreadsOfFew ? kElementsOfFew : kElements;
  constexpr int64_t kOthers = int64_t{kOwnHeld} * kThreads;
  const Held<kOwnHeld, kThreads> held(row, weight, thread, width);
  float sum = held.sum_of_squares();
  QUIRE_UNROLL_BY(4) for (int64_t j = kOthers + thread; j < width; j += kThreads) {
    const float v = to_float(row[j]);
    sum += v * v;
  }
  sum = warp_sum(sum);
  if (lane_of_warp() == 0) sums[warp_of_block()] = sum;
  __syncthreads();
  sum = 0;
  for (int w = 0; w < kThreads / kWarpSize; ++w) sum += sums[w];
  const float factor = rsqrtf(sum / static_cast<float>(width) + eps);
  // Element j is read and written by one thread, so out may be x.
  held.template write<kAdd>(factor, thread, width, to);
  QUIRE_UNROLL_BY(4) for (int64_t j = kOthers + thread; j < width; j += kThreads) {
    put<kAdd>(to_float(row[j]) * factor * weight[j], to[j]);
  }
}

// A warp per head.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    head_norm_kernel(T* x, int64_t stride, const float* weight, float eps, int64_t n_heads, int heads, int head_dim) {
  const int64_t head = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarpSize) + warp_of_block();
  if (head >= n_heads) return;  // a whole warp
  T* const at = x + head / heads * stride + head % heads * head_dim;
  constexpr int kOthers = kElements * kWarpSize;
  const int lane = lane_of_warp();
  const Held<kElements, kWarpSize> held(at, weight, lane, head_dim);
  float sum = held.sum_of_squares();
  for (int j = kOthers + lane; j < head_dim; j += kWarpSize) {
    const float v = to_float(at[j]);
    sum += v * v;
  }
  const float factor = rsqrtf(warp_sum(sum) / static_cast<float>(head_dim) + eps);
  held.template write<false>(factor, lane, head_dim, at);
  for (int j = kOthers + lane; j < head_dim; j += kWarpSize) from_float(to_float(at[j]) * factor * weight[j], at[j]);
}

}  // namespace

int rms_norm(Stream stream, DeviceRows x, const float* weight, float eps, int64_t n, int64_t width, bool add,
             DeviceRows out) {
  if (n == 0) return 0;
  return with_type(x.type, [&](auto in) {
    return with_type(out.type, [&](auto to) {
      using In = decltype(in);
      using Out = decltype(to);
      const auto with_threads = [&](auto threads) {
        constexpr int kOwn = decltype(threads)::value;
        auto* const kernel = add ? &rms_norm_kernel<kOwn, true, In, Out> : &rms_norm_kernel<kOwn, false, In, Out>;
        return launch(kernel, static_cast<unsigned>(n), kOwn, kOwn / kWarpSize * sizeof(float), stream,
                      static_cast<const In*>(x.data), x.stride, weight, eps, width, static_cast<Out*>(out.data),
                      out.stride);
      };
      return n <= kFew && width > kElements * kThreads ? with_threads(std::integral_constant<int, kThreadsOfFew>())
                                                       : with_threads(std::integral_constant<int, kThreads>());
    });
  });
}

int head_norm(Stream stream, DeviceRows x, const float* weight, float eps, int64_t n, int64_t heads, int64_t head_dim) {
  if (n == 0) return 0;
  constexpr int kHeads = kThreads / kWarpSize;
  return with_type(x.type, [&](auto in) {
    return launch(head_norm_kernel<decltype(in)>, static_cast<unsigned>((n * heads + kHeads - 1) / kHeads), kThreads, 0,
                  stream, static_cast<decltype(in)*>(x.data), x.stride, weight, eps, n * heads, static_cast<int>(heads),
                  static_cast<int>(head_dim));
  });
}

}  // namespace quire::cuda
