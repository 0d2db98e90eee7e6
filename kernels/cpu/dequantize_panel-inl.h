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

// Takes what a vector of columns has of a group, as Unpacked does, and writes values: [kGroup][kPanel] from `out` on.
template <ElementType kType>
class Dequantized {
 public:
  Dequantized(float* out, int vector) : out_(out + vector * kLanes) {}

  HWY_INLINE void scale(Vector x, int part = 0) { scales_[part] = x; }
  HWY_INLINE void offset(Vector x) { offset_ = x; }
  HWY_INLINE void quad(int i, QuadVector codes) const {
    constexpr int kScales = scales_of(kType);
    const auto scale = scales_[kScales == 1 ? 0 : i / (kGroupQuads / 2)];
    for (int e = 0; e < 4; ++e) {
      const auto code = hn::BitCast(Ints(), hn::And(hn::ShiftRightSame(codes, 8 * e), hn::Set(Quads(), 255)));
      const auto value = has_offset(kType) ? hn::MulAdd(scale, real(code), offset_)
                                           : hn::Mul(scale, real(hn::Sub(code, hn::Set(Ints(), zero_code(kType)))));
      hn::StoreU(value, Floats(), out_ + (4 * i + e) * kPanel);
    }
  }

 private:
  float* out_;
  Vector scales_[scales_of(kType)];
  Vector offset_;
};

// Group `group` of the packed block, [kGroup][kPanel].
template <ElementType kType>
void dequantize_group(const uint8_t* block, int group, float* out) {
  for (int v = 0; v < kPanelVectors; ++v) {
    Dequantized<kType> to(out, v);
    unpack_columns<kType>(BlockColumns(block, v), group, to);
  }
}

#endif  // QUIRE_CPU_VECTORS
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
