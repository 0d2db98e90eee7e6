// What holds for every strategy: causality, independence of how queries are grouped, and retained keys.
#include <algorithm>
#include <random>

#include "tests/unit/strategy/strategies.h"

namespace quire::test {
namespace {

constexpr int64_t kLength = 70;

struct Case {
  const char* expression;
  int64_t train_len = 16;
  int64_t window = 0;  // of a model with a sliding window of its own
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.expression << " in a window of " << c.window; }

class EveryStrategy : public testing::TestWithParam<Case> {
 protected:
  static std::unique_ptr<const Strategy> subject() {
    StrategyContext context = trained_for(GetParam().train_len);
    context.sliding_window = GetParam().window;
    return make(GetParam().expression, context);
  }
  std::unique_ptr<const Strategy> strategy_ = subject();
};

TEST_P(EveryStrategy, SeesItselfAndNoLaterKey) {
  Plan plan;
  strategy_->plan(0, kLength, plan);
  ASSERT_TRUE(validate(plan, 0, kLength, 1).ok());
  const Matrix matrix = rows_of(plan, kLength, kLength + 8);
  for (int64_t i = 0; i < kLength; ++i) {
    const std::vector<double>& row = matrix[static_cast<size_t>(i)];
    EXPECT_EQ(row[static_cast<size_t>(i)], 0) << i;
    for (int64_t j = i + 1; j < kLength + 8; ++j) EXPECT_TRUE(std::isnan(row[static_cast<size_t>(j)])) << i << " " << j;
  }
}

TEST_P(EveryStrategy, ItsKeysAreCounted) {
  for (int64_t i = 0; i < kLength; ++i) {
    Plan plan;
    strategy_->plan(i, 1, plan);
    int64_t seen = 0, strided = 0;
    for (const KvKind kind : {KvKind::kText, KvKind::kCondensed}) {
      std::vector<double> row(kLength);
      position_matrix(plan, 0, kLength, row.data(), kind);
      seen += std::count_if(row.begin(), row.end(), [](double d) { return !std::isnan(d); });
    }
    for (const Span& span : plan.spans) strided += span.stride > 1 || span.lag_stride > 1;
    EXPECT_NEAR(visible_keys(plan, 1), static_cast<double>(seen), static_cast<double>(strided)) << i;
  }
}

TEST_P(EveryStrategy, StaysWithinTheTrainedDistances) {
  const int64_t n = std::min(strategy_->reach(), kLength);
  for (const std::vector<double>& row : positions(*strategy_, n)) {
    for (double distance : row) {
      EXPECT_FALSE(distance < 0);
      EXPECT_FALSE(distance > static_cast<double>(GetParam().train_len));
    }
  }
}

// Comparable: hidden keys as -1.
Matrix marked(const Plan& plan) {
  Matrix rows = rows_of(plan, kLength, kLength);
  for (std::vector<double>& row : rows) {
    std::replace_if(
        row.begin(), row.end(), [](double d) { return std::isnan(d); }, -1.0);
  }
  return rows;
}

void expect_same_in_parts(const Strategy& strategy, std::vector<int64_t> cuts) {
  Plan whole, parts;
  strategy.plan(0, kLength, whole);
  cuts.insert(cuts.end(), {0, kLength});
  std::sort(cuts.begin(), cuts.end());
  for (size_t c = 1; c < cuts.size(); ++c) strategy.plan(cuts[c - 1], cuts[c] - cuts[c - 1], parts);
  ASSERT_TRUE(validate(parts, 0, kLength, 1).ok());
  EXPECT_EQ(marked(whole), marked(parts));
  EXPECT_EQ(whole.query_scale, parts.query_scale);
}

TEST_P(EveryStrategy, PlansTheSameHoweverQueriesAreGrouped) {
  for (int64_t cut = 0; cut <= kLength; ++cut) expect_same_in_parts(*strategy_, {cut});
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<int64_t> cuts;
    for (auto n = random() % 8; n > 0; --n) cuts.push_back(static_cast<int64_t>(random() % (kLength + 1)));
    expect_same_in_parts(*strategy_, cuts);
  }
  std::vector<int64_t> each(kLength);
  for (int64_t i = 0; i < kLength; ++i) each[static_cast<size_t>(i)] = i;
  expect_same_in_parts(*strategy_, each);
}

TEST_P(EveryStrategy, RetainsExactlyWhatLaterQueriesSee) {
  const Matrix matrix = positions(*strategy_, kLength);
  for (int64_t next = 0; next < kLength; ++next) {
    const std::vector<KeyRange> ranges = strategy_->retained(next);
    ASSERT_FALSE(ranges.empty());
    EXPECT_EQ(ranges.back().end, kNoLimit);
    if (!strategy_->drops_text()) {
      EXPECT_EQ(ranges.size() + static_cast<size_t>(ranges.front().begin), 1u);
    }
    for (size_t r = 1; r < ranges.size(); ++r) EXPECT_LT(ranges[r - 1].end, ranges[r].begin);
    for (int64_t j = 0; j < kLength; ++j) {
      bool seen = strategy_->selects_chunks();  // any key may be chosen
      for (int64_t i = std::max(next, j); i < kLength; ++i) {
        seen = seen || !std::isnan(matrix[static_cast<size_t>(i)][static_cast<size_t>(j)]);
      }
      const bool kept =
          std::any_of(ranges.begin(), ranges.end(), [&](KeyRange r) { return r.begin <= j && j < r.end; });
      EXPECT_EQ(kept, seen) << "key " << j << " before query " << next;
    }
  }
}

TEST_P(EveryStrategy, PlansNothingForNoQueries) {
  Plan plan;
  strategy_->plan(5, 0, plan);
  EXPECT_TRUE(plan.blocks.empty());
}

const Case kCases[] = {{"full"},
                       {"dca"},
                       {"dca(chunk=6, cap=9)"},
                       {"dca(chunk=4, cap=7)"},
                       {"dca(chunk=1, cap=1)"},
                       {"dca(preset=chunkllama)"},
                       {"dca(preset=chunkllama_ppl)"},
                       {"dca(preset=vllm)"},
                       {"dca(preset=vllm, local=0, logit_scale=yarn_0.1)"},
                       {"dca(chunk=5, logit_scale=yarn_0.05)"},
                       {"longheads", 48},
                       {"longheads(forced=paper, begin=51)", 60},
                       {"longheads(init=full)", 48},
                       {"streaming_llm"},
                       {"streaming_llm(sinks=2, recent=3)"},
                       {"streaming_llm(sinks=0, recent=1)"},
                       {"streaming_llm(sinks=14, recent=1)"},
                       {"streaming_llm(sinks=0, recent=15)"},
                       {"rerope"},
                       {"rerope(window=3, leaky=4, log_n=0)"},
                       {"self_extend(group=2, window=5)"},
                       {"self_extend(group=8, window=1)"},
                       {"lm_infinite"},
                       {"lm_infinite(sinks=3, recent=5)"},
                       {"lm_infinite(sinks=0, recent=1)"},
                       {"longheads(positions=dca)", 48},
                       {"longheads(positions=dca, dca_chunk=20, chunks=9, pick=worst, first=never)", 48},
                       {"longheads(first=free, select=layer)", 64},
                       {"dca_topk(chunk=16, chunks=4)", 64},
                       {"dca_topk(chunk=16, chunks=3, one_in=2, dca_chunk=16, reading=selected)", 48},
                       {"dca(chunk=6, parts=intra_inter)"},
                       {"dca(chunk=6, parts=intra)"},
                       {"auto"},
                       {"full", 16, 1},
                       {"full", 16, 5},
                       {"full", 16, 16},
                       {"full", 16, 40},
                       {"streaming_llm(sinks=2, recent=3)", 16, 5},
                       {"streaming_llm(sinks=2, recent=9)", 16, 4},
                       {"streaming_llm(sinks=6, recent=1)", 16, 30},
                       {"dca(ignore_window=1)", 16, 5},
                       {"auto", 16, 5}};
INSTANTIATE_TEST_SUITE_P(All, EveryStrategy, testing::ValuesIn(kCases));

}  // namespace
}  // namespace quire::test
