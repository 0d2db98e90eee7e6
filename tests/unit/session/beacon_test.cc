// Sessions with Activation Beacon: windows are condensed as the text goes on, whoever writes it and however it comes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/model/adapter_directory.h"
#include "tests/unit/session/session_fixture.h"
#include "tests/unit/session/test_memory.h"

namespace quire::test {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr int64_t kWindow = 32;

SessionOptions beacons(const std::string& strategy, int64_t block = 256) {
  SessionOptions options = with_strategy(strategy);
  options.overflow = OverflowPolicy::kError;
  options.prefill_block = block;
  return options;
}

void feed(Session& session, const Tokens& tokens, int64_t begin, int64_t end) {
  expect_ok(
      session.feed_tokens(std::span(tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin))));
}

class Beacons : public testing::Test {
 protected:
  int64_t layers() const { return model_->llama->config().n_layers; }
  // Bytes of a record of 16 tokens.
  int64_t record_bytes() const {
    const auto session = make_session(model_, beacons("full(kv_chunk=16)"));
    feed(*session, random_tokens(*model_, 1), 0, 1);
    expect_ok(run(session).status);
    return stats(*session).kv_bytes / stats(*session).kv_chunks;
  }

  std::shared_ptr<Model> model_ = load(kWithBeacons);
};

TEST_F(Beacons, BlocksPartsAndSingleTokensGiveTheSameBits) {
  for (const char* strategy :
       {"beacon(ratio=4)", "beacon(ratio=2, attn=segmentation, kv_chunk=48)", "beacon(ratio=8, attn=full_coverage)",
        "beacon(window=48, stride=16, sequence=x2.x0.x8, kv_chunk=16)",
        "beacon(ratio=2, kv_chunk=16) + pi(factor=2)"}) {
    const Tokens tokens = random_tokens(*model_, 250);
    const Logits whole = all_logits(model_, beacons(strategy), tokens);
    for (const int64_t block : {1, 7, 31, 32, 33, 100}) {
      EXPECT_TRUE(same_bits(whole, all_logits(model_, beacons(strategy, block), tokens))) << strategy << ", " << block;
    }
    for (const size_t part : {1, 13, 32, 47}) {
      EXPECT_TRUE(same_bits(whole, all_logits(model_, beacons(strategy), tokens, part))) << strategy << ", " << part;
    }
  }
}

TEST_F(Beacons, ThreadsChangeNoBit) {
  const Tokens tokens = random_tokens(*model_, 200);
  const Logits expected = all_logits(model_, beacons("beacon(ratio=4)"), tokens);
  for (const int threads : {1, 3}) {
    EXPECT_TRUE(same_bits(expected, all_logits(load(kWithBeacons, threads), beacons("beacon(ratio=4)"), tokens)));
  }
}

// The model's own tokens are condensed too: what it says over three windows is what it would have read.
TEST_F(Beacons, DecodingCondensesAsItGoes) {
  constexpr int64_t kPrompt = 20, kNew = 200;
  const SessionOptions options = beacons("beacon(ratio=4, kv_chunk=16)");
  Tokens tokens = random_tokens(*model_, kPrompt);
  const auto session = make_session(model_, options);
  feed(*session, tokens, 0, kPrompt);
  const Outcome said = run(session, generating(kNew));
  ASSERT_EQ(said.tokens.size(), static_cast<size_t>(kNew));
  expect_ok(run(session).status);  // computes the last token
  tokens.insert(tokens.end(), said.tokens.begin(), said.tokens.end());
  const Logits read = all_logits(model_, options, tokens);
  EXPECT_TRUE(same_bits(row_of(read, *model_, kPrompt + kNew - 1), last_logits(*session)));
  for (int64_t i = 0; i < kNew; ++i) {
    const auto row = row_of(read, *model_, kPrompt + i - 1);
    EXPECT_EQ(std::max_element(row.begin(), row.end()) - row.begin(), said.tokens[static_cast<size_t>(i)]) << i;
  }
  // 220 tokens: six windows as 48 entries, and 28 raw tokens from 192 on. The text can be cut from 144 on, in the
  // window that begins at 128, and where generating began.
  EXPECT_EQ(stats(*session).kv_chunks, layers() * (3 + 6 + 2));
  EXPECT_EQ(stats(*session).kv_chunks_evicted, layers() * 6);
}

TEST_F(Beacons, AWholeWindowsLogitsAreThoseOfPlainAttention) {
  const Tokens tokens = random_tokens(*model_, kWindow);
  EXPECT_TRUE(
      same_bits(all_logits(model_, beacons("beacon(ratio=2)"), tokens), all_logits(model_, beacons("full"), tokens)));
}

// Twelve times the trained length in the memory of less than half of it.
TEST_F(Beacons, MemoryStaysBoundedOverALongText) {
  constexpr int64_t kTokens = 3000, kBlock = 24;
  const auto session = make_session(model_, beacons("beacon(ratio=32, kv_chunk=16)", kBlock));
  ASSERT_EQ(stats(*session).reach, 225 * kWindow + 256 - 225);  // windows, and what 225 entries leave
  feed(*session, random_tokens(*model_, kTokens), 0, kTokens);
  expect_ok(run(session).status);
  const int64_t entries = kTokens / kWindow;
  // A window touches two chunks, and so does the one that the first spare chunk is in.
  const int64_t raw = 2 + ChunkStore::kSpareChunks + 2;
  EXPECT_LE(stats(*session).kv_bytes_peak, layers() * (ceil_div(entries, 16) + raw) * record_bytes());
  EXPECT_EQ(stats(*session).kv_chunks + stats(*session).kv_chunks_evicted,
            layers() * (ceil_div(kTokens, 16) + ceil_div(entries, 16)));
}

TEST_F(Beacons, TheTextEndsAtTheReach) {
  const auto session = make_session(model_, beacons("beacon(ratio=2, growth=stop)"));
  constexpr int64_t kReach = 15 * kWindow + 256 - 15 * kWindow / 2;
  ASSERT_EQ(stats(*session).reach, kReach);
  const Tokens tokens = random_tokens(*model_, kReach + 1);
  feed(*session, tokens, 0, kReach + 1);
  EXPECT_EQ(GenerationStream::open(session, {}).status().code(), Code::kOverflow);
  SessionOptions stopping = beacons("beacon(ratio=2, growth=stop)");
  stopping.overflow = OverflowPolicy::kStop;
  const auto stopped = make_session(model_, stopping);
  feed(*stopped, tokens, 0, kReach - 3);
  const Outcome outcome = run(stopped, generating(10));
  expect_ok(outcome.status);
  EXPECT_EQ(outcome.tokens.size(), 3u);
  EXPECT_EQ(outcome.end.finish, FinishReason::kReach);
  // The windows behind it can be condensed more.
  EXPECT_GT(stats(*make_session(model_, beacons("beacon(window=48, stride=48, ratio=2)"))).reach,
            stats(*make_session(model_, beacons("beacon(window=48, stride=48, ratio=2, growth=stop)"))).reach);
}

TEST_F(Beacons, BeyondTheReachOnlyWhereTheHostAllowsIt) {
  SessionOptions options = beacons("beacon(ratio=2, growth=stop)");
  options.overflow = OverflowPolicy::kExtrapolate;
  const auto session = make_session(model_, options);
  feed(*session, random_tokens(*model_, 600), 0, 600);
  expect_ok(run(session, generating(40)).status);
  EXPECT_EQ(position(*session), (Position{640, 0}));
}

// A text of expected_tokens tokens, and the plug-in's reserve of 16, decides the ratio.
TEST_F(Beacons, TheExpectedLengthChoosesTheRatio) {
  for (const auto& [expected, ratio] :
       std::vector<std::pair<int64_t, int>>{{200, 0}, {240, 0}, {241, 2}, {464, 2}, {465, 4}}) {
    SessionOptions options = beacons("beacon");
    options.expected_tokens = expected;
    EXPECT_THAT(make_session(model_, options)->strategy(), HasSubstr("ratio=" + std::to_string(ratio) + ","));
  }
  EXPECT_EQ(Session::create(model_, beacons("beacon")).status().code(), Code::kBadStrategy);
}

TEST_F(Beacons, ABudgetThatEndsInTheMemoryStopsAtATokenBoundary) {
  const Tokens tokens = random_tokens(*model_, 100);
  SessionOptions options = beacons("beacon(ratio=4, kv_chunk=16)", 24);
  const Logits expected = all_logits(model_, options, tokens);
  options.kv_budget_bytes = layers() * 2 * record_bytes();  // the first window's text, and no entry
  const auto session = make_session(model_, options);
  feed(*session, tokens, 0, 100);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const Outcome outcome = run(session);
    EXPECT_EQ(outcome.status.code(), Code::kBudget);
    EXPECT_THAT(outcome.status.message(), HasSubstr("needs " + std::to_string(layers() * 3 * record_bytes())));
    EXPECT_EQ(position(*session), (Position{24, 76}));
    EXPECT_TRUE(same_bits(row_of(expected, *model_, 23), last_logits(*session)));
    EXPECT_LE(stats(*session).kv_bytes_peak, options.kv_budget_bytes);
  }
  expect_ok(session->discard_pending());
  feed(*session, tokens, 24, 31);
  expect_ok(run(session).status);
  EXPECT_TRUE(same_bits(row_of(expected, *model_, 30), last_logits(*session)));
}

// From the first allocation on, each one fails once.
TEST_F(Beacons, AfterRunningOutOfMemoryTheSessionGoesOn) {
  static TestMemory memory;
  const auto model = load(kWithBeacons, memory.runtime());
  const Tokens tokens = random_tokens(*model, 150);
  const SessionOptions options = beacons("beacon(ratio=4, kv_chunk=16)", 24);
  const Logits expected = all_logits(model, options, tokens);
  int in_the_entries = 0;
  for (int64_t left = 0;; ++left) {
    const auto session = make_session(model, options);
    feed(*session, tokens, 0, 150);
    memory.left = left;
    const Outcome outcome = run(session);
    memory.left = INT64_MAX;
    const Position here = position(*session);
    EXPECT_EQ(here.tokens + here.pending, 150);
    if (here.tokens > 0) {
      EXPECT_TRUE(same_bits(row_of(expected, *model, here.tokens - 1), last_logits(*session))) << left;
    }
    expect_ok(run(session).status);
    EXPECT_TRUE(same_bits(row_of(expected, *model, 149), last_logits(*session))) << left;
    if (outcome.status.ok()) break;
    ASSERT_EQ(outcome.status.code(), Code::kOutOfMemory);
    if (outcome.status.message().find("condensed entry") != std::string::npos) ++in_the_entries;
  }
  EXPECT_EQ(in_the_entries, 2);  // 32 entries: two chunks, in memory a page each
}

TEST_F(Beacons, StrategiesWithoutBeaconsDoNotUseThem) {
  const auto plain = load("text_256");
  const Tokens tokens = random_tokens(*model_, 100);
  for (const char* strategy : {"full", "dca(chunk=48)"}) {
    EXPECT_TRUE(same_bits(all_logits(plain, beacons(strategy), tokens), all_logits(model_, beacons(strategy), tokens)));
  }
  EXPECT_NE(make_session(plain, beacons("full"))->fingerprint(), make_session(model_, beacons("full"))->fingerprint());
  EXPECT_EQ(Session::create(plain, beacons("beacon(ratio=2)")).status().code(), Code::kUnsupported);
}

TEST_F(Beacons, AdaptersAreRefused) {
  AdapterDirectory files;
  for (const char* layer : {"0", "1"}) {
    const std::string module = std::string("model.layers.") + layer + ".mlp.up_proj";
    files.fill(module + ".lora_A.weight", {2, 64});
    files.fill(module + ".lora_B.weight", {80, 2});
  }
  files.write();
  SessionOptions options = beacons("beacon(ratio=2)");
  options.adapters = {{take(load_adapter(model_, files.path())), 1}};
  const Status refused = Session::create(model_, options).status();
  EXPECT_EQ(refused.code(), Code::kUnsupported);
  EXPECT_THAT(refused.message(), HasSubstr("without adapters"));
  EXPECT_EQ(Session::check(*model_, options).code(), Code::kUnsupported);
  options.strategy = "full";
  EXPECT_TRUE(Session::create(model_, options).ok());
  // `auto` takes another one then.
  options.strategy = "auto";
  options.expected_tokens = 5000;
  const auto with_adapters = make_session(model_, options);
  options.adapters.clear();
  EXPECT_THAT(make_session(model_, options)->strategy(), StartsWith("beacon("));
  EXPECT_THAT(with_adapters->strategy(), Not(StartsWith("beacon(")));
}

TEST_F(Beacons, ARandomSessionGoesOn) {
  for (const int64_t n : {1, 32, 33, 500}) {
    const auto session = make_session(model_, beacons("beacon(ratio=4, kv_chunk=16)"));
    expect_ok(session->fill_random(n, 5));
    feed(*session, random_tokens(*model_, 50), 0, 50);
    expect_ok(run(session, generating(40)).status);
    EXPECT_EQ(position(*session), (Position{n + 90, 0}));
  }
}

}  // namespace
}  // namespace quire::test
