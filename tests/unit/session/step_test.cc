// What a step has come to is seen when the engine has let go of the session, and not before.
#include <gtest/gtest.h>

#include <thread>

#include "tests/unit/session/hold.h"
#include "tests/unit/session/session_fixture.h"
#include "tests/unit/session/test_memory.h"

namespace quire::test {
namespace {

constexpr int64_t kNew = 20;

NextResult poll_event(GenerationStream& stream) {
  const StreamEvent* event = nullptr;
  return take(stream.next(0, &event));
}

// Streams that decode, each with its first token taken, while the engine is held: their next step is their first one
// together, so it needs more working memory than any before it.
struct Company {
  std::vector<std::shared_ptr<Session>> sessions;
  std::vector<std::shared_ptr<GenerationStream>> streams;
  Tokens first_tokens;
  std::shared_ptr<Hold> hold;
};

// Null if the first stream's deadline passed too early.
std::unique_ptr<Company> decoding_company(const std::shared_ptr<Model>& model, int64_t deadline_ms) {
  auto company = std::make_unique<Company>();
  for (int s = 0; s < 3; ++s) {
    company->sessions.push_back(make_session(model, with_strategy("full")));
    expect_ok(company->sessions.back()->feed_tokens(Tokens{5 + s}));
    StreamOptions options = generating(kNew);
    if (s == 0) options.deadline_ms = deadline_ms;
    company->streams.push_back(take(GenerationStream::open(company->sessions.back(), options)));
  }
  const StreamEvent* event = nullptr;
  for (const auto& stream : company->streams) {
    EXPECT_EQ(take(stream->next(-1, &event)), NextResult::kEvent);
    if (event->type == StreamEvent::Type::kEnd) return nullptr;
    EXPECT_EQ(event->type, StreamEvent::Type::kPrefill);
    wait_for_event(*stream);
  }
  company->hold = hold_engine(*model);
  for (const auto& stream : company->streams) {
    EXPECT_EQ(take(stream->next(0, &event)), NextResult::kEvent);
    if (event->type == StreamEvent::Type::kEnd) {
      company->hold->release();
      return nullptr;
    }
    company->first_tokens.push_back(event->token);
  }
  return company;
}

// A deadline ends one stream at the beginning of a step that is then undone, because another one is cancelled in it.
// Were the end seen at once, its owner could truncate the session while the engine still cuts its KV cache.
TEST(Step, AnEndIsSeenWhenTheEngineHasLetGo) {
  static TestMemory memory;
  const auto model = load("short_128", memory.runtime());
  std::unique_ptr<Company> company;
  std::chrono::milliseconds deadline{25};
  while (!company) {
    deadline *= 2;
    company = decoding_company(model, deadline.count());
  }
  std::this_thread::sleep_for(deadline);  // the clock itself must pass it; the engine is held meanwhile
  static Pause in_forward;
  memory.on_allocate = [] { in_forward.here(); };
  company->hold->release();
  in_forward.wait_for_arrival();
  const auto& [sessions, streams, first_tokens, hold] = *company;
  for (const auto& stream : streams) EXPECT_EQ(poll_event(*stream), NextResult::kTimeout);
  EXPECT_EQ(sessions[0]->truncate(0).code(), Code::kBusy);
  EXPECT_EQ(sessions[0]->reset().code(), Code::kBusy);
  expect_ok(streams[1]->cancel());
  in_forward.release();

  const Outcome late = read(*streams[0]);
  EXPECT_EQ(late.end.finish, FinishReason::kDeadline);
  EXPECT_TRUE(late.tokens.empty());
  EXPECT_EQ(read(*streams[1]).end.finish, FinishReason::kCancelled);
  Outcome whole = read(*streams[2]);
  EXPECT_EQ(whole.end.finish, FinishReason::kMaxTokens);
  whole.tokens.insert(whole.tokens.begin(), first_tokens[2]);
  // All go on as if nothing had been undone.
  for (size_t s = 0; s < sessions.size(); ++s) {
    const auto alone = make_session(model, with_strategy("full"));
    expect_ok(alone->feed_tokens(Tokens{5 + static_cast<int32_t>(s)}));
    const Tokens expected = run(alone, generating(kNew)).tokens;
    if (s == 2) {
      EXPECT_EQ(whole.tokens, expected);
      continue;
    }
    EXPECT_EQ(position(*sessions[s]), (Position{2, 0}));
    Tokens rest = run(sessions[s], generating(kNew - 1)).tokens;
    rest.insert(rest.begin(), first_tokens[s]);
    EXPECT_EQ(rest, expected);
  }
}

}  // namespace
}  // namespace quire::test
