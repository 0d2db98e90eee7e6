#include <limits>

#include "tests/unit/kernels/kernel_test.h"

namespace quire::cpu {
namespace {

class GemmTest : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(Targets, GemmTest, testing::ValuesIn(float_targets()), kernel_target_name);

struct Product {
  int64_t m, n, k;
  ElementType type;
  std::vector<float> x, weights;
  std::vector<char> packed;

  int64_t panels() const { return ceil_div(n, kPanel); }
  const float* row(int64_t r) const { return x.data() + r * k; }
};

Product make(std::vector<float> x, std::vector<float> weights, int64_t m, int64_t n, int64_t k, ElementType type) {
  Product p{m, n, k, type, std::move(x), std::move(weights), std::vector<char>(packed_bytes(type, n, k))};
  pack_rows(ElementType::kF32, p.weights.data(), k, n, k, type, p.packed.data(), 0);
  return p;
}

std::vector<float> multiply(const Product& p, const float* bias = nullptr) {
  std::vector<float> y(static_cast<size_t>(p.m * p.n));
  gemm(p.x.data(), p.k, p.m, p.type, p.packed.data(), p.n, p.k, 0, p.panels(), bias, false, y.data(), p.n);
  return y;
}

TEST_P(GemmTest, MatchesScalarBitsAndDouble) {
  const int64_t shapes[][3] = {{1, 1, 1},     {1, 64, 48},  {2, 33, 17}, {5, 95, 63},
                               {13, 31, 130}, {25, 70, 33}, {99, 40, 19}};
  for (const ElementType type : kTypes) {
    for (const auto& [m, n, k] : shapes) {
      SCOPED_TRACE(testing::Message() << element_name(type) << " " << m << "x" << n << "x" << k);
      const int64_t ldx = k + 3, ldy = n + 5;
      const Product p = make(normal(m * ldx), normal(n * k), m, n, k, type);
      const std::vector<float> bias = normal(n), start = normal(m * ldy);
      for (const bool accumulate : {false, true}) {
        const float* added = accumulate ? bias.data() : nullptr;
        std::vector<float> y = start, expected = start;
        gemm(p.x.data(), ldx, m, type, p.packed.data(), n, k, 0, p.panels(), added, accumulate, y.data(), ldy);
        scalar::gemm(p.x.data(), ldx, m, type, p.packed.data(), n, k, 0, p.panels(), added, accumulate, expected.data(),
                     ldy);
        expect_same_bits(y, expected, "scalar");
        const Elements rounded(type, p.weights);
        for (int64_t r = 0; r < m; ++r) {
          for (int64_t c = 0; c < n; ++c) {
            ExactSum sum;
            for (int64_t j = 0; j < k; ++j) sum.add(p.x[static_cast<size_t>(r * ldx + j)], rounded.at(c * k + j));
            if (accumulate) sum.add(bias[static_cast<size_t>(c)], 1);
            if (accumulate) sum.add(start[static_cast<size_t>(r * ldy + c)], 1);
            ASSERT_NEAR(y[static_cast<size_t>(r * ldy + c)], sum.sum, sum.bound()) << r << ", " << c;
          }
        }
      }
    }
  }
}

TEST_P(GemmTest, RowsDoNotDependOnTheNumberOfRows) {
  const int64_t m = 512, n = GetParam() == Target::kBaseline ? 33 : 100, k = 67;
  for (const ElementType type : kTypes) {
    const Product p = make(normal(m * k), normal(n * k), m, n, k, type);
    const std::vector<float> all = multiply(p);
    for (const int64_t rows : {1, 2, 7, 11, 64, 200}) {
      for (int64_t r = 0; r < m; r += rows) {
        const int64_t count = std::min(rows, m - r);
        std::vector<float> y(static_cast<size_t>(count * n));
        gemm(p.row(r), k, count, type, p.packed.data(), n, k, 0, p.panels(), nullptr, false, y.data(), n);
        ASSERT_EQ(0, std::memcmp(y.data(), all.data() + r * n, y.size() * sizeof(float)))
            << element_name(type) << ", rows " << r << " by " << rows;
      }
    }
  }
}

TEST_P(GemmTest, PanelRangesWriteTheirColumnsOnly) {
  const int64_t m = 14, n = 150, k = 31;
  for (const ElementType type : kTypes) {
    const Product p = make(normal(m * k), normal(n * k), m, n, k, type);
    const std::vector<float> all = multiply(p);
    std::vector<float> y(all.size(), -7.0f);
    gemm(p.x.data(), k, m, type, p.packed.data(), n, k, 1, 3, nullptr, false, y.data(), n);
    for (int64_t i = 0; i < m * n; ++i) {
      const bool inside = i % n >= kPanel && i % n < 3 * kPanel;
      const auto at = static_cast<size_t>(i);
      ASSERT_EQ(y[at], inside ? all[at] : -7.0f) << "row " << i / n << ", column " << i % n;
    }
    gemm(p.x.data(), k, m, type, p.packed.data(), n, k, 0, 1, nullptr, false, y.data(), n);
    gemm(p.x.data(), k, m, type, p.packed.data(), n, k, 3, 5, nullptr, false, y.data(), n);
    expect_same_bits(y, all, "by ranges");
  }
}

TEST_P(GemmTest, InfinityStaysInItsRow) {
  const int64_t m = 3, n = 40, k = 33;
  for (const ElementType type : kTypes) {
    Product p = make(normal(m * k), std::vector<float>(static_cast<size_t>(n * k), 0.5f), m, n, k, type);
    p.x[static_cast<size_t>(k)] = std::numeric_limits<float>::infinity();
    const std::vector<float> y = multiply(p);
    EXPECT_TRUE(all_finite(y.data(), n));
    for (int64_t c = 0; c < n; ++c) EXPECT_EQ(y[static_cast<size_t>(n + c)], std::numeric_limits<float>::infinity());
    EXPECT_TRUE(all_finite(y.data() + 2 * n, n));
  }
}

TEST_P(GemmTest, EmptySumIsTheBias) {
  const std::vector<float> bias = normal(32);
  std::vector<float> y(32, 5.0f);
  gemm(nullptr, 0, 1, ElementType::kF32, nullptr, 32, 0, 0, 1, bias.data(), false, y.data(), 32);
  expect_same_bits(y, bias, "bias");
}

TEST_P(GemmTest, PackMatchesScalar) {
  for (const ElementType source_type : kTypes) {
    for (const ElementType type : kTypes) {
      for (const int64_t k : {1, 2, 127, 128, 301}) {
        SCOPED_TRACE(testing::Message() << element_name(source_type) << " to " << element_name(type) << ", k " << k);
        const int64_t n = 109, stride = k + between(0, 5);
        const Elements source(source_type, normal(n * stride));
        const auto bytes = static_cast<int64_t>(packed_bytes(type, n, k));
        Elements packed(ElementType::kBF16, bytes / 2), expected(ElementType::kBF16, bytes / 2);
        for (int64_t row = 0; row < n;) {  // assembled of pieces that begin and end anywhere
          const int64_t rows = std::min(n - row, between(1, 70));
          const char* from =
              static_cast<const char*>(source.data()) + row * stride * static_cast<int64_t>(element_bytes(source_type));
          pack_rows(source_type, from, stride, rows, k, type, packed.data(), row);
          row += rows;
        }
        scalar::pack_rows(source_type, source.data(), stride, n, k, type, expected.data(), 0);
        ASSERT_TRUE(packed == expected);
      }
    }
  }
}

TEST_P(GemmTest, PackLayout) {
  EXPECT_EQ(packed_bytes(ElementType::kF32, 33, 5), 64u * 5 * 4);
  EXPECT_EQ(packed_bytes(ElementType::kF16, 32, 5), 32u * 5 * 2);
  EXPECT_EQ(packed_bytes(ElementType::kBF16, 1, 5), 32u * 6 * 2);
  const float row[3] = {1.0f, 2.0f, 3.0f};
  std::vector<uint16_t> pairs(packed_bytes(ElementType::kBF16, 40, 3) / 2, 0xffff);
  pack_rows(ElementType::kF32, row, 3, 1, 3, ElementType::kBF16, pairs.data(), 37);
  const size_t panel = 2 * 2 * 32, column = 2 * 5;
  EXPECT_EQ(pairs[panel + column], to_bf16(1.0f));
  EXPECT_EQ(pairs[panel + column + 1], to_bf16(2.0f));
  EXPECT_EQ(pairs[panel + 64 + column], to_bf16(3.0f));
  EXPECT_EQ(pairs[panel + 64 + column + 1], 0);  // the odd k's partner
  EXPECT_EQ(pairs[panel + column + 2], 0xffff);  // no other column touched
}

}  // namespace
}  // namespace quire::cpu
