// Streams whose caller says before each token which ones may come.

#include <gtest/gtest.h>

#include "tests/unit/session/hold.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

const std::shared_ptr<Model>& model() {
  static const auto loaded = load("short_128");
  return loaded;
}

AllowedTokens only(const Tokens& tokens) {
  AllowedTokens bits((static_cast<size_t>(vocab_size(*model())) + 31) / 32);
  for (const int32_t token : tokens) bits[static_cast<size_t>(token) / 32] |= uint32_t{1} << token % 32;
  return bits;
}

std::shared_ptr<Session> fed() {
  auto session = make_session(model(), with_strategy("full"));
  expect_ok(session->feed_tokens(random_tokens(*model(), 30)));
  return session;
}

StreamOptions constrained(int64_t n, float temperature = 0) {
  StreamOptions options = generating(n, temperature);
  options.constrain = true;
  return options;
}

// The next event that is no progress.
Result<StreamEvent> next(GenerationStream& stream) {
  for (;;) {
    const StreamEvent* event = nullptr;
    const auto result = stream.next(-1, &event);
    if (!result.ok()) return result.status();
    if (result.value() == NextResult::kEnd) return Status(Code::kNotFound, "the end");
    if (event->type != StreamEvent::Type::kPrefill) return *event;
  }
}

TEST(Constraint, EachTokenIsOneOfTheAllowed) {
  for (const float temperature : {0.0f, 1.0f}) {
    const auto stream = take(GenerationStream::open(fed(), constrained(12, temperature)));
    for (int32_t step = 0; step < 12; ++step) {
      const Tokens allowed = {3 + step, 40 - step};
      expect_ok(stream->allow(only(allowed)));
      const StreamEvent event = take(next(*stream));
      EXPECT_EQ(event.type, StreamEvent::Type::kToken);
      EXPECT_NE(std::find(allowed.begin(), allowed.end(), event.token), allowed.end());
    }
    EXPECT_EQ(take(next(*stream)).finish, FinishReason::kMaxTokens);  // nothing is to be allowed for the end
  }
}

TEST(Constraint, AnyTokenIsTheUnconstrainedOne) {
  const Tokens expected = run(fed(), generating(10, 1.0f)).tokens;
  const auto stream = take(GenerationStream::open(fed(), constrained(10, 1.0f)));
  for (const int32_t token : expected) {
    expect_ok(stream->allow({}));
    EXPECT_EQ(take(next(*stream)).token, token);
  }
}

TEST(Constraint, OfWhatIsAllowedTheMostProbableWhereOptionsLeaveNone) {
  const auto session = fed();
  expect_ok(run(session).status);
  const Logits logits = last_logits(*session);
  const int32_t a = 9, b = 33;
  StreamOptions options = constrained(1);
  for (const int32_t token : {a, b}) options.sampling.logit_bias.emplace_back(token, -HUGE_VAL);
  const auto stream = take(GenerationStream::open(session, options));
  expect_ok(stream->allow(only({a, b})));
  EXPECT_EQ(take(next(*stream)).token, logits[9] >= logits[33] ? a : b);
}

TEST(Constraint, IsGivenOnceForEachTokenInTime) {
  const auto session = fed();
  const auto stream = take(GenerationStream::open(session, constrained(5)));
  EXPECT_EQ(next(*stream).status().code(), Code::kInvalidArgument);  // nothing comes without
  EXPECT_EQ(stats(*session).n_tokens, 30);                           // but the prompt was read
  EXPECT_EQ(stream->allow(AllowedTokens(1, 1)).code(), Code::kInvalidArgument);
  EXPECT_EQ(stream->allow(only({})).code(), Code::kInvalidArgument);
  expect_ok(stream->allow(only({7})));
  EXPECT_EQ(stream->allow(only({8})).code(), Code::kInvalidArgument);
  EXPECT_EQ(take(next(*stream)).token, 7);
  EXPECT_EQ(next(*stream).status().code(), Code::kInvalidArgument);
  expect_ok(stream->allow(only({8})));
  wait_for_event(*stream);
  EXPECT_EQ(stream->allow(only({9})).message(), "token 1 of this stream has its constraint: take it first");
  EXPECT_EQ(take(next(*stream)).token, 8);
  expect_ok(stream->cancel());
  EXPECT_EQ(take(next(*stream)).finish, FinishReason::kCancelled);
  expect_ok(stream->allow({}));  // too late, and no error
  EXPECT_EQ(position(*session), (Position{32, 0}));
  const auto plain = take(GenerationStream::open(session, generating(1)));
  EXPECT_EQ(plain->allow({}).code(), Code::kInvalidArgument);
  const auto ended = take(GenerationStream::open(fed(), constrained(0)));
  EXPECT_EQ(take(next(*ended)).finish, FinishReason::kMaxTokens);
  expect_ok(ended->allow({}));  // there is nothing to allow, and no error
}

TEST(Constraint, StopsAreAddedBeforeAndAfterIt) {
  const auto stream = take(GenerationStream::open(fed(), constrained(5)));
  expect_ok(stream->allow(only({7})));
  EXPECT_EQ(take(next(*stream)).token, 7);
  expect_ok(stream->allow(only({8})));
  expect_ok(stream->add_stops({{8}, {}}));  // the constraint still holds
  const StreamEvent end = take(next(*stream));
  EXPECT_EQ(end.finish, FinishReason::kStopId);
  EXPECT_EQ(end.token, 8);
}

}  // namespace
}  // namespace quire::test
