// Attention over plans: which way a launch takes, and the merge of parts.
#include "kernels/cuda/attention_kernel.h"

namespace quire::cuda {
namespace {

// A block per row of a tile, a thread per channel. In each warp a lane weighs two parts; what they are multiplied with
// is then read by all.
__global__ void __launch_bounds__(kThreads) merge_kernel(Attention args) {
  const AttentionMerge merge = args.merges[blockIdx.x];
  const AttentionTile& tile = args.tiles[merge.tile];
  const int row = static_cast<int>(blockIdx.y), d = args.shape.head_dim;
  if (row >= tile.count * tile.heads) return;
  const int64_t floats = attention_part_floats(d);
  const float* const first = args.parts + merge.first_part * floats + row;
  float weights[2], sum = 0, greatest = -INFINITY;
  QUIRE_UNROLL for (int half = 0; half < 2; ++half) {
    const int p = half * kWarpSize + lane_of_warp();
    weights[half] = p < merge.n_parts ? first[p * floats] : -INFINITY;
    greatest = fmaxf(greatest, weights[half]);
  }
  QUIRE_UNROLL for (int by = kWarpSize / 2; by > 0; by /= 2) {
    greatest = fmaxf(greatest, __shfl_xor_sync(kWholeWarp, greatest, by));
  }
  QUIRE_UNROLL for (int half = 0; half < 2; ++half) {
    const int p = half * kWarpSize + lane_of_warp();
    // Of -infinity, which has no difference from itself: the row sees none of the part's keys, or its scores are NaN,
    // and so is the sum.
    weights[half] = weights[half] > -INFINITY ? exp2_fast(weights[half] - greatest) : 0.0f;
    if (p < merge.n_parts) sum = fmaf(weights[half], first[p * floats + kTileRows], sum);
  }
  sum = warp_sum(sum);
  const int64_t place = tile.place + int64_t{row / tile.heads} * tile.stride;
  const int64_t at = place * args.out.stride + int64_t{tile.first_head + row % tile.heads} * d;
  const float* const values = args.parts + merge.first_part * floats + 2 * kTileRows + row * d;
  for (int begin = 0; begin < d; begin += kThreads) {
    const int c = begin + static_cast<int>(threadIdx.x);
    float value = 0;
    QUIRE_UNROLL_BY(8) for (int p = 0; p < merge.n_parts; ++p) {
      const float weight = __shfl_sync(kWholeWarp, p < kWarpSize ? weights[0] : weights[1], p % kWarpSize);
      if (c < d) value = fmaf(weight, values[p * floats + c], value);
    }
    if (c < d) store_element_of(args.out, at + c, sum == 0 ? 0.0f : value / sum);
  }
  if (args.stats != nullptr && threadIdx.x == 0) {
    args.stats[place * args.n_query_heads + tile.first_head + row % tile.heads] = {-INFINITY, greatest, sum};
  }
}

}  // namespace

int attention(Stream stream, const Attention& args) {
  if (args.n_works == 0) return 0;
  if (!can_attend(args.shape)) return kUnknownType;
  const auto attend = args.wide ? attention_by_warpgroups : args.few ? attention_by_keys : attention_by_warps;
  const int error = attend(stream, args);
  if (error != 0 || args.n_merges == 0) return error;
  return launch(merge_kernel, dim3(static_cast<unsigned>(args.n_merges), args.few ? kFewTileRows : kTileRows), kThreads,
                0, stream, args);
}

}  // namespace quire::cuda
