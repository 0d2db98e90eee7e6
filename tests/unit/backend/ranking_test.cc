// The most probable tokens of rows of logits, and their sums, against sorting and sums in float64.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "lib/backend/ranked_logits.h"
#include "tests/unit/backend/backend_fixture.h"
#include "tests/unit/backend/rank_on_host.h"

namespace quire::test {
namespace {

// Rows of logits with something else between them, and what the backend says of each.
std::vector<RankedLogits> rank(Machine& machine, const std::vector<std::vector<float>>& rows, int64_t k) {
  const auto n = std::ssize(rows), width = std::ssize(rows[0]), stride = width + 3;
  std::vector<float> all(static_cast<size_t>(n * stride), NAN);
  for (int64_t r = 0; r < n; ++r) std::ranges::copy(rows[static_cast<size_t>(r)], all.begin() + r * stride);
  const auto logits = machine.buffer(all);
  const RankedRows layout{n, k};
  const auto out = take(machine.backend->allocate(layout.bytes(), MemoryKind::kDevice));
  std::memset(out->host(), 0xFF, out->size());
  const Status status = machine.backend->rank_logits(machine.exec(), {logits.get(), 0, stride}, n, width, k, *out);
  EXPECT_TRUE(status.ok()) << status.message();
  std::vector<RankedLogits> ranked;
  for (int64_t r = 0; r < n; ++r) {
    ranked.push_back(layout.row(static_cast<const std::byte*>(out->host()), r, width));
  }
  return ranked;
}

void expect_ranked(const RankedLogits& ranked, const std::vector<float>& logits, int64_t k) {
  const RankedLogits expected = rank_on_host(logits, static_cast<size_t>(k));
  EXPECT_EQ(ranked.finite, expected.finite);
  if (!expected.finite) return;
  EXPECT_NEAR(ranked.sum, expected.sum, 1e-6 * expected.sum);
  ASSERT_EQ(ranked.best.size(), expected.best.size());
  for (size_t i = 0; i < ranked.best.size(); ++i) {
    ASSERT_EQ(ranked.best[i].token, expected.best[i].token) << i;
    ASSERT_EQ(ranked.best[i].logit, expected.best[i].logit) << i;
  }
}

TEST(Ranking, IsThatOfSortedRowsForAnyThreads) {
  Machine machine(3), alone(1);
  Random random;
  for (const int64_t width : {1, 3, 63, 64, 300, 4096, 4097, 20000, 49152}) {
    for (const int64_t k : {int64_t{1}, int64_t{5}, int64_t{20}, machine.backend->most_ranked(width)}) {
      SCOPED_TRACE("width " + std::to_string(width) + " k " + std::to_string(k));
      std::vector<std::vector<float>> rows;
      for (const float scale : {0.01f, 3.0f, 40.0f}) {
        rows.push_back(random.normal(width));
        for (float& x : rows.back()) x *= scale;
      }
      const std::vector<RankedLogits> ranked = rank(machine, rows, k), same = rank(alone, rows, k);
      for (size_t r = 0; r < rows.size(); ++r) {
        expect_ranked(ranked[r], rows[r], k);
        EXPECT_EQ(ranked[r].sum, same[r].sum);
      }
    }
  }
}

// Of equal logits the lower id comes first, wherever they stand.
TEST(Ranking, OfEqualLogitsTheLowerIdsComeFirst) {
  Machine machine(2);
  Random random;
  const int64_t most = machine.backend->most_ranked(10000);
  std::vector<std::vector<float>> rows(4, std::vector<float>(10000, 1.5f));
  for (size_t i = 0; i < rows[1].size(); ++i) rows[1][i] = static_cast<float>(i % 7);
  for (size_t i = 0; i < rows[2].size(); ++i) rows[2][i] = static_cast<float>(i / 16);          // the last are greatest
  for (size_t i = 0; i < rows[3].size(); ++i) rows[3][i] = i < 300 ? 2 : i < 9000 ? -1.0f : 2;  // in a few blocks
  for (const int64_t k : {int64_t{1}, int64_t{100}, most}) {
    const std::vector<RankedLogits> ranked = rank(machine, rows, k);
    for (size_t r = 0; r < rows.size(); ++r) {
      SCOPED_TRACE("row " + std::to_string(r) + " k " + std::to_string(k));
      expect_ranked(ranked[r], rows[r], k);
    }
  }
}

TEST(Ranking, SaysWhichRowsAreNotFinite) {
  Machine machine(2);
  Random random;
  std::vector<std::vector<float>> rows;
  for (int r = 0; r < 4; ++r) rows.push_back(random.normal(9000));
  rows[1][0] = NAN;
  rows[2][8999] = -std::numeric_limits<float>::infinity();
  rows[3] = std::vector<float>(9000, NAN);
  const std::vector<RankedLogits> ranked = rank(machine, rows, 20);
  for (size_t r = 0; r < rows.size(); ++r) expect_ranked(ranked[r], rows[r], 20);
}

TEST(Ranking, IsCancelled) {
  Machine machine(2);
  CancelToken cancel;
  cancel.cancel();
  const auto logits = machine.buffer(std::vector<float>(9000));
  const auto out = take(machine.backend->allocate(RankedRows{1, 1}.bytes(), MemoryKind::kDevice));
  EXPECT_EQ(machine.backend->rank_logits(machine.exec(&cancel), {logits.get(), 0, 9000}, 1, 9000, 1, *out).code(),
            Code::kCancelled);
}

}  // namespace
}  // namespace quire::test
