// Which instruction set runs the kernels.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/target.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu::HWY_NAMESPACE {
const char* target_name() { return hwy::TargetName(HWY_TARGET); }
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <atomic>
#if HWY_ARCH_X86
#include <cpuid.h>
#endif

#include "lib/support/os_cpu_features.h"

namespace quire::cpu {
namespace {

// The target in use; -1 until the first call of target(). Two threads that find it at once find the same.
std::atomic<int> chosen{-1};

#if HWY_ARCH_X86
// The registers whose state the operating system saves (XCR0).
uint64_t saved_state() {
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

bool has(uint32_t features, uint32_t wanted) { return (features & wanted) == wanted; }

bool has_avx512_bf16() {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && has(eax, bit_AVX512BF16);
}

bool is_amd() {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(0, &eax, &ebx, &ecx, &edx) && ebx == signature_AMD_ebx && ecx == signature_AMD_ecx &&
         edx == signature_AMD_edx;
}

// Tile registers and their products of bytes, and that this process may use them: it asks for that.
bool has_amx() {
#if QUIRE_AMX
  constexpr uint64_t kTileState = 0x60000;
  constexpr uint32_t kTileAndInt8 = 3U << 24;  // AMX_TILE, AMX_INT8
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && has(edx, kTileAndInt8) &&
         (saved_state() & kTileState) == kTileState && allow_tile_registers();
#else
  return false;
#endif
}

Target best_of_cpu() {
  uint32_t eax, ebx1, ecx1, edx1, ebx7, ecx7, edx7;
  if (!__get_cpuid(1, &eax, &ebx1, &ecx1, &edx1) || !has(ecx1, bit_OSXSAVE)) return Target::kBaseline;
  if (!__get_cpuid_count(7, 0, &eax, &ebx7, &ecx7, &edx7)) return Target::kBaseline;
  constexpr uint64_t kYmm = 0x6, kZmm = 0xE6;
  const uint64_t saved = saved_state();
  const bool avx2 = has(ecx1, bit_AVX | bit_FMA | bit_F16C | bit_AES | bit_PCLMUL | bit_SSE4_2) &&
                    has(ebx7, bit_AVX2 | bit_BMI | bit_BMI2) && (saved & kYmm) == kYmm;
  if (!avx2) return Target::kBaseline;
  const bool avx3 = has(ebx7, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL) && (saved & kZmm) == kZmm;
  if (!avx3) return Target::kAvx2;
  if (!has(ecx7, bit_AVX512VNNI)) return Target::kAvx3;
  if (has_amx()) return Target::kAvx3Amx;
  // On Intel's cores one dot product of bf16 takes as long as the four fused multiply-adds that it stands for.
  return has_avx512_bf16() && is_amd() ? Target::kAvx3Bf16 : Target::kAvx3Vnni;
}
#elif HWY_ARCH_ARM_A64
Target best_of_cpu() { return has_dot_products() ? Target::kNeonDot : Target::kBaseline; }
#else
Target best_of_cpu() { return Target::kBaseline; }
#endif

bool compiled(Target target) {
  switch (target) {
    case Target::kBaseline:
      return true;
    case Target::kAvx2:
      return (HWY_TARGETS & HWY_AVX2) != 0;
    case Target::kAvx3:
    case Target::kAvx3Vnni:
    case Target::kAvx3Bf16:
    case Target::kAvx3Amx:
      return (HWY_TARGETS & HWY_AVX3) != 0;
    case Target::kNeonDot:
      return (HWY_TARGETS & HWY_NEON) != 0;
  }
  return false;
}

}  // namespace

std::vector<Target> supported_targets() {
  const Target best = best_of_cpu();
  std::vector<Target> targets;
  for (const Target target : {Target::kBaseline, Target::kAvx2, Target::kAvx3, Target::kAvx3Vnni, Target::kAvx3Bf16,
                              Target::kAvx3Amx, Target::kNeonDot}) {
    if (target <= best && compiled(target)) targets.push_back(target);
  }
  return targets;
}

Target target() {
  const int known = chosen.load(std::memory_order_relaxed);
  if (known >= 0) return static_cast<Target>(known);
  Target best = best_of_cpu();
  while (!compiled(best)) best = static_cast<Target>(static_cast<int>(best) - 1);
  use_target(best);
  return best;
}

void use_target(Target target) { chosen.store(static_cast<int>(target), std::memory_order_relaxed); }

QUIRE_CPU_EXPORT(target_name);
const char* target_name() {
  switch (target()) {
    case Target::kAvx3Vnni:
      return "AVX3_VNNI";
    case Target::kAvx3Bf16:
      return "AVX3_BF16";
    case Target::kAvx3Amx:
      return "AVX3_AMX";
    case Target::kNeonDot:
      return "NEON_DOT";
    default:
      return QUIRE_CPU_DISPATCH(target_name)();
  }
}

}  // namespace quire::cpu
#endif
