// Sessions with equal texts share what one of them computed, and go on, bit for bit, as sessions that share nothing.

#include <gtest/gtest.h>

#include <thread>

#include "tests/unit/kv/spill_directory.h"
#include "tests/unit/model/temporary_folder.h"
#include "tests/unit/session/hold.h"

namespace quire::test {
namespace {

constexpr int64_t kChunk = 16;

const char* const kStrategies[] = {"full(kv_chunk=16)",
                                   "dca(kv_chunk=16)",
                                   "longheads(chunk=16, chunks=5)",
                                   "longheads(chunk=16, chunks=5, init=full)",
                                   "dca_topk(chunk=16, chunks=4, kv_chunk=16, one_in=6)",
                                   "dca_topk(chunk=16, chunks=4, kv_chunk=16, reading=selected)",
                                   "lm_infinite(recent=90, kv_chunk=16)",
                                   "streaming_llm(sinks=3, recent=120, kv_chunk=16)",
                                   "self_extend(group=4, window=20, kv_chunk=16)",
                                   "rerope(window=40, kv_chunk=16)",
                                   "full(kv_chunk=16) + dynamic_ntk(factor=2, length=500)"};

SessionOptions reusing(const std::string& strategy) {
  SessionOptions options = with_strategy(strategy);
  options.prefill_block = 24;
  options.reuse_prefixes = true;
  return options;
}

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The first n tokens.
Tokens head(const Tokens& tokens, int64_t n) { return {tokens.begin(), tokens.begin() + n}; }

struct Answer {
  Tokens tokens;
  Logits logits;
  int64_t n_reused = 0, n_computed = 0;
  ReuseMiss miss = ReuseMiss::kNone;
};

// Feeds, reads and generates.
Answer ask(const std::shared_ptr<Session>& session, const Tokens& tokens, StreamOptions options = generating(6, 0.8f)) {
  expect_ok(session->feed_tokens(tokens));
  const SessionStats before = stats(*session);
  const Outcome outcome = run(session, std::move(options));
  expect_ok(outcome.status);
  const SessionStats after = stats(*session);
  Answer answer{outcome.tokens, last_logits(*session), after.n_reused - before.n_reused,
                after.n_prefilled - before.n_prefilled, ReuseMiss::kNone};
  EXPECT_FALSE(outcome.prefill.empty());
  if (outcome.prefill.empty()) return answer;
  const StreamEvent& last = outcome.prefill.back();
  EXPECT_EQ(last.reused, answer.n_reused);
  EXPECT_EQ(last.done, answer.n_computed);
  EXPECT_EQ(last.total, last.reused + last.done);
  answer.miss = last.reuse_miss;
  return answer;
}

void expect_equal(const Answer& answer, const Answer& expected) {
  EXPECT_EQ(answer.tokens, expected.tokens);
  EXPECT_TRUE(same_bits(answer.logits, expected.logits));
}

class Prefix : public testing::TestWithParam<const char*> {
 protected:
  std::shared_ptr<Session> make() const { return make_session(model_, reusing(GetParam())); }
  // What a session answers that shares nothing.
  Answer alone(const Tokens& tokens, StreamOptions options = generating(6, 0.8f)) const {
    SessionOptions own = reusing(GetParam());
    own.reuse_prefixes = false;
    return ask(make_session(model_, own), tokens, std::move(options));
  }
  Tokens text(int64_t n, uint32_t seed = 1) const { return random_tokens(*model_, n, seed); }

  std::shared_ptr<Model> model_ = load("short_128", 2);
};
INSTANTIATE_TEST_SUITE_P(Strategies, Prefix, testing::ValuesIn(kStrategies));

// All whole chunks but one token, for any end of the text, whatever followed it in the session that computed them.
TEST_P(Prefix, IsTakenOver) {
  const auto first = make();
  ask(first, text(100));
  for (const int64_t n : {1, 16, 17, 32, 33, 80, 96, 100}) {
    SCOPED_TRACE(n);
    const Tokens tokens = head(text(100), n) + text(n % 3 == 0 ? 20 : 0, 2);
    const auto second = make();
    const Answer answer = ask(second, tokens);
    expect_equal(answer, alone(tokens));
    const int64_t n_all = static_cast<int64_t>(tokens.size());
    EXPECT_EQ(answer.n_reused, std::min(n / kChunk, (n_all - 1) / kChunk) * kChunk);
    EXPECT_EQ(answer.n_computed, n_all - answer.n_reused);
    // It is cut in two inside of what it took over, and outside of it; the first one has it still.
    expect_ok(second->truncate(n / 2 + 1));
    const Tokens rest = text(40, 3), kept = head(tokens, n / 2 + 1);
    expect_equal(ask(second, rest), alone(kept + rest));
  }
  const Tokens again = text(100) + text(7, 5);
  expect_equal(ask(make(), again), alone(again));
}

// The one that computed goes, then one that took over, and the last one still has all of it.
TEST_P(Prefix, OutlivesTheSessionThatComputedIt) {
  const Tokens tokens = text(90);
  auto first = make(), second = make();
  ask(first, tokens);
  EXPECT_EQ(ask(second, tokens).n_reused, 80);
  first->close();
  const auto third = make();
  const Answer answer = ask(third, tokens);
  EXPECT_EQ(answer.n_reused, 80);
  second->close();
  expect_equal(answer, alone(tokens));
  const auto fork = take(third->fork());
  third->close();
  const auto of_fork = make();
  EXPECT_EQ(ask(of_fork, tokens).n_reused, 80);
  of_fork->close();
  const Tokens more = text(30, 4);
  const auto own = make_session(model_, with_strategy(GetParam()));
  ask(own, tokens);
  expect_equal(ask(fork, more), ask(own, more));
  fork->close();
  own->close();
  EXPECT_EQ(model_->runtime->prefixes()->size(), 0);
  EXPECT_EQ(ask(make(), tokens).n_reused, 0);
}

// Who computed it changes it, while another one has it.
TEST_P(Prefix, StaysAsItIsWhenItsSessionIsCut) {
  const Tokens tokens = text(90);
  const auto first = make(), second = make();
  ask(first, tokens);
  ask(second, tokens);
  expect_ok(first->truncate(37));
  const Tokens other = text(60, 8);
  expect_equal(ask(first, other), alone(head(tokens, 37) + other));
  // Both texts are known.
  const Tokens left = head(tokens, 37) + other, right = tokens + text(3, 9);
  const Answer of_left = ask(make(), left), of_right = ask(make(), right);
  EXPECT_EQ(of_left.n_reused, 96);
  EXPECT_EQ(of_right.n_reused, 80);
  expect_equal(of_left, alone(left));
  expect_equal(of_right, alone(right));
}

// Where a chunk was begun by a stream of its own, its end is computed, and what follows is taken over.
TEST_P(Prefix, IsTakenOverBehindAnUnevenStart) {
  const Tokens tokens = text(90);
  const auto first = make(), second = make();
  ask(first, tokens);
  expect_ok(second->feed_tokens(head(tokens, 10)));
  expect_ok(run(second).status);
  const Answer answer = ask(second, Tokens(tokens.begin() + 10, tokens.end()));
  EXPECT_EQ(answer.n_reused, 64);
  EXPECT_EQ(answer.n_computed, 16);
  const auto plain = make_session(model_, with_strategy(GetParam()));
  expect_ok(plain->feed_tokens(head(tokens, 10)));
  expect_ok(run(plain).status);
  expect_equal(answer, ask(plain, Tokens(tokens.begin() + 10, tokens.end())));
}

// A text with an answer in it, which another session is given: what the model generated is the same text only where the
// strategy makes no difference.
TEST_P(Prefix, HasAnswersInIt) {
  const auto first = make();
  const Answer answer = ask(first, text(40), generating(40, 0.8f));
  ask(first, text(20, 7));
  const Tokens whole = text(40) + answer.tokens + text(20, 7);
  const Answer second = ask(make(), whole);
  expect_equal(second, alone(whole));
  const bool apart =
      std::string(GetParam()).starts_with("dca_topk") || std::string(GetParam()).find("init=full") != std::string::npos;
  EXPECT_EQ(second.n_reused, apart && std::string(GetParam()).find("reading=selected") == std::string::npos ? 32 : 96);
}

// Two sessions read the same text at once: each takes over what the other one has just computed.
TEST_P(Prefix, IsSharedWhileItIsRead) {
  const Tokens tokens = text(200);
  SessionOptions options = reusing(GetParam());
  options.prefill_block = 2 * kChunk;
  const auto a = make_session(model_, options), b = make_session(model_, options);
  expect_ok(a->feed_tokens(tokens));
  expect_ok(b->feed_tokens(tokens));
  const auto hold = hold_engine(*model_);
  const auto of_a = take(GenerationStream::open(a, generating(6, 0.8f)));
  const auto of_b = take(GenerationStream::open(b, generating(6, 0.8f)));
  hold->release();
  const Outcome first = read(*of_a), second = read(*of_b);
  expect_ok(first.status);
  expect_ok(second.status);
  const Answer expected = alone(tokens);
  EXPECT_EQ(first.tokens, expected.tokens);
  EXPECT_EQ(second.tokens, expected.tokens);
  EXPECT_TRUE(same_bits(last_logits(*a), expected.logits));
  EXPECT_TRUE(same_bits(last_logits(*b), expected.logits));
  // What is behind the last whole chunk both compute.
  EXPECT_EQ(stats(*a).n_prefilled + stats(*b).n_prefilled, 200 + 200 % kChunk);
  EXPECT_EQ(stats(*a).n_reused + stats(*b).n_reused, 200 - 200 % kChunk);
}

// From a thread each, in any order: sessions come, read, are cut, forked and closed.
TEST_P(Prefix, IsSharedByThreads) {
  const Tokens tokens = text(120);
  const Answer expected = alone(tokens), cut = alone(head(tokens, 50) + text(30, 6));
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int again = 0; again < 3; ++again) {
        const auto session = make();
        expect_ok(session->feed_tokens(tokens));
        EXPECT_EQ(run(session, generating(6, 0.8f)).tokens, expected.tokens);
        const auto fork = take(session->fork());
        if (t == 0) session->close();
        expect_ok(fork->truncate(50));
        expect_ok(fork->feed_tokens(text(30, 6)));
        EXPECT_EQ(run(fork, generating(6, 0.8f)).tokens, cut.tokens);
        session->close();
        fork->close();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(model_->runtime->prefixes()->size(), 0);
}

}  // namespace
}  // namespace quire::test
