// Kernels over rows, against sums in double.

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <random>
#include <vector>

#include "kernels/cuda/kernels.h"
#include "tests/gpu/elements.h"
#include "tests/gpu/schedules.h"
#include "tests/gpu/test_device.h"
#include "tests/seed.h"

namespace quire::test {
namespace {

class RowKernels : public OnEverySchedule {
 protected:
  std::mt19937 random_ = seeded_random();
  void TearDown() override {
    if (HasFailure()) ADD_FAILURE() << seed_trace();
  }
};
INSTANTIATE_TEST_SUITE_P(Orders, RowKernels, kSchedules, schedule_name);

// Few long rows, which have blocks of 1,024 threads, and short or more ones, which have smaller blocks; wider than a
// block, and than what its threads keep.
TEST_P(RowKernels, NormaliseRows) {
  struct Shape {
    int64_t n, width, stride;
  };
  for (const ElementType in : kFloatTypes) {
    for (const ElementType out : kFloatTypes) {
      for (const auto& [n, width, stride] :
           {Shape{3, 1333, 1340}, {2, 333, 340}, {65, 333, 340}, {1, 9300, 9304}, {65, 1333, 1340}}) {
        Elements x = random_elements(random_, in, n * stride, 3), y = random_elements(random_, out, n * stride);
        const Elements before = y;
        Shared<float> weight(static_cast<size_t>(width));
        for (float& w : weight) w = std::uniform_real_distribution<float>(0.5f, 2)(random_);
        ASSERT_EQ(
            run(&cuda::DeviceApi::rms_norm, x.rows(stride), weight.data(), 1e-5f, n, width, false, y.rows(stride)), 0);
        Elements total = before;
        ASSERT_EQ(
            run(&cuda::DeviceApi::rms_norm, x.rows(stride), weight.data(), 1e-5f, n, width, true, total.rows(stride)),
            0);
        for (int64_t r = 0; r < n; ++r) {
          double sum = 0;
          for (int64_t j = 0; j < width; ++j) sum += x[r * stride + j] * x[r * stride + j];
          const double factor = 1 / std::sqrt(sum / static_cast<double>(width) + 1e-5);
          for (int64_t j = 0; j < width; ++j) {
            const double expected = x[r * stride + j] * factor * weight[static_cast<size_t>(j)];
            ASSERT_NEAR(y[r * stride + j], expected, tolerance(out, expected)) << r << " " << j;
            const double added = before[r * stride + j] + expected;
            ASSERT_NEAR(total[r * stride + j], added, tolerance(out, added) + tolerance(ElementType::kF32, expected));
          }
          for (int64_t j = width; j < stride; ++j) {
            ASSERT_EQ(y[r * stride + j], before[r * stride + j]);
            ASSERT_EQ(total[r * stride + j], before[r * stride + j]);
          }
        }
      }
    }
  }
}

TEST_P(RowKernels, ScaleRowsAndWriteOneToAll) {
  for (const ElementType type : kFloatTypes) {
    const int64_t n = 3, width = 300, stride = 304;
    const Elements x = random_elements(random_, type, n * stride, 2);
    Shared<float> row(width);
    for (float& value : row) value = std::normal_distribution<float>(0, 1)(random_);
    Elements scaled = x, set = x, added = x;
    ASSERT_EQ(run(&cuda::DeviceApi::scale_rows, scaled.rows(stride), n, width, 0.75f), 0);
    ASSERT_EQ(run(&cuda::DeviceApi::write_row, row.data(), n, width, false, set.rows(stride)), 0);
    ASSERT_EQ(run(&cuda::DeviceApi::write_row, row.data(), n, width, true, added.rows(stride)), 0);
    for (int64_t i = 0; i < n * stride; ++i) {
      const bool inside = i % stride < width;
      const double value = inside ? row[static_cast<size_t>(i % stride)] : 0;
      ASSERT_NEAR(scaled[i], inside ? 0.75 * x[i] : x[i], tolerance(type, x[i])) << i;
      ASSERT_NEAR(set[i], inside ? value : x[i], tolerance(type, value)) << i;
      ASSERT_NEAR(added[i], x[i] + value, tolerance(type, x[i] + value)) << i;
    }
  }
}

TEST_P(RowKernels, NormaliseHeads) {
  for (const auto& [type, head_dim] :
       {std::pair(ElementType::kF32, 48), {ElementType::kBF16, 48}, {ElementType::kF16, 150}}) {
    const int64_t n = 5, heads = 3, stride = heads * head_dim + 6;
    Elements x = random_elements(random_, type, n * stride, 2);
    const Elements before = x;
    Shared<float> weight(static_cast<size_t>(head_dim));
    for (float& w : weight) w = std::uniform_real_distribution<float>(0.5f, 2)(random_);
    ASSERT_EQ(run(&cuda::DeviceApi::head_norm, x.rows(stride), weight.data(), 1e-6f, n, heads, head_dim), 0);
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t j = 0; j < stride; ++j) {
        const int64_t first = r * stride + j / head_dim * head_dim;
        double expected = before[r * stride + j];
        if (j < heads * head_dim) {
          double sum = 0;
          for (int64_t k = 0; k < head_dim; ++k) sum += before[first + k] * before[first + k];
          expected *= weight[static_cast<size_t>(j % head_dim)] / std::sqrt(sum / head_dim + 1e-6);
        }
        ASSERT_NEAR(x[r * stride + j], expected, tolerance(type, expected)) << r << " " << j;
      }
    }
  }
}

TEST_P(RowKernels, ScaleWhatIsNotRotated) {
  for (const ElementType type : kFloatTypes) {
    const int64_t n = 3, heads = 5, head_dim = 128, rotary_dim = 90, stride = heads * head_dim + 6;
    Elements x = random_elements(random_, type, (n + 1) * stride, 2);
    const Elements before = x;
    ASSERT_EQ(run(&cuda::DeviceApi::scale_unrotated, x.rows(stride), n, heads, head_dim, rotary_dim, 0.7f), 0);
    for (int64_t i = 0; i < (n + 1) * stride; ++i) {
      const int64_t j = i % stride;
      const bool scaled = i < n * stride && j < heads * head_dim && j % (head_dim / 2) >= rotary_dim / 2;
      const double expected = before[i] * (scaled ? static_cast<double>(0.7f) : 1.0);
      ASSERT_NEAR(x[i], expected, scaled ? tolerance(type, expected) : 0) << i;
    }
  }
}

TEST_P(RowKernels, GateRowsInPlaceToo) {
  for (const Activation activation : {Activation::kSilu, Activation::kGelu}) {
    for (const ElementType type : kFloatTypes) {
      const int64_t n = 2, width = 300, stride = 2 * width + 8;
      Elements x = random_elements(random_, type, n * stride, 4), y(type, n * width);
      const Elements before = x;
      const auto unit = &cuda::DeviceApi::gated_linear_unit;
      ASSERT_EQ(run(unit, activation, x.rows(stride), n, width, y.rows(width)), 0);
      ASSERT_EQ(run(unit, activation, x.rows(stride), n, width, x.rows(stride)), 0);
      for (int64_t r = 0; r < n; ++r) {
        for (int64_t j = 0; j < width; ++j) {
          const double gate = before[r * stride + j], up = before[r * stride + width + j];
          const double argument = std::sqrt(2 / std::numbers::pi) * (gate + 0.044715 * gate * gate * gate);
          const double gelu = gate * (1 + std::tanh(argument)) / 2;
          const double expected = (activation == Activation::kSilu ? gate / (1 + std::exp(-gate)) : gelu) * up;
          ASSERT_NEAR(y[r * width + j], expected, tolerance(type, expected) + 1e-6);
          ASSERT_EQ(x[r * stride + j], y[r * width + j]);
        }
      }
    }
  }
}

TEST_P(RowKernels, LookUpAndCopyRows) {
  for (const ElementType in : kFloatTypes) {
    for (const ElementType out : kFloatTypes) {
      const int64_t rows = 7, width = 270, stride = 272;
      Elements table = random_elements(random_, in, rows * stride), y(out, 4 * width), copy(out, 4 * width);
      const Shared<int32_t> ids = {6, 0, -1, 7};
      const auto row_bytes = stride * static_cast<int64_t>(element_bytes(in));
      const cuda::DeviceMatrix matrix{table.bytes.data(), rows, width, row_bytes, in};
      ASSERT_EQ(run(&cuda::DeviceApi::embed, matrix, ids.data(), 4, 1.5f, y.rows(width)), 0);
      ASSERT_EQ(run(&cuda::DeviceApi::copy_rows, table.rows(stride), 4, width, copy.rows(width)), 0);
      for (int64_t j = 0; j < width; ++j) {
        Elements expected(out, 1);
        for (int64_t r = 0; r < 4; ++r) {
          expected.set(0, r < 2 ? table[ids[static_cast<size_t>(r)] * stride + j] * 1.5f : 0);
          ASSERT_EQ(y[r * width + j], expected[0]) << r << " " << j;
          expected.set(0, table[r * stride + j]);
          ASSERT_EQ(copy[r * width + j], expected[0]) << r << " " << j;
        }
      }
    }
  }
}

TEST_P(RowKernels, CopyRowsToTheirTurns) {
  constexpr int64_t kPeriod = 6, kWidth = 270, kRows = 4;
  for (const ElementType in : kFloatTypes) {
    for (const ElementType out : kFloatTypes) {
      for (const int64_t first_row : {0, 3}) {
        const Shared<int64_t> first{41};
        Elements from = random_elements(random_, in, kRows * kWidth), to(out, kPeriod * kWidth);
        for (int64_t at = 0; at < kPeriod * kWidth; ++at) to.set(at, 7);
        ASSERT_EQ(run(&cuda::DeviceApi::copy_to_turn, from.rows(kWidth), kRows, kWidth, to.rows(kWidth), first.data(),
                      first_row, kPeriod),
                  0);
        for (int64_t turn = 0; turn < kPeriod; ++turn) {
          const int64_t r = (turn - (first[0] + first_row) % kPeriod + kPeriod) % kPeriod;  // its row, if there is one
          for (int64_t j = 0; j < kWidth; ++j) {
            Elements expected(out, 1);
            expected.set(0, r < kRows ? from[r * kWidth + j] : 7);
            ASSERT_EQ(to[turn * kWidth + j], expected[0]) << turn << " " << j;
          }
        }
      }
    }
  }
}

TEST_P(RowKernels, StoreKeysAtTheirOffsets) {
  for (const ElementType in : kFloatTypes) {
    for (const ElementType type : {ElementType::kBF16, ElementType::kF16}) {
      for (const int64_t stored_div : {1, 0, 4}) {
        const cuda::KvShape shape{3, 40, 24, type};
        const int64_t n = 31, first = 41, width = 120, elements = 2 * width * shape.chunk;
        const Shared<int64_t> first_key{first};
        Elements keys = random_elements(random_, in, n * width), values = random_elements(random_, in, n * width);
        std::vector<Elements> records(3, Elements(type, elements));
        Shared<void*> addresses;
        for (Elements& record : records) addresses.push_back(record.bytes.data());
        std::vector<double> exact_turns(20);
        Shared<cuda::Turns> turns;
        for (size_t a = 0; a < exact_turns.size(); ++a) {
          const double turn = std::pow(10000, -2.0 * static_cast<double>(a) / 40) / (2 * M_PI);
          exact_turns[a] = turn;
          turns.push_back({static_cast<float>(turn), static_cast<float>(turn - static_cast<float>(turn))});
        }
        ASSERT_EQ(run(&cuda::DeviceApi::store_kv, {keys.rows(width), values.rows(width), n, first_key.data(), shape,
                                                   stored_div, turns.data(), addresses.data()}),
                  0);
        for (int64_t r = 0; r < n; ++r) {
          const int64_t j = first + r, offset = j % shape.chunk;
          const Elements& record = records[static_cast<size_t>(j / shape.chunk)];
          for (int64_t h = 0; h < 3; ++h) {
            for (int64_t d = 0; d < 40; ++d) {
              const int64_t pair = d % 20, at = r * width + h * 40;
              const double angle = 2 * M_PI * exact_turns[static_cast<size_t>(pair)] *
                                   static_cast<double>(stored_div == 0 ? 0 : offset / stored_div);
              const double a = keys[at + pair], b = keys[at + 20 + pair];
              const double expected =
                  d < 20 ? a * std::cos(angle) - b * std::sin(angle) : b * std::cos(angle) + a * std::sin(angle);
              const int64_t place = (2 * h * shape.chunk + offset) * 40 + d;
              ASSERT_NEAR(record[place], expected, tolerance(type, std::hypot(a, b))) << r << " " << h << " " << d;
              ASSERT_NEAR(record[place + shape.chunk * 40], values[at + d], tolerance(type, values[at + d]));
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::test
