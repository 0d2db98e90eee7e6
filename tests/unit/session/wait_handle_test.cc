// A stream's handle for poll loops: a reader that waits for nothing else gets every event.

#include <gtest/gtest.h>

#include <thread>

#include "tests/unit/session/hold.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

const std::shared_ptr<Model>& model() {
  static const auto loaded = load("short_128");
  return loaded;
}

std::shared_ptr<Session> fed() {
  SessionOptions options = with_strategy("full");
  options.overflow = OverflowPolicy::kExtrapolate;
  auto session = make_session(model(), options);
  expect_ok(session->feed_tokens(random_tokens(*model(), 40)));
  return session;
}

NextResult take_event(GenerationStream& stream, const StreamEvent** event) { return take(stream.next(0, event)); }

TEST(WaitHandle, AReaderThatOnlyPollsGetsWhatOneThatBlocksGets) {
  const Outcome expected = run(fed(), generating(300));
  ASSERT_EQ(expected.tokens.size(), 300u);
  for (const int64_t room : {1, 2, 8, 100}) {
    StreamOptions options = generating(300);
    options.max_undelivered = room;
    const auto stream = take(GenerationStream::open(fed(), std::move(options)));
    Tokens tokens;
    const StreamEvent* event = nullptr;
    for (bool ended = false; !ended;) {
      wait_for_event(*stream);
      ASSERT_FALSE(HasFatalFailure()) << room << " may wait, after " << tokens.size() << " tokens";
      while (!ended && take_event(*stream, &event) == NextResult::kEvent) {
        if (event->type == StreamEvent::Type::kToken) tokens.push_back(event->token);
        ended = event->type == StreamEvent::Type::kEnd;
      }
    }
    EXPECT_EQ(tokens, expected.tokens) << room;
    EXPECT_TRUE(has_event(*stream));  // who looks again learns that the end was taken
    EXPECT_EQ(take_event(*stream, &event), NextResult::kEnd);
  }
}

// Tokens of this model come so fast that the handle rests behind them, but in a sanitized build.
TEST(WaitHandle, IsReadyAgainAfterItWasReadyForNothing) {
  StreamOptions options = generating(100);
  options.max_undelivered = 8;
  const auto stream = take(GenerationStream::open(fed(), std::move(options)));
  const StreamEvent* event = nullptr;
  wait_for_event(*stream);
  work_ahead(*model());
  const auto hold = hold_engine(*model());
  int n_taken = 0;
  for (; take_event(*stream, &event) == NextResult::kEvent; ++n_taken) {
    ASSERT_NE(event->type, StreamEvent::Type::kEnd);
    if (n_taken < 7) {
      EXPECT_TRUE(has_event(*stream)) << n_taken;
    }
  }
  EXPECT_GE(n_taken, 8);
  std::this_thread::sleep_for(2 * TokenPace::kLongestNap);  // it has rested
  EXPECT_EQ(take_event(*stream, &event), NextResult::kTimeout);
  EXPECT_FALSE(has_event(*stream));
  hold->release();
  wait_for_event(*stream);
  ASSERT_EQ(take_event(*stream, &event), NextResult::kEvent);
  EXPECT_EQ(event->type, StreamEvent::Type::kToken);
}

}  // namespace
}  // namespace quire::test
