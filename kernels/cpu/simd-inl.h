// What the vector kernels share: element types, widening loads, narrowing stores, exp. Compiled once per target.
// QUIRE_CPU_VECTORS is 0 for the fallback target (no fused multiply-add): there the kernels are the scalar references.
#if defined(QUIRE_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_KERNELS_CPU_SIMD_INL_H_
#undef QUIRE_KERNELS_CPU_SIMD_INL_H_
#else
#define QUIRE_KERNELS_CPU_SIMD_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "kernels/cpu/exp.h"
#include "kernels/cpu/kernels.h"
#include "lib/support/element.h"

#undef QUIRE_CPU_VECTORS
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
#define QUIRE_CPU_VECTORS 0
#else
#define QUIRE_CPU_VECTORS 1
#endif

HWY_BEFORE_NAMESPACE();
namespace quire::cpu::HWY_NAMESPACE {
#if QUIRE_CPU_VECTORS
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, 16>;
using Vector = hn::Vec<Floats>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(Floats()));
constexpr int kPanelVectors = static_cast<int>(kPanel) / kLanes;
// Accumulators that fit the registers beside operands: 32 registers, or the 16 of AVX2.
constexpr int kAccumulators = HWY_TARGET == HWY_AVX2 ? 12 : 24;

// Asks for the memory [at, end) ahead of its use, some cache lines each step of a kernel's loop.
struct Prefetcher {
  uintptr_t at, end;
  int64_t lines_per_step;
  int64_t apart = 64;  // bytes from a line to the next one that is asked for

  template <class T>
  static HWY_INLINE Prefetcher range(const T* begin, const T* end, int64_t lines_per_step) {
    return {reinterpret_cast<uintptr_t>(begin), reinterpret_cast<uintptr_t>(end), lines_per_step};
  }
  HWY_INLINE void step() {
    for (int64_t i = 0; i < lines_per_step && at < end; ++i, at += static_cast<uintptr_t>(apart)) {
      hwy::Prefetch(reinterpret_cast<const char*>(at));
    }
  }
};

// Bytes ahead in weights of which every byte is used once. Measured on Zen 5: with 4096 and with 8192 most products of
// few rows are slower, by up to a tenth.
constexpr int64_t kPrefetchDistance = 6144;

// Few queries wait for memory: then all of a kernel's first tile is asked for at once, before the first use.
constexpr int64_t kFewQueries = 4;

constexpr int floor_power_of_2(int x) { return x < 2 ? 1 : 2 * floor_power_of_2(x / 2); }

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const hwy::float16_t* p) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::float16_t, D>(), p));
}
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const hwy::bfloat16_t* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p)))));
}

template <class D>
HWY_INLINE void store(D d, hn::Vec<D> x, float* p) {
  hn::StoreU(x, d, p);
}
template <class D>
HWY_INLINE void store(D, hn::Vec<D> x, hwy::float16_t* p) {
  const hn::Rebind<hwy::float16_t, D> d16;
  hn::StoreU(hn::DemoteTo(d16, x), d16, p);
}
template <class D>
HWY_INLINE void store(D, hn::Vec<D> x, hwy::bfloat16_t* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  const auto bits = hn::BitCast(d32, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fff)));
  const auto is_nan = hn::RebindMask(d32, hn::IsNaN(x));
  const auto result = hn::IfThenElse(is_nan, hn::Or(bits, hn::Set(d32, 0x400000)), rounded);
  hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(result)), d16, reinterpret_cast<uint16_t*>(p));
}

// p * 2^n as exp_f32 of exp.h forms it, n = rounded - C::kRound: one rounding, whatever the number of steps.
template <class D>
HWY_INLINE hn::Vec<D> times_power_of_2(D d, hn::Vec<D> p, hn::Vec<D> rounded) {
  const auto round = hn::Set(d, ExpConstants::kRound);
#if HWY_TARGET == HWY_AVX3
  if constexpr (hn::MaxLanes(D()) == 16) return hn::Vec<D>{_mm512_scalef_ps(p.raw, hn::Sub(rounded, round).raw)};
#endif
  const hn::RebindToSigned<D> di;
  const auto exponent = hn::Sub(hn::BitCast(di, rounded), hn::BitCast(di, round));
  const auto half = hn::ShiftRight<1>(exponent);
  const auto bias = hn::Set(di, 127);
  const auto scale_1 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, bias)));
  const auto scale_2 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(exponent, half), bias)));
  return hn::Mul(hn::Mul(p, scale_1), scale_2);
}

// x within [low, high]; a NaN stays one.
template <class D>
HWY_INLINE hn::Vec<D> clamp(D, hn::Vec<D> low, hn::Vec<D> x, hn::Vec<D> high) {
#if HWY_TARGET == HWY_NEON
  x = hn::IfThenElse(hn::Lt(x, low), low, x);
  return hn::IfThenElse(hn::Gt(x, high), high, x);
#else
  return hn::Min(high, hn::Max(low, x));  // where one is a NaN, x86 takes the second: x
#endif
}

// exp_f32 of exp.h, lane by lane.
template <class D>
HWY_INLINE hn::Vec<D> exp(D d, hn::Vec<D> x) {
  using C = ExpConstants;
  x = clamp(d, hn::Set(d, C::kLowest), x, hn::Set(d, C::kHighest));
  const auto round = hn::Set(d, C::kRound);
  const auto rounded = hn::MulAdd(x, hn::Set(d, C::kLog2E), round);
  const auto n = hn::Sub(rounded, round);
  auto r = hn::MulAdd(n, hn::Set(d, -C::kLn2High), x);
  r = hn::MulAdd(n, hn::Set(d, -C::kLn2Low), r);
  auto q = hn::MulAdd(r, hn::Set(d, C::kQ4), hn::Set(d, C::kQ3));
  q = hn::MulAdd(r, q, hn::Set(d, C::kQ2));
  q = hn::MulAdd(r, q, hn::Set(d, C::kQ1));
  q = hn::MulAdd(r, q, hn::Set(d, C::kQ0));
  const auto p = hn::Add(hn::MulAdd(hn::Mul(r, r), q, r), hn::Set(d, 1.0f));
  return times_power_of_2(d, p, rounded);
}

#endif  // QUIRE_CPU_VECTORS
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
