// The best chunks of each query and group of heads: a block for each, of one warp where there are not many chunks. The
// n-th best score is found bit by bit, by counting; then those above it are taken, and of those equal to it the first
// ones.
#include "kernels/cuda/selection.h"
#include "kernels/cuda/types.h"

namespace quire::cuda {
namespace {

constexpr int kMostOfWarp = 1024;  // chunks
constexpr int kManyWarps = 8;

// Of the whole block, in all threads. `shared`: [kWarps] of the type. Whole numbers are added.
template <int kWarps, typename T, typename Combine>
__device__ __forceinline__ T over_block(T value, T* shared, const Combine& combine) {
  if constexpr (std::is_same_v<T, int>) {
    value = __reduce_add_sync(kWholeWarp, value);
  } else {
    QUIRE_UNROLL for (int by = kWarpSize / 2; by > 0; by /= 2) {
      value = combine(value, __shfl_xor_sync(kWholeWarp, value, by));
    }
  }
  if constexpr (kWarps == 1) return value;
  if (lane_of_warp() == 0) shared[warp_of_block()] = value;
  __syncthreads();
  value = shared[0];
  for (int w = 1; w < kWarps; ++w) value = combine(value, shared[w]);
  __syncthreads();  // all have read; the next one may write
  return value;
}

struct Add {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Greater {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// How many threads before this one, and in all, say yes.
struct Places {
  int before, all;
};
template <int kWarps>
__device__ __forceinline__ Places places(bool yes, int* shared) {
  const unsigned votes = __ballot_sync(kWholeWarp, yes);
  const int before = __popc(votes & ((1u << lane_of_warp()) - 1));
  if constexpr (kWarps == 1) return {before, __popc(votes)};
  if (lane_of_warp() == 0) shared[warp_of_block()] = __popc(votes);
  __syncthreads();
  Places p{before, 0};
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp_of_block()) p.before += shared[w];
    p.all += shared[w];
  }
  __syncthreads();
  return p;
}

// Bits that are in the order of the numbers, from 0 for -infinity on.
__device__ __forceinline__ unsigned ordered(float v) {
  const unsigned bits = __float_as_uint(v);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

template <int kWarps>
__global__ void __launch_bounds__(kWarps* kWarpSize) choose_chunks_kernel(ChooseChunks args) {
  constexpr int kThreads = kWarps * kWarpSize;
  QUIRE_SHARED_MEMORY(memory);
  float* const floats = reinterpret_cast<float*>(memory);
  int* const counts = reinterpret_cast<int*>(memory);
  const int groups = args.n_query_heads / args.heads, thread = static_cast<int>(threadIdx.x);
  const int64_t row = blockIdx.x / groups, first_head = static_cast<int64_t>(blockIdx.x % groups) * args.heads;
  const int64_t i = *args.first_query + args.first_row + row, own = i / args.chunk;
  float* const scores = args.scores + (row * args.n_query_heads + first_head) * args.n_chunks;
  int32_t* const chosen = args.chosen + (row * args.n_query_heads + first_head) * args.width;
  const auto take = [&](int64_t place, int64_t chunk) {
    for (int h = 0; h < args.heads; ++h) chosen[h * args.width + place] = static_cast<int32_t>(chunk);
  };

  int64_t most = args.count;
  if (args.one_in > 0 && (own + 1) / args.one_in > most) most = (own + 1) / args.one_in;
  const int64_t n = own + 1 < most ? own + 1 : most;
  for (int64_t c = n + thread; c < args.width; c += kThreads) take(c, -1);
  if (n == own + 1) {
    for (int64_t c = thread; c < n; c += kThreads) take(c, c);
    return;
  }
  // The sum of the heads' scores takes the place of the first one's.
  for (int h = 0; h < args.heads; ++h) {
    float* const of_head = scores + h * args.n_chunks;
    float greatest = -INFINITY, sum = 0;
    if (args.softmax) {
      for (int64_t c = thread; c < own; c += kThreads) greatest = fmaxf(greatest, of_head[c]);
      greatest = over_block<kWarps>(greatest, floats, Greater());
      for (int64_t c = thread; c < own; c += kThreads) sum += expf(of_head[c] - greatest);
      sum = over_block<kWarps>(sum, floats, Add());
    }
    for (int64_t c = thread; c < own; c += kThreads) {
      const float score = args.softmax ? expf(of_head[c] - greatest) / sum : of_head[c];
      scores[c] = h == 0 ? score : scores[c] + score;
    }
  }
  const int64_t begin = args.first_free, end = own + 1 - args.n_last;
  const int n_free = static_cast<int>(n - args.n_last - (args.first_forced ? 1 : 0));
  __syncthreads();  // the sums are there for all
  for (int64_t s = thread; s < args.n_sticky; s += kThreads) {
    const int64_t c = args.sticky[s];
    if (c >= begin && c < end) scores[c] = INFINITY;
  }
  __syncthreads();
  int64_t place = args.first_forced ? 1 : 0;
  if (thread == 0 && args.first_forced) take(0, 0);
  for (int64_t b = thread; b < args.n_last; b += kThreads) take(n - 1 - b, own - b);
  // As they are looked at up to 33 times, a thread keeps most of its scores, often all; 0: there is none.
  constexpr int kKept = kWarps == 1 ? kMostOfWarp / kThreads : 16;
  unsigned kept[kKept];
  QUIRE_UNROLL for (int e = 0; e < kKept; ++e) {
    const int64_t c = begin + e * kThreads + thread;
    kept[e] = c < end ? ordered(scores[c]) : 0;
  }
  const auto count = [&](const auto& counts_too) {
    int n = 0;
    QUIRE_UNROLL for (int e = 0; e < kKept; ++e) n += counts_too(kept[e]) ? 1 : 0;
    for (int64_t c = begin + kKept * kThreads + thread; c < end; c += kThreads) {
      n += counts_too(ordered(scores[c])) ? 1 : 0;
    }
    return over_block<kWarps>(n, counts, Add());
  };
  // A number that n_free scores reach: the greatest one, where more reach it than that.
  unsigned limit = 0;
  for (int bit = 31; bit >= 0; --bit) {
    const unsigned tried = limit | 1u << bit;
    const int reached = count([&](unsigned score) { return score >= tried; });
    if (reached >= n_free) limit = tried;
    if (reached == n_free) break;
  }
  // So many equal ones are still to be taken.
  int equal = n_free - count([&](unsigned score) { return score > limit; });
  for (int64_t at = begin; at < end; at += kThreads) {
    const int64_t c = at + thread;
    const unsigned score = c < end ? ordered(scores[c]) : 0;
    const Places of_equal = places<kWarps>(c < end && score == limit, counts);
    const bool is_taken = c < end && (score > limit || (score == limit && of_equal.before < equal));
    const Places of_taken = places<kWarps>(is_taken, counts);
    if (is_taken) take(place + of_taken.before, c);
    place += of_taken.all;
    equal -= of_equal.all < equal ? of_equal.all : equal;
  }
}

}  // namespace

int choose_chunks(Stream stream, const ChooseChunks& args) {
  if (args.n == 0) return 0;
  const auto blocks = static_cast<unsigned>(args.n * (args.n_query_heads / args.heads));
  if (args.n_chunks <= kMostOfWarp) {
    return launch(choose_chunks_kernel<1>, blocks, kWarpSize, sizeof(float), stream, args);
  }
  return launch(choose_chunks_kernel<kManyWarps>, blocks, kManyWarps * kWarpSize, kManyWarps * sizeof(float), stream,
                args);
}

}  // namespace quire::cuda
