// Products by tile registers, emulated: the bits of the scalar reference.
#include "tests/unit/kernels/emulated_tiles.h"
#include "tests/unit/kernels/rounded_rows.h"

namespace quire::cpu {
namespace {

class TileRegistersTest : public QuantizedTest {};
INSTANTIATE_TEST_SUITE_P(Targets, TileRegistersTest, testing::Values(Target::kAvx3Vnni), kernel_target_name);

TEST_P(TileRegistersTest, HaveTheBitsOfTheReference) {
  const auto targets = supported_targets();
  if (!emulated_gemm_int8 || std::ranges::find(targets, Target::kAvx3Vnni) == targets.end()) {
    GTEST_SKIP() << "needs AVX-512 VNNI";
  }
  for (const ElementType type : kQuantized) {
    const int64_t block = block_format(type).elements;
    const int64_t shapes[][3] = {{17, 32, 256},       {32, 33, block},     {48, 64, 5 * block},
                                 {49, 31, 3 * block}, {64, 40, 2 * block}, {between(17, 100), between(1, 70), 768}};
    for (const auto& [m, n, k] : shapes) {
      SCOPED_TRACE(testing::Message() << element_name(type) << " " << m << "x" << n << "x" << k);
      const std::vector<char> packed = pack(type, blocks(type, n, k), n, k);
      const RoundedRows x(normal((m + 3) * k), k);
      const int64_t ldy = n + 5, panels = ceil_div(n, kPanel), first = between(0, 3);
      const std::vector<float> bias = normal(n), start = normal(m * ldy);
      for (const bool accumulate : {false, true}) {
        const float* added = accumulate ? bias.data() : nullptr;
        std::vector<float> y = start, expected = start;
        const int64_t before = n_emulated_products();
        emulated_gemm_int8(*x, first, m, type, packed.data(), n, 0, panels, added, accumulate, y.data(), ldy);
        scalar::gemm_int8(*x, first, m, type, packed.data(), n, 0, panels, added, accumulate, expected.data(), ldy);
        expect_same_bits(y, expected, "scalar");
        // All rows but for a last few, sixteen at a time; two products for the columns of a panel.
        const int64_t parts = k / kQuantizedGroup * scales_of(type);
        const int64_t at_once = m / 48 * 3 + (m % 48 > 16 ? m % 48 / 16 : 0);
        EXPECT_EQ(n_emulated_products() - before, 2 * at_once * panels * parts);
      }
    }
  }
}

// All bits of codes and rows set, of either sign.
TEST_P(TileRegistersTest, SumTheLargestCodesExactly) {
  const auto targets = supported_targets();
  if (!emulated_gemm_int8 || std::ranges::find(targets, Target::kAvx3Vnni) == targets.end()) {
    GTEST_SKIP() << "needs AVX-512 VNNI";
  }
  const int64_t k = 256, n = 32, m = 32;
  for (const ElementType type : kQuantized) {
    std::vector<char> stored = blocks(type, n, k);
    const BlockFormat format = block_format(type);
    for (size_t at = 0; at < stored.size(); at += format.bytes) {
      for (size_t b = 4; b < format.bytes - 2; ++b) stored[at + b] = static_cast<char>(0xff);
    }
    const std::vector<char> packed = pack(type, stored, n, k);
    for (const float sign : {-1.0f, 1.0f}) {
      const RoundedRows x(std::vector<float>(static_cast<size_t>(m * k), sign), k);
      std::vector<float> y(static_cast<size_t>(m * n)), expected(y.size());
      emulated_gemm_int8(*x, 0, m, type, packed.data(), n, 0, 1, nullptr, false, y.data(), n);
      scalar::gemm_int8(*x, 0, m, type, packed.data(), n, 0, 1, nullptr, false, expected.data(), n);
      expect_same_bits(y, expected, element_name(type));
    }
  }
}

}  // namespace
}  // namespace quire::cpu
