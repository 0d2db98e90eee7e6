// Attention of tiles whose rows are shared out among warps.
#include "kernels/cuda/attention_kernel.h"

namespace quire::cuda {

int attention_by_warps(Stream stream, const Attention& args) {
  return with_head(args.shape, [&](auto width, auto type) {
    constexpr int kWidth = decltype(width)::value;
    return launch_attention<ByWarpsOf<kWidth>, kWidth, decltype(type)>(stream, args);
  });
}

}  // namespace quire::cuda
