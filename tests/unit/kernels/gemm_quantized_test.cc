// Products with quantised weights: those of the dequantised matrix, bit for bit.
#include "lib/support/quantization.h"
#include "tests/unit/kernels/quantized_blocks.h"

namespace quire::cpu {
namespace {

using GemmQuantizedTest = QuantizedTest;
INSTANTIATE_TEST_SUITE_P(Targets, GemmQuantizedTest, testing::ValuesIn(float_targets()), kernel_target_name);

TEST_P(GemmQuantizedTest, EqualsTheProductWithTheDequantizedMatrix) {
  for (const ElementType type : kQuantized) {
    const int64_t block = block_format(type).elements;
    const int64_t shapes[][3] = {{1, 64, 2 * block}, {2, 33, block}, {13, 31, 2 * block}, {30, 40, 3 * block}};
    for (const auto& [m, n, k] : shapes) {
      SCOPED_TRACE(testing::Message() << element_name(type) << " " << m << "x" << n << "x" << k);
      const int64_t ldx = k + 3, ldy = n + 5;
      const std::vector<char> stored = blocks(type, n, k);
      std::vector<float> values(static_cast<size_t>(n * k));
      dequantize(type, stored.data(), n * k, values.data());
      std::vector<char> packed(packed_bytes(type, n, k)), wide(packed_bytes(ElementType::kF32, n, k));
      pack_rows(type, stored.data(), k, n, k, type, packed.data(), 0);
      pack_rows(type, stored.data(), k, n, k, ElementType::kF32, wide.data(), 0);
      const std::vector<float> x = normal(m * ldx), bias = normal(n), start = normal(m * ldy);
      const int64_t panels = ceil_div(n, kPanel);
      for (const bool accumulate : {false, true}) {
        const float* added = accumulate ? bias.data() : nullptr;
        std::vector<float> y = start, expected = start, by_scalar = start;
        gemm(x.data(), ldx, m, type, packed.data(), n, k, 0, panels, added, accumulate, y.data(), ldy);
        gemm(x.data(), ldx, m, ElementType::kF32, wide.data(), n, k, 0, panels, added, accumulate, expected.data(),
             ldy);
        expect_same_bits(y, expected, "f32");
        if (m > 2) continue;  // the reference is slow
        scalar::gemm(x.data(), ldx, m, type, packed.data(), n, k, 0, panels, added, accumulate, by_scalar.data(), ldy);
        expect_same_bits(y, by_scalar, "scalar");
      }
      // Against double: the first row.
      std::vector<float> y(static_cast<size_t>(m * n));
      gemm(x.data(), ldx, m, type, packed.data(), n, k, 0, panels, nullptr, false, y.data(), n);
      for (int64_t c = 0; c < n; ++c) {
        ExactSum sum;
        for (int64_t j = 0; j < k; ++j) sum.add(x[static_cast<size_t>(j)], values[static_cast<size_t>(c * k + j)]);
        ASSERT_NEAR(y[static_cast<size_t>(c)], sum.sum, sum.bound()) << c;
      }
    }
  }
}

TEST_P(GemmQuantizedTest, RowsAndPanelsDoNotDependOnTheCall) {
  const int64_t m = 200, n = GetParam() == Target::kBaseline ? 33 : 100;
  for (const ElementType type : {ElementType::kQ4_0, ElementType::kQ6_K}) {
    const int64_t k = block_format(type).elements * 2;
    const std::vector<char> stored = blocks(type, n, k);
    std::vector<char> packed(packed_bytes(type, n, k));
    pack_rows(type, stored.data(), k, n, k, type, packed.data(), 0);
    const std::vector<float> x = normal(m * k);
    const int64_t panels = ceil_div(n, kPanel);
    std::vector<float> all(static_cast<size_t>(m * n)), y(all.size());
    gemm(x.data(), k, m, type, packed.data(), n, k, 0, panels, nullptr, false, all.data(), n);
    for (const int64_t rows : {1, 7, 64}) {
      for (int64_t r = 0; r < m; r += rows) {
        for (int64_t p = 0; p < panels; ++p) {
          gemm(x.data() + r * k, k, std::min(rows, m - r), type, packed.data(), n, k, p, p + 1, nullptr, false,
               y.data() + r * n, n);
        }
      }
      expect_same_bits(y, all, element_name(type));
    }
  }
}

// Any type into any other, in pieces that begin and end anywhere.
TEST_P(GemmQuantizedTest, PackMatchesScalar) {
  std::vector<ElementType> types(std::begin(kTypes), std::end(kTypes));
  types.insert(types.end(), std::begin(kQuantized), std::end(kQuantized));
  for (const ElementType source_type : types) {
    for (const ElementType type : types) {
      if (!is_quantized(source_type) && !is_quantized(type)) continue;  // GemmTest
      SCOPED_TRACE(testing::Message() << element_name(source_type) << " to " << element_name(type));
      const bool large = std::max(block_format(type).elements, block_format(source_type).elements) > 32;
      const int64_t k = large ? 512 : 32 * between(1, 9), n = 45;
      std::vector<char> source(row_bytes(source_type, n * k));
      if (is_quantized(source_type)) {
        source = blocks(source_type, n, k);
      } else {
        const std::vector<float> x = normal(n * k);
        convert(ElementType::kF32, x.data(), source_type, source.data(), n * k);
      }
      const size_t bytes = packed_bytes(type, n, k);
      std::vector<char> packed(bytes, 7), expected(bytes, 7);
      for (int64_t row = 0; row < n;) {
        const int64_t rows = std::min(n - row, between(1, 40));
        pack_rows(source_type, source.data() + row_bytes(source_type, row * k), k, rows, k, type, packed.data(), row);
        row += rows;
      }
      scalar::pack_rows(source_type, source.data(), k, n, k, type, expected.data(), 0);
      ASSERT_TRUE(packed == expected);
    }
  }
}

}  // namespace
}  // namespace quire::cpu
