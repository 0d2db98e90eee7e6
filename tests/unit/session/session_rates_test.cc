// The arithmetic of an estimate, on costs that are made up.

#include "lib/session/session_rates.h"

#include <gtest/gtest.h>

namespace quire::test {
namespace {

// 1 us a token and 1 ns for each key; decoding twice that.
const KeyCost kPrefill[] = {{500, 1500}, {0, 1000}, {1000, 2000}};
const KeyCost kDecode[] = {{0, 2000}, {1000, 4000}};

// All keys are seen, of 100 bytes each.
SessionLoad dense(int64_t n_tokens) {
  SessionLoad load;
  load.n_tokens = n_tokens;
  load.prefill_block = 100;
  load.prefill_keys = load.decode_keys = [](int64_t depth) { return static_cast<double>(depth); };
  load.held_bytes = [](int64_t depth) { return 100.0 * static_cast<double>(depth); };
  return load;
}

SessionRates rates_of(const SessionLoad& load, std::span<const TierRate> tiers = {}) {
  return session_rates(KeyCosts(kPrefill), KeyCosts(kDecode), tiers, load);
}

TEST(KeyCosts, LieOnALine) {
  const KeyCosts costs(kPrefill);
  EXPECT_DOUBLE_EQ(costs.seconds(0), 1e-6);
  EXPECT_DOUBLE_EQ(costs.seconds(750), 1.75e-6);
  EXPECT_DOUBLE_EQ(costs.seconds(10'000), 11e-6);
}

// What was less of more keys by chance does not become nothing of many more.
TEST(KeyCosts, NeverFall) {
  const KeyCost noisy[] = {{0, 1010}, {100, 990}};
  EXPECT_DOUBLE_EQ(KeyCosts(noisy).seconds(100'000), 1e-6);
}

TEST(KeyCosts, OfOneNumberOfKeysAreTheMean) {
  const KeyCost same[] = {{64, 7000}, {64, 9000}};
  EXPECT_DOUBLE_EQ(KeyCosts(same).seconds(64), 8e-6);
  EXPECT_DOUBLE_EQ(KeyCosts(same).seconds(0), 8e-6);
}

TEST(SessionRates, AddUpTheBlocksOfAText) {
  const SessionRates rates = rates_of(dense(10'000));
  EXPECT_NEAR(rates.prefill_seconds, 10'000 * (1e-6 + 5e-6), 1e-9);  // 5,000 keys in the mean
  EXPECT_NEAR(rates.decode_token_seconds, 2e-6 + 20e-6, 1e-12);
  EXPECT_EQ(rates.decode_token_cold_seconds, rates.decode_token_seconds);
}

TEST(SessionRates, LongTextsInSteps) {
  SessionLoad load = dense(10'000'000);
  load.prefill_block = 1;
  EXPECT_NEAR(rates_of(load).prefill_seconds, 1e7 * (1e-6 + 5e-3), 1);
}

TEST(SessionRates, WhatIsMissingIsReadForEachBlockAndEachToken) {
  SessionLoad load = dense(10'000);
  load.memory_bytes = 400'000;  // of a million
  const TierRate slow[] = {{kNoLimit, 1e6, 1e9}};
  // 60 blocks behind the first 4,000 tokens read 0.3 MB in the mean, and each token 0.6 MB.
  EXPECT_NEAR(rates_of(load, slow).prefill_seconds, 60 * 0.3, 0.2);
  EXPECT_NEAR(rates_of(load, slow).decode_token_seconds, 0.6, 1e-9);
  const TierRate fast[] = {{kNoLimit, 1e15, 1e15}};
  EXPECT_DOUBLE_EQ(rates_of(load, fast).prefill_seconds, rates_of(load).prefill_seconds);
}

TEST(SessionRates, TheNearestTierIsFilledFirst) {
  SessionLoad load = dense(10'000);
  load.memory_bytes = 400'000;
  const TierRate tiers[] = {{200'000, 2e6, 1e9}, {kNoLimit, 1e6, 1e9}};
  EXPECT_NEAR(rates_of(load, tiers).decode_token_seconds, 0.1 + 0.4, 1e-9);
}

TEST(SessionRates, AStrategyThatChoosesReadsWhatItChose) {
  SessionLoad load = dense(10'000);
  load.memory_bytes = 400'000;
  load.prefill_selects = load.decode_selects = true;
  load.selected_bytes = 100'000;
  const TierRate slow[] = {{kNoLimit, 1e6, 1e9}};
  const SessionRates rates = rates_of(load, slow);
  EXPECT_NEAR(rates.decode_token_seconds, 22e-6, 1e-12);
  EXPECT_NEAR(rates.decode_token_cold_seconds, 0.1 + 22e-6, 1e-9);
  EXPECT_NEAR(rates.prefill_seconds, rates_of(load).prefill_seconds, 0.001);  // 0.6 MB written
}

}  // namespace
}  // namespace quire::test
