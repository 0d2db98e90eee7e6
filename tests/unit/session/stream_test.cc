// Streams: what a session holds after each way a stream can end, and that it goes on from there.

#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/session/hold.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

const std::shared_ptr<Model>& model() {
  static const auto loaded = load("short_128");
  return loaded;
}

const std::shared_ptr<Model>& text_model() {
  static const auto loaded = load("text_256");
  return loaded;
}

std::shared_ptr<Session> fed(const std::shared_ptr<Model>& on, const SessionOptions& options, const Tokens& tokens) {
  auto session = make_session(on, options);
  expect_ok(session->feed_tokens(tokens));
  return session;
}

TEST(Stream, ReportsPrefillAndEndsAtMaxTokens) {
  SessionOptions options = with_strategy("full");
  options.prefill_block = 16;
  const auto session = fed(model(), options, random_tokens(*model(), 100));
  EXPECT_EQ(position(*session), (Position{0, 100}));
  const Outcome outcome = run(session, generating(5));
  ASSERT_FALSE(outcome.prefill.empty());
  EXPECT_EQ(outcome.prefill.back().done, 100);
  for (const StreamEvent& event : outcome.prefill) {
    EXPECT_EQ(event.total, 100);
    EXPECT_TRUE(event.done % 16 == 0 || event.done == 100);
    EXPECT_EQ(event.n_tokens, event.done);
  }
  EXPECT_EQ(outcome.tokens.size(), 5u);
  EXPECT_EQ(outcome.end.finish, FinishReason::kMaxTokens);
  EXPECT_EQ(outcome.end.n_tokens, 105);
  EXPECT_EQ(position(*session), (Position{105, 0}));
  EXPECT_EQ(stats(*session).n_prefilled, 100);
  EXPECT_EQ(stats(*session).n_generated, 5);
}

TEST(Stream, GreedyTakesTheMostProbable) {
  const auto session = fed(model(), with_strategy("full"), random_tokens(*model(), 30));
  for (int step = 0; step < 10; ++step) {
    expect_ok(run(session).status);  // computes the token delivered before
    const Logits logits = last_logits(*session);
    const auto best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    EXPECT_EQ(run(session, generating(1)).tokens, Tokens{best});
  }
}

TEST(Stream, ClosingLeavesTheSessionAtTheLastDeliveredToken) {
  const Tokens prompt = random_tokens(*model(), 70);
  const Tokens expected = run(fed(model(), with_strategy("dca"), prompt), generating(12, 1.0f, 5)).tokens;
  ASSERT_EQ(expected.size(), 12u);
  for (const size_t taken : {size_t{0}, size_t{1}, size_t{4}, size_t{11}}) {
    const auto session = fed(model(), with_strategy("dca"), prompt);
    auto stream = take(GenerationStream::open(session, generating(12, 1.0f, 5)));
    Tokens tokens = read(*stream, taken).tokens;
    if (taken > 0) wait_for_event(*stream);  // the next token is computed but not delivered
    stream->close();
    const Position here = position(*session);
    EXPECT_EQ(here.tokens + here.pending, 70 + static_cast<int64_t>(taken));
    const StreamEvent* event = nullptr;
    EXPECT_EQ(stream->next(0, &event).status().code(), Code::kClosed);
    const Tokens rest = run(session, generating(static_cast<int64_t>(12 - taken), 1.0f, 5)).tokens;
    tokens.insert(tokens.end(), rest.begin(), rest.end());
    EXPECT_EQ(tokens, expected) << "closed after " << taken;
  }
}

TEST(Stream, CancelLeavesABlockBoundaryAndTheRestPending) {
  const Tokens prompt = random_tokens(*model(), 900);
  const SessionOptions whole = with_strategy("dca");
  const auto uncancelled = fed(model(), whole, prompt);
  expect_ok(run(uncancelled).status);
  SessionOptions options = whole;
  options.prefill_block = 8;
  const auto session = fed(model(), options, prompt);
  int cancels = 0;
  while (position(*session).pending > 0) {
    const auto stream = take(GenerationStream::open(session, {}));
    const StreamEvent* event = nullptr;
    ASSERT_TRUE(stream->next(-1, &event).ok());
    expect_ok(stream->cancel());
    expect_ok(stream->cancel());
    const Outcome outcome = read(*stream);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
    const Position here = position(*session);
    EXPECT_EQ(outcome.end.n_tokens, here.tokens);
    EXPECT_EQ(here.tokens + here.pending, 900);
    if (outcome.end.finish != FinishReason::kCancelled) continue;
    ++cancels;
    EXPECT_TRUE(here.tokens % 8 == 0 || here.pending == 0) << here;
    EXPECT_LE(stats(*session).tasks_after_cancel, 2);
  }
  EXPECT_GT(cancels, 0);
  EXPECT_TRUE(same_bits(last_logits(*uncancelled), last_logits(*session)));
}

TEST(Stream, OtherCallsAreBusyWhileItIsOpen) {
  const auto session = fed(model(), with_strategy("full"), random_tokens(*model(), 10));
  auto stream = take(GenerationStream::open(session, generating(3)));
  EXPECT_EQ(session->feed_tokens(Tokens{5}).code(), Code::kBusy);
  EXPECT_EQ(session->reset().code(), Code::kBusy);
  EXPECT_EQ(session->discard_pending().code(), Code::kBusy);
  EXPECT_EQ(GenerationStream::open(session, {}).status().code(), Code::kBusy);
  read(*stream);
  EXPECT_TRUE(session->feed_tokens(Tokens{5}).ok());
}

TEST(Stream, EndOfTextTokenEndsTheTextAndIsNotDelivered) {
  const Tokens prompt = random_tokens(*model(), 20);
  for (uint64_t seed = 1;; ++seed) {
    ASSERT_LT(seed, 50u) << "no end-of-text token in 50 generations";
    StreamOptions options = generating(100, 3.0f, seed);
    const Tokens all = run(fed(model(), with_strategy("dca"), prompt), options).tokens;
    const auto eos = std::find(all.begin(), all.end(), 2);
    if (eos == all.end()) continue;
    options.ignore_eos = false;
    const auto session = fed(model(), with_strategy("dca"), prompt);
    const Outcome outcome = run(session, options);
    EXPECT_EQ(outcome.tokens, Tokens(all.begin(), eos));
    EXPECT_EQ(outcome.end.finish, FinishReason::kEos);
    EXPECT_EQ(outcome.end.token, 2);
    EXPECT_EQ(position(*session).tokens, 20 + (eos - all.begin()));
    return;
  }
}

TEST(Stream, StopIdEndsTheTextAndIsNotDelivered) {
  const Tokens prompt = random_tokens(*model(), 20);
  const Tokens all = run(fed(model(), with_strategy("full"), prompt), generating(30, 1.0f)).tokens;
  StreamOptions options = generating(30, 1.0f);
  options.stop.ids = {1, all[17]};
  const Outcome outcome = run(fed(model(), with_strategy("full"), prompt), options);
  const auto first = std::find(all.begin(), all.end(), all[17]);
  EXPECT_EQ(outcome.tokens, Tokens(all.begin(), first));
  EXPECT_EQ(outcome.end.finish, FinishReason::kStopId);
  EXPECT_EQ(outcome.end.token, all[17]);
}

TEST(Stream, StopStringEndsTheTextBeforeIt) {
  const Tokens prompt = random_tokens(*text_model(), 20);
  const std::string text = run(fed(text_model(), with_strategy("full"), prompt), generating(120, 1.0f)).text;
  int tried = 0;
  for (size_t at = 5; at + 3 <= text.size() && tried < 12; ++at) {
    const std::string stop = text.substr(at, 3);
    if (!std::all_of(stop.begin(), stop.end(), [](char c) { return c >= ' ' && c < 127; })) continue;
    ++tried;
    StreamOptions options = generating(120, 1.0f);
    options.stop.strings = {"never in a text of \x01", stop};
    const auto session = fed(text_model(), with_strategy("full"), prompt);
    const Outcome outcome = run(session, options);
    EXPECT_EQ(outcome.text, text.substr(0, text.find(stop)));
    EXPECT_EQ(outcome.end.finish, FinishReason::kStopString);
    EXPECT_EQ(outcome.end.stop_index, 1);
    EXPECT_EQ(position(*session).tokens, 20 + static_cast<int64_t>(outcome.tokens.size()));
  }
  EXPECT_GT(tried, 3) << text;
}

TEST(Stream, ReachIsAnErrorOrAnEndAsTheSessionWants) {
  const Tokens prompt = random_tokens(*model(), 120);  // train_len 128
  SessionOptions options = with_strategy("full");
  options.overflow = OverflowPolicy::kError;
  auto session = fed(model(), options, prompt);
  const Status refused = GenerationStream::open(session, generating(9)).status();
  EXPECT_EQ(refused.code(), Code::kOverflow);
  EXPECT_EQ(refused.offset(), 129);
  EXPECT_EQ(position(*session), (Position{0, 120}));
  EXPECT_EQ(run(session, generating(8)).tokens.size(), 8u);

  options.overflow = OverflowPolicy::kStop;
  session = fed(model(), options, prompt);
  const Outcome outcome = run(session, generating(50));
  EXPECT_EQ(outcome.tokens.size(), 8u);
  EXPECT_EQ(outcome.end.finish, FinishReason::kReach);
  EXPECT_EQ(position(*session).tokens, 128);
}

// A prompt in uneven parts: each stream scores its own tokens, the first of them from the logits before.
TEST(Stream, TheFirstToDeliverAnEventSaysWhatAutoChose) {
  static std::vector<std::string> logged;
  logged.clear();
  RuntimeOptions runtime;
  runtime.n_threads = 2;
  runtime.log = Log([](void*, int32_t level, const char* text,
                       size_t n) { logged.push_back(std::to_string(level) + " " + std::string(text, n)); },
                    nullptr, LogLevel::kInfo);
  const auto model = load("short_128", std::move(runtime));
  const auto session = make_session(model, with_strategy("auto"));
  const std::string expected = "auto chose " + session->strategy() + " because ";
  EXPECT_EQ(logged.back().rfind("3 " + expected, 0), 0u) << logged.back();
  ASSERT_TRUE(session->feed_tokens(random_tokens(*model, 20)).ok());
  {
    const auto cancelled = take(GenerationStream::open(session, generating(2)));
    expect_ok(cancelled->cancel());
    EXPECT_EQ(read(*cancelled).notice, "");  // after a cancel comes the end alone
  }
  EXPECT_EQ(run(session, generating(2)).notice.rfind(expected, 0), 0u);
  EXPECT_EQ(run(session, generating(2)).notice, "");
  const auto named = make_session(model, with_strategy("dca"));
  ASSERT_TRUE(named->feed_tokens(random_tokens(*model, 20)).ok());
  EXPECT_EQ(run(named, generating(2)).notice, "");
}

TEST(Stream, ScoresAreTheLogSoftmaxOfTheLogits) {
  const Tokens tokens = random_tokens(*model(), 200);
  const Logits logits = all_logits(model(), with_strategy("dca"), tokens);
  SessionOptions options = with_strategy("dca");
  options.prefill_block = 48;
  const auto session = make_session(model(), options);
  for (size_t first = 0; first < tokens.size(); first += 67) {
    const size_t n = std::min<size_t>(67, tokens.size() - first);
    ASSERT_TRUE(session->feed_tokens(std::span(tokens).subspan(first, n)).ok());
    StreamOptions scoring;
    scoring.score = true;
    expect_ok(run(session, scoring).status);
    std::vector<float> scores(n);
    expect_ok(session->scores(static_cast<int64_t>(first), static_cast<int64_t>(n), scores.data()));
    for (size_t i = 0; i < n; ++i) {
      if (first + i == 0) {
        EXPECT_TRUE(std::isnan(scores[0]));
        continue;
      }
      const auto row = row_of(logits, *model(), static_cast<int64_t>(first + i) - 1);
      double sum = 0;
      for (const float x : row) sum += std::exp(static_cast<double>(x));
      EXPECT_NEAR(scores[i], row[static_cast<size_t>(tokens[first + i])] - std::log(sum), 1e-6) << first + i;
    }
    EXPECT_EQ(session->scores(static_cast<int64_t>(first) + 1, static_cast<int64_t>(n), scores.data()).code(),
              Code::kNotFound);
  }
}

TEST(Stream, LogprobsAreOfTheUnmodifiedDistribution) {
  const Tokens prompt = random_tokens(*model(), 40);
  const auto session = fed(model(), with_strategy("full"), prompt);
  StreamOptions options = generating(20, 2.0f);
  SamplerStep seven;
  seven.kind = SamplerStep::Kind::kTopK;
  seven.n = 7;
  options.sampling.steps.push_back(seven);
  options.score = true;
  const Outcome outcome = run(session, options);
  std::vector<float> scores(19);
  expect_ok(session->scores(40, 19, scores.data()));
  for (size_t i = 0; i < scores.size(); ++i) EXPECT_EQ(scores[i], outcome.logprobs[i]) << i;
}

// Whether the CPU backend ranks the row, or the host sums it because all logits are kept.
TEST(Stream, LogprobsAreTheSameWhereLogitsAreKept) {
  if (is_deferred()) GTEST_SKIP() << "the device makes its sums in a way of its own";
  const auto model = load("gemma3", 2);
  const auto logprobs = [&](uint32_t seed, bool keep_logits) {
    const auto session = fed(model, with_strategy("full"), random_tokens(*model, 20, seed));
    StreamOptions options = generating(10);
    options.keep_logits = keep_logits;
    return run(session, options).logprobs;
  };
  for (uint32_t seed = 0; seed < 10; ++seed) EXPECT_EQ(logprobs(seed, false), logprobs(seed, true)) << seed;
}

TEST(Stream, ResetAndDiscardForget) {
  const Tokens prompt = random_tokens(*model(), 50);
  const auto session = fed(model(), with_strategy("full"), prompt);
  expect_ok(run(session).status);
  const Logits first = last_logits(*session);
  expect_ok(session->feed_tokens(Tokens{9, 8, 7}));
  expect_ok(session->discard_pending());
  EXPECT_EQ(position(*session), (Position{50, 0}));
  expect_ok(session->reset());
  EXPECT_EQ(position(*session), (Position{0, 0}));
  EXPECT_EQ(stats(*session).kv_bytes, 0);
  EXPECT_EQ(GenerationStream::open(session, generating(1)).status().code(), Code::kEmpty);
  expect_ok(session->feed_tokens(prompt));
  expect_ok(run(session).status);
  EXPECT_TRUE(same_bits(first, last_logits(*session)));
}

TEST(Stream, TokensOutsideTheVocabularyAreRefusedWhole) {
  const auto session = make_session(model(), with_strategy("full"));
  for (const int32_t bad : {-1, 64, INT32_MAX}) {
    const Status refused = session->feed_tokens(Tokens{5, 6, bad, 7});
    EXPECT_EQ(refused.code(), Code::kInvalidToken);
    EXPECT_EQ(refused.offset(), 2);
  }
  EXPECT_EQ(position(*session), (Position{0, 0}));
}

// longheads(init=full): what the model says, it says as if the selection began where its prompt ended.
TEST(InitFull, IsASelectionThatBeginsWithTheAnswer) {
  constexpr int64_t kPrompt = 100, kNew = 90;
  const auto model = load("short_128");
  Tokens tokens = random_tokens(*model, kPrompt);
  const auto session = make_session(model, with_strategy("longheads(chunk=16, chunks=4, init=full)"));
  expect_ok(session->feed_tokens(tokens));
  StreamOptions options = generating(kNew);
  options.keep_logits = true;
  const Outcome said = run(session, options);
  ASSERT_EQ(said.tokens.size(), static_cast<size_t>(kNew));
  const Logits decoded = kept_logits(*session, kPrompt, kNew - 1);
  tokens.insert(tokens.end(), said.tokens.begin(), said.tokens.end());
  const auto read = [&](const std::string& strategy) {
    const Logits all = all_logits(model, with_strategy(strategy), tokens);
    return Logits(all.begin() + kPrompt * vocab_size(*model), all.end() - vocab_size(*model));
  };
  EXPECT_TRUE(same_bits(decoded, read("longheads(chunk=16, chunks=4, begin=100)")));
  EXPECT_FALSE(same_bits(decoded, read("longheads(chunk=16, chunks=4, begin=110)")));
}

}  // namespace
}  // namespace quire::test
