// A KV cache in a file gives the bits of one in memory, within its budget.

#include <gtest/gtest.h>

#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

constexpr int64_t kLength = 400;
const std::vector<std::string> kStrategies = {"full", "dca", "longheads(chunk=16, chunks=4)",
                                              "longheads(chunk=16, chunks=4, select=group)",
                                              "streaming_llm(sinks=3, recent=50)"};

class Residency : public testing::TestWithParam<std::string> {
 protected:
  SessionOptions options() const {
    SessionOptions options = with_strategy(GetParam());
    options.prefill_block = 24;
    return options;
  }
  std::shared_ptr<Model> model_ = load("short_128", 2);
  Tokens tokens_ = random_tokens(*model_, kLength);
};
INSTANTIATE_TEST_SUITE_P(Strategies, Residency, testing::ValuesIn(kStrategies),
                         [](const auto& info) { return "strategy_" + std::to_string(info.index); });

TEST_P(Residency, ChangesNoBit) {
  const Logits expected = all_logits(model_, options(), tokens_);
  const auto roomy = make_session(model_, options());
  ASSERT_TRUE(roomy->feed_tokens(tokens_).ok());
  expect_ok(run(roomy).status);
  const int64_t whole = stats(*roomy).kv_bytes_peak;
  for (const int64_t part : {1, 2}) {
    SessionOptions spilling = options();
    spilling.spill_directory = testing::TempDir();
    spilling.kv_budget_bytes = whole / part;
    EXPECT_TRUE(same_bits(expected, all_logits(model_, spilling, tokens_))) << "1/" << part;
  }
}

// From one byte on, each refusal names the bytes that were missing; with those it gets further, at last to the end.
TEST_P(Residency, ABudgetTooSmallNamesWhatIsNeededAndTheSessionLives) {
  const Logits expected = all_logits(model_, options(), tokens_);
  SessionOptions spilling = options();
  spilling.spill_directory = testing::TempDir();
  spilling.kv_budget_bytes = 1;
  for (int attempt = 0;; ++attempt) {
    ASSERT_LT(attempt, 20);
    const auto session = make_session(model_, spilling);
    ASSERT_TRUE(session->feed_tokens(tokens_).ok());
    const Outcome outcome = run(session);
    const SessionStats now = stats(*session);
    EXPECT_LE(now.kv_bytes_peak, spilling.kv_budget_bytes);
    EXPECT_EQ(now.n_tokens + now.n_pending, kLength);
    if (outcome.status.ok()) {
      EXPECT_GT(now.kv_chunks_written, 0);
      EXPECT_TRUE(same_bits(expected, all_logits(model_, spilling, tokens_)));
      break;
    }
    ASSERT_EQ(outcome.status.code(), Code::kBudget) << outcome.status.message();
    const std::string& message = outcome.status.message();
    const int64_t needed = std::stoll(message.substr(message.find("needs ") + 6));
    ASSERT_GT(needed, spilling.kv_budget_bytes) << message;
    spilling.kv_budget_bytes = needed;
  }
}

TEST_P(Residency, TruncatedTextsGoOnAsNewOnes) {
  SessionOptions spilling = options();
  spilling.spill_directory = testing::TempDir();
  const auto roomy = make_session(model_, options());
  ASSERT_TRUE(roomy->feed_tokens(tokens_).ok());
  expect_ok(run(roomy).status);
  spilling.kv_budget_bytes = stats(*roomy).kv_bytes_peak / 2;
  const auto session = make_session(model_, spilling);
  ASSERT_TRUE(session->feed_tokens(tokens_).ok());
  expect_ok(run(session).status);
  const Logits expected = all_logits(model_, options(), tokens_);
  for (const int64_t n : {399, 385, 384, 383, 260, 200, 64, 17, 1}) {
    ASSERT_TRUE(session->truncate(n).ok());
    expect_ok(run(session).status);
    EXPECT_TRUE(same_bits(row_of(expected, *model_, n - 1), last_logits(*session))) << n;
    const int64_t again = std::min<int64_t>(kLength - n, 40);
    ASSERT_TRUE(
        session->feed_tokens(std::span(tokens_).subspan(static_cast<size_t>(n), static_cast<size_t>(again))).ok());
    expect_ok(run(session).status);
    EXPECT_TRUE(same_bits(row_of(expected, *model_, n + again - 1), last_logits(*session))) << n;
  }
}

}  // namespace
}  // namespace quire::test
