// Forks: sessions that share what they hold go on, bit for bit, as sessions that share nothing.

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "tests/unit/kv/spill_directory.h"
#include "tests/unit/model/temporary_folder.h"
#include "tests/unit/session/session_fixture.h"
#include "tests/unit/session/test_memory.h"

namespace quire::test {
namespace {

enum class From { kMemory, kFile, kSnapshot };

struct Case {
  const char* strategy;
  From from;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.strategy << (c.from == From::kMemory ? "" : c.from == From::kFile ? ", spilling" : ", from a snapshot");
}

const Case kCases[] = {{"full(kv_chunk=16)", From::kMemory},
                       {"dca(kv_chunk=48)", From::kMemory},
                       {"longheads(chunk=16, chunks=5)", From::kMemory},
                       {"dca_topk(chunk=16, chunks=6, sticky=2, kv_chunk=32, one_in=6)", From::kMemory},
                       {"streaming_llm(sinks=3, recent=50, kv_chunk=16)", From::kMemory},
                       {"beacon(ratio=4, kv_chunk=16)", From::kMemory},
                       {"full(kv_chunk=16)", From::kFile},
                       {"longheads(chunk=16, chunks=5)", From::kFile},
                       {"beacon(sequence=x2.x0, kv_chunk=16)", From::kFile},
                       {"full(kv_chunk=16)", From::kSnapshot},
                       {"longheads(chunk=16, chunks=5)", From::kSnapshot}};

class Fork : public testing::TestWithParam<Case> {
 protected:
  SessionOptions options() const {
    SessionOptions options = with_strategy(GetParam().strategy);
    options.prefill_block = 24;
    if (GetParam().from == From::kFile) options.spill_directory = spill_.path();
    return options;
  }
  Tokens text(int64_t n, uint32_t seed) const { return random_tokens(*model_, n, seed); }
  // A session that has read so many tokens.
  std::shared_ptr<Session> make(int64_t n) const {
    auto session = make_session(model_, options());
    expect_ok(session->feed_tokens(text(n, 1)));
    expect_ok(run(session).status);
    if (GetParam().from != From::kSnapshot) return session;
    const std::string path = folder_.path() + "/saved.quire";
    expect_ok(session->save(path, {}));
    return take(Session::load(model_, path, {}));
  }
  // Reads more and generates.
  std::pair<Logits, Tokens> go_on(const std::shared_ptr<Session>& session, int64_t n, uint32_t seed) const {
    expect_ok(session->feed_tokens(text(n, seed)));
    const Outcome outcome = run(session, generating(9, 0.8f, seed));
    expect_ok(outcome.status);
    return {last_logits(*session), outcome.tokens};
  }

  std::shared_ptr<Model> model_ = load(model_for(GetParam().strategy), 2);
  TemporaryFolder folder_;
  SpillDirectory spill_;
};
INSTANTIATE_TEST_SUITE_P(Cases, Fork, testing::ValuesIn(kCases));

TEST_P(Fork, EachGoesItsWay) {
  for (const int64_t n : {1, 16, 23, 64, 100, 145}) {
    SCOPED_TRACE(n);
    std::vector<std::pair<Logits, Tokens>> expected;
    for (uint32_t seed = 2; seed < 6; ++seed) expected.push_back(go_on(make(n), 20 + seed, seed));
    auto first = make(n);
    auto second = take(first->fork());
    ASSERT_EQ(position(*second), (Position{n, 0}));
    EXPECT_EQ(second->fingerprint(), first->fingerprint());
    EXPECT_TRUE(same_bits(last_logits(*second), last_logits(*first)));
    auto third = take(second->fork());
    EXPECT_EQ(go_on(first, 22, 2), expected[0]);
    auto fourth = take(third->fork());
    EXPECT_EQ(go_on(second, 23, 3), expected[1]);
    first->close();
    second.reset();
    EXPECT_EQ(go_on(third, 24, 4), expected[2]);
    EXPECT_EQ(go_on(fourth, 25, 5), expected[3]);
  }
}

// The shared part is cut, and written to anew on both sides.
TEST_P(Fork, CutsWhatTheOtherKeeps) {
  const auto first = make(100), second = take(first->fork());
  expect_ok(second->truncate(37));
  const auto cut = make(100);
  expect_ok(cut->truncate(37));
  const auto expected = go_on(cut, 60, 8);
  EXPECT_EQ(go_on(second, 60, 8), expected);
  EXPECT_EQ(go_on(first, 20, 3), go_on(make(100), 20, 3));
  expect_ok(first->truncate(37));
  EXPECT_EQ(go_on(first, 60, 8), expected);
}

// Pending tokens, and generated ones.
TEST_P(Fork, HaveTheWholeText) {
  const auto first = make(50);
  expect_ok(run(first, generating(20, 0.7f)).status);
  expect_ok(first->feed_tokens(text(11, 4)));
  const auto second = take(first->fork());
  EXPECT_EQ(position(*second), (Position{70, 11}));
  EXPECT_EQ(go_on(second, 5, 6), go_on(first, 5, 6));
}

// Forks are used at once, from a thread each.
TEST_P(Fork, RunTogether) {
  const auto first = make(100);
  std::vector<std::pair<Logits, Tokens>> expected;
  for (uint32_t seed = 2; seed < 6; ++seed) expected.push_back(go_on(make(100), 20, seed));
  std::vector<std::thread> threads;
  for (uint32_t seed = 2; seed < 6; ++seed) {
    threads.emplace_back([&, seed, own = take(first->fork())]() mutable {
      for (int again = 0; again < 3; ++again) {
        const auto another = take(own->fork());
        EXPECT_EQ(go_on(another, 20, seed), expected[seed - 2]);
      }
      EXPECT_EQ(go_on(own, 20, seed), expected[seed - 2]);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Forks, AreRefusedDuringAStreamAndAfterTheEnd) {
  const auto model = load("short_128");
  const auto session = make_session(model, with_strategy("full"));
  expect_ok(session->feed_tokens(random_tokens(*model, 20)));
  const auto stream = take(GenerationStream::open(session, generating(3)));
  EXPECT_EQ(session->fork().status().code(), Code::kBusy);
  expect_ok(read(*stream).status);
  expect_ok(session->fork().status());
  session->close();
  EXPECT_EQ(session->fork().status().code(), Code::kClosed);
}

// What is shared counts once for the runtime, and for each session.
TEST(Forks, ShareMemory) {
  RuntimeOptions runtime;
  runtime.n_threads = 2;
  runtime.kv_memory_bytes = int64_t{1} << 30;
  const auto model = load("short_128", runtime);
  const auto first = make_session(model, with_strategy("longheads(chunk=16, chunks=5)"));
  expect_ok(first->feed_tokens(random_tokens(*model, 3000)));
  expect_ok(run(first).status);
  const auto held = [&] { return model->residency->budget()->used(); };
  const int64_t before = held();
  std::vector<std::shared_ptr<Session>> forks;
  for (int f = 0; f < 10; ++f) forks.push_back(take(first->fork()));
  EXPECT_EQ(held(), before);
  EXPECT_EQ(stats(*forks[9]).kv_bytes, stats(*first).kv_bytes);
  // Each copies the chunk in progress and what belongs to it, and adds a chunk of its own.
  for (const auto& fork : forks) {
    expect_ok(fork->feed_tokens(random_tokens(*model, 10)));
    expect_ok(run(fork).status);
  }
  EXPECT_LT(held(), 2 * before);
  first->close();
  for (auto& fork : forks) fork->close();
  EXPECT_EQ(held(), 0);
}

// Records that one fork of a restored session reads, the others find in memory.
TEST(Forks, OfARestoredSessionReadTheFileOnce) {
  const auto model = load("short_128");
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/document.quire";
  {
    const auto session = make_session(model, with_strategy("full(kv_chunk=16)"));
    expect_ok(session->feed_tokens(random_tokens(*model, 900)));
    expect_ok(run(session).status);
    expect_ok(session->save(path, {}));
  }
  const auto document = take(Session::load(model, path, {}));
  std::vector<std::shared_ptr<Session>> forks;
  for (int f = 0; f < 10; ++f) forks.push_back(take(document->fork()));
  const auto held = [&] { return model->residency->budget()->used(); };
  int64_t after_first = 0;
  Tokens first;
  for (const auto& fork : forks) {
    expect_ok(fork->feed_tokens(random_tokens(*model, 5, 3)));
    const Outcome outcome = run(fork, generating(5));
    expect_ok(outcome.status);
    if (first.empty()) {
      first = outcome.tokens;
      after_first = held();
      EXPECT_GT(stats(*fork).kv_chunks_restored, 0);
    } else {
      EXPECT_EQ(outcome.tokens, first);
      EXPECT_EQ(stats(*fork).kv_chunks_restored, 0);
    }
  }
  // Each has a chunk in progress, which is its own, and a staging buffer.
  EXPECT_LT(held(), 2 * after_first);
}

// Sessions that together have three times what the runtime's memory holds: each finishes, with the tokens that it has
// alone. What the runtime allocates for them never exceeds the budget, and what the others leave each of them, while
// all work, is its share.
TEST(Spilling, TwentySessionsShareOneBudget) {
  static TestMemory memory;
  const SpillDirectory spill;
  SessionOptions options = with_strategy("dca(kv_chunk=16)");
  options.prefill_block = 64;
  options.spill_directory = spill.path();
  constexpr int kSessions = 20, kTokens = 12;
  struct Went {
    std::vector<Tokens> tokens;
    std::vector<int64_t> bytes;  // of each session, when all had come so far
    int64_t record = 0;
  };
  const auto go = [&](const std::shared_ptr<Model>& model) {
    std::vector<std::shared_ptr<Session>> sessions;
    std::vector<std::shared_ptr<GenerationStream>> streams;
    for (int s = 0; s < kSessions; ++s) {
      sessions.push_back(make_session(model, options));
      expect_ok(sessions.back()->feed_tokens(random_tokens(*model, 300, static_cast<uint32_t>(s))));
      streams.push_back(take(GenerationStream::open(sessions.back(), generating(10 * kTokens))));
    }
    Went went;
    for (const auto& stream : streams) {
      Outcome outcome = read(*stream, kTokens);
      expect_ok(outcome.status);
      went.tokens.push_back(std::move(outcome.tokens));
    }
    // A session says what it has at the end of its last step: while the others wait to be read.
    for (int s = 0; s < kSessions; ++s) {
      expect_ok(streams[static_cast<size_t>(s)]->cancel());
      expect_ok(read(*streams[static_cast<size_t>(s)]).status);
      went.bytes.push_back(stats(*sessions[static_cast<size_t>(s)]).kv_bytes);
    }
    went.record = stats(*sessions[0]).kv_record_bytes;
    for (const auto& session : sessions) session->close();  // gives its memory back before it returns
    return went;
  };
  const Went roomy = go(load("short_128"));
  RuntimeOptions runtime = memory.runtime();
  const int64_t budget = std::accumulate(roomy.bytes.begin(), roomy.bytes.end(), int64_t{0}) / 3;
  runtime.kv_memory_bytes = budget;
  const auto model = load("short_128", runtime);
  const auto holder = make_session(model, options);  // of the RoPE tables, which no budget counts
  EXPECT_EQ(go(model).tokens, roomy.tokens);         // and leaves the scratch memory that was needed
  EXPECT_EQ(model->residency->budget()->used(), 0);
  const int64_t before = memory.bytes, scratch = model->pass->scratch_bytes();
  memory.peak = before;
  const Went went = go(model);
  const int64_t more_scratch = model->pass->scratch_bytes() - scratch;
  EXPECT_EQ(went.tokens, roomy.tokens);
  EXPECT_GT(memory.peak - before, budget / 2);
  // The deferred device keeps freed memory while anything is queued there, which no budget counts.
  if (!is_deferred()) {
    EXPECT_LE(memory.peak - before, budget + more_scratch + kSessions * logits_row_bytes(*model));
  }
  EXPECT_EQ(memory.bytes - before, more_scratch);
  EXPECT_EQ(model->residency->budget()->used(), 0);
  // A session that works loses a record only if it has most of all: what is left to it then is an equal part of what
  // all of them hold, but for that record. That is the budget, but for a record's room and what is on its way.
  for (const int64_t bytes : went.bytes) EXPECT_GE(bytes, budget / kSessions - 2 * went.record);
}

}  // namespace
}  // namespace quire::test
