// The greatest logits of rows, and the sums that make probabilities of them. A block finds the k greatest of a slice of
// a row, and a block for each row those among the slices'; a row of one slice needs the first block alone.
//
// Logits are compared as keys: whole numbers, no two of which are equal. The upper half is in the order of the logits,
// and the lower half puts lower indexes above. A block keeps its keys in registers, and finds the k-th greatest of them
// bit by bit, by counting.
#include "kernels/cuda/rank_logits.h"

#include "kernels/cuda/types.h"

namespace quire::cuda {
namespace {

using Key = uint64_t;  // 0: none

constexpr int kKeys = 16;  // of a thread
constexpr int kSliceThreads = static_cast<int>(kRankedSlice) / kKeys;
constexpr int kMergeThreads = static_cast<int>(kMostRankedWidth / kRankedSlice) * kMostRanked / kKeys;
constexpr int kMostWarps = kMergeThreads / kWarpSize;
static_assert(kMergeThreads <= 1024 && kSliceThreads <= kMergeThreads && kMostWarps <= kWarpSize);

// What is known of a slice, beside its keys.
struct SliceSum {
  double sum;  // of exp(logit - greatest)
  float greatest;
  int32_t finite;
};

static_assert(rank_logits_bytes(1, 2 * kRankedSlice, 3) == 2 * (3 * sizeof(Key) + sizeof(SliceSum)));

struct Slices {
  int64_t n = 1;             // of a row
  Key* keys = nullptr;       // [row][slice][k], in no order; 0 where a slice has less than k
  SliceSum* sums = nullptr;  // [row][slice]
};

// Shared memory of a block.
struct Shared {
  double sums[kMostWarps];
  float greatest[kMostWarps];
  int counts[2][kMostWarps];
  int n_chosen;
  Key chosen[kMostRanked];
};

__device__ __forceinline__ Key key_of(float logit, int64_t index) {
  const unsigned bits = __float_as_uint(logit == 0 ? 0.0f : logit);  // both zeros are equal
  const unsigned ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<Key>(ordered) << 32 | ~static_cast<unsigned>(index);
}
__device__ __forceinline__ int32_t index_of(Key key) { return static_cast<int32_t>(~static_cast<unsigned>(key)); }
__device__ __forceinline__ float logit_of(Key key) {
  const auto ordered = static_cast<unsigned>(key >> 32);
  return __uint_as_float((ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered);
}

__device__ __forceinline__ int n_warps() { return static_cast<int>(blockDim.x) / kWarpSize; }

// Over the block, in all threads. A barrier is between each call and what next writes the same memory.
__device__ __forceinline__ float block_max(float v, Shared& shared) {
  QUIRE_UNROLL for (int by = kWarpSize / 2; by > 0; by /= 2) v = fmaxf(v, __shfl_xor_sync(kWholeWarp, v, by));
  if (lane_of_warp() == 0) shared.greatest[warp_of_block()] = v;
  __syncthreads();
  for (int w = 0; w < n_warps(); ++w) v = fmaxf(v, shared.greatest[w]);
  return v;
}
// In one order, whatever the values.
__device__ __forceinline__ double block_sum(double v, Shared& shared) {
  QUIRE_UNROLL for (int by = kWarpSize / 2; by > 0; by /= 2) v += __shfl_xor_sync(kWholeWarp, v, by);
  if (lane_of_warp() == 0) shared.sums[warp_of_block()] = v;
  __syncthreads();
  v = 0;
  for (int w = 0; w < n_warps(); ++w) v += shared.sums[w];
  return v;
}
// The sum over the block, in all threads. Calls take turns with the two halves of shared.counts, so that a thread may
// write for the next call while another one still reads.
__device__ __forceinline__ int block_count(int n, int turn, Shared& shared) {
  n = __reduce_add_sync(kWholeWarp, n);
  if (lane_of_warp() == 0) shared.counts[turn][warp_of_block()] = n;
  __syncthreads();
  return __reduce_add_sync(kWholeWarp, lane_of_warp() < n_warps() ? shared.counts[turn][lane_of_warp()] : 0);
}

// A key that k keys of the block reach, or all if there are fewer. Most often the upper halves decide.
__device__ __forceinline__ Key limit_of(const Key (&keys)[kKeys], int k, Shared& shared) {
  int turn = 0;
  const auto count = [&](const auto& reaches) {
    int n = 0;
    QUIRE_UNROLL for (int e = 0; e < kKeys; ++e) n += reaches(keys[e]) ? 1 : 0;
    turn = 1 - turn;
    return block_count(n, turn, shared);
  };
  if (count([](Key key) { return key != 0; }) <= k) return 1;
  unsigned upper = 0;
  for (int bit = 31; bit >= 0; --bit) {
    const unsigned tried = upper | 1u << bit;
    const int reached = count([&](Key key) { return static_cast<unsigned>(key >> 32) >= tried; });
    if (reached >= k) upper = tried;
    if (reached == k) return static_cast<Key>(upper) << 32;
  }
  Key limit = static_cast<Key>(upper) << 32;
  for (int bit = 31; bit >= 0; --bit) {
    const Key tried = limit | static_cast<Key>(1) << bit;
    const int reached = count([&](Key key) { return key >= tried; });
    if (reached >= k) limit = tried;
    if (reached == k) break;
  }
  return limit;
}

// The k greatest keys of the block to shared.chosen, in no order, for all threads to read.
__device__ __forceinline__ void choose(const Key (&keys)[kKeys], int k, Shared& shared) {
  if (threadIdx.x == 0) shared.n_chosen = 0;
  const Key limit = limit_of(keys, k, shared);  // there are barriers in it
  QUIRE_UNROLL for (int e = 0; e < kKeys; ++e) {
    if (keys[e] >= limit) shared.chosen[atomicAdd(&shared.n_chosen, 1)] = keys[e];
  }
  __syncthreads();
}

// What was chosen is the row's: each finds its rank by counting those above it.
__device__ __forceinline__ void write_row(const RankLogits& args, int64_t row, double sum, bool finite,
                                          const Shared& shared) {
  const int n = shared.n_chosen;
  for (int i = static_cast<int>(threadIdx.x); i < args.k; i += static_cast<int>(blockDim.x)) {
    const Key key = i < n ? shared.chosen[i] : 0;
    int rank = i;
    if (i < n) {
      rank = 0;
      for (int other = 0; other < n; ++other) rank += shared.chosen[other] > key ? 1 : 0;
    }
    args.tokens[row * args.k + rank] = i < n ? index_of(key) : -1;
    args.values[row * args.k + rank] = i < n ? logit_of(key) : -INFINITY;
  }
  if (threadIdx.x == 0) {
    args.sums[row] = sum;
    args.finite[row] = finite ? 1 : 0;
  }
}

// exp(logit - greatest). What rounding takes off the difference, which may be of one sign in a whole row, is given
// back.
__device__ __forceinline__ double weight_of(float logit, float greatest) {
  constexpr float kLeast = -104;  // of which exp is 0 in f32
  const float difference = logit - greatest;
  if (!(difference > kLeast)) return 0;
  const float subtracted = logit - difference;
  const float lost = (logit - (difference + subtracted)) - (greatest - subtracted);
  const float weight = expf(difference);
  return static_cast<double>(weight) + static_cast<double>(weight * lost);
}

__global__ void __launch_bounds__(kSliceThreads) rank_slices_kernel(RankLogits args, Slices slices) {
  QUIRE_SHARED_MEMORY(memory);
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const int64_t row = blockIdx.x / slices.n, slice = blockIdx.x % slices.n;
  const float* const logits = args.logits + row * args.stride;
  const int64_t first = slice * kRankedSlice;
  const int64_t end = first + kRankedSlice < args.width ? first + kRankedSlice : args.width;
  Key keys[kKeys];
  float greatest = -INFINITY;
  bool finite = true;
  QUIRE_UNROLL for (int e = 0; e < kKeys; ++e) {
    const int64_t i = first + static_cast<int64_t>(e) * blockDim.x + threadIdx.x;
    const float logit = i < end ? logits[i] : -INFINITY;
    keys[e] = i < end ? key_of(logit, i) : 0;
    finite = finite && (i >= end || fabsf(logit) < INFINITY);
    greatest = fmaxf(greatest, logit);
  }
  greatest = block_max(greatest, shared);
  double sum = 0;
  QUIRE_UNROLL for (int e = 0; e < kKeys; ++e) {
    if (keys[e] != 0) sum += weight_of(logit_of(keys[e]), greatest);
  }
  // A lane that met something else makes the sum of all NaN, and the row no finite one.
  sum = block_sum(finite ? sum : NAN, shared);
  choose(keys, args.k, shared);
  if (slices.n == 1) {
    write_row(args, row, sum, sum == sum, shared);
    return;
  }
  const int64_t own = row * slices.n + slice;
  for (int i = static_cast<int>(threadIdx.x); i < args.k; i += static_cast<int>(blockDim.x)) {
    slices.keys[own * args.k + i] = i < shared.n_chosen ? shared.chosen[i] : 0;
  }
  if (threadIdx.x == 0) slices.sums[own] = {sum, greatest, sum == sum ? 1 : 0};
}

__global__ void __launch_bounds__(kMergeThreads) merge_slices_kernel(RankLogits args, Slices slices) {
  QUIRE_SHARED_MEMORY(memory);
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const int64_t row = blockIdx.x;
  const Key* const from = slices.keys + row * slices.n * args.k;
  const SliceSum* const sums = slices.sums + row * slices.n;
  const int thread = static_cast<int>(threadIdx.x), n_threads = static_cast<int>(blockDim.x);
  const int n_keys = static_cast<int>(slices.n) * args.k;
  Key keys[kKeys];
  QUIRE_UNROLL for (int e = 0; e < kKeys; ++e) {
    const int i = e * n_threads + thread;
    keys[e] = i < n_keys ? from[i] : 0;
  }
  float greatest = -INFINITY;
  for (int s = thread; s < slices.n; s += n_threads) greatest = fmaxf(greatest, sums[s].greatest);
  greatest = block_max(greatest, shared);
  double sum = 0;
  for (int s = thread; s < slices.n; s += n_threads) {
    const double weight = exp(static_cast<double>(sums[s].greatest) - static_cast<double>(greatest));
    sum += sums[s].finite != 0 ? sums[s].sum * weight : NAN;
  }
  sum = block_sum(sum, shared);
  choose(keys, args.k, shared);
  write_row(args, row, sum, sum == sum, shared);
}

// Whole warps that keep n keys.
unsigned threads_for(int64_t n) {
  constexpr int64_t kOfWarp = int64_t{kWarpSize} * kKeys;
  return static_cast<unsigned>((n + kOfWarp - 1) / kOfWarp * kWarpSize);
}

}  // namespace

int rank_logits(Stream stream, const RankLogits& args) {
  if (args.n == 0) return 0;
  if (args.width < 1 || args.width > kMostRankedWidth || args.k < 1 || args.k > kMostRanked) return kUnknownType;
  Slices slices;
  slices.n = ranked_slices(args.width);
  if (slices.n > 1) {  // a row of one slice is ranked without a workspace
    slices.keys = static_cast<Key*>(args.workspace);
    slices.sums = reinterpret_cast<SliceSum*>(slices.keys + args.n * slices.n * args.k);
  }
  const int64_t of_slice = args.width < kRankedSlice ? args.width : kRankedSlice;
  const int failure = launch(rank_slices_kernel, static_cast<unsigned>(args.n * slices.n), threads_for(of_slice),
                             sizeof(Shared), stream, args, slices);
  if (failure != 0 || slices.n == 1) return failure;
  return launch(merge_slices_kernel, static_cast<unsigned>(args.n), threads_for(slices.n * args.k), sizeof(Shared),
                stream, args, slices);
}

}  // namespace quire::cuda
