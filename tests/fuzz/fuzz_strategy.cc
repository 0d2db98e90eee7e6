// A strategy expression. Input: one byte that chooses the model's trained length, then the expression.
#include "lib/strategy/strategy.h"
#include "tests/fuzz/require.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire;
  if (size == 0) return 0;
  constexpr int64_t kLengths[] = {2048, 1, 2, 16, 100, 4096, 131072, int64_t{1} << 40};
  StrategyContext context;
  context.train_len = kLengths[data[0] % 8];
  if (data[0] & 8) context.checkpoint_scaling = "pi(factor=4)";
  const std::string_view expression(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto strategy = make_strategy(expression, context);
  if (!strategy.ok()) {
    const Status status = strategy.status();
    FUZZ_REQUIRE(status.code() == Code::kBadStrategy || status.code() == Code::kUnsupported);
    FUZZ_REQUIRE(!status.message().empty() && status.offset() <= static_cast<int64_t>(expression.size()));
    return 0;
  }
  const auto again = make_strategy(strategy.value()->canonical(), context);
  FUZZ_REQUIRE(again.ok());
  FUZZ_REQUIRE(again.value()->canonical() == strategy.value()->canonical());
  FUZZ_REQUIRE(again.value()->reach() == strategy.value()->reach());
  return 0;
}
