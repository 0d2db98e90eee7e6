// Sessions with equal texts share what one of them computed, and go on, bit for bit, as sessions that share nothing.

#include <gtest/gtest.h>

#include <functional>
#include <string_view>
#include <thread>
#include <utility>

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
                                   "dca_topk(chunk=16, chunks=6, sticky=2, kv_chunk=16, one_in=6)",
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

class Prefixes : public testing::Test {
 protected:
  Tokens text(int64_t n, uint32_t seed = 1) const { return random_tokens(*model_, n, seed); }
  std::shared_ptr<Session> make(const std::string& strategy = "full(kv_chunk=16)") const {
    return make_session(model_, reusing(strategy));
  }
  Answer alone(const Tokens& tokens, const std::string& strategy = "full(kv_chunk=16)",
               StreamOptions options = generating(6, 0.8f)) const {
    SessionOptions own = reusing(strategy);
    own.reuse_prefixes = false;
    return ask(make_session(model_, own), tokens, std::move(options));
  }

  std::shared_ptr<Model> model_ = load("short_128", 2);
  TemporaryFolder folder_;
  SpillDirectory spill_;
};

TEST_F(Prefixes, SayWhyTheyAreNotReused) {
  const Tokens tokens = text(90);
  const auto first = make(), second = make("dca(kv_chunk=16)");
  EXPECT_EQ(ask(first, tokens).miss, ReuseMiss::kUnknown);
  EXPECT_EQ(ask(make(), text(16)).miss, ReuseMiss::kNone);  // there is no whole chunk before the last token
  const auto expect_miss = [&](const std::shared_ptr<Session>& session, ReuseMiss why, StreamOptions options = {}) {
    const Answer answer = ask(session, tokens, std::move(options));
    EXPECT_EQ(answer.miss, why);
    EXPECT_EQ(answer.n_computed, 90);
  };
  expect_miss(second, ReuseMiss::kUnknown);  // another fingerprint
  SessionOptions options = reusing("full(kv_chunk=16)");
  options.kv_type = ElementType::kF32;
  expect_miss(make_session(model_, options), ReuseMiss::kUnknown);
  options = reusing("full(kv_chunk=16)");
  options.reuse_prefixes = false;
  expect_miss(make_session(model_, options), ReuseMiss::kOff);
  StreamOptions keep;
  keep.keep_logits = true;
  expect_miss(make(), ReuseMiss::kStream, keep);
  keep = {};
  keep.keep_hidden = true;
  expect_miss(make(), ReuseMiss::kStream, keep);
  keep = {};
  keep.score = true;
  expect_miss(make(), ReuseMiss::kStream, keep);
  const auto filled = make();
  expect_ok(filled->fill_random(80, 1));
  Tokens ids;
  expect_ok(filled->tokens(&ids));
  EXPECT_EQ(ask(make(), ids + text(3)).n_reused, 0);  // its keys are no text's
  EXPECT_EQ(ask(make(), tokens).miss, ReuseMiss::kNone);
}

TEST_F(Prefixes, OfBeaconsAreNotReused) {
  const auto model = load(kWithBeacons, 2);
  for (int again = 0; again < 2; ++again) {
    const auto session = make_session(model, reusing("beacon(ratio=4, kv_chunk=16)"));
    const Answer answer = ask(session, random_tokens(*model, 90));
    EXPECT_EQ(answer.miss, ReuseMiss::kStrategy);
    EXPECT_EQ(answer.n_reused, 0);
  }
}

// Up to the first gap they are those of any text.
TEST_F(Prefixes, EndAtPositionsOfTheirOwn) {
  const Tokens tokens = text(90);
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < 90; ++i) positions.push_back(i < 40 ? i : i + 7);
  const auto read_with_gap = [&](bool reuse) {
    SessionOptions options = reusing("full(kv_chunk=16)");
    options.reuse_prefixes = reuse;
    const auto session = make_session(model_, options);
    expect_ok(session->feed_positions(head(tokens, 90), positions));
    const Outcome outcome = run(session, generating(6, 0.8f));
    expect_ok(outcome.status);
    return std::pair(session, outcome);
  };
  const auto [first, expected] = read_with_gap(false);
  const auto [second, without] = read_with_gap(true);
  EXPECT_EQ(without.prefill.back().reused, 0);
  const auto plain = make();
  EXPECT_EQ(ask(plain, tokens).n_reused, 32);
  const auto [third, outcome] = read_with_gap(true);
  EXPECT_EQ(outcome.prefill.back().reuse_miss, ReuseMiss::kPositions);
  EXPECT_EQ(outcome.prefill.back().reused, 32);
  EXPECT_EQ(outcome.tokens, expected.tokens);
  EXPECT_TRUE(same_bits(last_logits(*third), last_logits(*first)));
}

// What a stream says of the tokens that it computes comes out right: passages and chosen chunks of the answer.
TEST_F(Prefixes, LeaveWhatAnAnswerLookedAt) {
  const std::string strategy = "longheads(chunk=16, chunks=5)";
  StreamOptions options = generating(6);
  options.cite = true;
  const auto look = [&](const std::shared_ptr<Session>& session) {
    expect_ok(session->feed_text(std::string(400, 'a'), false, true, std::vector<TextLabel>{{0, 200, 7}}));
    EXPECT_TRUE(run(session, options).status.ok());
    std::vector<Passage> passages;
    std::vector<int64_t> ids;
    std::vector<LabelAttention> labels;
    expect_ok(session->passages(-1, 0, 5, &passages, &ids));
    expect_ok(session->label_attention(&labels));
    std::vector<double> shares;
    for (const Passage& p : passages) shares.push_back(p.share);
    for (const LabelAttention& l : labels) shares.push_back(l.share);
    return shares;
  };
  const auto first = make(strategy), second = make(strategy);
  const auto expected = look(first);
  EXPECT_EQ(look(second), expected);
  EXPECT_GT(expected.size(), 1u);
  EXPECT_GT(stats(*second).n_reused, 0);
}

// Complete pages of representations, of 64 chunks, are shared, and copied before they are written to again.
TEST_F(Prefixes, ShareRepresentations) {
  const std::string strategy = "longheads(chunk=16, chunks=5)";
  const Tokens tokens = text(1500);
  const auto held = [&] { return model_->residency->budget()->used(); };
  const auto first = make(strategy);
  ask(first, tokens);
  const int64_t before = held();
  const auto second = make(strategy);
  const Answer answer = ask(second, tokens);
  EXPECT_EQ(answer.n_reused, 1488);
  EXPECT_LT(held(), before + before / 4);
  expect_equal(answer, alone(tokens, strategy));
  EXPECT_EQ(stats(*second).kv_bytes, stats(*first).kv_bytes);
  // Each is cut within the first page, and reads something else; a third one still finds the text of both.
  const Tokens other = head(tokens, 700) + text(500, 3);
  expect_ok(first->truncate(700));
  expect_equal(ask(first, text(500, 3)), alone(other, strategy));
  expect_equal(ask(make(strategy), tokens + text(5, 4)), alone(tokens + text(5, 4), strategy));
  expect_ok(second->truncate(900));
  const Tokens third = head(tokens, 900) + text(300, 5);
  expect_equal(ask(second, text(300, 5)), alone(third, strategy));
  const Answer again = ask(make(strategy), other + text(20, 6));
  EXPECT_EQ(again.n_reused, 1200);
  expect_equal(again, alone(other + text(20, 6), strategy));
}

// A mounted document: whoever is given its text reads it from the file, also when the session that was loaded is gone.
TEST_F(Prefixes, OfASnapshotAreSharedByAll) {
  for (const std::string strategy : {"full(kv_chunk=16)", "longheads(chunk=16, chunks=5)"}) {
    SCOPED_TRACE(strategy);
    const Tokens tokens = text(200), question = text(20, 2);
    const std::string path = folder_.path() + "/document.quire";
    SessionOptions own = reusing(strategy);
    own.reuse_prefixes = false;
    const auto saved = make_session(model_, own);
    ask(saved, tokens, generating(0));
    expect_ok(saved->save(path, {}));
    LoadOptions loading;
    loading.session.reuse_prefixes = true;
    const auto document = take(Session::load(model_, path, loading));
    const Answer expected = alone(tokens + question, strategy);
    SessionOptions spilling = reusing(strategy);
    spilling.spill_directory = spill_.path();
    const auto first = make(strategy), second = make_session(model_, spilling);
    const Answer of_first = ask(first, tokens + question);
    EXPECT_EQ(of_first.n_reused, 192);
    expect_equal(of_first, expected);
    document->close();
    const Answer of_second = ask(second, tokens + question);
    EXPECT_EQ(of_second.n_reused, 208);  // the last ones are copies of those that the first one computed
    expect_equal(of_second, expected);
    const auto fork = take(first->fork());
    first->close();
    expect_ok(fork->truncate(100));  // within a chunk that only the file has
    const Answer of_fork = ask(fork, question);
    expect_equal(of_fork, alone(head(tokens, 100) + question, strategy));
    // What was taken over is saved as if it had been computed.
    expect_ok(second->save(path + "2", {}));
    second->close();
    const auto loaded = take(Session::load(model_, path + "2", {}));
    own.spill_directory = "";
    const auto plain = make_session(model_, own);
    expect_equal(ask(plain, tokens + question), expected);
    expect_equal(ask(loaded, text(9, 9)), ask(plain, text(9, 9)));
  }
}

// Whoever loads a snapshot shares what a session that was loaded before has of it, in memory and in the file.
TEST_F(Prefixes, OfASnapshotThatIsLoadedAgainAreShared) {
  for (const std::string strategy : {"full(kv_chunk=16)", "longheads(chunk=16, chunks=5)",
                                     "dca_topk(chunk=16, chunks=6, sticky=2, kv_chunk=32, one_in=6)"}) {
    SCOPED_TRACE(strategy);
    const Tokens tokens = text(1500), question = text(20, 2);
    const std::string path = folder_.path() + "/document.quire";
    {
      SessionOptions own = reusing(strategy);
      own.reuse_prefixes = false;
      const auto saved = make_session(model_, own);
      ask(saved, tokens, generating(0));
      expect_ok(saved->save(path, {}));
    }
    LoadOptions loading;
    loading.session.reuse_prefixes = true;
    const auto held = [&] { return model_->residency->budget()->used(); };
    const Answer expected = alone(tokens + question, strategy);
    const auto first = take(Session::load(model_, path, loading));
    expect_equal(ask(first, question), expected);
    const int64_t before = held();
    const auto second = take(Session::load(model_, path, loading));
    expect_equal(ask(second, question), expected);
    EXPECT_LT(held(), before + before / 4);
    EXPECT_EQ(stats(*second).kv_chunks_restored, 0);
    // Cut, the first one has less to share; the second one keeps what it had.
    const Tokens other = head(tokens, 900) + text(30, 3);
    expect_ok(first->truncate(900));
    expect_equal(ask(first, text(30, 3)), alone(other, strategy));
    second->close();
    const auto third = take(Session::load(model_, path, loading));
    expect_equal(ask(third, question), expected);
    EXPECT_GT(stats(*third).kv_chunks_restored, 0);
    first->close();
    expect_ok(third->truncate(400));
    expect_equal(ask(third, question), alone(head(tokens, 400) + question, strategy));
    loading.session.reuse_prefixes = false;
    const auto apart = take(Session::load(model_, path, loading));
    expect_equal(ask(apart, question), expected);
    EXPECT_GT(stats(*apart).kv_chunks_restored, 0);
  }
}

// Records that are in a file: of a session that spills, for one that does not, and for another one that does.
TEST_F(Prefixes, OfASpillingSessionStayWhereTheyAre) {
  for (const std::string strategy : {"full(kv_chunk=16)", "longheads(chunk=16, chunks=5)"}) {
    SCOPED_TRACE(strategy);
    const Tokens tokens = text(400), question = text(20, 2);
    SessionOptions spilling = reusing(strategy);
    spilling.spill_directory = spill_.path();
    const auto plain = make(strategy);
    const Answer expected = alone(tokens + question, strategy);
    SessionOptions own = reusing(strategy);
    own.reuse_prefixes = false;
    const auto measured = make_session(model_, own);
    ask(measured, tokens);
    const SessionStats whole = stats(*measured);
    spilling.kv_budget_bytes = whole.kv_bytes_peak - whole.kv_chunks * whole.kv_record_bytes / 2;
    auto first = make_session(model_, spilling);
    ask(first, tokens, generating(0));
    EXPECT_GT(stats(*first).kv_chunks_left, 0);
    const auto second = make_session(model_, spilling);
    const Answer of_second = ask(second, tokens + question);
    EXPECT_EQ(of_second.n_reused, 400);
    expect_equal(of_second, expected);
    EXPECT_LE(stats(*second).kv_bytes_peak, spilling.kv_budget_bytes);
    const Answer of_plain = ask(plain, tokens + question);
    EXPECT_EQ(of_plain.n_reused, 416);
    expect_equal(of_plain, expected);
    first->close();
    second->close();
    const auto fork = take(plain->fork());
    plain->close();
    expect_ok(fork->truncate(390));
    expect_equal(ask(fork, question), alone(head(tokens, 390) + question, strategy));
    fork->close();
    expect_held(*model_, stats(*measured).kv_bytes);
  }
}

// Of records that stay in memory, a session whose own can leave it has copies, which stay within its budget and are its
// own: it goes on when the other session is gone.
TEST_F(Prefixes, ThatStayInMemoryAreCopiedBySpillingSessions) {
  const Tokens tokens = text(400), question = text(20, 2);
  for (const std::string strategy : {"full(kv_chunk=16)", "longheads(chunk=16, chunks=5)"}) {
    for (const bool narrow : {false, true}) {
      SessionOptions options = reusing(strategy);
      if (narrow) options.old_text = {ElementType::kInt8, 64};
      SessionOptions own = options;
      own.reuse_prefixes = false;
      const auto measured = make_session(model_, own);
      const Answer expected = ask(measured, tokens + question);
      const SessionStats whole = stats(*measured);
      for (const bool compressed : {false, true}) {
        SCOPED_TRACE(strategy + (narrow ? ", narrow" : "") + (compressed ? ", compressed" : ", file"));
        SessionOptions spilling = options;
        spilling.kv_budget_bytes = whole.kv_bytes_peak / 2;
        if (compressed) {
          spilling.compressed_budget_bytes = 8 * whole.kv_bytes_peak;
        } else {
          spilling.spill_directory = spill_.path();
        }
        const auto first = make_session(model_, options), second = make_session(model_, spilling);
        ask(first, tokens, generating(0));
        const Answer of_second = ask(second, tokens + question);
        EXPECT_EQ(of_second.n_reused, 400);
        expect_equal(of_second, expected);
        EXPECT_LE(stats(*second).kv_bytes_peak, spilling.kv_budget_bytes);
        first->close();
        expect_ok(second->truncate(300));
        expect_equal(ask(second, question), ask(make_session(model_, own), head(tokens, 300) + question));
        second->close();
        expect_held(*model_, whole.kv_bytes);
      }
    }
  }
}

// A loaded session has the snapshot for what it would have to copy.
TEST_F(Prefixes, ThatStayInMemoryAreNotCopiedByLoading) {
  const Tokens tokens = text(400), question = text(20, 2);
  const std::string path = folder_.path() + "/document.quire";
  const auto first = make();
  ask(first, tokens, generating(0));
  expect_ok(first->save(path, {}));
  LoadOptions loading;
  loading.session.reuse_prefixes = true;
  loading.session.spill_directory = spill_.path();
  const auto loaded = take(Session::load(model_, path, loading));
  EXPECT_GT(stats(*loaded).kv_chunks_in_snapshot, stats(*first).kv_chunks / 2);
  expect_equal(ask(loaded, question), alone(tokens + question));
}

// With any budget a session gets as far as it would alone, but for a block, and what it holds stays within it.
TEST_F(Prefixes, StayWithinTheBudget) {
  const Tokens tokens = text(200);
  for (const std::string strategy : {"full(kv_chunk=16)", "longheads(chunk=16, chunks=5)"}) {
    SCOPED_TRACE(strategy);
    const auto first = make(strategy);
    ask(first, tokens);
    const int64_t whole = stats(*first).kv_bytes_peak;
    bool reused = false, failed = false;
    for (int64_t budget = whole / 16; budget <= whole; budget += whole / 16) {
      SCOPED_TRACE(budget);
      SessionOptions options = reusing(strategy);
      options.prefill_block = 40;
      options.kv_budget_bytes = budget;
      const auto second = make_session(model_, options);
      options.reuse_prefixes = false;
      const auto alone = make_session(model_, options);
      expect_ok(second->feed_tokens(tokens));
      expect_ok(alone->feed_tokens(tokens));
      const Outcome outcome = run(second, generating(6)), expected = run(alone, generating(6));
      EXPECT_EQ(outcome.status.code(), expected.status.code());
      EXPECT_EQ(outcome.tokens, expected.tokens);
      EXPECT_GT(position(*second).tokens + options.prefill_block, position(*alone).tokens);
      EXPECT_LE(stats(*second).kv_bytes_peak, budget);
      reused = reused || stats(*second).n_reused > 0;
      failed = failed || !outcome.status.ok();
    }
    EXPECT_TRUE(reused && failed);
  }
}

// A stream that is cancelled behind what it took over stands where it was, or a block further, and goes on.
TEST_F(Prefixes, AreForgottenWithTheBlockBehindThem) {
  const Tokens tokens = text(90);
  const auto first = make(), second = make();
  ask(first, tokens);
  expect_ok(second->feed_tokens(tokens));
  const auto hold = hold_engine(*model_);
  const auto stream = take(GenerationStream::open(second, generating(3)));
  expect_ok(stream->cancel());
  hold->release();
  (void)read(*stream);
  EXPECT_EQ(position(*second), (Position{0, 90}));
  expect_ok(second->discard_pending());
  EXPECT_EQ(take(second->fork())->strategy(), second->strategy());
  const Answer answer = ask(second, tokens);
  EXPECT_EQ(answer.n_reused, 80);
  expect_equal(answer, alone(tokens));
}

// While a snapshot is loaded nobody else reads it: loading may still fail, and its reader is the caller's again then.
TEST(PrefixesOfSnapshots, AreFoundOnceTheSnapshotIsLoaded) {
  const TemporaryFolder folder;
  std::function<void()> on_notice;  // of the choice that "auto" made, the last thing that loading says
  RuntimeOptions runtime;
  runtime.log = Log(
      [](void* call, int32_t, const char* line, size_t size) {
        auto& then = *static_cast<std::function<void()>*>(call);
        if (then && std::string_view(line, size).find("auto") != std::string_view::npos) std::exchange(then, {})();
      },
      &on_notice, LogLevel::kInfo);
  const auto model = load("short_128", std::move(runtime));
  SessionOptions options = reusing("auto");
  options.expected_tokens = 400;
  const Tokens tokens = random_tokens(*model, 300);
  {
    const auto session = make_session(model, options);
    (void)ask(session, tokens);
    expect_ok(session->save(folder.file("saved"), {}));
    session->close();  // the engine may hold it for a moment longer
  }
  const auto reused_by_another = [&] {
    const auto another = make_session(model, options);
    const int64_t n = ask(another, tokens).n_reused;
    another->close();  // at once, so that nobody finds its chunks
    return n;
  };
  int64_t meanwhile = -1;
  on_notice = [&] { meanwhile = reused_by_another(); };
  LoadOptions loading;
  loading.session = options;
  loading.strategy_given = true;
  const auto loaded = take(Session::load(model, folder.file("saved"), loading));
  EXPECT_EQ(meanwhile, 0);
  EXPECT_GT(reused_by_another(), 0);
}

}  // namespace
}  // namespace quire::test
