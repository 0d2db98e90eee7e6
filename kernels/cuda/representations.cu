// What stands for a complete chunk: the mean or the bounds of its keys, or LongHeads' vector.
#include "kernels/cuda/rotation.h"
#include "kernels/cuda/selection.h"
#include "kernels/cuda/types.h"

namespace quire::cuda {
namespace {

constexpr int kSummaryThreads = 128;

// Keys of a KV head in the record of a stored chunk; its values follow.
template <typename T>
__device__ __forceinline__ const T* keys_of(const KvShape& shape, const void* record, int64_t kv_head) {
  return static_cast<const T*>(record) + 2 * kv_head * shape.chunk * shape.head_dim;
}

// Row of the vector-th vector of a chunk.
template <typename T>
__device__ __forceinline__ T* vector_of(const ChunkVectors& vectors, int64_t vector, int64_t chunk, int64_t d) {
  return static_cast<T*>(vectors.pages[chunk / kPageChunks]) + (vector * kPageChunks + chunk % kPageChunks) * d;
}

// A block per chunk (x) and KV head (y), a thread per pair of channels.
template <typename T, typename Out>
__global__ void __launch_bounds__(kSummaryThreads) summarise_keys_kernel(SummariseKeys args) {
  const int d = args.shape.head_dim, half = d / 2, pair = static_cast<int>(threadIdx.x);
  if (pair >= half) return;
  const int64_t chunk = args.first_chunk + blockIdx.x, kv_head = blockIdx.y;
  const int64_t first = chunk * args.chunk, offset = first % args.shape.chunk;
  const T* const keys = keys_of<T>(args.shape, args.records[first / args.shape.chunk], kv_head);
  // From where they are stored to where they stand: the same for all keys of a chunk.
  const Angle angle = angle_at(args.turns[pair], split_position(static_cast<double>(first % args.key_period - offset)));
  float sums[2] = {0, 0}, least[2] = {INFINITY, INFINITY}, greatest[2] = {-INFINITY, -INFINITY};
  for (int64_t j = offset; j < offset + args.chunk; ++j) {
    const float a = to_float(keys[j * d + pair]), b = to_float(keys[j * d + half + pair]);
    const float turned[2] = {a * angle.cosine - b * angle.sine, b * angle.cosine + a * angle.sine};
    QUIRE_UNROLL for (int side = 0; side < 2; ++side) {
      sums[side] += turned[side];
      least[side] = fminf(least[side], turned[side]);
      greatest[side] = fmaxf(greatest[side], turned[side]);
    }
  }
  QUIRE_UNROLL for (int side = 0; side < 2; ++side) {
    const int channel = side * half + pair;
    if (args.bounds) {
      from_float(least[side], vector_of<Out>(args.out, 2 * kv_head, chunk, d)[channel]);
      from_float(greatest[side], vector_of<Out>(args.out, 2 * kv_head + 1, chunk, d)[channel]);
    } else {
      from_float(sums[side] / static_cast<float>(args.chunk), vector_of<Out>(args.out, kv_head, chunk, d)[channel]);
    }
  }
}

constexpr int kWarps = 8;
constexpr int kChannels = 4;  // of a lane: heads of up to 128 channels

// One warp's attention of a query, f32 in shared memory, over the keys of a chunk: out[c] becomes channel lane + 32 c
// of the weighted mean of `rows`. weights: float [n_keys] in shared memory, the warp's own.
template <typename T>
__device__ void attend(const float* query, const T* keys, const T* rows, int64_t n_keys, int d, float scale,
                       float* weights, float (&out)[kChannels]) {
  const int lane = lane_of_warp();
  float greatest = -INFINITY;
  for (int64_t j = lane; j < n_keys; j += kWarpSize) {
    float score = 0;
    for (int c = 0; c < d; ++c) score = fmaf(query[c], to_float(keys[j * d + c]), score);
    weights[j] = score * scale;
    greatest = fmaxf(greatest, weights[j]);
  }
  QUIRE_UNROLL for (int by = kWarpSize / 2; by > 0; by /= 2) {
    greatest = fmaxf(greatest, __shfl_xor_sync(kWholeWarp, greatest, by));
  }
  float sum = 0;
  for (int64_t j = lane; j < n_keys; j += kWarpSize) {
    weights[j] = expf(weights[j] - greatest);
    sum += weights[j];
  }
  sum = warp_sum(sum);
  __syncwarp();
  QUIRE_UNROLL for (int c = 0; c < kChannels; ++c) out[c] = 0;
  for (int64_t j = 0; j < n_keys; ++j) {
    QUIRE_UNROLL for (int c = 0; c < kChannels; ++c) {
      const int channel = lane + c * kWarpSize;
      if (channel < d) out[c] = fmaf(weights[j], to_float(rows[j * d + channel]), out[c]);
    }
  }
  QUIRE_UNROLL for (int c = 0; c < kChannels; ++c) out[c] /= sum;
  __syncwarp();  // the weights are read; the next query's take their place
}

// A block per chunk (x) and query head (y); its warps take the chunk's queries in turn.
template <typename T, typename In>
__global__ void __launch_bounds__(kWarps* kWarpSize) attend_in_chunks_kernel(AttendInChunks args) {
  QUIRE_SHARED_MEMORY(memory);
  const int d = args.shape.head_dim, half = d / 2, lane = lane_of_warp(), warp = warp_of_block();
  const int64_t l = args.shape.chunk, chunk = args.first_chunk + blockIdx.x, head = blockIdx.y;
  float* const means = reinterpret_cast<float*>(memory);  // [kWarps][d]
  float* const query = means + kWarps * d + warp * (d + l);
  float* const weights = query + d;
  const T* const keys =
      keys_of<T>(args.shape, args.records[chunk], head / (args.n_query_heads / args.shape.n_kv_heads));
  const In* const rows = static_cast<const In*>(args.queries.data) + blockIdx.x * l * args.queries.stride + head * d;
  float sums[kChannels] = {}, out[kChannels];
  for (int64_t r = warp; r < l; r += kWarps) {
    const In* const row = rows + r * args.queries.stride;
    for (int pair = lane; pair < half; pair += kWarpSize) {
      const Angle angle = angle_at(args.turns[pair], split_position(static_cast<double>(r)));
      const float a = to_float(row[pair]), b = to_float(row[half + pair]);
      query[pair] = a * angle.cosine - b * angle.sine;
      query[half + pair] = b * angle.cosine + a * angle.sine;
    }
    __syncwarp();
    attend(query, keys, keys + l * d, l, d, args.scale, weights, out);
    QUIRE_UNROLL for (int c = 0; c < kChannels; ++c) sums[c] += out[c];
  }
  QUIRE_UNROLL for (int c = 0; c < kChannels; ++c) {
    if (lane + c * kWarpSize < d) means[warp * d + lane + c * kWarpSize] = sums[c];
  }
  __syncthreads();
  if (warp > 0) return;
  for (int channel = lane; channel < d; channel += kWarpSize) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += means[w * d + channel];
    query[channel] = sum / static_cast<float>(l);
  }
  __syncwarp();
  attend(query, keys, keys, l, d, args.scale, weights, out);
  const auto store = [&](auto* to) {
    QUIRE_UNROLL for (int c = 0; c < kChannels; ++c) {
      if (lane + c * kWarpSize < d) from_float(out[c], to[lane + c * kWarpSize]);
    }
  };
  if (args.out.type == ElementType::kF32) {
    store(vector_of<float>(args.out, head, chunk, d));
  } else {
    store(vector_of<bf16>(args.out, head, chunk, d));
  }
}

}  // namespace

int summarise_keys(Stream stream, const SummariseKeys& args) {
  if (args.n_chunks == 0) return 0;
  if (!can_attend(args.shape)) return kUnknownType;
  const dim3 grid(static_cast<unsigned>(args.n_chunks), static_cast<unsigned>(args.shape.n_kv_heads));
  return with_type(args.shape.type, [&](auto kv) {
    return with_type(args.out.type, [&](auto out) {
      return launch(summarise_keys_kernel<decltype(kv), decltype(out)>, grid, kSummaryThreads, 0, stream, args);
    });
  });
}

int attend_in_chunks(Stream stream, const AttendInChunks& args) {
  if (args.n_chunks == 0) return 0;
  const bool can_store = args.out.type == ElementType::kF32 || args.out.type == ElementType::kBF16;
  if (!can_attend(args.shape) || !can_store) return kUnknownType;
  const dim3 grid(static_cast<unsigned>(args.n_chunks), static_cast<unsigned>(args.n_query_heads));
  return with_type(args.shape.type, [&](auto kv) {
    return with_type(args.queries.type, [&](auto in) {
      return launch(attend_in_chunks_kernel<decltype(kv), decltype(in)>, grid, kWarps * kWarpSize,
                    static_cast<size_t>(attend_in_chunks_bytes(args.shape)), stream, args);
    });
  });
}

}  // namespace quire::cuda
