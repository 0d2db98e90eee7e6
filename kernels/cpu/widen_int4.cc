// Keys and values of kInt4 as floats in memory, for tiles of many rows: attention over codes makes numbers of them anew
// for every few rows.
#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/widen_int4.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/attention_int4-inl.h"
#include "kernels/cpu/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu::HWY_NAMESPACE {
#if QUIRE_CPU_VECTORS

// A group's numbers: low [kInt4CodeBytes] from the codes' low halves, and high from the others.
HWY_INLINE void widen_group(const uint8_t* codes, float scale, float minimum, float* low, float* high) {
  const Floats df;
  const Vector scales = hn::Set(df, scale), minima = hn::Set(df, minimum);
  HWY_UNROLL(4)
  for (int v = 0; v < kHalfVectors; ++v) {
    const Halves halves = load_codes(codes + v * kLanes, scales, minima);
    hn::StoreU(halves.low, df, low + v * kLanes);
    hn::StoreU(halves.high, df, high + v * kLanes);
  }
}

void widen_int4_keys(const void* keys, int64_t begin, int64_t end, int64_t d, float* out) {
  constexpr int64_t kStretch = 64;  // channels whose scales are widened together
  float scales[kStretch], minima[kStretch], beyond[kKeyBlock];
  const int64_t end_block = ceil_div(end, kKeyBlock);
  for (int64_t g = begin / kInt4Group; 2 * g < end_block; ++g) {
    const uint8_t* const group = static_cast<const uint8_t*>(keys) + g * d * kInt4GroupBytes;
    float* const to = out + 2 * g * d * kKeyBlock;
    const bool has_second = 2 * g + 1 < end_block;
    for (int64_t first = 0; first < d; first += kStretch) {
      const int64_t count = std::min(kStretch, d - first);
      widen_f16(group + d * kInt4CodeBytes + 2 * first, count, scales);
      widen_f16(group + d * kInt4CodeBytes + 2 * (d + first), count, minima);
      for (int64_t k = 0; k < count; ++k) {
        const int64_t i = first + k;
        widen_group(group + i * kInt4CodeBytes, scales[k], minima[k], to + i * kKeyBlock,
                    has_second ? to + (d + i) * kKeyBlock : beyond);
      }
    }
  }
}

void widen_int4_values(const void* values, int64_t begin, int64_t end, int64_t d, float* out) {
  const int64_t n_groups = ceil_div(d, kInt4Group);
  for (int64_t j = begin; j < end; ++j) {
    const auto* const tokens =
        static_cast<const uint8_t*>(values) + j / kInt4Tokens * kInt4Tokens * n_groups * kInt4GroupBytes;
    const int64_t token = j % kInt4Tokens;
    for (int64_t g = 0; g < n_groups; ++g) {
      const Int4Place scale = int4_value_place(token, g * kInt4Group, d);
      const uint8_t* const codes = tokens + scale.code;
      float* const to = out + j * d + g * kInt4Group;
      const float of_scale = load_f16(tokens, scale.scale), minimum = load_f16(tokens, scale.minimum);
      const int64_t count = std::min(kInt4Group, d - g * kInt4Group);
      if (count == kInt4Group) {
        widen_group(codes, of_scale, minimum, to, to + kInt4CodeBytes);
        continue;
      }
      float group[kInt4Group];
      widen_group(codes, of_scale, minimum, group, group + kInt4CodeBytes);
      std::copy_n(group, count, to);
    }
  }
}

#else
using scalar::widen_int4_keys;
using scalar::widen_int4_values;
#endif  // QUIRE_CPU_VECTORS
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::cpu {
QUIRE_CPU_EXPORT(widen_int4_keys);
QUIRE_CPU_EXPORT(widen_int4_values);

void widen_int4_keys(const void* keys, int64_t begin, int64_t end, int64_t d, float* out) {
  QUIRE_CPU_DISPATCH(widen_int4_keys)(keys, begin, end, d, out);
}

void widen_int4_values(const void* values, int64_t begin, int64_t end, int64_t d, float* out) {
  QUIRE_CPU_DISPATCH(widen_int4_values)(values, begin, end, d, out);
}
}  // namespace quire::cpu
#endif
