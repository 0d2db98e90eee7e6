// The instruction sets that the dispatcher finds are those that Highway's own dispatcher finds.
#include <hwy/targets.h>

#include "tests/unit/kernels/kernel_test.h"

namespace quire::cpu {
namespace {

bool supported(Target target) {
  const auto targets = supported_targets();
  return std::find(targets.begin(), targets.end(), target) != targets.end();
}

TEST(Targets, AreThoseOfHighway) {
  EXPECT_TRUE(supported(Target::kBaseline));
#if HWY_ARCH_X86
  EXPECT_EQ(supported(Target::kAvx2), (hwy::SupportedTargets() & HWY_AVX2) != 0);
  EXPECT_EQ(supported(Target::kAvx3), (hwy::SupportedTargets() & HWY_AVX3) != 0);
#endif
}

TEST(Targets, TheBestIsInUse) { EXPECT_EQ(target(), supported_targets().back()); }

TEST(Targets, EachHasTheNameOfItsVariant) {
  for (const Target one : supported_targets()) {
    use_target(one);
    EXPECT_EQ(target(), one);
    constexpr const char* kNames[] = {nullptr, "AVX2", "AVX3", "AVX3_VNNI", "AVX3_BF16", "AVX3_AMX", "NEON_DOT"};
    if (one != Target::kBaseline) {
      EXPECT_STREQ(target_name(), kNames[static_cast<int>(one)]);
    }
  }
  EXPECT_EQ(target(), supported_targets().back());
}

}  // namespace
}  // namespace quire::cpu
