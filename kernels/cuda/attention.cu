// Attention over plans: the outputs of tiles, and the merge of parts.
#include "kernels/cuda/attention_tile.h"

namespace quire::cuda {
namespace {

template <int kWidth, typename T>
__global__ void __launch_bounds__(kThreads, kResidentBlocks<kWidth>) attention_kernel(Attention args) {
  QUIRE_SHARED_MEMORY(memory);
  TileRun<kWidth, T, Purpose::kOutput>(args, nullptr, *reinterpret_cast<Shared<kWidth, T>*>(memory)).run();
}

// A warp per row of a tile: the parts one after the other.
__global__ void __launch_bounds__(kThreads) merge_kernel(Attention args) {
  const AttentionMerge merge = args.merges[blockIdx.x];
  const AttentionTile& tile = args.tiles[merge.tile];
  const int row = static_cast<int>(blockIdx.y) * kWarps + warp_of_block(), d = args.shape.head_dim;
  if (row >= tile.count * tile.heads) return;
  const int64_t floats = attention_part_floats(d);
  const float* const first = args.parts + merge.first_part * floats;
  float greatest = -INFINITY;
  for (int p = 0; p < merge.n_parts; ++p) greatest = fmaxf(greatest, first[p * floats + row]);
  const int64_t place = tile.place + int64_t{row / tile.heads} * tile.stride;
  const int64_t at = place * args.out.stride + int64_t{tile.first_head + row % tile.heads} * d;
  for (int c = lane_of_warp(); c < d; c += kWarpSize) {
    float sum = 0, value = 0;
    for (int p = 0; p < merge.n_parts; ++p) {
      const float* const part = first + p * floats;
      if (part[row] == -INFINITY) continue;  // it sees none of these keys
      const float weight = exp2_fast(part[row] - greatest);
      sum += weight * part[kTileRows + row];
      value += weight * part[2 * kTileRows + row * d + c];
    }
    store_element_of(args.out, at + c, sum > 0 ? value / sum : 0.0f);
    if (args.stats != nullptr && c == 0) {
      args.stats[place * args.n_query_heads + tile.first_head + row % tile.heads] = {-INFINITY, greatest, sum};
    }
  }
}

}  // namespace

int attention(Stream stream, const Attention& args) {
  if (args.n_works == 0) return 0;
  if (!can_attend(args.shape)) return kUnknownType;
  const int error = with_head(args.shape, [&](auto width, auto type) {
    constexpr int kWidth = decltype(width)::value;
    using T = decltype(type);
    return launch(attention_kernel<kWidth, T>, static_cast<unsigned>(args.n_works), kThreads, sizeof(Shared<kWidth, T>),
                  stream, args);
  });
  if (error != 0 || args.n_merges == 0) return error;
  return launch(merge_kernel, dim3(static_cast<unsigned>(args.n_merges), kTileRows / kWarps), kThreads, 0, stream,
                args);
}

}  // namespace quire::cuda
