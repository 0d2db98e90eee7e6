// A strategy expression. Input: one byte that chooses the model, then the expression.
#include <algorithm>
#include <string>
#include <vector>

#include "lib/strategy/expression.h"
#include "lib/strategy/position_view.h"
#include "lib/strategy/rope_scaling.h"
#include "tests/fuzz/require.h"

namespace {

// What is planned where the window of token n ends.
void check_memory(const quire::Strategy& strategy, int64_t n, int n_heads) {
  const int64_t end = strategy.window_end(n);
  FUZZ_REQUIRE(end > n);
  const int64_t before = strategy.condensed_entries(end - 1), added = strategy.condensed_entries(end) - before;
  FUZZ_REQUIRE(strategy.condensed_entries(n) == before && added >= 0 && added <= strategy.most_new_entries());
  if (added == 0 || added > 1000) return;
  quire::Plan plan;
  strategy.plan_condensed(end, plan);
  FUZZ_REQUIRE(validate(plan, plan.blocks.at(0).first_query, added, n_heads).ok());
  if (end > quire::kMostViewedTokens) return;
  const quire::PositionView view{0, quire::KvKind::kCondensed, quire::KvKind::kCondensed, before + added - 1, 1, 64};
  std::vector<double> row(64);
  FUZZ_REQUIRE(check_view(strategy, view).ok());
  view_positions(strategy, view, row.data());
  FUZZ_REQUIRE(before + added > 64 || row[static_cast<size_t>(before + added - 1)] == 0);
}

// Whether the expression begins with a scaling or a base, so that `full` is what it leaves out.
bool lacks_visibility(std::string_view expression) {
  const auto terms = quire::parse_expression(expression);
  if (!terms.ok()) return false;
  const auto scalings = quire::rope_scaling_names();
  const std::string_view first = terms.value().front().name;
  return first == "base" || std::find(scalings.begin(), scalings.end(), first) != scalings.end();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire;
  if (size == 0) return 0;
  constexpr int64_t kLengths[] = {2048, 1, 2, 16, 100, 4096, 131072, int64_t{1} << 40};
  StrategyContext context;
  context.train_len = kLengths[data[0] % 8];
  constexpr int kHeads[] = {32, 1, 2, 3, 4, 6, 8, 12};
  context.n_query_heads = context.n_kv_heads = kHeads[size % 8];
  if (data[0] & 8) context.checkpoint_scaling = "pi(factor=4)";
  if (data[0] & 16) context.sliding_window = 100;
  if (data[0] & 32) context.expected_tokens = 5000;
  if (data[0] & 64) context.freq_factors.assign(32, 2.5);
  if (data[0] & 64) context.longrope = {std::vector<double>(32, 1.5), std::vector<double>(32, 4), 512, 1.25};
  if (data[0] & 64) {
    context.beacon.emplace();
    if (data[0] & 16) context.beacon->mix = BeaconConfig::Mix::kSequence;
  }
  if (data[0] & 128) context.kv_budget = {int64_t{1} << 20, 1024, 256};
  const std::string_view expression(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto strategy = make_strategy(expression, context);
  constexpr std::string_view kImplied = "full + ";
  if (expression.size() + kImplied.size() <= kMaxExpressionBytes && lacks_visibility(expression)) {
    const auto written = make_strategy(std::string(kImplied) + std::string(expression), context);
    FUZZ_REQUIRE(written.ok() == strategy.ok());
    if (strategy.ok()) {
      FUZZ_REQUIRE(strategy.value()->canonical() == written.value()->canonical());
    } else {
      // The usual term has no place in the text: what is wrong with it is said at its beginning.
      const auto shifted = strategy.status().offset() + static_cast<int64_t>(kImplied.size());
      FUZZ_REQUIRE(written.status().offset() == shifted);
    }
  }
  if (!strategy.ok()) {
    const Status status = strategy.status();
    FUZZ_REQUIRE(status.code() == Code::kBadStrategy || status.code() == Code::kUnsupported ||
                 status.code() == Code::kBudget);
    FUZZ_REQUIRE(!status.message().empty() && status.offset() <= static_cast<int64_t>(expression.size()));
    return 0;
  }
  const auto again = make_strategy(strategy.value()->canonical(), context);
  FUZZ_REQUIRE(again.ok());
  FUZZ_REQUIRE(again.value()->canonical() == strategy.value()->canonical());
  FUZZ_REQUIRE(again.value()->reach() == strategy.value()->reach());
  Plan plan;
  constexpr int64_t kFirst = 250, kQueries = 30;
  strategy.value()->plan(kFirst, kQueries, plan);
  FUZZ_REQUIRE(validate(plan, kFirst, kQueries, context.n_query_heads).ok());
  if (strategy.value()->condenses()) check_memory(*strategy.value(), kFirst, context.n_query_heads);
  return 0;
}
