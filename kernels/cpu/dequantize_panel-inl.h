// Groups of 32 elements of each of a panel's kPanel columns, out of packed blocks, as f32: what `dequantize`
// (lib/support/quantization.h) gives, bit for bit.
#if defined(QUIRE_KERNELS_CPU_DEQUANTIZE_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_KERNELS_CPU_DEQUANTIZE_PANEL_INL_H_
#undef QUIRE_KERNELS_CPU_DEQUANTIZE_PANEL_INL_H_
#else
#define QUIRE_KERNELS_CPU_DEQUANTIZE_PANEL_INL_H_
#endif

#include "kernels/cpu/unpack_panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu::HWY_NAMESPACE {
#if QUIRE_CPU_VECTORS

// Group g of the packed block, [kGroup][kPanel].
template <ElementType kType>
void dequantize_group(const uint8_t* block, int g, float* out) {
  constexpr int kQuads = kGroupQuads / scales_of(kType);  // that share a scale
  for (int v = 0; v < kPanelVectors; ++v) {
    const BlockColumns columns(block, v);
    Vector scales[scales_of(kType)], offsets[scales_of(kType)];
    for (int part = 0; part < scales_of(kType); ++part) {
      scales[part] = group_scale<kType>(columns, g, part);
      if constexpr (has_offset(kType)) offsets[part] = group_offset<kType>(columns, g, part);
    }
    for (int i = 0; i < kGroupQuads; ++i) {
      const auto codes = group_quad<kType>(columns, g, i);
      for (int e = 0; e < 4; ++e) {
        const auto code = hn::BitCast(Ints(), hn::And(hn::ShiftRightSame(codes, 8 * e), hn::Set(Quads(), 255)));
        const auto scale = scales[i / kQuads];
        const auto value = has_offset(kType) ? hn::MulAdd(scale, real(code), offsets[i / kQuads])
                                             : hn::Mul(scale, real(hn::Sub(code, hn::Set(Ints(), zero_code(kType)))));
        hn::StoreU(value, Floats(), out + (4 * i + e) * kPanel + v * kLanes);
      }
    }
  }
}

#endif  // QUIRE_CPU_VECTORS
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
