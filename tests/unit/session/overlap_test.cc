// A step that a device is busy with holds up nobody but those who wait for its results.
#include <thread>
#include <vector>

#include "tests/source_path.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

class Overlap : public testing::Test {
 protected:
  Overlap() {
    RuntimeOptions options;
    options.n_threads = 2;
    options.wrap_backend = [slow = slow_](auto real) { return create_slow_backend(std::move(real), slow); };
    runtime_ = make_runtime(std::move(options));
  }
  static std::string path() { return source_path("tests/golden/models/short_128"); }
  std::shared_ptr<Model> load_another() { return take(load_model(runtime_, path(), {})); }

  // A session with a few tokens to read, on a model whose pass has its queue.
  static std::shared_ptr<Session> fed(const std::shared_ptr<Model>& model) {
    auto session = make_session(model, with_strategy("dca"));
    expect_ok(session->feed_tokens(random_tokens(*model, 60)));
    expect_ok(run(session, generating(1)).status);
    expect_ok(session->feed_tokens(random_tokens(*model, 3)));
    return session;
  }
  // A stream with a step of it on a device that is not done until let_go().
  std::shared_ptr<GenerationStream> held_stream(const std::shared_ptr<Session>& session) {
    slow_->hold();
    auto stream = take(GenerationStream::open(session, generating(8)));
    while (slow_->n_asked() == 0) std::this_thread::yield();  // the step is under way
    return stream;
  }
  static void expect_no_event(GenerationStream& stream) {
    const StreamEvent* event = nullptr;
    const auto next = stream.next(0, &event);
    ASSERT_TRUE(next.ok()) << next.status().message();
    EXPECT_EQ(next.value(), NextResult::kTimeout);
  }

  const std::shared_ptr<SlowQueues> slow_ = std::make_shared<SlowQueues>();
  std::shared_ptr<Runtime> runtime_;
};

TEST_F(Overlap, AnotherModelLoadsAndAnswersMeanwhile) {
  const auto first = load_another();
  const Tokens expected = run(fed(first), generating(8)).tokens;
  ASSERT_EQ(expected.size(), 8u);

  const auto session = fed(first);
  const auto held = held_stream(session);
  EXPECT_EQ(run(fed(load_another()), generating(8)).tokens, expected);
  expect_no_event(*held);
  EXPECT_EQ(position(*session), (Position{61, 3}));
  EXPECT_EQ(slow_->n_waited(), 0);

  slow_->let_go();
  EXPECT_EQ(read(*held).tokens, expected);
}

TEST_F(Overlap, SessionsOfTheModelWaitForItsPass) {
  const auto model = load_another();
  const auto session = fed(model), behind = fed(model);
  const auto held = held_stream(session);
  const auto stream = take(GenerationStream::open(behind, generating(8)));
  const int64_t asked = slow_->n_asked();
  while (slow_->n_asked() < asked + 3) std::this_thread::yield();
  expect_no_event(*stream);
  EXPECT_EQ(slow_->n_waited(), 0);
  slow_->let_go();
  EXPECT_EQ(read(*held).tokens.size(), 8u);
  EXPECT_EQ(read(*stream).tokens.size(), 8u);
}

TEST_F(Overlap, ACancelledStepIsUndoneWhenTheDeviceIsDone) {
  const auto session = fed(load_another());
  const auto held = held_stream(session);
  const Position before = position(*session);
  expect_ok(held->cancel());
  expect_no_event(*held);
  slow_->let_go();
  const Outcome outcome = read(*held);
  expect_ok(outcome.status);
  EXPECT_EQ(outcome.end.finish, FinishReason::kCancelled);
  EXPECT_EQ(outcome.tokens.size(), 0u);
  EXPECT_EQ(position(*session), before);
  held->close();
  EXPECT_EQ(run(session, generating(8)).tokens.size(), 8u);
}

TEST_F(Overlap, ClosingTheRuntimeWaitsForTheDevice) {
  const auto session = fed(load_another());
  const auto held = held_stream(session);
  runtime_->close();
  EXPECT_GT(slow_->n_waited(), 0);
  const StreamEvent* event = nullptr;
  EXPECT_EQ(held->next(-1, &event).status().code(), Code::kClosed);
}

// Many streams on two models, whose steps are under way beside each other, while the application asks and cancels.
TEST_F(Overlap, AnswersAreThoseOfASessionAlone) {
  const std::shared_ptr<Model> models[] = {load_another(), load_another()};
  const Tokens expected = run(fed(models[0]), generating(40)).tokens;
  std::vector<std::thread> readers;
  for (int i = 0; i < 6; ++i) {
    readers.emplace_back([&, model = models[i % 2], cancels = i >= 4] {
      const auto session = fed(model);
      if (cancels) {
        const auto stream = take(GenerationStream::open(session, generating(40)));
        EXPECT_EQ(read(*stream, 5).tokens, Tokens(expected.begin(), expected.begin() + 5));
        stream->close();
        expect_ok(session->truncate(61));
        expect_ok(session->feed_tokens(random_tokens(*model, 3)));
      }
      EXPECT_EQ(run(session, generating(40)).tokens, expected);
      EXPECT_GT(stats(*session).scratch_bytes, 0);
    });
  }
  for (std::thread& reader : readers) reader.join();
}

}  // namespace
}  // namespace quire::test
