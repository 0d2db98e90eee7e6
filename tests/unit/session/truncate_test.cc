// A text that was cut and goes on is, bit for bit, the text that was never longer.

#include <gtest/gtest.h>

#include "tests/unit/kv/spill_directory.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

constexpr int64_t kLength = 170;

struct Case {
  const char* strategy;
  int64_t most_read_again;  // to cut a text anywhere
  bool spills;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.strategy << (c.spills ? ", spilling" : ""); }

const Case kCases[] = {
    {"full", 1, false},
    {"dca", 1, false},
    {"longheads(chunk=16, chunks=5)", 16, false},
    {"longheads(chunk=16, chunks=4, select=group, begin=70)", 16, false},
    {"longheads(chunk=16, chunks=4, init=full)", 16, false},
    {"dca_topk(chunk=16, chunks=6, sticky=2, one_in=6)", 1, false},
    {"dca_topk(chunk=16, chunks=6, sticky=2, dca_chunk=64, represent=minmax, reading=selected)", 1, false},
    {"streaming_llm(sinks=3, recent=50)", kLength, false},
    {"beacon(ratio=4, kv_chunk=16)", kLength, false},
    {"beacon(window=48, stride=16, ratio=2, kv_chunk=16)", kLength, false},
    {"beacon(sequence=x2.x0.x8.x0, attn=full_coverage, kv_chunk=16)", kLength, false},
    {"full", 1, true},
    {"longheads(chunk=16, chunks=5)", 16, true},
    {"streaming_llm(sinks=3, recent=50)", kLength, true},
    {"beacon(sequence=x2.x0, kv_chunk=16)", kLength, true}};

class Truncate : public testing::TestWithParam<Case> {
 protected:
  // Blocks of 32 hold whole chunks of 16; blocks of 24 begin and end inside them.
  SessionOptions options(int64_t block) const {
    SessionOptions options = with_strategy(GetParam().strategy);
    options.prefill_block = block;
    if (GetParam().spills) {
      options.spill_directory = directory_.path();
      options.kv_budget_bytes = budget_;
    }
    return options;
  }
  std::span<const int32_t> tokens(int64_t begin, int64_t end) const {
    return std::span(tokens_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  }
  // The first n tokens, then others up to `all`.
  void feed_and_stray(Session& session, int64_t n, int64_t all) const {
    expect_ok(session.feed_tokens(tokens(0, n)));
    expect_ok(session.feed_tokens(random_tokens(*model_, all - n, 77)));
  }

  std::shared_ptr<Model> model_ = load(model_for(GetParam().strategy), 2);
  SpillDirectory directory_;
  Tokens tokens_ = random_tokens(*model_, kLength);
  Logits expected_ = all_logits(model_, with_strategy(GetParam().strategy), tokens_);
  // Half of the cache, and what selection needs besides.
  int64_t budget_ = [&] {
    const auto session = make_session(model_, with_strategy(GetParam().strategy));
    expect_ok(session->feed_tokens(tokens_));
    expect_ok(run(session).status);
    const SessionStats now = stats(*session);
    return now.kv_bytes - (now.kv_full_bytes + now.kv_narrow_bytes) / 2;
  }();
};
INSTANTIATE_TEST_SUITE_P(Cases, Truncate, testing::ValuesIn(kCases));

TEST_P(Truncate, GoesOnAsIfNothingElseHadFollowed) {
  for (const int64_t block : {24, 32}) {
    const auto session = make_session(model_, options(block));
    // Ends of texts inside chunks that the last block held from the beginning, at their edges, and far away.
    for (const auto& [n, all] : std::vector<std::pair<int64_t, int64_t>>{
             {0, 170},   {0, 1},     {1, 2},     {1, 170},   {2, 17},    {15, 16},   {15, 32},   {16, 17},
             {16, 170},  {17, 31},   {31, 33},   {33, 60},   {40, 52},   {47, 55},   {48, 49},   {49, 64},
             {53, 71},   {60, 170},  {64, 96},   {65, 85},   {71, 72},   {78, 81},   {96, 97},   {97, 120},
             {100, 121}, {120, 170}, {127, 128}, {128, 160}, {130, 148}, {144, 145}, {150, 163}, {159, 161},
             {160, 169}, {161, 170}, {168, 170}, {169, 170}, {170, 170}}) {
      SCOPED_TRACE(std::to_string(n) + " of " + std::to_string(all) + " tokens, blocks of " + std::to_string(block));
      feed_and_stray(*session, n, all);
      expect_ok(run(session).status);
      expect_ok(session->truncate(n));
      ASSERT_EQ(position(*session), (Position{n, 0}));
      StreamOptions keep;
      keep.keep_logits = true;
      const Outcome again = run(session, keep);
      expect_ok(again.status);
      if (n > 0 && n < all) {
        ASSERT_FALSE(again.prefill.empty());
        const StreamEvent& read = again.prefill.back();
        EXPECT_EQ(read.done, read.total);
        EXPECT_GE(read.total, 1);
        // Where full records were dropped that the tokens to come read, more of the text is read again.
        if (!tested_old_text().narrows()) {
          EXPECT_LE(read.total, GetParam().most_read_again);
        }
        EXPECT_EQ(read.n_tokens, n);
      }
      if (n > 0) {
        ASSERT_TRUE(same_bits(row_of(expected_, *model_, n - 1), last_logits(*session)));
      }
      if (n < kLength) {
        expect_ok(session->feed_tokens(tokens(n, kLength)));
        expect_ok(run(session, keep).status);
        const Logits rest = kept_logits(*session, n, kLength - n);
        ASSERT_TRUE(same_bits(std::span(expected_).last(rest.size()), rest));
      }
      expect_ok(session->reset());
    }
    EXPECT_EQ(directory_.n_names(), 0);
    if (GetParam().spills) {
      EXPECT_LE(stats(*session).kv_bytes_peak, budget_);
      EXPECT_GT(stats(*session).kv_chunks_written, 0);
    }
  }
}

// Cut again and again, each time shorter and then with a little more text.
TEST_P(Truncate, OfATruncatedText) {
  const auto session = make_session(model_, options(40));
  feed_and_stray(*session, 150, kLength);
  expect_ok(run(session).status);
  int64_t n = 150;
  while (true) {
    expect_ok(session->truncate(n));
    expect_ok(session->feed_tokens(tokens(n, n + 5)));
    expect_ok(run(session).status);
    ASSERT_TRUE(same_bits(row_of(expected_, *model_, n + 4), last_logits(*session))) << n;
    if (n < 23) break;
    n -= 23;
    expect_ok(session->truncate(n + 7));  // and not computed in between
  }
  expect_ok(session->feed_tokens(tokens(n + 5, kLength)));
  expect_ok(run(session).status);
  EXPECT_TRUE(same_bits(row_of(expected_, *model_, kLength - 1), last_logits(*session)));
}

// The model's own tokens: cut anywhere, it says the same again (and init=full remembers which tokens were whose).
TEST_P(Truncate, ThenGeneratesTheSameAgain) {
  const auto session = make_session(model_, options(24));
  expect_ok(session->feed_tokens(tokens(0, 60)));
  const Outcome whole = run(session, generating(70, 0.8f));
  ASSERT_EQ(whole.tokens.size(), 70u);
  for (const int64_t n : {129, 128, 113, 96, 81, 62, 61, 60}) {
    expect_ok(session->truncate(n));
    const Outcome again = run(session, generating(130 - n, 0.8f));
    expect_ok(again.status);
    const auto from = static_cast<std::ptrdiff_t>(n - 60);
    ASSERT_EQ(again.tokens, Tokens(whole.tokens.begin() + from, whole.tokens.end())) << n;
    ASSERT_EQ(again.logprobs, std::vector<float>(whole.logprobs.begin() + from, whole.logprobs.end())) << n;
  }
}

TEST_P(Truncate, OfPendingTokensAndOfNone) {
  const auto session = make_session(model_, options(24));
  expect_ok(session->feed_tokens(tokens(0, 40)));
  EXPECT_EQ(session->truncate(41).code(), Code::kInvalidArgument);
  EXPECT_EQ(session->truncate(-1).code(), Code::kInvalidArgument);
  expect_ok(session->truncate(30));
  EXPECT_EQ(position(*session), (Position{0, 30}));
  expect_ok(run(session).status);
  expect_ok(session->feed_tokens(tokens(30, 50)));
  expect_ok(session->truncate(50));
  EXPECT_EQ(position(*session), (Position{30, 20}));
  expect_ok(session->truncate(30));  // settled ones stay computed
  EXPECT_EQ(position(*session), (Position{30, 0}));
  EXPECT_TRUE(same_bits(row_of(expected_, *model_, 29), last_logits(*session)));
  expect_ok(session->feed_tokens(tokens(30, 50)));
  expect_ok(session->truncate(10));
  EXPECT_EQ(position(*session), (Position{10, 0}));
  EXPECT_EQ(stats(*session).n_pending, 0);
  Logits row(static_cast<size_t>(vocab_size(*model_)));
  EXPECT_EQ(session->logits(-1, 1, row.data()).code(), Code::kNotFound);
  expect_ok(run(session).status);
  EXPECT_TRUE(same_bits(row_of(expected_, *model_, 9), last_logits(*session)));
}

}  // namespace
}  // namespace quire::test
