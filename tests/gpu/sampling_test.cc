// Sessions whose tokens are sampled from what the device says of logits that stay there.

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <thread>

#include "tests/gpu/device_model.h"
#include "tests/gpu/emulation/emulated_device.h"
#include "tests/source_path.h"
#include "tests/unit/model/temporary_folder.h"
#include "tests/unit/model/watched_backend.h"
#include "tests/unit/session/sampler_step.h"

namespace quire::test {
namespace {

using Kind = SamplerStep::Kind;

constexpr const char* kModel = "text_256";  // of more tokens than the device ranks
constexpr int64_t kPrompt = 12, kBlock = 8;

SessionOptions options_for(const std::string& strategy = "full") {
  SessionOptions options = with_strategy(strategy);
  options.old_text = {};
  options.prefill_block = kBlock;
  return options;
}

std::shared_ptr<Session> fed(const std::shared_ptr<Model>& model, int64_t n_tokens = kPrompt, uint32_t seed = 1) {
  auto session = make_session(model, options_for());
  expect_ok(session->feed_tokens(random_tokens(*model, n_tokens, seed)));
  return session;
}

StreamOptions sampling(int64_t max_tokens, std::vector<SamplerStep> steps, uint64_t seed = 7) {
  StreamOptions options = generating(max_tokens);
  options.sampling.greedy = false;
  options.sampling.steps = std::move(steps);
  options.sampling.seed = seed;
  return options;
}

// Most of these rows are too flat for a chain without top-k to be decided on the device.
StreamOptions decided(int64_t max_tokens) {
  return sampling(max_tokens,
                  {step_of(Kind::kTemperature, 0.8), step_of(Kind::kTopK, 1, 40), step_of(Kind::kTopP, 0.95)});
}

StreamOptions with_all_logits(StreamOptions options) {
  options.keep_logits = true;
  return options;
}

// The same device, of which whole rows are asked for: it ranks none.
class WithoutRanks : public WatchedBackend {
 public:
  explicit WithoutRanks(std::unique_ptr<Backend> real) : WatchedBackend(*real), owned_(std::move(real)) {}

 private:
  const std::unique_ptr<Backend> owned_;
};

std::shared_ptr<Model> with_ranks(const std::string& name = kModel) {
  auto model = on_device(name);
  // The steps are so short that to start a thread takes longer than what it would do.
  emulation::set_launch_options({.schedule = emulation::Schedule::kAhead, .n_threads = 1});
  return model;
}

std::shared_ptr<Model> without_ranks() {
  RuntimeOptions options;
  options.n_threads = 1;
  options.wrap_backend = [](std::unique_ptr<Backend> cpu) -> std::unique_ptr<Backend> {
    return std::make_unique<WithoutRanks>(on_test_device()(std::move(cpu)));
  };
  return load(kModel, std::move(options));
}

int64_t row_bytes_of(const Model& model) { return int64_t{sizeof(float)} * vocab_size(model); }

class DeviceSampling : public testing::Test {};

// What only the emulation can show: it counts calls, and fails when it is told to.
class EmulatedDeviceSampling : public testing::Test {
 protected:
  void SetUp() override {
    if (wants_gpu()) GTEST_SKIP() << "of the emulation";
  }
  void TearDown() override { emulation::set_device_faults({}); }
};

// Three tokens in any order: what followed one of them before may follow it again.
StreamOptions drafting(int64_t max_tokens) {
  StreamOptions options = sampling(max_tokens, {step_of(Kind::kTopK, 1, 3)});
  options.sampling.logit_bias = {{20, 90.0}, {30, 90.0}, {40, 90.0}};
  options.draft_tokens = 4;
  options.draft_match = 1;
  return options;
}

// Bytes that come from the device while something is done.
int64_t downloaded(const std::function<void()>& what) {
  const int64_t before = emulation::device_use().bytes_downloaded;
  what();
  return emulation::device_use().bytes_downloaded - before;
}

struct Answer {
  Outcome outcome;
  std::vector<std::vector<TokenLogprob>> top;
};

Answer answer(const std::shared_ptr<Session>& session, const StreamOptions& options) {
  const auto stream = take(GenerationStream::open(session, options));
  Answer answer;
  for (;;) {
    const StreamEvent* event = nullptr;
    const auto next = stream->next(-1, &event);
    if (!next.ok()) {
      answer.outcome.status = next.status();
      return answer;
    }
    if (next.value() != NextResult::kEvent) return answer;
    if (event->type != StreamEvent::Type::kToken) continue;
    answer.outcome.tokens.push_back(event->token);
    answer.outcome.logprobs.push_back(event->logprob);
    answer.top.push_back(event->top);
  }
}

// The same steps leave the same logits, whether they are copied to the host or not.
TEST_F(DeviceSampling, TokensAreThoseOfWholeRows) {
  const auto device = with_ranks(), plain = without_ranks();
  const Tokens prompt = random_tokens(*device, kPrompt);
  std::vector<StreamOptions> all = {generating(4), decided(4)};
  all.push_back(generating(4));
  all.back().sampling.n_top = 5;
  all.back().ignore_eos = false;
  all.back().min_tokens = 2;
  for (int32_t t = 3; t < 200; ++t) all.back().stop.ids.push_back(t);
  all.push_back(decided(4));
  all.back().sampling.n_top = 20;
  all.back().sampling.logit_bias = {{5, 3.0}, {17, -2.0}, {prompt[3], -std::numeric_limits<double>::infinity()}};
  SamplerStep penalties = step_of(Kind::kPenalties, 1.3, 64);
  penalties.frequency = 0.2;
  all.push_back(sampling(4, {penalties, step_of(Kind::kTopP, 0.5)}));
  all.push_back(sampling(4, {step_of(Kind::kTemperature, 0.3), step_of(Kind::kMinP, 0.2)}));
  all.push_back(sampling(4, {step_of(Kind::kTemperature, 0.9)}));
  all.push_back(generating(4));
  all.back().draft_tokens = 3;
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    const Answer ranked = answer(fed(device), all[i]), whole = answer(fed(plain), all[i]);
    expect_ok(ranked.outcome.status);
    EXPECT_FALSE(whole.outcome.tokens.empty());
    EXPECT_EQ(ranked.outcome.tokens, whole.outcome.tokens);
    for (size_t t = 0; t < whole.outcome.tokens.size(); ++t) {
      EXPECT_NEAR(ranked.outcome.logprobs[t], whole.outcome.logprobs[t], 2e-6);
      ASSERT_EQ(ranked.top[t].size(), whole.top[t].size());
      for (size_t p = 0; p < whole.top[t].size(); ++p) {
        EXPECT_EQ(ranked.top[t][p].token, whole.top[t][p].token);
        EXPECT_NEAR(ranked.top[t][p].logprob, whole.top[t][p].logprob, 2e-6);
      }
    }
  }
}

// The next token is chosen among those that the caller allows, in parts that hold few of the most probable ones.
TEST_F(DeviceSampling, TokensOfAMaskAreThoseOfWholeRows) {
  const auto device = with_ranks(), plain = without_ranks();
  Tokens tokens[2];
  for (const auto& model : {device, plain}) {
    StreamOptions options = generating(10);
    options.constrain = true;
    const auto stream = take(GenerationStream::open(fed(model), options));
    const auto words = static_cast<size_t>((vocab_size(*model) + 31) / 32);
    Tokens& own = tokens[model == plain ? 1 : 0];
    for (size_t i = 0; i < 10; ++i) {
      AllowedTokens allowed(words, 0);
      allowed[i % words] = i < 5 ? 0x00f0f0f0u : 0x8u;
      expect_ok(stream->allow(std::move(allowed)));
      const Outcome next = read(*stream, 1);
      expect_ok(next.status);
      own.insert(own.end(), next.tokens.begin(), next.tokens.end());
    }
  }
  EXPECT_EQ(tokens[0].size(), 10u);
  EXPECT_EQ(tokens[0], tokens[1]);
}

TEST_F(EmulatedDeviceSampling, NoRowIsCopiedWhileTokensAreGenerated) {
  const auto device = with_ranks(), plain = without_ranks();
  for (const int64_t k : {1, 256}) {
    SCOPED_TRACE(k);
    const StreamOptions options = k == 1 ? generating(6) : decided(6);
    const auto session = fed(device), whole = fed(plain);
    Outcome outcome;
    const int64_t bytes = downloaded([&] { outcome = run(session, options); });
    expect_ok(outcome.status);
    constexpr int64_t kSteps = 2 + 6;  // blocks of the prompt, and tokens
    EXPECT_EQ(bytes, kSteps * static_cast<int64_t>(RankedRows{1, k}.bytes()));

    // The last row comes when it is asked for, once.
    EXPECT_EQ(run(whole, options).tokens, outcome.tokens);
    Logits last;
    EXPECT_EQ(downloaded([&] { last = last_logits(*session); }), row_bytes_of(*device));
    EXPECT_TRUE(same_bits(last, last_logits(*whole)));
    EXPECT_EQ(downloaded([&] { EXPECT_TRUE(same_bits(last, last_logits(*session))); }), 0);
  }
}

// Each row of a draft is sampled from in its place, and the last one that is taken stays.
TEST_F(EmulatedDeviceSampling, RowsOfDraftsStayToo) {
  const auto device = with_ranks(), plain = without_ranks();
  const auto session = fed(device), whole = fed(plain);
  const StreamOptions options = drafting(12);
  Outcome outcome;
  const int64_t bytes = downloaded([&] { outcome = run(session, options); });
  expect_ok(outcome.status);
  EXPECT_EQ(outcome.tokens, run(whole, options).tokens);
  EXPECT_TRUE(same_bits(last_logits(*session), last_logits(*whole)));
  const SessionStats now = stats(*session);
  EXPECT_GT(now.n_drafted, now.n_accepted);
  EXPECT_GT(now.n_accepted, 0);
  constexpr int64_t kBlocks = 2;  // of the prompt
  const int64_t n_rows = kBlocks + 12 - now.n_accepted + now.n_drafted;
  // Where one of the three is not among the tokens that the device names, the row is read.
  const int64_t of_rows = bytes - n_rows * static_cast<int64_t>(RankedRows{1, 256}.bytes());
  EXPECT_EQ(of_rows % row_bytes_of(*device), 0);
  EXPECT_LT(of_rows / row_bytes_of(*device), 12);
}

// A prompt that was read for itself: what follows begins with the row that stayed on the device.
TEST_F(EmulatedDeviceSampling, WhatWasReadBeforeIsSampledFrom) {
  const auto device = with_ranks();
  const auto read_first = [&] {
    const auto session = fed(device);
    expect_ok(run(session).status);
    return session;
  };
  const Tokens greedy = run(fed(device), generating(1)).tokens, drawn = run(fed(device), decided(1)).tokens;
  const auto ranked = [](int64_t k) { return static_cast<int64_t>(RankedRows{1, k}.bytes()); };
  EXPECT_EQ(downloaded([&] { (void)read_first(); }), 2 * ranked(1));
  auto session = read_first();
  EXPECT_EQ(downloaded([&] { EXPECT_EQ(run(session, generating(1)).tokens, greedy); }), ranked(1));
  session = read_first();
  EXPECT_EQ(downloaded([&] { EXPECT_EQ(run(session, decided(1)).tokens, drawn); }),
            row_bytes_of(*device) + ranked(256));
}

// Streams that need different things of their rows, in the same steps.
TEST_F(DeviceSampling, StreamsOfAStepEachGetTheirOwn) {
  const auto device = with_ranks();
  StreamOptions with_top = decided(4);
  with_top.sampling.n_top = 3;
  const StreamOptions options[] = {generating(4), with_all_logits(generating(4)), with_top,
                                   sampling(4, {step_of(Kind::kTemperature, 0.7)})};
  std::vector<std::shared_ptr<Session>> sessions;
  std::vector<std::shared_ptr<GenerationStream>> streams;
  for (uint32_t s = 0; s < 4; ++s) sessions.push_back(fed(device, 10 + 3 * s, s));
  for (uint32_t s = 0; s < 4; ++s) streams.push_back(take(GenerationStream::open(sessions[s], options[s])));
  for (uint32_t s = 0; s < 4; ++s) {
    SCOPED_TRACE(s);
    const Outcome outcome = read(*streams[s]);
    expect_ok(outcome.status);
    ASSERT_EQ(outcome.tokens.size(), 4u);
    // The same text read at once: products of many rows round otherwise than those of few.
    Tokens text = random_tokens(*device, 10 + 3 * s, s);
    text.insert(text.end(), outcome.tokens.begin(), outcome.tokens.end());
    const auto again = make_session(device, options_for());
    expect_ok(again->feed_tokens(text));
    expect_ok(run(again, with_all_logits({})).status);
    const Logits expected = last_logits(*again), got = last_logits(*sessions[s]);
    double error = 0, square = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      error += std::pow(static_cast<double>(got[i]) - expected[i], 2);
      square += std::pow(static_cast<double>(expected[i]), 2);
    }
    EXPECT_LE(std::sqrt(error / square), 1.0 / 32);
  }
}

// ---- what else uses the last row

TEST_F(DeviceSampling, ForksKeepTheRowTheyBeganWith) {
  const auto device = with_ranks(), plain = without_ranks();
  const auto session = fed(device), whole = fed(plain);
  expect_ok(run(session, decided(6)).status);
  expect_ok(run(whole, decided(6)).status);
  const auto early = take(session->fork()), late = take(session->fork());
  const Logits row = last_logits(*whole);
  EXPECT_TRUE(same_bits(row, last_logits(*early)));
  const Tokens next = run(whole, decided(5)).tokens;
  EXPECT_EQ(run(session, decided(5)).tokens, next);
  EXPECT_TRUE(same_bits(row, last_logits(*late)));  // the other session's rows have changed twice or more
  EXPECT_EQ(run(early, decided(5)).tokens, next);
  session->close();
  EXPECT_EQ(run(late, decided(5)).tokens, next);
  EXPECT_TRUE(same_bits(last_logits(*whole), last_logits(*late)));
}

TEST_F(DeviceSampling, SnapshotsHaveTheRow) {
  const auto device = with_ranks();
  const TemporaryFolder folder;
  const auto path = folder.path() + "/session.quire";
  const auto session = fed(device);
  expect_ok(run(session, decided(6)).status);
  expect_ok(session->save(path, {}));
  const auto loaded = take(Session::load(device, path, {}));
  EXPECT_TRUE(same_bits(last_logits(*session), last_logits(*loaded)));
  EXPECT_EQ(run(session, decided(5)).tokens, run(loaded, decided(5)).tokens);
}

TEST_F(DeviceSampling, TextsThatAreCutOrEditedForgetTheRow) {
  const auto device = with_ranks(), plain = without_ranks();
  const Tokens prompt = random_tokens(*device, kPrompt);
  const auto session = fed(device), whole = fed(plain);
  const auto both = [&](const auto& change) {
    for (const auto& s : {session, whole}) change(*s);
  };
  const auto answers_alike = [&] {
    const Tokens tokens = run(session, decided(4)).tokens;
    EXPECT_EQ(tokens, run(whole, decided(4)).tokens);
    EXPECT_EQ(tokens.size(), 4u);
    EXPECT_TRUE(same_bits(last_logits(*session), last_logits(*whole)));
  };
  answers_alike();
  Logits row(static_cast<size_t>(vocab_size(*device)));
  both([&](Session& s) {
    expect_ok(s.truncate(kPrompt - 5));
    EXPECT_EQ(s.logits(-1, 1, row.data()).code(), Code::kNotFound);
  });
  answers_alike();
  // The same text: all is kept, the row too, from which the answer begins.
  Tokens text;
  expect_ok(session->tokens(&text));
  both([&](Session& s) {
    EditResult result;
    expect_ok(s.edit_tokens(text, {}, &result));
    EXPECT_EQ(result.n_kept, std::ssize(text));
  });
  answers_alike();
  both([&](Session& s) {
    EditResult result;
    expect_ok(s.edit_tokens(prompt, {}, &result));
  });
  answers_alike();
  both([](Session& s) { expect_ok(s.reset()); });
  EXPECT_EQ(session->logits(-1, 1, row.data()).code(), Code::kNotFound);
}

// Scores begin with the row that an answer left on the device.
TEST_F(DeviceSampling, ScoresBeginWithTheRow) {
  const auto device = with_ranks(), plain = without_ranks();
  const Tokens more = random_tokens(*device, 5, 3);
  std::vector<float> scores[2];
  for (const auto& model : {device, plain}) {
    const auto session = fed(model);
    expect_ok(run(session).status);
    expect_ok(session->feed_tokens(more));
    StreamOptions score;
    score.score = true;
    expect_ok(run(session, score).status);
    std::vector<float>& own = scores[model == plain ? 1 : 0];
    own.resize(more.size());
    expect_ok(session->scores(kPrompt, std::ssize(more), own.data()));
  }
  EXPECT_FALSE(std::isnan(scores[0][0]));
  EXPECT_EQ(scores[0], scores[1]);
}

// ---- what goes wrong

TEST_F(EmulatedDeviceSampling, ARowThatCannotBeCopiedStaysThere) {
  const auto device = with_ranks(), plain = without_ranks();
  const auto session = fed(device), whole = fed(plain);
  expect_ok(run(session, decided(4)).status);
  expect_ok(run(whole, decided(4)).status);
  Logits row(static_cast<size_t>(vocab_size(*device)));
  const TemporaryFolder folder;
  emulation::set_device_faults({.late_download = 1});
  EXPECT_EQ(session->logits(-1, 1, row.data()).code(), Code::kDevice);
  emulation::set_device_faults({.late_download = 1});
  EXPECT_EQ(session->save(folder.path() + "/session.quire", {}).code(), Code::kDevice);
  const Position before = position(*session);

  // A draw among all tokens asks for the row, too.
  const StreamOptions all = sampling(3, {step_of(Kind::kTemperature, 0.9)});
  emulation::set_device_faults({.late_download = 1});
  const Outcome failed = run(session, all);
  EXPECT_EQ(failed.status.code(), Code::kDevice);
  EXPECT_TRUE(failed.tokens.empty());
  emulation::set_device_faults({});
  EXPECT_EQ(position(*session), before);
  EXPECT_EQ(run(session, all).tokens, run(whole, all).tokens);
  EXPECT_TRUE(same_bits(last_logits(*session), last_logits(*whole)));
}

// Whatever fails while tokens are generated, at whichever place: the answer goes on from the last one that was taken,
// with the tokens that would have come.
TEST_F(EmulatedDeviceSampling, FailedStepsLeaveTheSession) {
  using Faults = emulation::DeviceFaults;
  const auto device = with_ranks("short_128");
  const auto expected = fed(device);
  const Tokens whole = run(expected, decided(6)).tokens;
  struct Failure {
    int64_t Faults::*which;
    Code code;
    int64_t step;
  };
  for (const Failure& f : {Failure{&Faults::allocation, Code::kOutOfMemory, 1},
                           {&Faults::launch, Code::kDevice, 11},
                           {&Faults::kernel, Code::kDevice, 11},
                           {&Faults::download, Code::kDevice, 1}}) {
    int n_failed = 0;
    for (int64_t n = 1; n < 4 * f.step; n += f.step) {
      const auto session = fed(device);
      const auto first = run(session, decided(2)).tokens;
      const Position before = position(*session);
      Logits row(static_cast<size_t>(vocab_size(*device)));
      if (n % 2 == 0) row = last_logits(*session);
      const auto other = take(session->fork());  // holds the row: the next ones have new memory
      Faults faults;
      faults.*f.which = n;
      emulation::set_device_faults(faults);
      Outcome outcome = run(session, decided(2));
      emulation::set_device_faults({});
      Tokens tokens = first;
      tokens.insert(tokens.end(), outcome.tokens.begin(), outcome.tokens.end());
      EXPECT_EQ(position(*session).tokens, before.tokens + std::ssize(outcome.tokens));
      if (!outcome.status.ok()) {
        ++n_failed;
        EXPECT_EQ(outcome.status.code(), f.code) << outcome.status.message();
        // The first token comes from the row that was there; the next one's failed, and took nothing with it.
        ASSERT_LE(outcome.tokens.size(), 2u);
        EXPECT_TRUE(outcome.tokens.size() > 1 || same_bits(last_logits(*session), last_logits(*other)));
      }
      outcome = run(session, decided(6 - std::ssize(tokens)));
      expect_ok(outcome.status);
      tokens.insert(tokens.end(), outcome.tokens.begin(), outcome.tokens.end());
      EXPECT_EQ(tokens, whole) << n;
      EXPECT_TRUE(same_bits(last_logits(*session), last_logits(*expected)));
      EXPECT_TRUE(n % 2 != 0 || same_bits(row, last_logits(*other)));
    }
    EXPECT_GE(n_failed, f.which == &Faults::allocation ? 1 : 2);
  }
}

TEST_F(EmulatedDeviceSampling, FailedDraftsLeaveTheSession) {
  using Faults = emulation::DeviceFaults;
  const auto device = with_ranks();
  const auto expected = fed(device);
  const Tokens whole = run(expected, drafting(8)).tokens;
  int n_failed = 0;
  for (const auto& [which, n] : {std::pair{&Faults::kernel, 60},
                                 {&Faults::kernel, 99},
                                 {&Faults::kernel, 131},
                                 {&Faults::download, 3},
                                 {&Faults::download, 5},
                                 {&Faults::download, 8}}) {
    const auto session = fed(device);
    Faults faults;
    faults.*which = n;
    emulation::set_device_faults(faults);
    const Outcome outcome = run(session, drafting(8));
    emulation::set_device_faults({});
    n_failed += outcome.status.ok() ? 0 : 1;
    Tokens tokens = outcome.tokens;
    const Outcome rest = run(session, drafting(8 - std::ssize(tokens)));
    expect_ok(rest.status);
    tokens.insert(tokens.end(), rest.tokens.begin(), rest.tokens.end());
    EXPECT_EQ(tokens, whole) << n;
  }
  EXPECT_GT(n_failed, 2);  // others were made up for by a step without a draft
}

TEST_F(EmulatedDeviceSampling, LogitsThatAreNotFiniteFailTheBlock) {
  // Of an adapter whose scale is beyond all numbers.
  const auto device = with_ranks();
  SessionOptions options = options_for();
  const std::string path = source_path("tests/golden/adapters/everything");
  options.adapters = {{take(load_adapter(device, path)), 1e38}};
  const auto session = make_session(device, options);
  expect_ok(session->feed_tokens(random_tokens(*device, 5)));
  const Status status = run(session, generating(3)).status;
  EXPECT_EQ(status.code(), Code::kNumeric) << status.message();
  EXPECT_EQ(position(*session), (Position{0, 5}));
}

TEST_F(EmulatedDeviceSampling, SessionsGiveTheirRowsBack) {
  const auto device = with_ranks();
  (void)run(fed(device), decided(4));
  expect_held(*device, 0);
  // Without what operations work in.
  const auto bytes = [&] { return emulation::device_use().bytes - device->llama->backend().workspace_bytes(); };
  const int64_t before = bytes();
  {
    const auto session = fed(device);
    (void)run(session, decided(4));
    const auto fork = take(session->fork());
    (void)run(session, decided(4));
    (void)run(fork, decided(4));
    EXPECT_GE(bytes(), before + 4 * row_bytes_of(*device));
  }
  for (int i = 0; i < 1000 && bytes() != before; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(bytes(), before);
}

}  // namespace
}  // namespace quire::test
