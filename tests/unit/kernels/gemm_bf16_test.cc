#include "tests/unit/kernels/kernel_test.h"

namespace quire::cpu {
namespace {

class GemmBf16Test : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(Targets, GemmBf16Test,
                         testing::ValuesIn(targets_without({Target::kAvx3Vnni, Target::kAvx3Amx, Target::kNeonDot})),
                         kernel_target_name);

// m rows and n columns of k elements, rounded and packed.
struct Product {
  Product(const std::vector<float>& x, const std::vector<float>& weights, int64_t m, int64_t n, int64_t k)
      : m(m),
        n(n),
        k(k),
        ldx(bf16_row_stride(k)),
        rows(static_cast<size_t>(m * ldx), 0x7fc0),
        packed(packed_bytes(ElementType::kBF16, n, k)) {
    for (int64_t r = 0; r < m; ++r) round_row_bf16(x.data() + r * k, k, rows.data() + r * ldx);
    pack_rows(ElementType::kF32, weights.data(), k, n, k, ElementType::kBF16, packed.data(), 0);
  }

  int64_t panels() const { return ceil_div(n, kPanel); }
  void multiply_rows(int64_t first, int64_t count, float* y) const {
    gemm_bf16(rows.data() + first * ldx, ldx, count, packed.data(), n, k, 0, panels(), nullptr, false, y, n);
  }

  int64_t m, n, k, ldx;
  std::vector<uint16_t> rows;  // what lies behind a row is NaN
  std::vector<char> packed;
};

TEST_P(GemmBf16Test, MatchesScalarBitsAndDouble) {
  const int64_t shapes[][3] = {{1, 1, 1},     {1, 64, 48},  {2, 33, 17}, {5, 95, 63},
                               {13, 31, 130}, {25, 70, 33}, {99, 40, 19}};
  for (const auto& [m, n, k] : shapes) {
    SCOPED_TRACE(testing::Message() << m << "x" << n << "x" << k);
    const int64_t ldy = n + 5;
    const std::vector<float> x = normal(m * k), weights = normal(n * k), bias = normal(n), start = normal(m * ldy);
    const Product p(x, weights, m, n, k);
    const Elements w(ElementType::kBF16, weights);
    for (const bool accumulate : {false, true}) {
      const float* added = accumulate ? bias.data() : nullptr;
      std::vector<float> y = start, expected = start;
      gemm_bf16(p.rows.data(), p.ldx, m, p.packed.data(), n, k, 0, p.panels(), added, accumulate, y.data(), ldy);
      scalar::gemm_bf16(p.rows.data(), p.ldx, m, p.packed.data(), n, k, 0, p.panels(), added, accumulate,
                        expected.data(), ldy);
      expect_same_bits(y, expected, "scalar");
      for (int64_t r = 0; r < m; ++r) {
        for (int64_t c = 0; c < n; ++c) {
          ExactSum sum;
          for (int64_t j = 0; j < k; ++j) {
            sum.add(from_bf16(to_bf16(x[static_cast<size_t>(r * k + j)])), w.at(c * k + j));
          }
          if (accumulate) sum.add(bias[static_cast<size_t>(c)], 1);
          if (accumulate) sum.add(start[static_cast<size_t>(r * ldy + c)], 1);
          ASSERT_NEAR(y[static_cast<size_t>(r * ldy + c)], sum.sum, sum.bound()) << r << ", " << c;
        }
      }
    }
  }
}

TEST_P(GemmBf16Test, SumsOfAnyMagnitudeHaveTheScalarBits) {
  const int64_t m = 7, n = 64, k = 96;
  for (const float scale : {1e-12f, 1e-3f, 1e4f, 1e15f}) {
    const Product p(normal(m * k, scale), normal(n * k, scale), m, n, k);
    std::vector<float> y(static_cast<size_t>(m * n)), expected(y);
    p.multiply_rows(0, m, y.data());
    scalar::gemm_bf16(p.rows.data(), p.ldx, m, p.packed.data(), n, k, 0, p.panels(), nullptr, false, expected.data(),
                      n);
    expect_same_bits(y, expected, "scalar");
  }
}

TEST_P(GemmBf16Test, RowsDoNotDependOnTheNumberOfRows) {
  const int64_t m = 200, n = GetParam() == Target::kBaseline ? 33 : 100, k = 67;
  const Product p(normal(m * k), normal(n * k), m, n, k);
  std::vector<float> all(static_cast<size_t>(m * n));
  p.multiply_rows(0, m, all.data());
  for (const int64_t rows : {1, 2, 3, 7, 11, 12, 64}) {
    for (int64_t r = 0; r < m; r += rows) {
      const int64_t count = std::min(rows, m - r);
      std::vector<float> y(static_cast<size_t>(count * n));
      p.multiply_rows(r, count, y.data());
      ASSERT_EQ(0, std::memcmp(y.data(), all.data() + r * n, y.size() * sizeof(float)))
          << "rows " << r << " by " << rows;
    }
  }
}

TEST_P(GemmBf16Test, PanelRangesWriteTheirColumnsOnly) {
  const int64_t m = 14, n = 150, k = 31;
  const Product p(normal(m * k), normal(n * k), m, n, k);
  std::vector<float> all(static_cast<size_t>(m * n)), y(all.size(), -7.0f);
  p.multiply_rows(0, m, all.data());
  gemm_bf16(p.rows.data(), p.ldx, m, p.packed.data(), n, k, 1, 3, nullptr, false, y.data(), n);
  for (int64_t i = 0; i < m * n; ++i) {
    const bool inside = i % n >= kPanel && i % n < 3 * kPanel;
    const auto at = static_cast<size_t>(i);
    ASSERT_EQ(y[at], inside ? all[at] : -7.0f) << "row " << i / n << ", column " << i % n;
  }
}

TEST_P(GemmBf16Test, RoundsRowsAsElements) {
  for (const int64_t k : {1, 2, 15, 16, 33, 64}) {
    const std::vector<float> x = normal(k);
    std::vector<uint16_t> row(static_cast<size_t>(bf16_row_stride(k)), 1);
    round_row_bf16(x.data(), k, row.data());
    for (int64_t j = 0; j < k; ++j) EXPECT_EQ(row[static_cast<size_t>(j)], to_bf16(x[static_cast<size_t>(j)]));
    if (k % 2 != 0) {
      EXPECT_EQ(row[static_cast<size_t>(k)], 0);
    }
    for (int64_t j = round_up(k, 2); j < bf16_row_stride(k); ++j) EXPECT_EQ(row[static_cast<size_t>(j)], 1);
  }
}

TEST(Bf16Rows, AnOddNumberOfCacheLinesApart) {
  EXPECT_EQ(bf16_row_stride(1), 32);
  EXPECT_EQ(bf16_row_stride(33), 96);
  EXPECT_EQ(bf16_row_stride(2048), 65 * 32);
  EXPECT_EQ(bf16_row_stride(576), 19 * 32);
}

}  // namespace
}  // namespace quire::cpu
