// Which instruction set the dispatcher chose.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/target.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu::HWY_NAMESPACE {
const char* target_name() { return hwy::TargetName(HWY_TARGET); }
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::cpu {
HWY_EXPORT(target_name);
const char* target_name() { return HWY_DYNAMIC_DISPATCH(target_name)(); }
}  // namespace quire::cpu
#endif
