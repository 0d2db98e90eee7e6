// The engine holds no lock while it samples tokens and turns them into text: others get their answers meanwhile.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>

#include "tests/unit/session/hold.h"
#include "tests/unit/session/hooked_tokenizer.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

class EngineLocks : public testing::Test {
 protected:
  // The first token that becomes text after armed_ waits at pause_. That is inside TokenGenerator::next(), which
  // samples the token before.
  EngineLocks() {
    HookedTokenizer::put_into(
        *model_,
        [this] {
          if (armed_.exchange(false)) pause_.here();
        },
        nullptr);
  }

  std::shared_ptr<Session> fed(uint32_t seed) const {
    auto session = make_session(model_, with_strategy("full"));
    expect_ok(session->feed_tokens(random_tokens(*model_, 20, seed)));
    return session;
  }

  // While the engine is paused. A question that waits for it is a failure; the engine then goes on, so that it ends.
  void expect_answer(const char* what, const std::function<void()>& ask) {
    std::future<void> answer = std::async(std::launch::async, ask);
    if (answer.wait_for(std::chrono::seconds(30)) == std::future_status::ready) return;
    ADD_FAILURE() << what << " waits for the engine";
    pause_.release();
  }

  std::atomic<bool> armed_{false};
  Pause pause_;
  const std::shared_ptr<Model> model_ = load("short_128");
};

TEST_F(EngineLocks, NoneIsHeldWhileTokensAreSampledAndBecomeText) {
  // Two streams that share a step: while the first one's token becomes text, the second one is in the step too.
  const std::vector<std::shared_ptr<Session>> sessions = {fed(1), fed(2)};
  std::vector<std::shared_ptr<GenerationStream>> streams;
  for (const auto& session : sessions) {
    StreamOptions options = generating(12, 0.9f);
    SamplerStep penalties;
    penalties.kind = SamplerStep::Kind::kPenalties;
    penalties.value = 1.2;
    options.sampling.steps.push_back(penalties);
    streams.push_back(take(GenerationStream::open(session, options)));
  }
  std::vector<Tokens> tokens;
  for (const auto& stream : streams) {
    tokens.push_back(read(*stream, 1).tokens);
    wait_for_event(*stream);
  }
  const auto hold = hold_engine(*model_);
  for (size_t s = 0; s < streams.size(); ++s) tokens[s].push_back(read(*streams[s], 1).tokens.at(0));
  armed_ = true;
  hold->release();
  pause_.wait_for_arrival();

  for (size_t s = 0; s < sessions.size(); ++s) {
    const Session& session = *sessions[s];
    expect_answer("stats", [&] {
      EXPECT_EQ(stats(session).n_generated, 2);
      EXPECT_EQ(stats(session).n_tokens, 22);
    });
    expect_answer("count_tokens", [&] { EXPECT_EQ(position(session), (Position{22, 0})); });
    expect_answer("fingerprint", [&] { EXPECT_EQ(session.fingerprint().size(), 32u); });
    expect_answer("truncate", [&] { EXPECT_EQ(sessions[s]->truncate(0).code(), Code::kBusy); });
    expect_answer("next", [&] {
      const StreamEvent* event = nullptr;
      EXPECT_EQ(take(streams[s]->next(0, &event)), NextResult::kTimeout);
    });
    expect_answer("the wait descriptor", [&] { EXPECT_FALSE(has_event(*streams[s])); });
  }
  std::shared_ptr<GenerationStream> another;
  expect_answer("a new session", [&] {
    const auto session = fed(3);
    another = take(GenerationStream::open(session, generating(3)));
    EXPECT_EQ(position(*session), (Position{0, 20}));
  });
  expect_answer("more stops", [&] { expect_ok(streams[1]->add_stops({{-5}, {}})); });
  expect_answer("cancel", [&] { expect_ok(streams[0]->cancel()); });
  expect_answer("stats of what was cancelled", [&] { EXPECT_EQ(stats(*sessions[0]).n_generated, 2); });
  pause_.release();

  EXPECT_EQ(read(*another).tokens.size(), 3u);
  const Outcome cancelled = read(*streams[0]);
  EXPECT_EQ(cancelled.end.finish, FinishReason::kCancelled);
  EXPECT_TRUE(cancelled.tokens.empty());
  EXPECT_EQ(position(*sessions[0]), (Position{22, 0}));
  EXPECT_EQ(read(*streams[1]).tokens.size(), 10u);
  EXPECT_EQ(position(*sessions[1]), (Position{32, 0}));
}

}  // namespace
}  // namespace quire::test
