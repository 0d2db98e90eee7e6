// Which of the instruction sets that the kernels are compiled for runs them. Highway makes the variants; its own choice
// among them lives in a shared library, which libquire.so does not need.
#pragma once

#include <vector>

namespace quire::cpu {

// In order of preference, the best last.
enum class Target : int {
  kBaseline = 0,  // what every CPU of the architecture has: NEON on aarch64; on x86-64 the scalar references run
  kAvx2 = 1,      // with FMA and F16C
  kAvx3 = 2,      // AVX-512 F, BW, DQ and VL
  kAvx3Vnni = 3,  // with AVX-512 VNNI, which the products in integers use; all others are those of kAvx3
  kAvx3Bf16 = 4,  // with AVX-512 BF16 besides, which the products of bf16 rows use, where it is faster than kAvx3
  kAvx3Amx = 5,   // kAvx3Vnni with tile registers (AMX), which the products of many 8-bit rows use
  kNeonDot = 6,   // kBaseline of aarch64 with SDOT (Armv8.2's FEAT_DotProd), which the products of 8-bit rows use
};

// What the kernels run on: the best that the CPU has, found at the first call. Any thread.
Target target();

// Those compiled in that this CPU has.
std::vector<Target> supported_targets();

// For tests: from now on the kernels run on this one, which must be supported.
void use_target(Target target);

}  // namespace quire::cpu

// Where <hwy/highway.h> is included. QUIRE_CPU_EXPORT(f): outside HWY_NAMESPACE and under HWY_ONCE, the table of f's
// variants, with f_vnni, f_bf16, f_amx and f_dot (of kNeonDot) in place of the last ones if they are said.
// QUIRE_CPU_DISPATCH(f) is the one to call.
#define QUIRE_CPU_EXPORT_VARIANTS(f, f_vnni, f_bf16, f_amx, f_dot)                                     \
  constexpr decltype(&HWY_STATIC_DISPATCH(f)) f##_variants[] = {                                       \
      HWY_CHOOSE_FALLBACK(f),  HWY_CHOOSE_AVX2(f),     HWY_CHOOSE_AVX3(f),    HWY_CHOOSE_AVX3(f_vnni), \
      HWY_CHOOSE_AVX3(f_bf16), HWY_CHOOSE_AVX3(f_amx), HWY_CHOOSE_NEON(f_dot)}
#define QUIRE_CPU_EXPORT(f) QUIRE_CPU_EXPORT_VARIANTS(f, f, f, f, f)
#define QUIRE_CPU_DISPATCH(f) (*f##_variants[static_cast<int>(::quire::cpu::target())])
