// Tokens at positions that the caller gives: PoSE's gaps.

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

using Positions = std::vector<int64_t>;

// PoSE's kind of sequence: two runs, and one more token far away.
Positions with_gaps(int64_t n) {
  Positions positions;
  for (int64_t i = 0; i < n; ++i) positions.push_back(i < 45 ? i : i < n - 1 ? i + 200 : i + 900);
  return positions;
}

SessionOptions full(int64_t block = 256, ElementType type = ElementType::kF16) {
  SessionOptions options = with_strategy("full");
  options.prefill_block = block;
  options.kv_type = type;
  return options;
}

Logits read_kept(const std::shared_ptr<Session>& session, int64_t first, int64_t n) {
  StreamOptions keep;
  keep.keep_logits = true;
  expect_ok(run(session, keep).status);
  return kept_logits(*session, first, n);
}

Logits logits_at(const std::shared_ptr<Model>& model, const SessionOptions& options, const Tokens& tokens,
                 const Positions& positions, size_t step) {
  const auto session = make_session(model, options);
  Logits all;
  for (size_t first = 0; first < tokens.size(); first += step) {
    const size_t n = std::min(step, tokens.size() - first);
    expect_ok(session->feed_positions(std::span(tokens).subspan(first, n), std::span(positions).subspan(first, n)));
    const Logits part = read_kept(session, static_cast<int64_t>(first), static_cast<int64_t>(n));
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

class PositionsOf : public testing::TestWithParam<const char*> {
 protected:
  const std::shared_ptr<Model> model_ = load(GetParam());
  const Tokens tokens_ = random_tokens(*model_, 100);
};
INSTANTIATE_TEST_SUITE_P(Models, PositionsOf,
                         testing::Values("short_128", "mistral_window_64", "mqa_yarn_sharded", "qwen2_window_layers"));

TEST_P(PositionsOf, ThoseThatATextHasAnywayChangeNoBit) {
  Positions positions(tokens_.size());
  std::iota(positions.begin(), positions.end(), 0);
  EXPECT_TRUE(same_bits(all_logits(model_, full(), tokens_), logits_at(model_, full(), tokens_, positions, 100)));
}

// RoPE knows differences alone.
TEST_P(PositionsOf, AllMovedAreTheSame) {
  Positions positions(tokens_.size());
  std::iota(positions.begin(), positions.end(), 12345);
  const Logits expected = all_logits(model_, full(256, ElementType::kF32), tokens_);
  const Logits moved = logits_at(model_, full(256, ElementType::kF32), tokens_, positions, 100);
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(moved[i], expected[i], 1e-3 * (1 + std::fabs(expected[i])));
}

TEST_P(PositionsOf, CallsAndBlocksChangeNoBit) {
  const Positions positions = with_gaps(100);
  const Logits expected = logits_at(model_, full(), tokens_, positions, 100);
  EXPECT_FALSE(same_bits(expected, all_logits(model_, full(), tokens_)));
  EXPECT_TRUE(same_bits(expected, logits_at(model_, full(7), tokens_, positions, 100)));
  EXPECT_TRUE(same_bits(expected, logits_at(model_, full(), tokens_, positions, 1)));
  EXPECT_TRUE(same_bits(expected, logits_at(model_, full(16), tokens_, positions, 45)));
}

TEST_P(PositionsOf, WhatFollowsIsNextToTheLast) {
  const Positions positions = with_gaps(100);
  const Logits expected = logits_at(model_, full(), tokens_, positions, 100);
  const auto session = make_session(model_, full());
  expect_ok(session->feed_tokens(std::span(tokens_).first(45)));
  expect_ok(session->feed_positions(std::span(tokens_).subspan(45, 1), std::span(positions).subspan(45, 1)));
  expect_ok(session->feed_tokens(std::span(tokens_).subspan(46, 53)));
  expect_ok(session->feed_positions(std::span(tokens_).last(1), std::span(positions).last(1)));
  EXPECT_TRUE(same_bits(expected, read_kept(session, 0, 100)));
  // Generated tokens too.
  StreamOptions options = generating(5);
  options.keep_logits = true;
  const Outcome outcome = run(session, options);
  ASSERT_EQ(outcome.tokens.size(), 5u);
  Tokens all = tokens_;
  Positions longer = positions;
  for (const int32_t token : outcome.tokens) {
    all.push_back(token);
    longer.push_back(longer.back() + 1);
  }
  const Logits whole = logits_at(model_, full(), all, longer, all.size());
  const Logits decoded = kept_logits(*session, 100, 4);
  EXPECT_TRUE(
      same_bits(decoded, std::span(whole).subspan(100 * static_cast<size_t>(vocab_size(*model_)), decoded.size())));
}

TEST_P(PositionsOf, ACutTextHasNoGapsBehindTheCut) {
  const Positions positions = with_gaps(100);
  const Logits expected = logits_at(model_, full(), tokens_, positions, 100);
  for (const int64_t cut : {0, 30, 45, 46, 99}) {
    const auto session = make_session(model_, full());
    expect_ok(session->feed_positions(tokens_, positions));
    if (cut != 30) expect_ok(run(session).status);  // 30: what was cut was not read
    expect_ok(session->truncate(cut));
    const auto rest = static_cast<size_t>(cut);
    expect_ok(session->feed_positions(std::span(tokens_).subspan(rest), std::span(positions).subspan(rest)));
    expect_ok(run(session).status);
    EXPECT_TRUE(same_bits(last_logits(*session), row_of(expected, *model_, 99))) << cut;
    expect_ok(session->truncate(cut));
    expect_ok(session->feed_tokens(std::span(tokens_).subspan(rest)));  // gaps before the cut alone
    if (cut > 45) continue;
    expect_ok(run(session).status);
    EXPECT_TRUE(same_bits(last_logits(*session), row_of(all_logits(model_, full(), tokens_), *model_, 99))) << cut;
  }
}

TEST(PositionsRefused, WithAReason) {
  const auto model = load("short_128");
  const Tokens tokens = {5, 6, 7};
  for (const char* strategy : {"dca", "longheads", "streaming_llm", "sda(dilation=3)", "rerope(window=40)"}) {
    const auto session = make_session(model, with_strategy(strategy));
    const Status status = session->feed_positions(tokens, Positions{0, 9, 10});
    EXPECT_EQ(status.code(), Code::kUnsupported) << strategy;
    EXPECT_EQ(position(*session), (Position{0, 0}));
  }
  const auto session = make_session(model, full());
  const auto refused = [&](const Positions& positions, int64_t index) {
    const Status status = session->feed_positions(tokens, positions);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.message();
    EXPECT_EQ(status.offset(), index) << status.message();
  };
  refused({-1, 0, 1}, 0);
  refused({0, 0, 1}, 1);
  refused({0, 5, 4}, 2);
  refused({0, 5, int64_t{1} << 40}, 2);
  EXPECT_EQ(session->feed_positions(Tokens{5, 99999, 6}, Positions{0, 1, 2}).code(), Code::kInvalidToken);
  EXPECT_EQ(position(*session), (Position{0, 0}));
  expect_ok(session->feed_positions(tokens, Positions{0, 9, 10}));
  refused({10, 11, 12}, 0);
  expect_ok(session->discard_pending());
  expect_ok(session->feed_positions(tokens, Positions{0, 1, 2}));
}

TEST(PositionsRefused, BeyondTheMostGaps) {
  const auto model = load("short_128");
  const auto session = make_session(model, full());
  constexpr auto kGaps = static_cast<size_t>(TextPositions::kMaxGaps);
  const Tokens tokens = random_tokens(*model, static_cast<int64_t>(kGaps) + 2);
  Positions positions;
  for (size_t i = 0; i < tokens.size(); ++i) positions.push_back(2 * static_cast<int64_t>(i));
  const Status status = session->feed_positions(tokens, positions);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.offset(), static_cast<int64_t>(kGaps) + 1) << status.message();
  expect_ok(session->feed_positions(std::span(tokens).first(kGaps), std::span(positions).first(kGaps)));
  const auto rest = [&](int64_t position) { return session->feed_positions(Tokens{5}, Positions{position}); };
  expect_ok(rest(positions[kGaps - 1] + 1));
  expect_ok(rest(positions[kGaps - 1] + 9));
  EXPECT_EQ(rest(positions[kGaps - 1] + 20).offset(), 0);
  expect_ok(rest(positions[kGaps - 1] + 10));
}

// The reach, 128 here, is about positions.
TEST(PositionsReach, IsWhereTheyEnd) {
  const auto model = load("short_128");
  const Tokens tokens = random_tokens(*model, 20);
  Positions positions(20);
  std::iota(positions.begin(), positions.end(), 0);
  for (size_t i = 10; i < 20; ++i) positions[i] += 98;  // up to 117
  SessionOptions options = full();
  options.overflow = OverflowPolicy::kError;
  const auto session = make_session(model, options);
  expect_ok(session->feed_positions(tokens, positions));
  const auto refused = GenerationStream::open(session, generating(11));
  EXPECT_EQ(refused.status().code(), Code::kOverflow);
  EXPECT_NE(refused.status().message().find("up to position 117"), std::string::npos) << refused.status().message();
  EXPECT_EQ(run(session, generating(10)).tokens.size(), 10u);

  options.overflow = OverflowPolicy::kStop;
  const auto stopping = make_session(model, options);
  expect_ok(stopping->feed_positions(tokens, positions));
  const Outcome outcome = run(stopping, generating(50));
  EXPECT_EQ(outcome.end.finish, FinishReason::kReach);
  EXPECT_EQ(outcome.tokens.size(), 10u);
  expect_ok(stopping->reset());
  positions[19] = 128;
  expect_ok(stopping->feed_positions(tokens, positions));
  EXPECT_EQ(run(stopping, generating(50)).tokens.size(), 0u);
  EXPECT_EQ(position(*stopping), (Position{19, 1}));
}

// A sliding window has no end for a text without gaps; a gap may lie inside any window.
TEST(PositionsReach, OfASlidingWindowIsTheTrainedLengthOnceThereIsAGap) {
  const auto model = load("mistral_window_64");
  const int64_t trained = model->llama->config().max_position_embeddings;
  SessionOptions options = full();
  options.overflow = OverflowPolicy::kError;
  const auto session = make_session(model, options);
  EXPECT_EQ(stats(*session).reach, kNoLimit);
  const Tokens tokens = random_tokens(*model, 4);
  expect_ok(session->feed_positions(tokens, Positions{0, 1, 2, 3}));
  expect_ok(GenerationStream::open(session, generating(2 * trained)).status());
  const auto gapped = make_session(model, options);
  expect_ok(gapped->feed_positions(tokens, Positions{0, 1, 1000000000, 2000000000}));
  EXPECT_EQ(GenerationStream::open(gapped, {}).status().code(), Code::kOverflow);
  expect_ok(gapped->discard_pending());
  expect_ok(gapped->feed_positions(tokens, Positions{0, 1, trained - 2, trained - 1}));
  expect_ok(run(gapped).status);
}

}  // namespace
}  // namespace quire::test
