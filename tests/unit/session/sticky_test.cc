// Sticky chunks: generated tokens see what the last given token before them looked at most, however the session came to
// stand there.
#include <gmock/gmock.h>

#include "tests/unit/kv/spill_directory.h"
#include "tests/unit/model/temporary_folder.h"
#include "tests/unit/session/noting_backend.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ChunkSelection selecting(int64_t chunk, int64_t n_sticky) {
  ChunkSelection selection;
  selection.chunk = chunk;
  selection.count = 40;
  selection.n_last = 2;
  selection.n_sticky = n_sticky;
  return selection;
}

TEST(StickyChunks, AreThoseWithTheGreatestPeaksAndTheNearOnes) {
  const ChunkSelection selection = selecting(32, 3);
  const KeyRange keys = sticky_keys(selection, 300);  // chunk 9
  EXPECT_EQ(keys.begin, 32);
  EXPECT_EQ(keys.end, 8 * 32);
  std::vector<float> peaks(20);
  peaks[0] = peaks[17] = 0.9f;  // of the first chunk and of a near one, which are taken anyway
  peaks[5] = 0.5f, peaks[4] = 0.1f;
  peaks[7] = peaks[8] = peaks[12] = 0.25f;
  peaks[14] = 0.2f;
  EXPECT_THAT(sticky_chunks(selection, 300, peaks), ElementsAre(2, 3, 4, 8, 9));
  std::ranges::fill(peaks, 0.0f);
  peaks[15] = 0.1f;
  EXPECT_THAT(sticky_chunks(selection, 300, peaks), ElementsAre(7, 8, 9));
  EXPECT_THAT(sticky_chunks(selection, 95, {}), ElementsAre(1, 2));
  EXPECT_THAT(sticky_chunks(selection, 20, {}), IsEmpty());
}

TEST(StickyChunks, OfATextAreThoseOfTheLastTokenBefore) {
  StickyChunks text;
  EXPECT_THAT(text.before(100), IsEmpty());
  text.add(50, std::vector<int32_t>{1, 3});
  text.add(90, std::vector<int32_t>{2});
  EXPECT_THAT(text.before(50), IsEmpty());
  EXPECT_THAT(text.before(51), ElementsAre(1, 3));
  EXPECT_THAT(text.before(90), ElementsAre(1, 3));
  EXPECT_THAT(text.before(91), ElementsAre(2));
  text.add(90, std::vector<int32_t>{4, 5});
  EXPECT_THAT(text.before(200), ElementsAre(4, 5));
  text.cut(90);
  EXPECT_EQ(text.last_token(), 50);
  EXPECT_THAT(text.before(200), ElementsAre(1, 3));
  text.cut(0);
  EXPECT_EQ(text.last_token(), -1);
}

TEST(StickyChunks, AreCheckedWhenTheyComeFromAFile) {
  using Entries = std::vector<StickyChunks::Entry>;
  const auto refused = [](Entries entries, int64_t chunk = 16) {
    return StickyChunks::make(std::move(entries), chunk, 100).status();
  };
  expect_ok(refused({{40, 0}, {40, 2}, {99, 1}}));
  for (const Entries& bad : {Entries{{100, 1}}, Entries{{-1, 0}}, Entries{{40, 3}}, Entries{{40, -1}},
                             Entries{{40, 1}, {40, 1}}, Entries{{40, 1}, {39, 1}}}) {
    EXPECT_EQ(refused(bad).code(), Code::kBadFile) << bad.back().token << " " << bad.back().chunk;
  }
  EXPECT_EQ(refused({{40, 1}}, 0).code(), Code::kBadFile);
  EXPECT_THAT(refused({{40, 2}, {41, 9}}).message(), HasSubstr("entry 1 is chunk 9 of token 41"));
}

constexpr int64_t kDocument = 300, kQuestion = 20, kAnswer = 24;

class Sticky : public testing::TestWithParam<const char*> {
 protected:
  SessionOptions options() const {
    SessionOptions options = with_strategy(GetParam());
    options.prefill_block = 24;
    return options;
  }
  std::shared_ptr<Session> make(const SessionOptions& options, const std::shared_ptr<Model>& model) const {
    auto session = make_session(model, options);
    expect_ok(session->feed_tokens(random_tokens(*model, kDocument, 1)));
    expect_ok(run(session).status);
    return session;
  }
  std::shared_ptr<Session> make() const { return make(options(), model_); }
  Tokens ask(const std::shared_ptr<Session>& session, uint32_t seed, StreamOptions how = generating(kAnswer)) const {
    expect_ok(session->feed_tokens(random_tokens(*model_, kQuestion, seed)));
    return go_on(session, how);
  }
  static Tokens go_on(const std::shared_ptr<Session>& session, StreamOptions how) {
    const Outcome outcome = run(session, std::move(how));
    expect_ok(outcome.status);
    return outcome.tokens;
  }

  std::shared_ptr<Model> model_ = load("short_128", 2);
  TemporaryFolder folder_;
  SpillDirectory spill_;
};
INSTANTIATE_TEST_SUITE_P(Strategies, Sticky,
                         testing::Values("dca_topk(chunk=16, chunks=8, sticky=3, one_in=0)",
                                         "dca_topk(chunk=32, chunks=6, sticky=2, kv_chunk=64, select=head)",
                                         "dca_topk(chunk=16, chunks=8, sticky=4, reading=selected)"));

// Two questions and answers, each with the list of its own question's last token, by the rule of sticky_chunks.h.
TEST_P(Sticky, GeneratedTokensSeeWhatTheLastGivenOneLookedAt) {
  const auto looks = std::make_shared<Looks>();
  RuntimeOptions runtime;
  runtime.n_threads = 2;
  runtime.wrap_backend = [&](std::unique_ptr<Backend> real) {
    return std::make_unique<NotingBackend>(std::move(real), looks);
  };
  const auto session = make(options(), load("short_128", runtime));
  std::vector<int32_t> before;
  for (const uint32_t seed : {2, 3}) {
    const int64_t last = position(*session).tokens + kQuestion - 1;
    (void)ask(session, seed);
    const auto expected = sticky_chunks(looks->selection, last, looks->queries.at(last).cells);
    ASSERT_EQ(static_cast<int64_t>(expected.size()), looks->selection.n_sticky + 2);
    for (int64_t i = last + 1; i < last + kAnswer; ++i) ASSERT_EQ(looks->sticky.at(i), expected) << i;
    EXPECT_NE(expected, before);
    before = expected;
  }
  for (const auto& [query, sticky] : looks->sticky) {
    if (query >= kDocument + kQuestion) continue;
    EXPECT_THAT(sticky, IsEmpty()) << query;  // given tokens have none
  }
}

TEST_P(Sticky, TheyChangeWhatIsGenerated) {
  const std::string strategy = GetParam();
  SessionOptions without = options();
  const size_t at = strategy.find("sticky=") + 7;
  without.strategy = strategy.substr(0, at) + "0" + strategy.substr(at + 1);
  const auto plain = make(without, model_), sticky = make();
  (void)ask(plain, 2, generating(5));
  (void)ask(sticky, 2, generating(5));
  EXPECT_FALSE(same_bits(last_logits(*plain), last_logits(*sticky)));
}

TEST_P(Sticky, TokensDependOnTheTextAlone) {
  const auto session = make();
  const Tokens first = ask(session, 2), second = ask(session, 3);
  const Logits logits = last_logits(*session);
  const auto check = [&](const std::shared_ptr<Session>& other, const StreamOptions& how, const char* what) {
    SCOPED_TRACE(what);
    EXPECT_EQ(ask(other, 2, how), first);
    EXPECT_EQ(ask(other, 3, how), second);
    EXPECT_TRUE(same_bits(last_logits(*other), logits));
  };
  {
    SessionOptions other = options();
    other.prefill_block = 7;
    check(make(other, model_), generating(kAnswer), "other blocks");
    other.spill_directory = spill_.path();
    other.kv_budget_bytes = 2 * stats(*session).kv_bytes / 3;
    check(make(other, model_), generating(kAnswer), "spilled");
  }
  StreamOptions how = generating(kAnswer);
  how.cite = true;
  how.cite_end = kDocument - 100;  // most of what may be sticky lies behind it
  check(make(), how, "cited");
  how.draft_tokens = 5;
  how.draft_match = 1;
  check(make(), how, "with drafts");
  how.max_undelivered = 4;
  check(make(), how, "ahead of the reader");
}

// In the middle of an answer, and between two.
TEST_P(Sticky, SessionsGoOnFromElsewhere) {
  const auto session = make();
  const Tokens first = ask(session, 2), second = ask(session, 3);
  constexpr int64_t kSome = 9;
  const Tokens rest(first.begin() + kSome, first.end());
  const auto check = [&](const std::shared_ptr<Session>& other, const char* what) {
    SCOPED_TRACE(what);
    EXPECT_EQ(go_on(other, generating(kAnswer - kSome)), rest);
    EXPECT_EQ(ask(other, 3), second);
  };
  const auto begun = make();
  EXPECT_EQ(ask(begun, 2, generating(kSome)), Tokens(first.begin(), first.begin() + kSome));
  const std::string path = folder_.path() + "/saved.quire";
  expect_ok(begun->save(path, {}));
  check(take(begun->fork()), "a fork");
  check(take(Session::load(model_, path, {})), "a snapshot");
  // Where the first answer's list is not the last one.
  expect_ok(session->truncate(kDocument + kQuestion + kSome));
  check(session, "cut back into the first answer");
  expect_ok(session->truncate(kDocument + kQuestion));
  EXPECT_EQ(go_on(session, generating(kAnswer)), first);
  EXPECT_EQ(ask(session, 3), second);
  // The last given token was computed before others followed that were never processed.
  const auto pending = make();
  expect_ok(pending->feed_tokens(random_tokens(*model_, kQuestion, 2)));
  expect_ok(run(pending).status);
  expect_ok(pending->feed_tokens(random_tokens(*model_, 5, 9)));
  expect_ok(pending->truncate(kDocument + kQuestion));
  EXPECT_EQ(go_on(pending, generating(kAnswer)), first);
}

// Two sessions in one step, each with a list of its own.
TEST_P(Sticky, SessionsThatShareAStepKeepTheirOwn) {
  const auto one = make(), two = make();
  const Tokens first = ask(make(), 2), second = ask(make(), 3);
  expect_ok(one->feed_tokens(random_tokens(*model_, kQuestion, 2)));
  expect_ok(two->feed_tokens(random_tokens(*model_, kQuestion, 3)));
  const auto of_one = take(GenerationStream::open(one, generating(kAnswer)));
  const auto of_two = take(GenerationStream::open(two, generating(kAnswer)));
  EXPECT_EQ(read(*of_one).tokens, first);
  EXPECT_EQ(read(*of_two).tokens, second);
}

}  // namespace
}  // namespace quire::test
