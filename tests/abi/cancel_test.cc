// Cancelling at many moments, from another thread: it takes hold within one task a thread, and the session goes on as
// if it had never been cancelled.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <tuple>

#include "tests/abi/harness.h"

namespace quire::test {
namespace {

constexpr int32_t kThreads = 3;
constexpr size_t kPrompt = 300;
constexpr int64_t kNew = 24;
constexpr int32_t kVocab = 64;

class CancelTest : public testing::TestWithParam<const char*> {
 protected:
  Owned<quire_session> fed_session() {
    auto session = make_session(model_.get(), GetParam(), 48);
    feed(session.get(), prompt_);
    return session;
  }

  // Runs to the end from wherever the session was cancelled; the tokens so far plus the rest.
  std::vector<int32_t> finish(quire_session* session, std::vector<int32_t> tokens) {
    const Generated rest = generate(session, kNew - static_cast<int64_t>(tokens.size()));
    EXPECT_EQ(rest.outcome.status, QUIRE_OK) << rest.outcome.text();
    tokens.insert(tokens.end(), rest.tokens.begin(), rest.tokens.end());
    return tokens;
  }

  void expect_boundary(quire_session* session, size_t n_delivered) {
    const auto [n_tokens, n_pending] = position(session);
    EXPECT_EQ(n_tokens + n_pending, static_cast<int64_t>(kPrompt + n_delivered));
    if (n_delivered > 0) {
      EXPECT_EQ(n_pending, 0);
    }
    const quire_session_stats now = stats(session);
    EXPECT_EQ(now.n_tokens, n_tokens);
    quire_session_probes probes{};
    probes.struct_size = sizeof probes;
    EXPECT_EQ(quire_session_get_probes(session, &probes, nullptr), QUIRE_OK);
    EXPECT_LE(probes.tasks_after_cancel, kThreads);
    EXPECT_GE(probes.tasks_after_cancel, 0);
    EXPECT_GE(probes.cancel_latency_ns, 0);
  }

  Owned<quire_runtime> runtime_ = make_runtime(kThreads);
  Owned<quire_model> model_ = load_model(runtime_.get(), "short_128");
  const std::vector<int32_t> prompt_ = some_tokens(kPrompt, kVocab);
  const std::vector<int32_t> expected_ = generate(fed_session().get(), kNew).tokens;
};

// By the clock: another thread cancels after a delay that walks through prefill and decode, in the middle of whatever
// the engine does then. That no event tells; and since any moment must do, it need not be an exact one.
TEST_P(CancelTest, AfterAnyDelay) {
  ASSERT_EQ(expected_.size(), static_cast<size_t>(kNew));
  const auto begin = std::chrono::steady_clock::now();
  (void)generate(fed_session().get(), kNew);
  const auto whole = std::chrono::steady_clock::now() - begin;
  constexpr int kMoments = 18;
  int n_cancelled = 0;
  for (int moment = 0; moment < kMoments; ++moment) {
    const auto session = fed_session();
    const auto stream = open_stream(session.get(), greedy(kNew));
    std::thread canceller([&] {
      std::this_thread::sleep_for(whole * moment / kMoments);
      EXPECT_EQ(quire_stream_cancel(stream.get(), nullptr), QUIRE_OK);
      EXPECT_EQ(quire_stream_cancel(stream.get(), nullptr), QUIRE_OK);
    });
    const Generated run = read_to_end(stream.get());
    canceller.join();
    ASSERT_EQ(run.outcome.status, QUIRE_OK) << run.outcome.text();
    if (run.finish == QUIRE_FINISH_CANCELLED) {
      ++n_cancelled;
      expect_boundary(session.get(), run.tokens.size());
    } else {
      EXPECT_EQ(run.finish, QUIRE_FINISH_MAX_TOKENS);
    }
    ASSERT_EQ(finish(session.get(), run.tokens), expected_) << "cancelled after " << run.tokens.size() << " tokens";
  }
  EXPECT_GT(n_cancelled, 0);
}

// By the event: cancelled while the engine works on what comes after the k-th event.
TEST_P(CancelTest, AfterAnyEvent) {
  for (int after = 0; after < 12; ++after) {
    const auto session = fed_session();
    const auto stream = open_stream(session.get(), greedy(kNew));
    quire_event event;
    std::vector<int32_t> tokens;
    for (int k = 0; k < after; ++k) {
      ASSERT_EQ(next(stream.get(), &event), QUIRE_OK);
      if (event.kind == QUIRE_EVENT_TOKEN) tokens.push_back(event.token);
    }
    std::thread([&] { EXPECT_EQ(quire_stream_cancel(stream.get(), nullptr), QUIRE_OK); }).join();
    ASSERT_EQ(next(stream.get(), &event), QUIRE_OK);
    ASSERT_EQ(event.kind, QUIRE_EVENT_END);  // nothing else comes after the cancel
    ASSERT_EQ(event.finish_reason, QUIRE_FINISH_CANCELLED);
    expect_boundary(session.get(), tokens.size());
    EXPECT_EQ(event.n_tokens, position(session.get()).first);
    ASSERT_EQ(finish(session.get(), tokens), expected_) << "cancelled after " << after << " events";
  }
}

// Closing and releasing an open stream stop it, too; so does closing the session.
TEST_P(CancelTest, CloseAndReleaseWhileComputing) {
  for (int moment = 0; moment < 10; ++moment) {
    const auto session = fed_session();
    auto stream = open_stream(session.get(), greedy(kNew));
    quire_event event;
    std::vector<int32_t> tokens;
    for (int k = 0; k < moment; ++k) {
      ASSERT_EQ(next(stream.get(), &event), QUIRE_OK);
      if (event.kind == QUIRE_EVENT_TOKEN) tokens.push_back(event.token);
    }
    if (moment % 2 == 0) {
      EXPECT_EQ(quire_stream_close(stream.get(), nullptr), QUIRE_OK);
      EXPECT_EQ(next(stream.get(), &event), QUIRE_ERROR_CLOSED);
      expect_boundary(session.get(), tokens.size());
    }
    stream.reset();
    ASSERT_EQ(finish(session.get(), tokens), expected_);
    stream = open_stream(session.get(), greedy(kNew));
    EXPECT_EQ(quire_session_close(session.get(), nullptr), QUIRE_OK);
    EXPECT_EQ(next(stream.get(), &event), QUIRE_ERROR_CLOSED);
  }
}

TEST_P(CancelTest, DiscardPendingDropsTheRest) {
  const std::vector<int32_t> prompt = some_tokens(1500, kVocab);
  Owned<quire_session> session;
  int64_t n_tokens = 0, n_pending = 0;
  for (int attempt = 0; attempt < 50 && (n_tokens == 0 || n_pending == 0); ++attempt) {  // caught in the middle
    session = make_session(model_.get(), GetParam(), 16);
    feed(session.get(), prompt);
    const auto stream = open_stream(session.get(), greedy(kNew));
    quire_event event;
    do {
      ASSERT_EQ(next(stream.get(), &event), QUIRE_OK);
    } while (event.kind == QUIRE_EVENT_WARNING);
    ASSERT_EQ(event.kind, QUIRE_EVENT_PREFILL);
    EXPECT_EQ(quire_stream_close(stream.get(), nullptr), QUIRE_OK);
    std::tie(n_tokens, n_pending) = position(session.get());
    ASSERT_EQ(n_tokens + n_pending, 1500);
  }
  ASSERT_GT(n_tokens, 0);
  ASSERT_GT(n_pending, 0);
  EXPECT_EQ(quire_session_discard_pending(session.get(), nullptr), QUIRE_OK);
  EXPECT_EQ(position(session.get()), std::make_pair(n_tokens, int64_t{0}));
  const auto shorter = make_session(model_.get(), GetParam(), 48);
  feed(shorter.get(), {prompt.begin(), prompt.begin() + n_tokens});
  EXPECT_EQ(generate(session.get(), kNew).tokens, generate(shorter.get(), kNew).tokens);
}

INSTANTIATE_TEST_SUITE_P(Strategies, CancelTest, testing::Values("full", "dca", "streaming_llm(sinks=4, recent=90)"),
                         [](const auto& info) {
                           return std::string(info.param).substr(0, std::string(info.param).find('('));
                         });

}  // namespace
}  // namespace quire::test
