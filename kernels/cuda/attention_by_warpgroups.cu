// Attention of wide tiles (Attention::wide), with wgmma.
#include "kernels/cuda/attention_kernel.h"

namespace quire::cuda {

int attention_by_warpgroups(Stream stream, const Attention& args) {
  return with_head(args.shape, [&](auto width, auto type) -> int {
    constexpr int kWidth = decltype(width)::value;
    constexpr int kPadded = kWidth <= 64 ? 64 : 128;
    if constexpr (is_large_head(kWidth)) return kUnknownType;
    return launch_attention<ByWarpgroups, kPadded, decltype(type)>(stream, args);
  });
}

}  // namespace quire::cuda
