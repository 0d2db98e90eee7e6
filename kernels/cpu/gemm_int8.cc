// The products of kernels.h with 8-bit rows, for each instruction set.
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_int8.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/code_scale.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/gemm_int8-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu::HWY_NAMESPACE {
#if QUIRE_CPU_VECTORS

void gemm_int8(const Int8Rows& x, int64_t row, int64_t m, ElementType type, const void* packed, int64_t n,
               int64_t panel_begin, int64_t panel_end, const float* bias, bool accumulate, float* y, int64_t ldy) {
  gemm_int8_with<false, NoTiles>(x, row, m, type, packed, n, panel_begin, panel_end, bias, accumulate, y, ldy);
}

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
void gemm_int8_dot(const Int8Rows& x, int64_t row, int64_t m, ElementType type, const void* packed, int64_t n,
                   int64_t panel_begin, int64_t panel_end, const float* bias, bool accumulate, float* y, int64_t ldy) {
  gemm_int8_with<true, NoTiles>(x, row, m, type, packed, n, panel_begin, panel_end, bias, accumulate, y, ldy);
}
#endif
#if HWY_TARGET == HWY_AVX3
void gemm_int8_amx(const Int8Rows& x, int64_t row, int64_t m, ElementType type, const void* packed, int64_t n,
                   int64_t panel_begin, int64_t panel_end, const float* bias, bool accumulate, float* y, int64_t ldy) {
  gemm_int8_with<true, AmxTiles>(x, row, m, type, packed, n, panel_begin, panel_end, bias, accumulate, y, ldy);
}
#endif

void quantize_row(const float* source, int64_t row, const Int8Rows& x) {
  const Floats d;
  const Ints di;
  for (int64_t j = 0; j < x.k; j += kGroup) {
    const float* const from = source + j;
    Int8Group& group = x.group(row, j / kGroup);
    int8_t* const codes = x.codes_of(row, j);
    auto greatest = hn::Zero(di);  // the bits of magnitudes are ordered as these are, NaN above infinity
    for (int i = 0; i < kGroup; i += kLanes) {
      greatest = hn::Max(greatest, hn::BitCast(di, hn::Abs(hn::LoadU(d, from + i))));
    }
    const int32_t bits = hn::GetLane(hn::MaxOfLanes(di, greatest));
    const CodeScale scale = code_scale(bits, 127);
    group = {scale.scale, scale.scale * 0, {0, 0}};
    if (scale.inverse == 0) {  // zeros, or nothing that codes could say
      std::memset(codes, 0, kGroup);
      continue;
    }
    const auto inverse = hn::Set(d, scale.inverse);
    const auto lowest = hn::Set(di, -127), highest = hn::Set(di, 127);
    for (int half = 0; half < 2; ++half) {
      auto sum = hn::Zero(di);
      for (int i = half * kGroup / 2; i < (half + 1) * kGroup / 2; i += kLanes) {
        const auto code = hn::NearestInt(hn::Mul(hn::LoadU(d, from + i), inverse));
        const auto within = hn::Min(highest, hn::Max(lowest, code));
        sum = hn::Add(sum, within);
        hn::StoreU(hn::DemoteTo(hn::Rebind<int8_t, Floats>(), within), hn::Rebind<int8_t, Floats>(), codes + i);
      }
      group.code_sum[half] = hn::GetLane(hn::SumOfLanes(di, sum));
    }
    group.sum = group.scale * static_cast<float>(group.code_sum[0] + group.code_sum[1]);
  }
}

#else
using scalar::gemm_int8;
using scalar::quantize_row;
#endif  // QUIRE_CPU_VECTORS
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::cpu {
QUIRE_CPU_EXPORT(quantize_row);
QUIRE_CPU_EXPORT_VARIANTS(gemm_int8, gemm_int8_dot, gemm_int8_dot, gemm_int8_amx, gemm_int8_dot);

void quantize_row(const float* source, int64_t row, const Int8Rows& x) {
  QUIRE_CPU_DISPATCH(quantize_row)(source, row, x);
}

void gemm_int8(const Int8Rows& x, int64_t row, int64_t m, ElementType type, const void* packed, int64_t n,
               int64_t panel_begin, int64_t panel_end, const float* bias, bool accumulate, float* y, int64_t ldy) {
  QUIRE_CPU_DISPATCH(gemm_int8)(x, row, m, type, packed, n, panel_begin, panel_end, bias, accumulate, y, ldy);
}
}  // namespace quire::cpu
#endif
