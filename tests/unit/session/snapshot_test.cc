// A session that was saved and loaded goes on, bit for bit, as the one that was saved.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/session/describe_snapshot.h"
#include "tests/source_path.h"
#include "tests/unit/chat/chat_tokenizer.h"
#include "tests/unit/kv/spill_directory.h"
#include "tests/unit/model/file_bytes.h"
#include "tests/unit/model/temporary_folder.h"
#include "tests/unit/session/memory_streams.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

constexpr int64_t kLength = 170;

LoadOptions loading(const std::string& spill_directory = "", int64_t budget = 0) {
  LoadOptions options;  // overflow among others is the saved session's
  options.session.spill_directory = spill_directory;
  options.session.kv_budget_bytes = budget;
  return options;
}

// Loads, and says what went wrong.
Status failure(const std::shared_ptr<Model>& model, const std::string& path, const LoadOptions& options = loading()) {
  return Session::load(model, path, options).status();
}

const char* const kStrategies[] = {
    "full",
    "dca",
    "rerope(window=30)",
    "self_extend(group=4, window=20)",
    "full(kv_chunk=32) + dynamic_ntk(factor=2)",
    "sda(dilation=3)",
    "longheads(chunk=16, chunks=5)",
    "longheads(chunk=16, chunks=4, init=full, select=group, vectors=bf16)",
    "dca_topk(chunk=16, chunks=6, sticky=2, one_in=6)",
    "dca_topk(chunk=16, chunks=6, sticky=2, kv_chunk=48, dca_chunk=64, represent=minmax, reading=selected)",
    "streaming_llm(sinks=3, recent=50)",
    "beacon(ratio=4, kv_chunk=16)",
    "beacon(sequence=x2.x0.x8.x0, attn=full_coverage, kv_chunk=16)"};

class Snapshot : public testing::TestWithParam<const char*> {
 protected:
  SessionOptions options() const {
    SessionOptions options = with_strategy(GetParam());
    options.prefill_block = 24;
    options.expected_tokens = 300;
    return options;
  }
  std::span<const int32_t> tokens(int64_t begin, int64_t end) const {
    return std::span(tokens_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  }
  // Reads the rest of the text and generates; the logits of all that, and the tokens.
  std::pair<Logits, Tokens> go_on(const std::shared_ptr<Session>& session, int64_t n) {
    const int64_t first = position(*session).tokens;
    expect_ok(session->feed_tokens(tokens(n, kLength)));
    StreamOptions options = generating(20, 0.8f);
    options.keep_logits = true;
    const Outcome outcome = run(session, options);
    expect_ok(outcome.status);
    return {kept_logits(*session, first, kLength - n + 19), outcome.tokens};
  }
  // Too little memory for all records; of texts that are condensed, for little more than what a step needs.
  int64_t little_memory() const {
    const auto session = make_session(model_, options());
    expect_ok(session->feed_tokens(tokens_));
    expect_ok(run(session).status);
    const SessionStats now = stats(*session);
    if (std::string(GetParam()).starts_with("beacon")) return now.kv_bytes_peak + 2 * now.kv_record_bytes;
    return now.kv_bytes - now.kv_chunks / 3 * now.kv_record_bytes;
  }

  std::shared_ptr<Model> model_ = quire::test::load(model_for(GetParam()), 2);
  TemporaryFolder folder_;
  SpillDirectory spill_;
  const std::string path_ = folder_.path() + "/saved.quire";
  Tokens tokens_ = random_tokens(*model_, kLength);
};
INSTANTIATE_TEST_SUITE_P(Strategies, Snapshot, testing::ValuesIn(kStrategies));

TEST_P(Snapshot, GoesOnBitForBit) {
  for (const int64_t n : {1, 15, 16, 17, 47, 48, 100, 128, 161}) {
    SCOPED_TRACE(std::to_string(n) + " tokens");
    const auto saved = make_session(model_, options());
    expect_ok(saved->feed_tokens(tokens(0, n)));
    expect_ok(run(saved).status);
    expect_ok(saved->save(path_, {}));
    const auto expected = go_on(saved, n);
    for (const bool spills : {false, true}) {
      const auto loaded = take(Session::load(model_, path_, loading(spills ? spill_.path() : "")));
      EXPECT_EQ(loaded->strategy(), saved->strategy());
      EXPECT_EQ(loaded->fingerprint(), saved->fingerprint());
      ASSERT_EQ(position(*loaded), (Position{n, 0}));
      const auto actual = go_on(loaded, n);
      ASSERT_TRUE(same_bits(actual.first, expected.first)) << (spills ? "spilling" : "in memory");
      ASSERT_EQ(actual.second, expected.second);
    }
  }
}

// Generated tokens, pending ones, and a second snapshot of a session that has not read the first one's records yet.
TEST_P(Snapshot, KeepsWhoseTokensWereWhose) {
  const auto saved = make_session(model_, options());
  expect_ok(saved->feed_tokens(tokens(0, 60)));
  expect_ok(run(saved, generating(33, 0.8f)).status);
  expect_ok(saved->feed_tokens(tokens(60, 80)));
  expect_ok(saved->save(path_, {}));
  const auto first = take(Session::load(model_, path_, loading()));
  EXPECT_EQ(position(*first), (Position{93, 20}));
  const std::string again = folder_.path() + "/again.quire";
  expect_ok(first->save(again, {}));
  EXPECT_EQ(read_file(again), read_file(path_));
  const auto second = take(Session::load(model_, again, loading()));
  for (const auto& session : {saved, first, second}) expect_ok(run(session).status);
  const auto expected = go_on(saved, 80);
  for (const auto& session : {first, second}) {
    const auto actual = go_on(session, 80);
    ASSERT_EQ(actual.second, expected.second);
    ASSERT_TRUE(same_bits(actual.first, expected.first));
  }
}

// Less memory than the records take: they are read again from the snapshot, and leave without being written.
TEST_P(Snapshot, IsReadAgainWhereMemoryIsShort) {
  const auto saved = make_session(model_, options());
  expect_ok(saved->feed_tokens(tokens(0, 161)));
  expect_ok(run(saved).status);
  expect_ok(saved->save(path_, {}));
  const auto expected = go_on(saved, 161);
  const int64_t budget = little_memory();
  for (const bool spills : {false, true}) {
    const auto loaded = take(Session::load(model_, path_, loading(spills ? spill_.path() : "", budget)));
    const auto actual = go_on(loaded, 161);
    ASSERT_EQ(actual.second, expected.second);
    ASSERT_TRUE(same_bits(actual.first, expected.first));
    const SessionStats now = stats(*loaded);
    EXPECT_LE(now.kv_bytes_peak, budget);
    EXPECT_EQ(spills ? 0 : now.kv_chunks_written, 0);
  }
}

// The text is cut inside what only the file holds, and goes on there.
TEST_P(Snapshot, CanBeCutAnywhere) {
  const auto saved = make_session(model_, options());
  expect_ok(saved->feed_tokens(tokens(0, 150)));
  expect_ok(run(saved).status);
  expect_ok(saved->save(path_, {}));
  const Logits expected = all_logits(model_, options(), tokens_);
  for (const int64_t n : {149, 144, 130, 97, 64, 33, 16, 7, 0}) {
    SCOPED_TRACE(n);
    const auto loaded = take(Session::load(model_, path_, loading()));
    expect_ok(loaded->truncate(n));
    expect_ok(loaded->feed_tokens(tokens(n, kLength)));
    StreamOptions keep;
    keep.keep_logits = true;
    expect_ok(run(loaded, keep).status);
    const Logits rest = kept_logits(*loaded, n, kLength - n);
    ASSERT_TRUE(same_bits(std::span(expected).last(rest.size()), rest));
  }
}

// What has no parameter: over the strategy that keeps most beside the records.
class SnapshotFiles : public testing::Test {
 protected:
  static SessionOptions options() { return with_strategy("longheads(chunk=16, chunks=5)"); }
  std::shared_ptr<Session> make(int64_t n) const {
    const auto session = make_session(model_, options());
    expect_ok(session->feed_tokens(random_tokens(*model_, n)));
    expect_ok(run(session).status);
    return session;
  }

  std::shared_ptr<Model> model_ = quire::test::load("short_128", 2);
  TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/saved.quire";
};

// tests/golden/snapshots has a file of each version: random_tokens(90) under options(), three generated tokens, and
// random_tokens(5, seed 2) pending.
TEST_F(SnapshotFiles, OfEarlierVersionsStayReadable) {
  const std::string golden = source_path("tests/golden/snapshots/version_1.quire");
  if (const char* out = std::getenv("QUIRE_WRITE_GOLDEN_SNAPSHOT")) {
    const auto session = make(90);
    expect_ok(run(session, generating(3)).status);
    expect_ok(session->feed_tokens(random_tokens(*model_, 5, 2)));
    expect_ok(session->save(out, {}));
  }
  expect_ok(verify_snapshot(golden, {}));
  const auto loaded = take(Session::load(model_, golden, loading()));
  ASSERT_EQ(position(*loaded), (Position{93, 5}));
  std::vector<int32_t> tokens;
  expect_ok(loaded->tokens(&tokens));
  expect_ok(run(loaded).status);
  // Keys and values in the file may have been computed with other instructions.
  const Logits expected = all_logits(model_, options(), tokens), actual = last_logits(*loaded);
  const auto last = row_of(expected, *model_, 97);
  for (size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], last[i], 2e-2) << i;
}

// Draws are made of the seed and the place in the text, penalties of the text: a sampled answer goes on in another
// process, where the same stream options are given again, with the tokens that it would have had.
TEST_F(SnapshotFiles, SampledAnswersGoOnWithTheSameDraws) {
  const auto sampling = [](int64_t n, uint64_t seed, bool penalties) {
    StreamOptions options = generating(n, 1.5f, seed);
    if (!penalties) return options;
    SamplerStep repeated, dry;
    repeated.kind = SamplerStep::Kind::kPenalties;
    repeated.value = 1.4;
    repeated.frequency = 0.6;
    repeated.presence = 0.5;
    dry.kind = SamplerStep::Kind::kDry;
    dry.value = 2;
    dry.allowed_length = 1;
    options.sampling.steps.insert(options.sampling.steps.begin(), {repeated, dry});
    return options;
  };
  const auto whole = run(make(90), sampling(20, 5, true));
  expect_ok(whole.status);
  const auto session = make(90);
  Outcome first = run(session, sampling(10, 5, true));
  expect_ok(session->save(path_, {}));
  const auto go_on = [&](uint64_t seed, bool penalties) {
    const auto elsewhere = quire::test::load("short_128", 1);
    const Outcome rest = run(take(Session::load(elsewhere, path_, loading())), sampling(10, seed, penalties));
    Tokens all = first.tokens;
    all.insert(all.end(), rest.tokens.begin(), rest.tokens.end());
    auto logprobs = first.logprobs;
    logprobs.insert(logprobs.end(), rest.logprobs.begin(), rest.logprobs.end());
    return std::pair(all, logprobs);
  };
  const auto expected = std::pair(whole.tokens, whole.logprobs);
  EXPECT_EQ(go_on(5, true), expected);
  // All of it counts: the seed, and penalties for tokens before the snapshot.
  EXPECT_NE(go_on(6, true).first, expected.first);
  EXPECT_NE(go_on(5, false).first, expected.first);
}

// A character whose bytes come in two streams is one in the tokens and none in the streams' texts, whether the session
// was saved between them or not.
TEST(SnapshotTexts, CharactersSplitBetweenStreamsAreReplaced) {
  const auto model = quire::test::load("text_256", 2);
  const Tokenizer& tokenizer = model->tokenizer->tokenizer();
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/saved.quire", character = "\U0001F600", replaced = "\uFFFD";
  const Tokens bytes = take(tokenizer.encode(character, {.first_segment = false}));
  ASSERT_EQ(bytes.size(), 4u);  // byte-fallback ids
  const auto answer = [&](const std::shared_ptr<Session>& session, std::span<const int32_t> tokens) {
    std::string text;
    StreamOptions options = generating(static_cast<int64_t>(tokens.size()));
    options.constrain = true;
    const auto stream = take(GenerationStream::open(session, std::move(options)));
    for (const int32_t token : tokens) {
      AllowedTokens allowed((static_cast<size_t>(vocab_size(*model)) + 31) / 32);
      allowed[static_cast<size_t>(token) / 32] |= uint32_t{1} << token % 32;
      expect_ok(stream->allow(allowed));
      text += read(*stream, 1).text;
    }
    return text + read(*stream).text;
  };
  const auto session = make_session(model, with_strategy("full"));
  expect_ok(session->feed_text("One,", false, true));
  EXPECT_EQ(answer(session, std::span(bytes).first(2)), replaced);
  expect_ok(session->save(path, {}));
  for (const auto& next : {session, take(Session::load(model, path, loading()))}) {
    EXPECT_EQ(answer(next, std::span(bytes).subspan(2)), replaced + replaced);
    Tokens all;
    expect_ok(next->tokens(&all));
    EXPECT_EQ(take(decode(tokenizer, all, ControlText::kNone)), "One," + character);
  }
}

TEST_F(SnapshotFiles, HoldAnEmptySessionToo) {
  const auto empty = make_session(model_, options());
  expect_ok(empty->save(path_, {}));
  const auto loaded = take(Session::load(model_, path_, loading()));
  EXPECT_EQ(position(*loaded), Position{});
  const Tokens tokens = random_tokens(*model_, 50);
  expect_ok(loaded->feed_tokens(tokens));
  expect_ok(run(loaded).status);
  EXPECT_TRUE(same_bits(last_logits(*loaded), row_of(all_logits(model_, options(), tokens), *model_, 49)));
}

TEST_F(SnapshotFiles, HoldLabels) {
  const auto session = make_session(model_, options());
  const std::string text = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen";
  const std::vector<TextLabel> labels = {{0, 20, 7}, {20, 60, -3}};
  expect_ok(session->feed_text(text, false, true, labels));
  expect_ok(session->feed_tokens(random_tokens(*model_, 100)));
  expect_ok(run(session, generating(3)).status);
  expect_ok(session->save(path_, {}));
  const auto loaded = take(Session::load(model_, path_, loading()));
  std::vector<LabelAttention> before, after;
  expect_ok(session->label_attention(&before));
  expect_ok(loaded->label_attention(&after));
  ASSERT_EQ(after.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(after[i].id, before[i].id);
    EXPECT_EQ(after[i].first_token, before[i].first_token);
    EXPECT_EQ(after[i].n_tokens, before[i].n_tokens);
  }
}

TEST_F(SnapshotFiles, HoldPositions) {
  const auto session = make_session(model_, with_strategy("full(kv_chunk=16)"));
  const Tokens tokens = random_tokens(*model_, 60);
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < 60; ++i) positions.push_back(i + (i >= 20 ? 13 : 0) + (i >= 41 ? 5 : 0));
  expect_ok(session->feed_positions(tokens, positions));
  expect_ok(run(session).status);
  expect_ok(session->save(path_, {}));
  const auto loaded = take(Session::load(model_, path_, loading()));
  for (const auto& each : {session, loaded}) {
    expect_ok(each->feed_tokens(random_tokens(*model_, 10, 5)));
    expect_ok(run(each).status);
  }
  EXPECT_TRUE(same_bits(last_logits(*session), last_logits(*loaded)));
}

TEST_F(SnapshotFiles, HoldConversations) {
  const auto model = quire::test::load("text_256");
  model->tokenizer = chat_tokenizer();
  const auto session = make_session(model, with_strategy("full"));
  const std::vector<ChatMessage> ask = {{"system", "be brief"}, {"user", "one"}}, more = {{"user", "two"}};
  expect_ok(session->feed_messages(ask, {.date = ChatDate{2025, 1, 2}}, "chatml"));
  expect_ok(run(session, generating(5)).status);
  expect_ok(session->save(path_, {}));
  const auto loaded = take(Session::load(model, path_, loading()));
  for (const auto& each : {session, loaded}) {
    expect_ok(each->feed_messages(more, {.date = ChatDate{2025, 1, 2}}, ""));
    expect_ok(run(each).status);
  }
  EXPECT_EQ(position(*session), position(*loaded));
  EXPECT_TRUE(same_bits(last_logits(*session), last_logits(*loaded)));
}

TEST_F(SnapshotFiles, OfOthersAreRefusedByTheFieldThatDiffers) {
  expect_ok(make(70)->save(path_, {}));
  const Status model = failure(quire::test::load("text_256"), path_);
  EXPECT_EQ(model.code(), Code::kInvalidArgument);
  EXPECT_THAT(model.message(), HasSubstr("its model is"));
  LoadOptions other = loading();
  other.session.strategy = "full";
  other.strategy_given = true;
  const Status strategy = failure(model_, path_, other);
  EXPECT_EQ(strategy.code(), Code::kInvalidArgument);
  EXPECT_THAT(strategy.message(), HasSubstr("its strategy is longheads(chunk=16"));
  other = loading();
  other.session.kv_type = ElementType::kF32;
  other.kv_type_given = true;
  const Status type = failure(model_, path_, other);
  EXPECT_EQ(type.code(), Code::kInvalidArgument);
  EXPECT_THAT(type.message(), HasSubstr("its kv_type is f16; here it is f32"));
  // The same said in other words.
  other = loading();
  other.session.strategy = "longheads(chunks=5, chunk=16)";
  other.strategy_given = true;
  expect_ok(failure(model_, path_, other));
  EXPECT_EQ(failure(model_, folder_.path() + "/missing").code(), Code::kNotFound);
  EXPECT_EQ(failure(model_, path_, loading("", 1000)).code(), Code::kBudget);
}

// Every byte of what is read at once: refused, or harmless because nothing means anything there.
TEST_F(SnapshotFiles, DamagedAnywhereAreRefused) {
  expect_ok(make(70)->save(path_, {}));
  const std::string whole = read_file(path_), damaged = folder_.path() + "/damaged.quire";
  const auto expect_refused = [&](const std::string& bytes, const std::string& what) {
    write_file(damaged, bytes);
    const Status status = failure(model_, damaged);
    ASSERT_EQ(status.code(), Code::kBadFile) << what << ": " << status.message();
    ASSERT_THAT(status.message(), HasSubstr(damaged));
    ASSERT_GE(status.offset(), 0) << what << ": " << status.message();
    ASSERT_LE(status.offset(), static_cast<int64_t>(bytes.size())) << what;
  };
  const auto flipped = [&](size_t at) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    return bytes;
  };
  for (size_t at = 0; at < 64; ++at) expect_refused(flipped(at), "header, byte " + std::to_string(at));
  const size_t index = whole.find("{\"contents\"");
  ASSERT_NE(index, std::string::npos);
  // The zeros before the footer have no meaning.
  size_t padding = whole.size() - 64;
  while (padding > index && whole[padding - 1] == 0) --padding;
  for (size_t at = index; at < whole.size(); ++at) {
    if (at >= padding && at < whole.size() - 64) continue;
    if (at < whole.size() - 64 && at % 7 != 0 && at > index + 200) continue;  // one checksum covers them all
    expect_refused(flipped(at), "index, byte " + std::to_string(at));
  }
  for (const size_t n : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{100}, size_t{128}, whole.size() / 2,
                         whole.size() - 64, whole.size() - 1}) {
    expect_refused(whole.substr(0, n), std::to_string(n) + " bytes");
  }
}

// Also those that mean nothing.
TEST_F(SnapshotFiles, VerifyingFindsEveryOtherByte) {
  expect_ok(make(70)->save(path_, {}));
  const std::string whole = read_file(path_);
  const auto verify = [](const std::string& bytes) {
    return verify_snapshot(std::make_shared<MemorySource>(bytes), {});
  };
  expect_ok(verify(whole));
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << at % 8));
    const Status status = verify(bytes);
    ASSERT_EQ(status.code(), Code::kBadFile) << "byte " << at;
    ASSERT_GE(status.offset(), 0) << status.message();
    ASSERT_LE(status.offset(), static_cast<int64_t>(at)) << status.message();
  }
  for (const auto& more : {std::string("x"), std::string(64, 0)}) {
    EXPECT_THAT(verify(whole + more).message(), HasSubstr("the last whole snapshot ends at byte"));
    write_file(path_, whole + more);
    expect_ok(failure(model_, path_));  // it loads as what a save that a crash cut short leaves
  }
}

// A record that is damaged ends the stream that needs it; the session lives on where it is not needed.
TEST_F(SnapshotFiles, DamagedRecordsEndAStreamAndNotTheSession) {
  const auto saved = make_session(model_, with_strategy("full(kv_chunk=16)"));
  const Tokens tokens = random_tokens(*model_, 70);
  expect_ok(saved->feed_tokens(tokens));
  expect_ok(run(saved).status);
  expect_ok(saved->save(path_, {}));
  std::string bytes = read_file(path_);
  const int64_t record = stats(*saved).kv_record_bytes;
  const size_t third_chunk = 64 + static_cast<size_t>(2 * 2 * record) + 100;  // two layers before it, each two chunks
  bytes[third_chunk] = static_cast<char>(bytes[third_chunk] ^ 1);
  write_file(path_, bytes);
  const auto loaded = take(Session::load(model_, path_, loading()));
  expect_ok(loaded->feed_tokens(random_tokens(*model_, 1, 9)));
  for (int attempt = 0; attempt < 2; ++attempt) {
    const Outcome outcome = run(loaded, generating(3));
    EXPECT_EQ(outcome.status.code(), Code::kBadFile);
    EXPECT_THAT(outcome.status.message(), HasSubstr(path_));
    EXPECT_EQ(position(*loaded), (Position{70, 1}));
  }
  EXPECT_EQ(loaded->save(folder_.path() + "/again.quire", {}).code(), Code::kBadFile);
  expect_ok(loaded->truncate(20));
  expect_ok(run(loaded).status);
  const auto expected = all_logits(model_, with_strategy("full(kv_chunk=16)"), tokens);
  EXPECT_TRUE(same_bits(last_logits(*loaded), row_of(expected, *model_, 19)));
}

TEST_F(SnapshotFiles, AppearWholeOrNotAtAll) {
  const auto session = make(70);
  expect_ok(session->save(path_, {}));
  const std::string before = read_file(path_);
  expect_ok(session->feed_tokens(random_tokens(*model_, 20, 3)));
  // A full disk, at every place.
  const auto size = static_cast<int64_t>(before.size());
  for (int64_t room = 0; room < size; room += 1 + size / 50) {
    const FullDisk full(room);
    const Status status = session->save(path_, {});
    ASSERT_EQ(status.code(), Code::kIo) << room;
    ASSERT_THAT(status.message(), HasSubstr(path_));
  }
  // Cancelled before each block.
  for (int blocks = 0;; ++blocks) {
    CancelToken cancel;
    int left = blocks;
    if (left == 0) cancel.cancel();
    const Status status = session->save(path_, {&cancel, [&](int64_t, int64_t) {
                                                  if (--left == 0) cancel.cancel();
                                                }});
    if (status.ok()) break;
    ASSERT_EQ(status.code(), Code::kCancelled);
    ASSERT_EQ(read_file(path_), before);
  }
  EXPECT_NE(read_file(path_), before);  // the last one was complete
  expect_ok(failure(model_, path_));
  EXPECT_EQ(position(*session), (Position{70, 20}));
  EXPECT_EQ(session->save(folder_.path() + "/no/such", {}).code(), Code::kNotFound);
  EXPECT_EQ(session->save(folder_.path(), {}).code(), Code::kIo);
}

TEST_F(SnapshotFiles, ProgressCountsEveryByteOfTheCache) {
  const auto session = make(70);
  int64_t last = 0, total = 0;
  expect_ok(session->save(path_, {nullptr, [&](int64_t done, int64_t of) {
                                    EXPECT_GT(done, last);
                                    last = done, total = of;
                                  }}));
  EXPECT_EQ(last, total);
  EXPECT_GT(total, 0);
}

TEST_F(SnapshotFiles, SayWhatTheyAre) {
  const auto session = make(70);
  expect_ok(session->feed_tokens(random_tokens(*model_, 20, 3)));
  expect_ok(session->save(path_, {}));
  const std::string text = take(describe_snapshot(path_));
  EXPECT_THAT(text, HasSubstr("\"version\":1"));
  EXPECT_THAT(text, HasSubstr("\"n_tokens\":70"));
  EXPECT_THAT(text, HasSubstr("\"n_pending\":20"));
  EXPECT_THAT(text, HasSubstr("\"n_generated\":0"));
  EXPECT_THAT(text, HasSubstr("\"n_gaps\":0"));
  EXPECT_THAT(text, HasSubstr("\"model\":\"" + model_->llama->identity() + "\""));
  EXPECT_THAT(text, HasSubstr("\"bytes\":" + std::to_string(read_file(path_).size())));
}

TEST_F(SnapshotFiles, AreNotMadeDuringAStream) {
  const auto session = make(70);
  const auto stream = take(GenerationStream::open(session, generating(5)));
  EXPECT_EQ(session->save(path_, {}).code(), Code::kBusy);
  expect_ok(read(*stream).status);
  expect_ok(session->save(path_, {}));
  session->close();
  EXPECT_EQ(session->save(path_, {}).code(), Code::kClosed);
}

}  // namespace
}  // namespace quire::test
