// The identity the whole executor rests on: with key j stored rotated at its offset in a chunk of l keys, and the query
// rotated once per chunk to its distance from that chunk's first key, each logit is the one the position matrix asks
// for, wherever chunk edges lie.
#include <random>

#include "tests/unit/strategy/strategies.h"

namespace quire::test {
namespace {

using Vector = std::vector<double>;

Vector rotate(const Vector& x, double position, const RopeTable& rope) {
  const size_t half = rope.theta.size();
  Vector y(x.size());
  for (size_t a = 0; a < half; ++a) {
    const double angle = position * rope.theta[a];
    y[a] = x[a] * std::cos(angle) - x[a + half] * std::sin(angle);
    y[a + half] = x[a + half] * std::cos(angle) + x[a] * std::sin(angle);
  }
  return y;
}

double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t c = 0; c < a.size(); ++c) sum += a[c] * b[c];
  return sum;
}

std::vector<Vector> random_vectors(int64_t n, std::mt19937& random) {
  std::normal_distribution<double> normal;
  std::vector<Vector> vectors(static_cast<size_t>(n), Vector(8));
  for (Vector& v : vectors) {
    for (double& x : v) x = normal(random);
  }
  return vectors;
}

// Logits as an executor forms them from spans and stored keys; NaN where hidden.
Matrix executed(const Strategy& strategy, const std::vector<Vector>& q, const std::vector<Vector>& k, int64_t l) {
  const auto n = static_cast<int64_t>(q.size());
  Matrix logits(q.size(), Vector(k.size(), std::nan("")));
  Plan plan;
  strategy.plan(0, n, plan);
  for (const QueryBlock& block : plan.blocks) {
    const Plan::List& list = plan.list(block, 0);
    for (int32_t s = list.begin; s < list.end; ++s) {
      const Span& span = plan.spans[static_cast<size_t>(s)];
      for (int64_t i = block.first_query; i < block.first_query + block.n_queries; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          if (!span.visible(i, j)) continue;
          const int64_t chunk_first = j / l * l;
          const double query = span.query_position(i) - static_cast<double>(chunk_first - span.base_of(j));
          const Vector stored =
              rotate(k[static_cast<size_t>(j)], static_cast<double>(j - chunk_first), strategy.rope());
          logits[static_cast<size_t>(i)][static_cast<size_t>(j)] =
              dot(rotate(q[static_cast<size_t>(i)], query, strategy.rope()), stored);
        }
      }
    }
  }
  return logits;
}

class Rotation : public testing::TestWithParam<const char*> {};

TEST_P(Rotation, OfStoredKeysAndQueriesGivesTheDistances) {
  constexpr int64_t kLength = 40;
  const auto strategy = make(GetParam(), 8);
  const Matrix distances = positions(*strategy, kLength);
  std::mt19937 random(11);
  const std::vector<Vector> q = random_vectors(kLength, random), k = random_vectors(kLength, random);
  for (int64_t l : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 64}) {
    const Matrix logits = executed(*strategy, q, k, l);
    for (size_t i = 0; i < kLength; ++i) {
      for (size_t j = 0; j < kLength; ++j) {
        ASSERT_EQ(std::isnan(logits[i][j]), std::isnan(distances[i][j])) << i << " " << j;
        if (std::isnan(distances[i][j])) continue;
        const double expected = dot(rotate(q[i], distances[i][j], strategy->rope()), k[j]);
        ASSERT_NEAR(logits[i][j], expected, 1e-13) << "chunks of " << l << ", query " << i << ", key " << j;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, Rotation,
                         testing::Values("full", "dca(chunk=6, cap=9, train_len=10)", "dca(chunk=4, cap=7)",
                                         "dca(preset=chunkllama, local=2)", "streaming_llm(sinks=2, recent=3)",
                                         "dca + pi(factor=4)", "streaming_llm + yarn(factor=2)",
                                         "dca + dynamic_ntk(factor=2, length=40)"));

}  // namespace
}  // namespace quire::test
