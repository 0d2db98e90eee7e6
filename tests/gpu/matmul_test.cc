// Products with weights of every type, against sums in double over the same weights.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/cuda/matmul.h"
#include "lib/support/quantization.h"
#include "tests/gpu/elements.h"
#include "tests/gpu/schedules.h"
#include "tests/gpu/test_device.h"
#include "tests/seed.h"

namespace quire::test {
namespace {

// Random weights of any type, rows at multiples of 16 bytes with rubbish between them.
struct Weights {
  cuda::DeviceMatrix matrix;
  Shared<char> bytes;
  std::vector<float> values;  // [n][k]

  Weights(std::mt19937& random, ElementType type, int64_t n, int64_t k) : values(static_cast<size_t>(n * k)) {
    std::normal_distribution<float> normal;
    for (float& v : values) v = normal(random);
    const int64_t all = cuda::device_row_bytes(type, k);
    std::vector<std::byte> blocks(row_bytes(type, k));
    bytes.assign(static_cast<size_t>(n * all + 16), '\x7f');
    char* const first = bytes.data() + (16 - reinterpret_cast<uintptr_t>(bytes.data()) % 16) % 16;
    for (int64_t r = 0; r < n; ++r) {
      float* const row = &values[static_cast<size_t>(r * k)];
      if (is_quantized(type)) {
        quantize(row, k, type, blocks.data());
        dequantize(type, blocks.data(), k, row);
        const int64_t n_blocks = k / block_format(type).elements;
        cuda::put_blocks(type, blocks.data(), 0, n_blocks, n_blocks, reinterpret_cast<std::byte*>(first + r * all));
        continue;
      }
      for (int64_t i = 0; i < k; ++i) {
        store_element(type, first + r * all, i, row[i]);
        row[i] = static_cast<float>(load_element(type, first + r * all, i));
      }
    }
    matrix = {first, n, k, all, type};
  }
};

constexpr ElementType kWeightTypes[] = {
    ElementType::kF32,  ElementType::kF16,  ElementType::kBF16, ElementType::kQ8_0,   ElementType::kQ4_0,
    ElementType::kQ4_1, ElementType::kQ5_0, ElementType::kQ5_1, ElementType::kQ4_K,   ElementType::kQ5_K,
    ElementType::kQ6_K, ElementType::kQ2_K, ElementType::kQ3_K, ElementType::kIQ4_NL, ElementType::kIQ4_XS};

class MatmulKernels : public OnEverySchedule {
 protected:
  void TearDown() override {
    if (HasFailure()) ADD_FAILURE() << seed_trace();
  }
  // What rounding x may change in the product of a row of it with one of w: matmul.h says how it is rounded.
  static double rounding_of(const Weights& w, int64_t column, const Elements& x, int64_t first) {
    constexpr int64_t kVector = 16;
    double most = 0;
    for (int64_t at = 0; at < w.matrix.k; at += kVector) {
      double greatest = 0, weights = 0;
      for (int64_t i = at; i < at + kVector; ++i) {
        greatest = std::max(greatest, std::abs(x[first + i]));
        weights += std::abs(w.values[static_cast<size_t>(column * w.matrix.k + i)]);
      }
      most += 0.5 * greatest / 32639 * weights;
    }
    return most;
  }
  // relative: error allowed beside the sum of the products' magnitudes, and beside what rounding x may change where
  // there are few rows. aligned: rows of x begin at multiples of 16 bytes.
  void expect_product(const Weights& w, ElementType x_type, ElementType y_type, int64_t rows, bool bias, bool add,
                      double relative, bool aligned = false) {
    const int64_t n = w.matrix.n, k = w.matrix.k, x_stride = aligned ? round_up(k, 8) + 8 : k + 3, y_stride = n + 5;
    Elements x = random_elements(random_, x_type, rows * x_stride),
             y = random_elements(random_, y_type, (rows + 1) * y_stride);
    const Elements before = y;
    Shared<float> biases(static_cast<size_t>(n));
    for (float& b : biases) b = std::normal_distribution<float>()(random_);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(x.bytes.data()) % 16, 0u);
    ASSERT_EQ(run(&cuda::DeviceApi::matmul, x.rows(x_stride), rows, w.matrix, bias ? biases.data() : nullptr, add,
                  y.rows(y_stride)),
              0);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < n; ++j) {
        double expected = add ? before[r * y_stride + j] : 0, magnitude = 0;
        if (bias) expected += biases[static_cast<size_t>(j)];
        for (int64_t i = 0; i < k; ++i) {
          const double product = x[r * x_stride + i] * w.values[static_cast<size_t>(j * k + i)];
          expected += product;
          magnitude += std::abs(product);
        }
        const bool rounded = is_quantized(w.matrix.type) && rows <= cuda::kFewQuantizedRows;
        const double rounding = rounded ? rounding_of(w, j, x, r * x_stride) : 0;
        ASSERT_NEAR(y[r * y_stride + j], expected, relative * magnitude + rounding + tolerance(y_type, expected))
            << r << " " << j;
      }
      for (int64_t j = n; j < y_stride; ++j) ASSERT_EQ(y[r * y_stride + j], before[r * y_stride + j]);
    }
    for (int64_t at = rows * y_stride; at < (rows + 1) * y_stride; ++at) ASSERT_EQ(y[at], before[at]);
  }
  std::mt19937 random_ = seeded_random();
};
INSTANTIATE_TEST_SUITE_P(Orders, MatmulKernels, kSchedules, schedule_name);

// Of more than one round of a warp, and what is less than a round. Several rows, and fewer than a kernel is made for.
TEST_P(MatmulKernels, OfFewRows) {
  for (const ElementType type : kWeightTypes) {
    SCOPED_TRACE(element_name(type));
    const Weights w(random_, type, 9, is_quantized(type) ? 1280 : 1229);
    for (const int64_t rows : {1, 2, 3, 7, 8, 9, 16}) {
      if (rows > cuda::kFewRows && !is_quantized(type)) continue;
      const ElementType x = rows == 2 ? ElementType::kF32 : rows == 3 ? ElementType::kF16 : ElementType::kBF16;
      for (const bool aligned : {false, true}) {
        expect_product(w, x, rows % 2 == 0 ? ElementType::kF32 : ElementType::kBF16, rows, rows != 3, rows > 2, 1e-6,
                       aligned);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// So long that all warps of a block share a column: of several rounds of these, and what is less than a round.
TEST_P(MatmulKernels, OfFewRowsOfLongColumns) {
  for (const ElementType type : {ElementType::kF32, ElementType::kBF16, ElementType::kF16}) {
    SCOPED_TRACE(element_name(type));
    for (const int64_t k : {2048, 5003}) {
      const Weights w(random_, type, 6, k);
      for (const int64_t rows : {1, 3, 8}) {
        expect_product(w, ElementType::kBF16, ElementType::kF32, rows, rows != 3, rows > 1, 1e-6, rows != 8);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Of more columns than blocks have warps, several rounds of a lane's loads, and rows of which not all is in shared
// memory at a time.
TEST_P(MatmulKernels, OfLongRowsOfQuantisedWeights) {
  for (const ElementType type : kWeightTypes) {
    if (!is_quantized(type)) continue;
    // A GPU has more blocks and more shared memory; weights of that size take their time on the host.
    const bool large = wants_gpu() && (type == ElementType::kQ4_0 || type == ElementType::kQ4_K);
    SCOPED_TRACE(element_name(type));
    const Weights w(random_, type, large ? 6000 : 35, (large ? 47 : 19) * 256);
    for (const int64_t rows : {1, 8}) {
      expect_product(w, ElementType::kBF16, ElementType::kF32, rows, false, false, 1e-6, true);
      if (HasFatalFailure()) return;
    }
  }
}

// A session's logits must not depend on which other sessions share its step.
TEST_P(MatmulKernels, RowsAreTheSameAlone) {
  for (const ElementType type : kWeightTypes) {
    SCOPED_TRACE(element_name(type));
    const Weights w(random_, type, 5, 19 * 256);
    const int64_t rows = is_quantized(type) ? cuda::kFewQuantizedRows : cuda::kFewRows;
    const int64_t n = w.matrix.n, k = w.matrix.k;
    Elements x = random_elements(random_, ElementType::kBF16, rows * k), all(ElementType::kF32, rows * n);
    Elements bias = random_elements(random_, ElementType::kF32, n);
    const auto* const added = reinterpret_cast<const float*>(bias.bytes.data());
    ASSERT_EQ(run(&cuda::DeviceApi::matmul, x.rows(k), rows, w.matrix, added, false, all.rows(n)), 0);
    for (int64_t first = 0, several = 1; first < rows; first += several, ++several) {
      several = std::min(several, rows - first);
      Elements y(ElementType::kF32, several * n);
      const cuda::DeviceRows from{x.bytes.data() + first * k * 2, k, x.type};
      ASSERT_EQ(run(&cuda::DeviceApi::matmul, from, several, w.matrix, added, false, y.rows(n)), 0);
      for (int64_t i = 0; i < several * n; ++i) ASSERT_EQ(y[i], all[first * n + i]) << several << " from " << first;
    }
  }
}

TEST_P(MatmulKernels, OfZerosAndOfWhatIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const ElementType type : kWeightTypes) {
    SCOPED_TRACE(element_name(type));
    const Weights w(random_, type, 2, 512);
    const int64_t n = w.matrix.n, k = w.matrix.k;
    const auto product = [&](float everywhere, int64_t at, float there) {
      Elements x(ElementType::kF32, k), y(ElementType::kF32, n);
      for (int64_t i = 0; i < k; ++i) x.set(i, i == at ? there : everywhere);
      EXPECT_EQ(run(&cuda::DeviceApi::matmul, x.rows(k), 1, w.matrix, nullptr, false, y.rows(n)), 0);
      return y[1];
    };
    EXPECT_EQ(product(0, 0, 0), 0);
    EXPECT_NEAR(product(0, 300, 2), 2 * w.values[static_cast<size_t>(k + 300)], 1e-4);
    EXPECT_NEAR(product(0, 300, 1e-36f), 0, 1e-34);
    EXPECT_FALSE(std::isfinite(product(1, 300, kInfinity)));
    EXPECT_FALSE(std::isfinite(product(1, 300, -kInfinity)));
    EXPECT_TRUE(std::isnan(product(1, 300, std::nanf(""))));
    EXPECT_EQ(std::isfinite(product(1, 300, 2e37f)), !is_quantized(type));
  }
}

TEST_P(MatmulKernels, OfManyRows) {
  for (const ElementType type : kWeightTypes) {
    SCOPED_TRACE(element_name(type));
    const Weights w(random_, type, 70, is_quantized(type) ? 256 : 104);
    const ElementType x = type == ElementType::kF32 ? ElementType::kF32 : ElementType::kBF16;
    // Both operands are rounded to bf16.
    for (const int64_t rows : {17, 67}) {
      expect_product(w, x, ElementType::kF32, rows, true, true, 4e-3);
      if (HasFatalFailure()) return;
    }
  }
}

// Of more than one stretch of a warp and more rows than a block has; what lies between rows stays as it is.
TEST_P(MatmulKernels, DequantizedRowsAreThoseOfTheLibrary) {
  for (const ElementType type : kWeightTypes) {
    SCOPED_TRACE(element_name(type));
    for (const int64_t k : {int64_t{256}, int64_t{is_quantized(type) ? 2304 : 2309}}) {
      const Weights w(random_, type, 9, k);
      const int64_t n = w.matrix.n, stride = round_up(k, 8) + 8;
      Elements out = random_elements(random_, ElementType::kBF16, (n + 1) * stride);
      const Elements before = out;
      ASSERT_EQ(run(&cuda::DeviceApi::dequantize_rows, w.matrix, out.rows(stride)), 0);
      for (int64_t r = 0; r <= n; ++r) {
        for (int64_t i = 0; i < stride; ++i) {
          const bool there = r < n && i < k;
          const double expected =
              there ? from_bf16(to_bf16(w.values[static_cast<size_t>(r * k + i)])) : before[r * stride + i];
          ASSERT_EQ(out[r * stride + i], expected) << r << " " << i;
        }
      }
    }
  }
}

// Rows and weights that can be copied asynchronously.
TEST_P(MatmulKernels, OfAlignedRows) {
  const int64_t n = 66, k = 200, rows = 9;
  const Weights w(random_, ElementType::kBF16, n, k);
  Elements x = random_elements(random_, ElementType::kBF16, rows * k), y(ElementType::kF32, rows * n);
  ASSERT_EQ(reinterpret_cast<uintptr_t>(x.bytes.data()) % 16, 0u);
  ASSERT_EQ(run(&cuda::DeviceApi::matmul, x.rows(k), rows, w.matrix, nullptr, false, y.rows(n)), 0);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < n; ++j) {
      double expected = 0, magnitude = 0;
      for (int64_t i = 0; i < k; ++i) {
        const double product = x[r * k + i] * w.values[static_cast<size_t>(j * k + i)];
        expected += product;
        magnitude += std::abs(product);
      }
      ASSERT_NEAR(y[r * n + j], expected, 1e-6 * magnitude);
    }
  }
}

}  // namespace
}  // namespace quire::test
