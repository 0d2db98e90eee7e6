// Tokens generated ahead of their reader are no part of the session: nothing that follows depends on them. Nor does
// anything depend on which tokens were drafted.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/kv/spill_directory.h"
#include "tests/unit/session/hold.h"
#include "tests/unit/session/session_fixture.h"
#include "tests/unit/session/test_memory.h"

namespace quire::test {
namespace {

using testing::AnyOf;
using testing::FloatNear;
using testing::Pointwise;

constexpr int64_t kPrompt = 61, kNew = 60;

// How far a stream works ahead of its reader.
struct Ahead {
  int64_t max_undelivered = 1;
  int64_t draft_tokens = 0;
  int64_t draft_match = 1;

  void set(StreamOptions* options) const {
    options->max_undelivered = max_undelivered;
    options->draft_tokens = draft_tokens;
    options->draft_match = draft_match;
  }
};
std::ostream& operator<<(std::ostream& out, const Ahead& a) {
  return out << a.max_undelivered << " ahead, drafts of " << a.draft_tokens << " where " << a.draft_match << " stood";
}
constexpr Ahead kPlain{};
constexpr Ahead kAll[] = {{2}, {7}, {100}, {1, 1}, {1, 5}, {1, 31, 2}, {7, 3}, {100, 31}};

struct Case {
  const char* strategy;
  int64_t spill_budget = 0;  // bytes in memory; 0: nothing goes to a file
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.strategy << (c.spill_budget > 0 ? ", spilling" : ""); }

const Case kCases[] = {{"full"},
                       {"dca"},
                       {"rerope(window=32)"},
                       {"longheads(chunk=16, chunks=5)"},
                       {"longheads(chunk=16, chunks=4, init=full)"},
                       {"dca_topk(chunk=16, chunks=6, sticky=2)"},
                       {"streaming_llm(sinks=3, recent=20, kv_chunk=16)"},
                       {"beacon(ratio=4, kv_chunk=16)"},
                       {"full(kv_chunk=16)", 40 << 10},
                       {"longheads(chunk=16, chunks=4)", 130 << 10},
                       {"streaming_llm(sinks=3, recent=50, kv_chunk=16)", 28 << 10}};

class Undelivered : public testing::TestWithParam<Case> {
 protected:
  std::shared_ptr<Session> fed() const {
    SessionOptions options = with_strategy(GetParam().strategy);
    options.prefill_block = 24;
    if (GetParam().spill_budget > 0) {
      options.spill_directory = directory_.path();
      options.kv_budget_bytes = GetParam().spill_budget;
    }
    auto session = make_session(model_, options);
    expect_ok(session->feed_tokens(prompt_));
    return session;
  }
  // Of few different tokens, so that drafts are right now and then.
  StreamOptions ahead(const Ahead& how, int64_t max_tokens = kNew) const {
    StreamOptions options = generating(max_tokens, 0.9f, 7);
    for (int32_t id = 9; id < vocab_size(*model_); ++id) options.sampling.logit_bias.emplace_back(id, -INFINITY);
    SamplerStep penalties, of_all;
    penalties.kind = of_all.kind = SamplerStep::Kind::kPenalties;
    penalties.value = 1.2;
    penalties.n = 20;
    of_all.frequency = 0.05;
    options.sampling.steps.insert(options.sampling.steps.begin(), {penalties, of_all});
    how.set(&options);
    return options;
  }

  static StreamOptions keeping(StreamOptions options) {
    options.keep_logits = true;
    return options;
  }

  std::shared_ptr<Model> model_ = load(model_for(GetParam().strategy), 2);
  SpillDirectory directory_;
  Tokens prompt_ = random_tokens(*model_, kPrompt);
  Outcome whole_ = run(fed(), ahead(kPlain));
  // Where rows of logits are kept, their sums are formed from them on the host; else the device forms them.
  std::vector<float> kept_logprobs_ = run(fed(), keeping(ahead(kPlain))).logprobs;
};
INSTANTIATE_TEST_SUITE_P(Cases, Undelivered, testing::ValuesIn(kCases));

TEST_P(Undelivered, LogprobsOfKeptRowsAreThoseOfTheDeviceWithinRounding) {
  EXPECT_THAT(kept_logprobs_, Pointwise(FloatNear(2e-6f), whole_.logprobs));
}

TEST_P(Undelivered, TheAnswerIsTheSame) {
  ASSERT_EQ(whole_.tokens.size(), static_cast<size_t>(kNew));
  const auto kept = [&](StreamOptions options) {
    options.keep_logits = options.keep_hidden = options.score = true;
    return options;
  };
  const auto rows = [](const Session& session) {
    Logits all = kept_logits(session, kPrompt, kNew);
    const auto width = static_cast<size_t>(session.model().llama->config().hidden_size);
    all.resize(all.size() + kNew * width);
    expect_ok(session.hidden_states(kPrompt, kNew, all.data() + all.size() - kNew * width));
    return all;
  };
  const auto plain = fed();
  run(plain, kept(ahead(kPlain)));
  for (const Ahead& how : kAll) {
    SCOPED_TRACE(how);
    const auto session = fed();
    const StreamOptions options = kept(ahead(how));
    const auto stream = take(GenerationStream::open(session, options));
    work_ahead(*model_);
    EXPECT_EQ(position(*session), (Position{kPrompt, 0}));
    EXPECT_EQ(stats(*session).n_generated, 0);
    const Outcome outcome = read(*stream);
    expect_ok(outcome.status);
    EXPECT_EQ(outcome.tokens, whole_.tokens);
    EXPECT_EQ(outcome.logprobs, kept_logprobs_);
    EXPECT_EQ(outcome.text, whole_.text);
    EXPECT_EQ(outcome.end.finish, FinishReason::kMaxTokens);
    EXPECT_EQ(outcome.end.n_tokens, kPrompt + kNew);
    EXPECT_EQ(stats(*session).n_generated, kNew);
    const bool spills = GetParam().spill_budget > 0;
    EXPECT_EQ(stats(*session).kv_chunks_written > 0, spills);
    EXPECT_EQ(stats(*session).kv_chunks_read > 0, spills);
    std::vector<float> scores(kNew);
    expect_ok(session->scores(kPrompt, kNew, scores.data()));
    EXPECT_EQ(scores, kept_logprobs_);
    EXPECT_TRUE(same_bits(rows(*session), rows(*plain)));
    // Some drafts were right, and some were not.
    EXPECT_EQ(stats(*session).n_accepted > 0, how.draft_tokens > 0);
    EXPECT_EQ(stats(*session).n_drafted > stats(*session).n_accepted, how.draft_tokens > 0);
  }
}

// One token again and again, and now and then another one: drafts become longer than the chunks that strategies choose
// among, and end anywhere.
TEST_P(Undelivered, LongDraftsEndAnywhere) {
  constexpr int64_t kMany = 300;
  int64_t n_right = 0, n_wrong = 0;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    StreamOptions options = generating(kMany, 1.0f, seed);
    for (int32_t id = 5; id < vocab_size(*model_); ++id) options.sampling.logit_bias.emplace_back(id, -INFINITY);
    options.sampling.logit_bias.emplace_back(4, 4.3);
    options.keep_logits = true;
    const auto plain = fed();
    const Outcome expected = run(plain, options);
    Ahead{1, 31}.set(&options);
    const auto session = fed();
    EXPECT_EQ(run(session, options).tokens, expected.tokens);
    EXPECT_TRUE(same_bits(kept_logits(*session, kPrompt, kMany), kept_logits(*plain, kPrompt, kMany)));
    n_right += stats(*session).n_accepted;
    n_wrong += stats(*session).n_drafted - stats(*session).n_accepted;
  }
  EXPECT_GT(n_right, 500);
  EXPECT_GT(n_wrong, 50);
}

TEST_P(Undelivered, AClosedStreamForgetsThem) {
  for (const auto& [how, taken] : std::vector<std::pair<Ahead, size_t>>{{kPlain, 3},
                                                                        {{2}, 0},
                                                                        {{2}, 1},
                                                                        {{3}, 5},
                                                                        {{7}, 4},
                                                                        {{20}, 0},
                                                                        {{40}, 1},
                                                                        {{40}, 15},
                                                                        {{100}, 30},
                                                                        {{1, 4}, 10},
                                                                        {{1, 31}, 21},
                                                                        {{5, 2}, 33},
                                                                        {{40, 7}, 8}}) {
    SCOPED_TRACE(how);
    SCOPED_TRACE(std::to_string(taken) + " taken");
    const auto session = fed();
    StreamOptions options = ahead(how);
    options.keep_logits = true;
    const auto stream = take(GenerationStream::open(session, options));
    work_ahead(*model_);
    Outcome outcome = read(*stream, taken);
    work_ahead(*model_);
    const bool cancels = taken % 2 == 1;
    if (cancels) {
      expect_ok(stream->cancel());
      const Outcome end = read(*stream);
      EXPECT_TRUE(end.tokens.empty());
      EXPECT_EQ(end.end.finish, FinishReason::kCancelled);
      EXPECT_EQ(end.end.n_tokens, kPrompt + static_cast<int64_t>(taken));
    } else {
      stream->close();
    }
    EXPECT_EQ(position(*session), (Position{kPrompt + static_cast<int64_t>(taken), 0}));
    EXPECT_EQ(stats(*session).n_generated, static_cast<int64_t>(taken));
    if (taken > 0) kept_logits(*session, kPrompt, static_cast<int64_t>(taken));  // fails where they are gone
    const Outcome rest = run(session, ahead(how, kNew - static_cast<int64_t>(taken)));
    expect_ok(rest.status);
    outcome.tokens.insert(outcome.tokens.end(), rest.tokens.begin(), rest.tokens.end());
    outcome.logprobs.insert(outcome.logprobs.end(), rest.logprobs.begin(), rest.logprobs.end());
    EXPECT_EQ(outcome.tokens, whole_.tokens);
    // The row before the second stream's first token is the first one's, or was computed anew.
    std::vector<float> logprobs = whole_.logprobs;
    std::copy_n(kept_logprobs_.begin(), taken, logprobs.begin());
    EXPECT_THAT(outcome.logprobs[taken], AnyOf(kept_logprobs_[taken], whole_.logprobs[taken]));
    logprobs[taken] = outcome.logprobs[taken];
    EXPECT_EQ(outcome.logprobs, logprobs);
  }
}

// Fed text follows the delivered tokens, whatever was generated behind them.
TEST_P(Undelivered, TextFollowsTheDeliveredTokens) {
  const Tokens more = random_tokens(*model_, 9, 3);
  const auto next_logits = [&](const Ahead& how) {
    const auto session = fed();
    const auto stream = take(GenerationStream::open(session, ahead(how)));
    read(*stream, 11);
    work_ahead(*model_);
    stream->close();
    expect_ok(session->feed_tokens(more));
    expect_ok(run(session).status);
    return last_logits(*session);
  };
  const Logits expected = next_logits(kPlain);
  for (const Ahead& how : {Ahead{2}, Ahead{30}, Ahead{1, 5}, Ahead{30, 31}}) {
    EXPECT_TRUE(same_bits(expected, next_logits(how))) << how;
  }
}

TEST_P(Undelivered, MoreStopsHoldForThem) {
  const auto at = static_cast<ptrdiff_t>(9), taken = static_cast<ptrdiff_t>(4);
  const int32_t stop = whole_.tokens[at];
  const auto first = std::find(whole_.tokens.begin() + taken, whole_.tokens.end(), stop);
  for (const Ahead& how : {kPlain, Ahead{2}, Ahead{30}, Ahead{1, 31}, Ahead{9, 4}}) {
    const auto session = fed();
    const auto stream = take(GenerationStream::open(session, ahead(how)));
    Outcome outcome = read(*stream, static_cast<size_t>(taken));
    work_ahead(*model_);
    expect_ok(stream->add_stops({{-5, stop}, {"never in a text of \x01"}}));
    const Outcome rest = read(*stream);
    outcome.tokens.insert(outcome.tokens.end(), rest.tokens.begin(), rest.tokens.end());
    EXPECT_EQ(outcome.tokens, Tokens(whole_.tokens.begin(), first)) << how;
    EXPECT_EQ(rest.end.finish, FinishReason::kStopId);
    EXPECT_EQ(rest.end.token, stop);
    EXPECT_EQ(position(*session).tokens, kPrompt + (first - whole_.tokens.begin()));
    expect_ok(stream->add_stops({{1}, {}}));  // too late, and no error
  }
}

std::shared_ptr<Session> text_session(const std::shared_ptr<Model>& model, const Tokens& tokens) {
  auto session = make_session(model, with_strategy("full"));
  expect_ok(session->feed_tokens(tokens));
  return session;
}

TEST(UndeliveredStops, StringsAndMinimumLength) {
  const auto model = load("text_256");
  const Tokens prompt = random_tokens(*model, 20);
  const Outcome whole = run(text_session(model, prompt), generating(60, 1.0f));
  const std::string stop = whole.text.substr(whole.text.size() / 2, 4);
  Tokens held;
  for (const Ahead& how : {kPlain, Ahead{16}, Ahead{1, 8}}) {
    StreamOptions options = generating(60, 1.0f);
    how.set(&options);
    options.stop.strings = {"also never \x01"};
    auto session = text_session(model, prompt);
    auto stream = take(GenerationStream::open(session, options));
    const Outcome begin = read(*stream, 2);
    work_ahead(*model);
    expect_ok(stream->add_stops({}));  // nothing: what is held stays
    EXPECT_EQ(stream->add_stops({Tokens(4097, 5), {}}).message(),
              "a stream has at most 4096 stop ids and 64 stop strings; it has 0 and 1");
    expect_ok(stream->add_stops({{}, {stop}}));
    const Outcome rest = read(*stream);
    EXPECT_EQ(begin.text + rest.text, whole.text.substr(0, whole.text.find(stop))) << how;
    EXPECT_EQ(rest.end.finish, FinishReason::kStopString);
    EXPECT_EQ(rest.end.stop_index, 1);
    EXPECT_EQ(stream->add_stops({{}, std::vector<std::string>(63, "x")}).code(), Code::kInvalidArgument);

    // Before min_tokens a new stop id is not chosen, though it had been.
    options.min_tokens = 30;
    session = text_session(model, prompt);
    stream = take(GenerationStream::open(session, options));
    Tokens tokens = read(*stream, 2).tokens;
    work_ahead(*model);
    expect_ok(stream->add_stops({{whole.tokens[2]}, {}}));
    const Tokens more = read(*stream).tokens;
    tokens.insert(tokens.end(), more.begin(), more.end());
    ASSERT_GE(tokens.size(), 30u);
    EXPECT_EQ(std::find(tokens.begin() + 2, tokens.begin() + 30, whole.tokens[2]), tokens.begin() + 30);
    if (held.empty()) held = tokens;
    EXPECT_EQ(tokens, held) << how;
  }
}

// What is held back for one stop string may hold another one that comes later, when the answer ends.
TEST(UndeliveredStops, StringInWhatIsHeldBack) {
  constexpr size_t kTaken = 20;
  const auto model = load("text_256");
  const Tokens prompt = random_tokens(*model, 20);
  const Outcome whole = run(text_session(model, prompt), generating(kTaken + 1, 1.0f));
  const std::string text = run(text_session(model, prompt), generating(kTaken, 1.0f)).text;
  const std::string before = text.substr(0, text.size() - 2), held = text.substr(before.size());
  ASSERT_EQ(whole.text.substr(0, text.size()), text);  // whole characters
  for (const Ahead& how : {kPlain, Ahead{16}, Ahead{1, 8}}) {
    StreamOptions options = generating(60, 1.0f);
    how.set(&options);
    options.stop.strings = {held + "\x01"};
    const auto stream = take(GenerationStream::open(text_session(model, prompt), options));
    const Outcome begin = read(*stream, kTaken);
    EXPECT_EQ(begin.text, before) << how;
    expect_ok(stream->add_stops({{whole.tokens.back()}, {held.substr(1)}}));
    const Outcome rest = read(*stream);
    EXPECT_EQ(begin.text + rest.text, before + held.substr(0, 1)) << how;
    EXPECT_EQ(rest.end.finish, FinishReason::kStopString);
    EXPECT_EQ(rest.end.stop_index, 1);
    EXPECT_EQ(rest.end.token, -1);
  }
}

// A budget that ends the answer ends it behind the same token.
TEST(UndeliveredBudget, EndsBehindTheSameToken) {
  const auto model = load("short_128");
  const auto answer = [&](const Ahead& how) {
    SessionOptions options = with_strategy("full(kv_chunk=16)");
    auto probe = make_session(model, options);
    expect_ok(probe->feed_tokens(random_tokens(*model, 16)));
    expect_ok(run(probe).status);
    options.kv_budget_bytes = 3 * stats(*probe).kv_bytes;
    const auto session = make_session(model, options);
    expect_ok(session->feed_tokens(random_tokens(*model, 30)));
    StreamOptions go = generating(60);
    how.set(&go);
    const auto stream = take(GenerationStream::open(session, go));
    work_ahead(*model);
    Outcome outcome = read(*stream);
    EXPECT_EQ(outcome.status.code(), Code::kBudget);
    EXPECT_EQ(position(*session).tokens, 30 + static_cast<int64_t>(outcome.tokens.size()));
    return outcome.tokens;
  };
  const Tokens expected = answer(kPlain);
  EXPECT_EQ(expected.size(), 19u);
  for (const Ahead& how : {Ahead{2}, Ahead{50}, Ahead{1, 31}}) EXPECT_EQ(answer(how), expected) << how;
}

// Where a step with a draft finds no memory, one without may find some.
TEST(UndeliveredMemory, ADraftThatFailsIsDropped) {
  static TestMemory memory;
  const auto model = load("short_128", memory.runtime());
  StreamOptions options = generating(60, 1.0f, 3);
  for (int32_t id = 5; id < vocab_size(*model); ++id) options.sampling.logit_bias.emplace_back(id, -INFINITY);
  options.sampling.logit_bias.emplace_back(4, 4.3);
  const auto open = [&] {
    const auto session = make_session(model, with_strategy("full"));
    expect_ok(session->feed_tokens(Tokens{3, 4}));
    return session;
  };
  const Outcome plain = run(open(), options);
  Ahead{1, 31}.set(&options);
  const auto session = open();
  const auto stream = take(GenerationStream::open(session, options));
  Outcome outcome = read(*stream, 1);
  const auto n = std::make_shared<int>(0);  // allocations that are asked for
  {
    const auto hold = hold_engine(*model);
    memory.on_allocate = [n] { memory.left = (*n)++ == 0 ? 0 : INT64_MAX; };  // the next one fails
    hold->release();
  }
  const Outcome rest = read(*stream);
  expect_ok(rest.status);
  outcome.tokens.insert(outcome.tokens.end(), rest.tokens.begin(), rest.tokens.end());
  EXPECT_EQ(outcome.tokens, plain.tokens);
  EXPECT_GT(*n, 0);
  const auto hold = hold_engine(*model);
  memory.on_allocate = nullptr;
  memory.left = INT64_MAX;
  hold->release();
}

// A step that worked ahead and fails is tried again when all is delivered, also if that was in the meantime.
TEST(UndeliveredMemory, AFailureAheadIsNoneOnceTokensAreDelivered) {
  static TestMemory memory;
  const auto model = load("short_128", memory.runtime());
  const auto open = [&] {
    const auto session = make_session(model, with_strategy("full(kv_chunk=16)"));
    expect_ok(session->feed_tokens(random_tokens(*model, 10)));
    return session;
  };
  const Tokens expected = run(open(), generating(30)).tokens;
  const auto watch = [&](std::function<void()> on_allocate) {
    const auto hold = hold_engine(*model);
    memory.on_allocate = std::move(on_allocate);
    memory.left = INT64_MAX;
    hold->release();
  };
  int64_t n = 0, n_reading = 0;
  watch([&] { ++n_reading; });
  expect_ok(run(open(), generating(1)).status);
  Pause failing;
  watch([&] {
    memory.left = ++n == n_reading + 1 ? 0 : INT64_MAX;  // the second chunk's first one fails
    if (memory.left == 0) failing.here();
  });
  StreamOptions options = generating(30);
  Ahead{50}.set(&options);
  const auto session = open();
  const auto stream = take(GenerationStream::open(session, options));
  failing.wait_for_arrival();
  Tokens tokens;
  for (const StreamEvent* event = nullptr; take(stream->next(0, &event)) == NextResult::kEvent;) {
    if (event->type == StreamEvent::Type::kToken) tokens.push_back(event->token);
  }
  EXPECT_GT(tokens.size(), 4u);
  failing.release();
  const Outcome rest = read(*stream);
  expect_ok(rest.status);
  tokens.insert(tokens.end(), rest.tokens.begin(), rest.tokens.end());
  EXPECT_EQ(tokens, expected);
  watch(nullptr);
}

// What the heads chose for forgotten tokens does not count.
TEST(UndeliveredLabels, ShareTheChoicesOfDeliveredTokens) {
  const auto model = load("short_128");
  const auto shares = [&](const Ahead& how, bool closes) {
    const auto session = make_session(model, with_strategy("longheads(chunk=16, chunks=4)"));
    std::string text;
    for (int i = 0; i < 60; ++i) text += "word " + std::to_string(i) + " ";
    const std::vector<TextLabel> labels = {{0, 100, 1}, {100, 300, 2}};
    expect_ok(session->feed_text(text, false, true, labels));
    StreamOptions go = generating(closes ? 50 : 12);
    how.set(&go);
    const auto stream = take(GenerationStream::open(session, go));
    read(*stream, closes ? 12 : SIZE_MAX);
    work_ahead(*model);
    stream->close();
    std::vector<LabelAttention> found;
    expect_ok(session->label_attention(&found));
    std::vector<double> all;
    for (const auto& label : found) all.push_back(label.share);
    return all;
  };
  const auto expected = shares(kPlain, false);
  ASSERT_EQ(expected.size(), 2u);
  EXPECT_GT(expected[0] + expected[1], 0);
  EXPECT_EQ(shares(kPlain, true), expected);
  for (const Ahead& how : {Ahead{20}, Ahead{1, 14}, Ahead{20, 5}}) {
    EXPECT_EQ(shares(how, true), expected) << how;
    EXPECT_EQ(shares(how, false), expected) << how;
  }
}

// Going back behind the prompt, for more stop ids, touches neither its labels nor what its progress says.
TEST(UndeliveredPrompt, IsReadOnceAndKeepsItsLabels) {
  const auto model = load("short_128");
  const auto session = make_session(model, with_strategy("longheads(chunk=16, chunks=4)"));
  std::string text;
  for (int i = 0; i < 60; ++i) text += "word " + std::to_string(i) + " ";
  text += "longer";
  const auto size = static_cast<int64_t>(text.size());
  const std::vector<TextLabel> labels = {{size - 1, size, 1}, {0, 200, 2}};
  expect_ok(session->feed_text(text, false, true, labels));
  expect_ok(run(session).status);
  const int64_t n = position(*session).tokens;
  expect_ok(session->feed_tokens(random_tokens(*model, 20)));
  expect_ok(run(session).status);
  expect_ok(session->truncate(n));
  StreamOptions go = generating(8);
  go.max_undelivered = 8;
  const auto stream = take(GenerationStream::open(session, go));
  const StreamEvent* event = nullptr;
  ASSERT_EQ(take(stream->next(-1, &event)), NextResult::kEvent);
  ASSERT_EQ(event->type, StreamEvent::Type::kPrefill);
  const int64_t total = event->total;
  EXPECT_GT(total, 0);
  EXPECT_EQ(event->done, total);
  work_ahead(*model);
  expect_ok(stream->add_stops({.ids = {3}, .strings = {}}));
  const Outcome outcome = read(*stream);
  expect_ok(outcome.status);
  for (const StreamEvent& progress : outcome.prefill) EXPECT_EQ(progress.done, total);
  EXPECT_EQ(stats(*session).n_prefilled, n + 20 + total);
  std::vector<LabelAttention> found;
  expect_ok(session->label_attention(&found));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].id, 1);
  EXPECT_EQ(found[0].n_tokens, 0);
  EXPECT_EQ(found[1].id, 2);
}

}  // namespace
}  // namespace quire::test
