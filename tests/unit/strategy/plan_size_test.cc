// Plans stay small however far into a text they are made and whatever arguments a strategy has: what one costs is
// counted here in spans, lists and rows, for every method with the arguments that are worst for it.
#include <numeric>

#include "lib/plan/text_positions.h"
#include "lib/strategy/position_view.h"
#include "tests/unit/strategy/strategies.h"

namespace quire::test {
namespace {

constexpr int kHeads = 32;
constexpr int64_t kFar = int64_t{1} << 24, kFarthest = int64_t{1} << 40;

struct Case {
  std::string expression;
  int64_t train_len = 4096;
  int64_t most_spans = 3;  // in a list
  int64_t window = 0;      // of a model with a sliding window of its own
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.expression << " for " << c.train_len << " tokens"; }

StrategyContext context_of(const Case& c) {
  StrategyContext context = trained_for(c.train_len);
  context.n_query_heads = kHeads;
  context.sliding_window = c.window;
  context.beacon.emplace();
  return context;
}

std::string repeated(const std::string& item, int n) {
  std::string text = item;
  for (int i = 1; i < n; ++i) text += "." + item;
  return text;
}

class PlanSize : public testing::TestWithParam<Case> {};

void expect_small(const Plan& plan, int64_t n_queries, int64_t most_spans) {
  ASSERT_LE(plan.blocks.size(), static_cast<size_t>(n_queries));
  ASSERT_LE(plan.lists.size(), static_cast<size_t>(n_queries * kHeads));
  ASSERT_LE(plan.spans.size(), plan.lists.size() * static_cast<size_t>(most_spans));
}

TEST_P(PlanSize, IsBoundedAtAnyPosition) {
  const auto strategy = make(GetParam().expression, context_of(GetParam()));
  for (const int64_t first : {kFar - 1, kFar, kFarthest - 1, kFarthest}) {
    for (const int64_t n : {int64_t{1}, int64_t{256}}) {
      Plan given, generated;
      strategy->plan(first, n, given);
      ASSERT_NO_FATAL_FAILURE(expect_small(given, n, GetParam().most_spans)) << first;
      strategy->plan_generated(first, n, generated);
      ASSERT_NO_FATAL_FAILURE(expect_small(generated, n, GetParam().most_spans)) << first;
      ASSERT_TRUE(validate(given, first, n, kHeads).ok()) << first;
      std::vector<double> rows(static_cast<size_t>(n * 64));
      position_matrix(given, kHeads - 1, 64, rows.data());
      for (const double distance : rows) EXPECT_FALSE(distance < 0);
    }
    EXPECT_LE(strategy->retained(first).size(), static_cast<size_t>(GetParam().most_spans));
    EXPECT_GT(strategy->window_end(first), first);
    EXPECT_LE(strategy->condensed_entries(first), first);
    if (!strategy->condenses()) continue;
    const int64_t end = strategy->window_end(first);
    Plan memory;
    if (strategy->condensed_entries(end) > strategy->condensed_entries(end - 1)) strategy->plan_condensed(end, memory);
    ASSERT_NO_FATAL_FAILURE(expect_small(memory, 1, GetParam().most_spans));
  }
}

// Every run of windows that are condensed alike is a span.
constexpr int64_t kRuns = 1200;

const Case kCases[] = {
    {"full"},
    {"full", kFarthest},
    {"full", 16, 3, 5},
    {"dca"},
    {"dca(chunk=1)"},
    {"dca(chunk=1, parts=intra_inter)"},
    {"dca(chunk=1, parts=intra)"},
    {"dca(chunk=3, kv_chunk=16, logit_scale=yarn_0.1)"},
    {"dca", 2},
    {"dca(chunk=1)", kFarthest},
    {"dca(preset=vllm, local=0)", kFarthest},
    {"lm_infinite(sinks=4096, recent=1)"},
    {"lm_infinite", kFarthest},
    {"streaming_llm(sinks=4094, recent=1)"},
    {"streaming_llm", kFarthest},
    {"rerope(window=1, leaky=65536)"},
    {"rerope(window=1, leaky=65536)", kFarthest},
    {"self_extend(group=65536, window=1)"},
    {"self_extend(group=2, window=1)", kFarthest},
    {"longheads(chunk=16, chunks=256)"},
    {"longheads(chunk=16, init=full)"},
    {"dca_topk(chunk=16, chunks=3, one_in=65536, dca_chunk=16, reading=selected)"},
    {"longheads(chunk=16, chunks=65536, positions=dca, dca_chunk=1)"},
    {"longheads(positions=dca, dca_chunk=1, begin=1099511627776)", kFarthest},
    {"longheads", kFarthest},
    {"s2(group=2)"},
    {"s2(group=2, full_below=4096)"},
    {"s2", kFarthest},
    {"scca_fixed(chunk=2)"},
    {"scca_fixed(chunk=2, mask=slot)"},
    {"scca_fixed", kFarthest},
    {"scca_flow(chunks=32, chunk=2)"},
    {"scca_flow(chunks=32, chunk=2, roll=left, wrap=local)"},
    {"scca_flow(chunks=32, mask=slot)", kFarthest},
    {"sda(dilation=32)"},
    {"sda(dilation=32, reading=kv)", kFarthest},
    {"long_mixed(heads=sda1024x16.rolledx4.localx4.shift1024x4.fullx4, chunk=2)"},
    {"long_mixed(heads=sda1024x16.rolledx4.localx4.shift1024x4.fullx4, reading=kv, mask=slot)", kFarthest},
    {"beacon(ratio=2, window=1024)", 4096, 20},
    {"beacon(ratio=0, window=1, stride=1)", 4096},
    {"beacon(ratio=1, window=1, stride=1)", 4096},
    {"beacon(ratio=0, window=1, stride=1)", kFarthest},
    {"beacon(sequence=" + repeated("x0", kRuns) + ", window=1, stride=1)", 4096, kRuns + 3},
    {"beacon(sequence=" + repeated("x1", kRuns) + ", window=1, stride=1)", kFarthest, kRuns + 3},
    {"beacon(ratio=2, window=963761198400, stride=963761198400)", kFarthest, 6720 + 3},  // a number of 6720 divisors
    {"auto"},
    {"auto", kFarthest}};
INSTANTIATE_TEST_SUITE_P(All, PlanSize, testing::ValuesIn(kCases));

TEST(PlanSize, GrowsWithTheGapsOfATextAlone) {
  TextPositions positions;
  std::vector<int64_t> token_positions;
  for (int64_t gap = 0; gap < TextPositions::kMaxGaps; ++gap) token_positions.push_back((gap + 1) * (kFarthest / 1024));
  positions.append(0, token_positions);
  ASSERT_EQ(positions.n_gaps(), TextPositions::kMaxGaps);
  const auto full = make("full", kFarthest);
  for (const int64_t token : {TextPositions::kMaxGaps, kFar, kFarthest}) {
    Plan plan;
    full->plan(token, 1, plan);
    positions.apply(plan);
    EXPECT_EQ(plan.blocks.size(), 1u);
    EXPECT_LE(plan.spans.size(), static_cast<size_t>(TextPositions::kMaxGaps + 1));
    EXPECT_TRUE(validate(plan, token, 1, 1).ok());
  }
}

// A strategy whose heads differ, that keeps what it was asked for.
class Asked final : public Strategy {
 public:
  explicit Asked(int n_heads) : n_heads_(n_heads) {}
  void plan(int64_t first_query, int64_t n_queries, Plan& plan) const override {
    Span span;
    span.count = first_query + n_queries;
    plan.add_block_per_head(first_query, n_queries,
                            std::vector<std::vector<Span>>(static_cast<size_t>(n_heads_), {span}));
    pieces.push_back(n_queries);
  }
  std::vector<KeyRange> retained(int64_t) const override { return {{0, kNoLimit}}; }

  mutable std::vector<int64_t> pieces;

 private:
  int n_heads_;
};

TEST(PositionView, PlansFewRowsAtATimeWhereThereAreManyHeads) {
  struct Shape {
    int n_heads;
    int64_t n_rows, most;
  };
  for (const Shape& shape : {Shape{1, 520, 256}, {32, 520, 256}, {1000, 520, 65}, {65536, 3, 1}}) {
    const Asked strategy(shape.n_heads);
    const PositionView view{shape.n_heads - 1, KvKind::kText, KvKind::kText, kFar, shape.n_rows, 2, shape.n_heads};
    std::vector<double> matrix(static_cast<size_t>(shape.n_rows * 2), -1);
    ASSERT_TRUE(check_view(strategy, view).ok());
    view_positions(strategy, view, matrix.data());
    for (const int64_t n : strategy.pieces) EXPECT_LE(n, shape.most) << shape.n_heads;
    EXPECT_EQ(std::accumulate(strategy.pieces.begin(), strategy.pieces.end(), int64_t{0}), shape.n_rows);
    EXPECT_EQ(matrix.back(), static_cast<double>(kFar + shape.n_rows - 1 - 1));
  }
}

// What is chosen where all chunks fit equally well, against the ranks written out.
TEST(PositionView, RanksChunksWithoutListingThem) {
  for (const char* first : {"forced", "free", "never"}) {
    for (const char* forced : {"code", "paper"}) {
      const auto strategy =
          make(std::string("longheads(chunk=16, chunks=4, first=") + first + ", forced=" + forced + ")", 64);
      for (int64_t i = 64; i < 256; i += 13) {
        const int64_t own = i / 16, n = std::min<int64_t>(own + 1, 4), last = forced[0] == 'c' ? 2 : 1;
        std::vector<int64_t> chosen;
        for (int64_t c = first[0] == 'n' && own + 1 > 4 ? 1 : 0; static_cast<int64_t>(chosen.size()) < n - last; ++c) {
          chosen.push_back(c);
        }
        for (int64_t c = own + 1 - last; c <= own; ++c) chosen.push_back(c);
        Plan plan;
        strategy->plan(i, 1, plan);
        const auto row = rows_of(plan, 1, i + 1)[0];
        for (int64_t j = 0; j <= i; ++j) {
          const auto at = std::find(chosen.begin(), chosen.end(), j / 16);
          const double distance = row[static_cast<size_t>(j)];
          if (at == chosen.end()) {
            EXPECT_TRUE(std::isnan(distance)) << i << " " << j;
          } else {
            EXPECT_EQ(distance, static_cast<double>((n - 1 - (at - chosen.begin())) * 16 + i % 16 - j % 16));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::test
