// Provenance: the shares of a session's answer are what the rule says of the attention that was computed, and the same
// wherever keys lie and however the session came to be; and asking changes no token.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/unit/kv/spill_directory.h"
#include "tests/unit/model/temporary_folder.h"
#include "tests/unit/session/noting_backend.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

constexpr int64_t kCell = AttentionShares::kCell;
constexpr int64_t kSinks = 4, kQuestion = 20, kAnswer = 6;

struct Case {
  const char* strategy;
  int64_t n_document;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.strategy; }

const Case kCases[] = {{"full(kv_chunk=16)", 110},
                       {"dca(kv_chunk=48)", 260},
                       {"dca_topk(chunk=16, chunks=6, sticky=2, kv_chunk=32, one_in=6)", 260},
                       {"longheads(chunk=16, chunks=5)", 230},
                       {"streaming_llm(sinks=7, recent=50, kv_chunk=16)", 150},
                       {"self_extend(group=4, window=32, kv_chunk=32)", 200},
                       {"rerope(window=40, kv_chunk=16)", 150},
                       {"beacon(ratio=4, kv_chunk=16)", 150}};

StreamOptions citing(int64_t end, int64_t n = kAnswer) {
  StreamOptions options = generating(n, 0.9f, 3);
  options.cite = true;
  options.cite_end = end;
  return options;
}

struct Shares {
  std::vector<double> values;  // of passages, their places too
  bool operator==(const Shares&) const = default;
};

Shares shares_of(const Session& session, int64_t first = -1, int64_t n = 0) {
  std::vector<Passage> passages;
  std::vector<int64_t> ids;
  expect_ok(session.passages(first, n, 1000, &passages, &ids));
  Shares shares;
  for (const Passage& p : passages) {
    for (const double x : {static_cast<double>(p.first_token), static_cast<double>(p.n_tokens), p.share}) {
      shares.values.push_back(x);
    }
  }
  return shares;
}

class Cite : public testing::TestWithParam<Case> {
 protected:
  SessionOptions options() const {
    SessionOptions options = with_strategy(GetParam().strategy);
    options.prefill_block = 24;
    return options;
  }
  int64_t n_document() const { return GetParam().n_document; }
  Tokens document() const { return random_tokens(*model_, n_document(), 1); }
  Tokens question() const { return random_tokens(*model_, kQuestion, 2); }
  std::shared_ptr<Session> make(const SessionOptions& options, const std::shared_ptr<Model>& model) const {
    auto session = make_session(model, options);
    expect_ok(session->feed_tokens(document()));
    return session;
  }
  std::shared_ptr<Session> make() const { return make(options(), model_); }
  // Asks a session that has read the document, or will.
  Outcome ask(const std::shared_ptr<Session>& session, StreamOptions how) const {
    expect_ok(session->feed_tokens(question()));
    Outcome outcome = run(session, std::move(how));
    expect_ok(outcome.status);
    return outcome;
  }

  std::shared_ptr<Model> model_ = load(model_for(GetParam().strategy), 2);
  TemporaryFolder folder_;
  SpillDirectory spill_;
};
INSTANTIATE_TEST_SUITE_P(Cases, Cite, testing::ValuesIn(kCases));

// The rule of provenance.h, token by token, over what the backend said of each layer.
TEST_P(Cite, SharesAreTheRule) {
  const auto looks = std::make_shared<Looks>();
  RuntimeOptions runtime;
  runtime.n_threads = 2;
  runtime.wrap_backend = [&](std::unique_ptr<Backend> real) {
    return std::make_unique<NotingBackend>(std::move(real), looks);
  };
  const auto model = load(model_for(GetParam().strategy), runtime);
  const auto session = make(options(), model);
  const int64_t end = n_document() - 3;  // in the middle of a cell
  (void)ask(session, citing(end));
  const int64_t prompt = n_document() + kQuestion;
  // Of strategies with sticky chunks other given tokens are looked at too.
  const bool sticky = std::string(GetParam().strategy).find("sticky") != std::string::npos;
  if (!sticky) {
    ASSERT_EQ(looks->queries.begin()->first, prompt - 1);
  }
  ASSERT_TRUE(looks->queries.contains(prompt - 1));

  std::vector<double> token_shares(static_cast<size_t>(end));
  for (int64_t answer = prompt; answer < prompt + kAnswer; ++answer) {
    const Looks::Query& query = looks->queries.at(answer - 1);
    std::vector<double> cells(query.cells.begin(), query.cells.end());
    for (size_t e = 0; e < query.entries.size(); ++e) {  // beacon: of four tokens
      if (e / 4 < cells.size()) cells[e / 4] += query.entries[e];
    }
    std::vector<double> weights(static_cast<size_t>(end));
    double all = 0;
    for (int64_t t = kSinks; t < end; ++t) {
      const int64_t begin = std::max(kSinks, t / kCell * kCell), stop = std::min(end, (t / kCell + 1) * kCell);
      const double peak = cells[static_cast<size_t>(t / kCell)];
      all += weights[static_cast<size_t>(t)] = peak * peak / static_cast<double>(stop - begin);
    }
    for (size_t t = 0; t < weights.size(); ++t) token_shares[t] += weights[t] / all / kAnswer;
  }
  std::vector<Passage> passages;
  std::vector<int64_t> ids;
  expect_ok(session->passages(-1, 0, 1000, &passages, &ids));
  ASSERT_FALSE(passages.empty());
  const auto sum = [&](int64_t begin, int64_t n) {
    double share = 0;
    for (int64_t t = begin; t < std::min(begin + n, end); ++t) share += token_shares[static_cast<size_t>(t)];
    return share;
  };
  double best = 0, before = 1, all = 0;
  for (int64_t begin = kSinks; begin < end; begin = (begin / kCell + 1) * kCell) best = std::max(best, sum(begin, 64));
  EXPECT_NEAR(passages[0].share, best, 1e-6);
  std::vector<bool> taken(static_cast<size_t>(end));
  for (const Passage& p : passages) {
    EXPECT_NEAR(p.share, sum(p.first_token, p.n_tokens), 1e-6);
    EXPECT_LE(p.share, before);
    before = p.share;
    all += p.share;
    for (int64_t t = p.first_token; t < p.first_token + p.n_tokens; ++t) {
      EXPECT_FALSE(taken[static_cast<size_t>(t)]) << "two passages have token " << t;
      taken[static_cast<size_t>(t)] = true;
    }
  }
  EXPECT_LE(all, 1 + 1e-9);
  EXPECT_EQ(passages[0].feed, 0);
}

TEST_P(Cite, AskingChangesNoBit) {
  const auto plain = make(), citing_too = make();
  StreamOptions how = citing(0);
  const Outcome expected = ask(citing_too, how);
  how.cite = false;
  const Outcome outcome = ask(plain, how);
  EXPECT_EQ(outcome.tokens, expected.tokens);
  EXPECT_TRUE(same_bits(outcome.logprobs, expected.logprobs));
  EXPECT_TRUE(same_bits(last_logits(*plain), last_logits(*citing_too)));
}

// Bit for bit, however the session came to stand where it does.
TEST_P(Cite, SharesDependOnTheTextAlone) {
  const int64_t end = n_document();
  const auto session = make();
  const Outcome answer = ask(session, citing(end));
  const Shares expected = shares_of(*session);
  ASSERT_FALSE(expected.values.empty());
  const int64_t bytes = stats(*session).kv_bytes;

  const auto check = [&](const std::shared_ptr<Session>& other, const StreamOptions& how, const char* what) {
    SCOPED_TRACE(what);
    EXPECT_EQ(ask(other, how).tokens, answer.tokens);
    EXPECT_EQ(shares_of(*other), expected);
  };
  {
    SessionOptions other = options();
    other.prefill_block = 7;
    check(make(other, model_), citing(end), "other blocks");
  }
  {
    SessionOptions other = options();
    other.spill_directory = spill_.path();
    other.kv_budget_bytes = 2 * bytes / 3;
    const auto spilled = make(other, model_);
    check(spilled, citing(end), "spilled");
    EXPECT_LE(stats(*spilled).kv_bytes_peak, other.kv_budget_bytes);
  }
  const auto reader = make();
  expect_ok(run(reader).status);
  check(take(reader->fork()), citing(end), "a fork");
  const std::string path = folder_.path() + "/saved.quire";
  expect_ok(reader->save(path, {}));
  check(take(Session::load(model_, path, {})), citing(end), "a snapshot");
  {
    StreamOptions ahead = citing(end);
    ahead.max_undelivered = 4;
    check(reader, ahead, "ahead of the reader");
    ahead.draft_tokens = 5;
    ahead.draft_match = 1;
    check(make(), ahead, "with drafts");
  }
  {
    const auto one = make(), two = make();  // share their steps
    expect_ok(one->feed_tokens(question()));
    expect_ok(two->feed_tokens(question()));
    const auto first = take(GenerationStream::open(one, citing(end)));
    const auto second = take(GenerationStream::open(two, citing(end)));
    expect_ok(read(*first).status);
    expect_ok(read(*second).status);
    EXPECT_EQ(shares_of(*one), expected);
    EXPECT_EQ(shares_of(*two), expected);
  }
}

// The mean of the tokens' shares is that of the answer.
TEST_P(Cite, AnAnswerIsTheMeanOfItsTokens) {
  const auto session = make_session(model_, options());
  std::string text;
  for (int i = 0; i < 60; ++i) text += "w" + std::to_string(i % 17) + " ";
  const auto size = static_cast<int64_t>(text.size());
  const TextLabel labels[] = {{0, size / 3, 7}, {size / 3, size, 8}, {5, 5, 9}};
  expect_ok(session->feed_text(text, false, true, labels));
  expect_ok(session->feed_tokens(question()));
  const int64_t prompt = position(*session).pending;
  expect_ok(run(session, citing(prompt - kQuestion)).status);
  std::vector<LabelAttention> all, part;
  expect_ok(session->label_shares(-1, 0, &all));
  ASSERT_EQ(all.size(), 3u);
  std::vector<double> mean(3);
  for (int64_t t = 0; t < kAnswer; ++t) {
    expect_ok(session->label_shares(prompt + t, 1, &part));
    double sum = 0;
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(part[i].id, 7 + static_cast<int64_t>(i));
      mean[i] += part[i].share / kAnswer;
      sum += part[i].share;
    }
    EXPECT_NEAR(sum, 1, 1e-9);  // the labels cover the document
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(all[i].share, mean[i], 1e-9);
  std::vector<Passage> passages;
  std::vector<int64_t> ids;
  expect_ok(session->passages(-1, 0, 1, &passages, &ids));
  ASSERT_EQ(passages.size(), 1u);
  EXPECT_EQ(ids[0], 7 + passages[0].label);
  EXPECT_LE(0, passages[0].begin);
  EXPECT_LT(passages[0].begin, passages[0].end);
  EXPECT_LE(passages[0].end, size);
}

class CiteErrors : public testing::Test {
 protected:
  std::shared_ptr<Model> model_ = load("short_128", 2);
  std::shared_ptr<Session> session_ = make_session(model_, with_strategy("dca(kv_chunk=48)"));
  Code code(int64_t first, int64_t n) const {
    std::vector<Passage> passages;
    std::vector<int64_t> ids;
    std::vector<LabelAttention> labels;
    const Code code = session_->passages(first, n, 5, &passages, &ids).code();
    EXPECT_EQ(session_->label_shares(first, n, &labels).code(), code);
    return code;
  }
};

TEST_F(CiteErrors, WhatIsNotKnownIsNotFound) {
  EXPECT_EQ(code(-1, 0), Code::kNotFound);
  expect_ok(session_->feed_tokens(random_tokens(*model_, 150)));
  expect_ok(run(session_, generating(3)).status);
  EXPECT_EQ(code(-1, 0), Code::kNotFound);  // not asked
  // Nothing is pending: where the first token came from was not asked when it was computed.
  expect_ok(run(session_, citing(100, 4)).status);
  EXPECT_EQ(code(-1, 0), Code::kOk);
  EXPECT_EQ(code(153, 1), Code::kNotFound);
  EXPECT_EQ(code(154, 3), Code::kOk);
  EXPECT_EQ(code(154, 4), Code::kNotFound);
  EXPECT_EQ(code(40, 1), Code::kNotFound);
  expect_ok(session_->truncate(152));
  EXPECT_EQ(code(-1, 0), Code::kNotFound);
}

// Whether nothing was generated, or a token of which nothing is known.
TEST_F(CiteErrors, SayWhyThereIsNothingOfTheAnswer) {
  const auto message = [&](int64_t first, int64_t n) {
    std::vector<LabelAttention> labels;
    const Status status = session_->label_shares(first, n, &labels);
    EXPECT_EQ(status.code(), Code::kNotFound);
    return status.message();
  };
  expect_ok(session_->feed_tokens(random_tokens(*model_, 80)));
  expect_ok(run(session_, citing(70, 0)).status);
  EXPECT_EQ(message(-1, 0), "the last stream generated no tokens");
  EXPECT_EQ(message(80, 1), "the last stream generated no tokens");
  expect_ok(run(session_, citing(70, 1)).status);
  EXPECT_EQ(message(-1, 0).find("it is not known where token 80 came from: "), 0u) << message(-1, 0);
  EXPECT_EQ(message(-1, 0), message(80, 1));
  EXPECT_NE(message(81, 1).find("its answer is tokens 80 to 81"), std::string::npos) << message(81, 1);
}

TEST_F(CiteErrors, TheEndOfWhatIsCitedIsBeforeTheAnswer) {
  expect_ok(session_->feed_tokens(random_tokens(*model_, 30)));
  EXPECT_EQ(GenerationStream::open(session_, citing(31)).status().code(), Code::kInvalidArgument);
  expect_ok(run(session_, citing(30)).status);
  EXPECT_EQ(code(-1, 0), Code::kOk);
}

// The space that a tokenizer puts before a text is no part of it, whichever call feeds the tokens.
TEST(CiteBytes, AreTheSameWhereTokensHavePositions) {
  const auto model = load("short_128", 2);
  const Tokens ids = random_tokens(*model, 120);
  std::vector<int64_t> positions(ids.size());
  std::iota(positions.begin(), positions.end(), 0);
  const auto bytes = [&](const auto& feed) {
    const auto session = make_session(model, with_strategy("full"));
    expect_ok(feed(*session));
    expect_ok(run(session, citing(0)).status);
    std::vector<Passage> passages;
    std::vector<int64_t> label_ids, all;
    expect_ok(session->passages(-1, 0, 10, &passages, &label_ids));
    for (const Passage& p : passages) all.insert(all.end(), {p.begin, p.end});
    return all;
  };
  const auto expected = bytes([&](Session& s) { return s.feed_tokens(ids); });
  EXPECT_FALSE(expected.empty());
  EXPECT_EQ(bytes([&](Session& s) { return s.feed_positions(ids, positions); }), expected);
}

// Of a short text all is recent: there is nothing to cite, which is no error.
TEST_F(CiteErrors, NothingMayBeCited) {
  expect_ok(session_->feed_tokens(random_tokens(*model_, 30)));
  expect_ok(run(session_, citing(0)).status);
  std::vector<Passage> passages;
  std::vector<int64_t> ids;
  expect_ok(session_->passages(-1, 0, 5, &passages, &ids));
  EXPECT_TRUE(passages.empty());
}

// Answers are no sources: what the model generated before is not cited.
TEST_F(CiteErrors, GeneratedTextIsNotCited) {
  expect_ok(session_->feed_tokens(random_tokens(*model_, 50, 1)));
  expect_ok(run(session_, generating(70)).status);
  expect_ok(session_->feed_tokens(random_tokens(*model_, 40, 2)));
  expect_ok(run(session_, citing(150, 5)).status);
  std::vector<Passage> passages;
  std::vector<int64_t> ids;
  expect_ok(session_->passages(-1, 0, 100, &passages, &ids));
  double all = 0;
  for (const Passage& p : passages) {
    all += p.share;
    EXPECT_EQ(p.feed, p.first_token < 50 ? 0 : 1);
    EXPECT_TRUE(p.feed == 0 ? p.first_token + p.n_tokens <= 50 : p.first_token >= 120) << p.first_token;
  }
  EXPECT_NEAR(all, 1, 1e-9);
}

}  // namespace
}  // namespace quire::test
