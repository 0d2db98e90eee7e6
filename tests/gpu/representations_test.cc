// Representations of chunks, against sums in double over the same keys and queries.

#include <gtest/gtest.h>

#include "kernels/cuda/selection.h"
#include "lib/plan/head_order.h"
#include "tests/gpu/elements.h"
#include "tests/gpu/schedules.h"
#include "tests/gpu/test_device.h"
#include "tests/seed.h"

namespace quire::test {
namespace {

using Vector = std::vector<double>;

// Records of some stored chunks with random contents, and pages for vectors of their chunks.
struct Chunks {
  cuda::KvShape shape;
  std::vector<Elements> records;
  Shared<const void*> addresses;
  std::vector<double> exact_turns;
  Shared<cuda::Turns> turns;

  Chunks(std::mt19937& random, const cuda::KvShape& shape_, int64_t n) : shape(shape_) {
    for (int64_t c = 0; c < n; ++c) {
      records.push_back(random_elements(random, shape.type, 2 * shape.n_kv_heads * shape.chunk * shape.head_dim));
    }
    for (const Elements& record : records) addresses.push_back(record.bytes.data());
    for (int a = 0; a < shape.head_dim / 2; ++a) {
      const double turn = std::pow(10000, -2.0 * a / shape.head_dim) / (2 * M_PI);
      exact_turns.push_back(turn);
      turns.push_back({static_cast<float>(turn), static_cast<float>(turn - static_cast<float>(turn))});
    }
  }
  // Key (kv: 0) or value (kv: 1) of text index j.
  Vector row(int64_t j, int64_t head, int kv) const {
    Vector v;
    const int64_t first = ((2 * head + kv) * shape.chunk + j % shape.chunk) * shape.head_dim;
    for (int64_t c = 0; c < shape.head_dim; ++c) v.push_back(records[static_cast<size_t>(j / shape.chunk)][first + c]);
    return v;
  }
  Vector turned(const Vector& v, double by) const {
    Vector out = v;
    const size_t half = v.size() / 2;
    for (size_t a = 0; a < half; ++a) {
      const double angle = 2 * M_PI * exact_turns[a] * by;
      out[a] = v[a] * std::cos(angle) - v[a + half] * std::sin(angle);
      out[a + half] = v[a + half] * std::cos(angle) + v[a] * std::sin(angle);
    }
    return out;
  }
};

double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t c = 0; c < a.size(); ++c) sum += a[c] * b[c];
  return sum;
}

// The mean of rows weighted by the softmax of scores.
Vector softmax_mean(const Vector& scores, const std::vector<Vector>& rows) {
  const double greatest = *std::max_element(scores.begin(), scores.end());
  Vector out(rows[0].size());
  double sum = 0;
  for (size_t j = 0; j < scores.size(); ++j) {
    const double weight = std::exp(scores[j] - greatest);
    sum += weight;
    for (size_t c = 0; c < out.size(); ++c) out[c] += weight * rows[j][c];
  }
  for (double& v : out) v /= sum;
  return out;
}

class RepresentationKernels : public OnEverySchedule {
 protected:
  void TearDown() override {
    if (HasFailure()) ADD_FAILURE() << seed_trace();
  }
  void expect_summaries(int head_dim);

  std::mt19937 random_ = seeded_random();
};
INSTANTIATE_TEST_SUITE_P(Orders, RepresentationKernels, kSchedules, schedule_name);

void RepresentationKernels::expect_summaries(int d) {
  SCOPED_TRACE(d);
  const cuda::KvShape shape{2, d, 32, ElementType::kF16};
  const int64_t chunk = 16, period = 80, n = 67 * 2, first = 3;
  const Chunks text(random_, shape, 67);
  for (const bool bounds : {false, true}) {
    for (const ElementType type : {ElementType::kF16, ElementType::kF32}) {
      const int64_t n_vectors = bounds ? 4 : 2;
      std::vector<Elements> pages(3, Elements(type, n_vectors * cuda::kPageChunks * d));
      Shared<void*> addresses;
      for (Elements& page : pages) addresses.push_back(page.bytes.data());
      ASSERT_EQ(run(&cuda::DeviceApi::summarise_keys, {shape,
                                                       text.addresses.data(),
                                                       text.turns.data(),
                                                       chunk,
                                                       period,
                                                       first,
                                                       n - first,
                                                       bounds,
                                                       {addresses.data(), type}}),
                0);
      for (int64_t c = first; c < n; ++c) {
        for (int64_t head = 0; head < 2; ++head) {
          const auto width = static_cast<size_t>(d);
          Vector mean(width), least(width, INFINITY), greatest(width, -INFINITY);
          for (int64_t j = c * chunk; j < (c + 1) * chunk; ++j) {
            const Vector key = text.turned(text.row(j, head, 0), static_cast<double>(j % period - j % 32));
            for (size_t e = 0; e < width; ++e) {
              mean[e] += key[e] / static_cast<double>(chunk);
              least[e] = std::min(least[e], key[e]);
              greatest[e] = std::max(greatest[e], key[e]);
            }
          }
          const Elements& page = pages[static_cast<size_t>(c / 64)];
          for (int64_t e = 0; e < d; ++e) {
            const auto found = [&](int64_t vector) { return page[(vector * 64 + c % 64) * d + e]; };
            const auto i = static_cast<size_t>(e);
            if (bounds) {
              ASSERT_NEAR(found(2 * head), least[i], 1e-3 * (1 + std::abs(least[i]))) << c << " " << e;
              ASSERT_NEAR(found(2 * head + 1), greatest[i], 1e-3 * (1 + std::abs(greatest[i]))) << c << " " << e;
            } else {
              ASSERT_NEAR(found(head), mean[i], 1e-3 * (1 + std::abs(mean[i]))) << c << " " << e;
            }
          }
        }
      }
    }
  }
}

TEST_P(RepresentationKernels, OfKeys) {
  for (const int d : {48, 256}) expect_summaries(d);
}

TEST_P(RepresentationKernels, OfAttention) {
  struct Case {
    cuda::KvShape shape;
    ElementType type;
    double rounding;     // in relation to the number
    int rotary_dim = 0;  // 0: all
  };
  for (const auto& [shape, type, rounding, rotary] :
       {Case{{2, 32, 48, ElementType::kBF16}, ElementType::kF32, 0},
        Case{{2, 96, 32, ElementType::kF16}, ElementType::kF32, 0, 66},
        Case{{1, 112, 20, ElementType::kF16}, ElementType::kF32, 0},
        Case{{1, 10, 131, ElementType::kF16}, ElementType::kF32, 0},
        Case{{1, 64, 128, ElementType::kBF16}, ElementType::kF32, 0},
        Case{{1, 256, 96, ElementType::kBF16}, ElementType::kF32, 0},
        Case{{1, 184, 40, ElementType::kF16}, ElementType::kF32, 0, 60},
        Case{{2, 32, 48, ElementType::kF16}, ElementType::kBF16, 0x1p-8}}) {
    const int64_t d = shape.head_dim, l = shape.chunk, heads = 2 * shape.n_kv_heads, first = 1, n = 2;
    const Chunks text(random_, shape, first + n);
    Elements queries = random_elements(random_, ElementType::kBF16, n * l * heads * d);
    Elements page(type, heads * cuda::kPageChunks * d);
    const Shared<void*> address(1, page.bytes.data());
    const float scale = 0.3f;
    const HeadOrder order{d, rotary > 0 ? rotary : d};
    ASSERT_EQ(run(&cuda::DeviceApi::attend_in_chunks, {shape,
                                                       text.addresses.data(),
                                                       text.turns.data(),
                                                       static_cast<int>(heads),
                                                       scale,
                                                       static_cast<int>(order.rotary_dim),
                                                       queries.rows(heads * d),
                                                       first,
                                                       n,
                                                       {address.data(), type}}),
              0);
    for (int64_t c = first; c < first + n; ++c) {
      for (int64_t head = 0; head < heads; ++head) {
        std::vector<Vector> keys, values;
        for (int64_t j = c * l; j < (c + 1) * l; ++j) {
          keys.push_back(text.row(j, head / 2, 0));
          values.push_back(text.row(j, head / 2, 1));
        }
        const auto attend = [&](const Vector& q, const std::vector<Vector>& rows) {
          Vector scores;
          for (const Vector& key : keys) scores.push_back(scale * dot(q, key));
          return softmax_mean(scores, rows);
        };
        Vector mean(static_cast<size_t>(d));
        for (int64_t r = 0; r < l; ++r) {
          Vector q;
          for (int64_t e = 0; e < d; ++e) q.push_back(queries[(((c - first) * l + r) * heads + head) * d + e]);
          const Vector out = attend(text.turned(q, static_cast<double>(r)), values);
          for (size_t e = 0; e < mean.size(); ++e) mean[e] += out[e] / static_cast<double>(l);
        }
        Vector as_keys;
        for (int64_t e = 0; e < d; ++e) as_keys.push_back(mean[static_cast<size_t>(order.source(e))]);
        const Vector expected = attend(as_keys, keys);
        for (int64_t e = 0; e < d; ++e) {
          const double right = expected[static_cast<size_t>(e)];
          ASSERT_NEAR(page[(head * 64 + c) * d + e], right, 1e-5 + rounding * std::abs(right)) << c << " " << head;
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::test
