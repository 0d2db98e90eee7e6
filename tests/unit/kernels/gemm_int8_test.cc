// Products of 8-bit rows with quantised weights: the bits of the scalar reference, and values against double.
#include <limits>

#include "tests/unit/kernels/rounded_rows.h"

namespace quire::cpu {
namespace {

class GemmInt8Test : public QuantizedTest {};
INSTANTIATE_TEST_SUITE_P(Targets, GemmInt8Test, testing::ValuesIn(targets_without({Target::kAvx3Bf16})),
                         kernel_target_name);

TEST_P(GemmInt8Test, RowsAreRoundedAsByTheReference) {
  for (const int64_t k : {32, 96, 128, 160, 416}) {
    std::vector<float> x = normal(5 * k, 3);
    for (int64_t j = 0; j < 32; ++j) x[static_cast<size_t>(k + j)] = 0;                        // no scale
    for (int64_t j = 0; j < 32; ++j) x[static_cast<size_t>(2 * k + j)] *= 1e-33f;              // too small for one
    for (int64_t j = 0; j < 32; ++j) x[static_cast<size_t>(3 * k + j)] *= 1e37f;               // large, half of them
    x[static_cast<size_t>(4 * k + 7)] = 127, x[static_cast<size_t>(4 * k + 9)] = 2.5f * 0.5f;  // ties
    const RoundedRows rounded(x, k), expected(x, k, true);
    ASSERT_TRUE(rounded == expected) << k;
    for (int64_t row : {0, 3, 4}) {
      for (int64_t j = 0; j < k; ++j) {
        const double scale = rounded->group(row, j / 32).scale;
        EXPECT_NEAR(rounded.value(row, j), x[static_cast<size_t>(row * k + j)], 0.5001 * scale) << row << " " << j;
      }
    }
    EXPECT_EQ(rounded.value(1, 5), 0);
    EXPECT_EQ(rounded.value(2, 5), 0);
  }
}

TEST_P(GemmInt8Test, WhatIsNotFiniteStaysSo) {
  const int64_t k = 64, n = 40;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    std::vector<float> x = normal(2 * k);
    x[static_cast<size_t>(k + 33)] = bad;
    const RoundedRows rounded(x, k), expected(x, k, true);
    EXPECT_TRUE(std::isnan(rounded->group(1, 1).scale));
    EXPECT_TRUE(std::isfinite(rounded->group(1, 0).scale));
    for (int64_t j = 0; j < k; ++j) EXPECT_EQ(*rounded->codes_of(1, j), *expected->codes_of(1, j));
    for (const ElementType type : kQuantized) {
      if (block_format(type).elements > k) continue;
      const std::vector<char> packed = pack(type, blocks(type, n, k), n, k);
      std::vector<float> y(static_cast<size_t>(2 * n));
      gemm_int8(*rounded, 0, 2, type, packed.data(), n, 0, 2, nullptr, false, y.data(), n);
      for (int64_t c = 0; c < n; ++c) {
        EXPECT_TRUE(std::isfinite(y[static_cast<size_t>(c)]));
        EXPECT_TRUE(std::isnan(y[static_cast<size_t>(n + c)]));
      }
    }
  }
}

TEST_P(GemmInt8Test, HasTheBitsOfTheReferenceAndIsNearTheExactProduct) {
  for (const ElementType type : kQuantized) {
    const int64_t block = block_format(type).elements;
    const int64_t shapes[][3] = {{1, 64, 2 * block}, {2, 33, block},      {3, 31, 5 * block},
                                 {4, 40, 3 * block}, {13, 31, 2 * block}, {55, 34, 3 * block}};
    for (const auto& [m, n, k] : shapes) {
      SCOPED_TRACE(testing::Message() << element_name(type) << " " << m << "x" << n << "x" << k);
      const std::vector<char> stored = blocks(type, n, k), packed = pack(type, stored, n, k);
      const RoundedRows x(normal(m * k), k);
      const int64_t ldy = n + 5, panels = ceil_div(n, kPanel);
      const std::vector<float> bias = normal(n), start = normal(m * ldy);
      for (const bool accumulate : {false, true}) {
        const float* added = accumulate ? bias.data() : nullptr;
        std::vector<float> y = start, expected = start;
        gemm_int8(*x, 0, m, type, packed.data(), n, 0, panels, added, accumulate, y.data(), ldy);
        scalar::gemm_int8(*x, 0, m, type, packed.data(), n, 0, panels, added, accumulate, expected.data(), ldy);
        expect_same_bits(y, expected, "scalar");
      }
      std::vector<float> values(static_cast<size_t>(n * k)), y(static_cast<size_t>(m * n));
      dequantize(type, stored.data(), n * k, values.data());
      gemm_int8(*x, 0, m, type, packed.data(), n, 0, panels, nullptr, false, y.data(), n);
      for (int64_t c = 0; c < n; ++c) {
        ExactSum sum;
        for (int64_t j = 0; j < k; ++j) sum.add(x.value(m - 1, j), values[static_cast<size_t>(c * k + j)]);
        ASSERT_NEAR(y[static_cast<size_t>((m - 1) * n + c)], sum.sum, 4 * sum.bound()) << c;
      }
    }
  }
}

// Sums of the largest products fit: nothing saturates.
TEST_P(GemmInt8Test, TheLargestCodesAreSummedExactly) {
  for (const ElementType type : kQuantized) {
    const int64_t k = std::max<int64_t>(128, block_format(type).elements), n = 32;
    for (const int byte : {0, 0x7f, 0x80, 0xff}) {
      std::vector<char> stored = blocks(type, n, k);
      const BlockFormat format = block_format(type);
      for (size_t block = 0; block < stored.size(); block += format.bytes) {
        for (size_t b = 4; b < end_of_bits(type); ++b) stored[block + b] = static_cast<char>(byte);
      }
      const std::vector<char> packed = pack(type, stored, n, k);
      for (const float sign : {-1.0f, 1.0f}) {
        for (const int64_t m : {1, 7}) {
          const RoundedRows x(std::vector<float>(static_cast<size_t>(m * k), sign), k);
          std::vector<float> y(static_cast<size_t>(m * n)), expected(y.size());
          gemm_int8(*x, 0, m, type, packed.data(), n, 0, 1, nullptr, false, y.data(), n);
          scalar::gemm_int8(*x, 0, m, type, packed.data(), n, 0, 1, nullptr, false, expected.data(), n);
          expect_same_bits(y, expected, element_name(type));
        }
      }
    }
  }
}

TEST_P(GemmInt8Test, RowsAndPanelsDoNotDependOnTheCall) {
  const int64_t m = 130, n = GetParam() == Target::kBaseline ? 33 : 100;
  for (const ElementType type : {ElementType::kQ4_0, ElementType::kQ4_K, ElementType::kQ6_K}) {
    const int64_t k = block_format(type).elements * 2;
    const std::vector<char> packed = pack(type, blocks(type, n, k), n, k);
    const RoundedRows x(normal(m * k), k);
    const int64_t panels = ceil_div(n, kPanel);
    std::vector<float> all(static_cast<size_t>(m * n)), y(all.size());
    gemm_int8(*x, 0, m, type, packed.data(), n, 0, panels, nullptr, false, all.data(), n);
    for (const int64_t rows : {1, 3, 64}) {
      for (int64_t r = 0; r < m; r += rows) {
        for (int64_t p = 0; p < panels; ++p) {
          gemm_int8(*x, r, std::min(rows, m - r), type, packed.data(), n, p, p + 1, nullptr, false, y.data() + r * n,
                    n);
        }
      }
      expect_same_bits(y, all, element_name(type));
    }
  }
}

}  // namespace
}  // namespace quire::cpu
