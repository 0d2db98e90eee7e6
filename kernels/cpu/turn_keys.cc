// Keys in blocks of kKeyBlock, each turned by angles of its own. Lanes run over keys.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/turn_keys.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu::HWY_NAMESPACE {
#if QUIRE_CPU_VECTORS

template <class T>
void turn_blocks(const T* keys, int64_t n_blocks, int64_t d, const float* turns, float* out) {
  const Floats df;
  const int64_t half = d / 2 * kKeyBlock;  // elements of a block's first half
  for (int64_t block = 0; block < n_blocks; ++block) {
    for (int64_t at = 0; at < half; at += kKeyBlock, turns += 2 * kKeyBlock) {
      for (int64_t lane = 0; lane < kKeyBlock; lane += kLanes) {
        const auto x1 = load(df, keys + at + lane), x2 = load(df, keys + half + at + lane);
        const auto c = hn::LoadU(df, turns + lane), s = hn::LoadU(df, turns + kKeyBlock + lane);
        hn::StoreU(hn::MulSub(x1, c, hn::Mul(x2, s)), df, out + at + lane);
        hn::StoreU(hn::MulAdd(x2, c, hn::Mul(x1, s)), df, out + half + at + lane);
      }
    }
    keys += 2 * half;
    out += 2 * half;
  }
}

void turn_keys(ElementType type, const void* keys, int64_t begin, int64_t end, int64_t d, const float* turns,
               float* out) {
  const int64_t first = begin / kKeyBlock, n_blocks = ceil_div(end, kKeyBlock) - first;
  const int64_t skip = first * d * kKeyBlock;  // as many numbers of turns as of keys
  turns += skip;
  out += skip;
  switch (type) {
    case ElementType::kF32:
      return turn_blocks(static_cast<const float*>(keys) + skip, n_blocks, d, turns, out);
    case ElementType::kF16:
      return turn_blocks(static_cast<const hwy::float16_t*>(keys) + skip, n_blocks, d, turns, out);
    case ElementType::kBF16:
      return turn_blocks(static_cast<const hwy::bfloat16_t*>(keys) + skip, n_blocks, d, turns, out);
    default:
      break;
  }
}

#else
using scalar::turn_keys;
#endif
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::cpu {
QUIRE_CPU_EXPORT(turn_keys);

void turn_keys(ElementType type, const void* keys, int64_t begin, int64_t end, int64_t d, const float* turns,
               float* out) {
  QUIRE_CPU_DISPATCH(turn_keys)(type, keys, begin, end, d, turns, out);
}
}  // namespace quire::cpu
#endif
