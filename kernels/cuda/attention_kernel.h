// The kernel of the outputs of tiles. Each way of dividing the work has a file of its own.
#pragma once

#include "kernels/cuda/attention_tile.h"

namespace quire::cuda {

template <int kWidth, typename T, typename Way, bool kPlain>
__global__ void __launch_bounds__(Way::kThreads, Way::kResidentBlocks) attention_kernel(Attention args) {
  QUIRE_SHARED_MEMORY(memory);
  using Run = TileRun<kWidth, T, Purpose::kOutput, Way, kPlain>;
  // By warpgroups: compiled for all, and launched on devices that have wgmma.
  if constexpr (Way::kTogether == 1 || kHasWarpgroups) {
    Run(args, nullptr, *reinterpret_cast<typename Run::Memory*>(memory)).run();
  }
}

// kWidth: what the head is padded to.
template <typename Way, int kWidth, typename T>
int launch_attention(Stream stream, const Attention& args) {
  static_assert(Way::kTogether > 1 || sizeof(Shared<kWidth, T, Way>) <= kLeastSharedMemory);
  const auto with = [&](auto plain) {
    return launch(attention_kernel<kWidth, T, Way, decltype(plain)::value>, static_cast<unsigned>(args.n_works),
                  Way::kThreads, sizeof(Shared<kWidth, T, Way>), stream, args);
  };
  return args.plain && args.shape.head_dim == kWidth ? with(std::true_type()) : with(std::false_type());
}

// With works and a shape that can_attend().
int attention_by_warps(Stream stream, const Attention& args);
int attention_by_keys(Stream stream, const Attention& args);
int attention_by_warpgroups(Stream stream, const Attention& args);

}  // namespace quire::cuda
