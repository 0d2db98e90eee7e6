// What stands for a complete chunk: the mean or the bounds of its keys. (LongHeads' vector: attend_in_chunks.cu.)
#include "kernels/cuda/chunk_vectors.h"
#include "kernels/cuda/rotation.h"
#include "kernels/cuda/types.h"

namespace quire::cuda {
namespace {

constexpr int kSummaryThreads = kMostHeadDim / 2;

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

}  // namespace quire::cuda
