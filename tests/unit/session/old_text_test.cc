// Old text in a narrower type: the tokens are the same, to the bit, however the text comes, wherever records lie, and
// whatever became of the session before; and memory holds what it should.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/model/memory_plan.h"
#include "lib/session/describe_snapshot.h"
#include "tests/source_path.h"
#include "tests/unit/kv/spill_directory.h"
#include "tests/unit/model/temporary_folder.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

constexpr int64_t kChunk = 16, kLength = 230;

const char* const kStrategies[] = {"full(kv_chunk=16)",
                                   "dca(kv_chunk=16)",
                                   "longheads(chunk=16, chunks=5)",
                                   "dca_topk(chunk=16, chunks=6, sticky=2, kv_chunk=32, one_in=6)",
                                   "rerope(window=40, kv_chunk=16)",
                                   "self_extend(group=4, window=20, kv_chunk=16)",
                                   "streaming_llm(sinks=3, recent=100, kv_chunk=16)",
                                   "sda(dilation=3)",
                                   "beacon(ratio=4, kv_chunk=16)"};

SessionOptions with_old(const std::string& strategy, int64_t after, int64_t block = 24,
                        ElementType type = ElementType::kInt8) {
  SessionOptions options = with_strategy(strategy);
  options.old_text = {.type = type, .after = after};
  options.prefill_block = block;
  return options;
}

class OldTextSessions : public testing::TestWithParam<std::tuple<const char*, int64_t, ElementType>> {
 protected:
  std::string strategy() const { return std::get<0>(GetParam()); }
  SessionOptions options(int64_t block = 24) const {
    return with_old(strategy(), std::get<1>(GetParam()), block, std::get<2>(GetParam()));
  }
  std::span<const int32_t> tokens(int64_t begin, int64_t end) const {
    return std::span(tokens_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  }
  // Feeds up to `end` what the session does not have, and compares what it says then.
  void go_on(const std::shared_ptr<Session>& session, int64_t end = kLength) const {
    const Position at = position(*session);
    expect_ok(session->feed_tokens(tokens(at.tokens + at.pending, end)));
    expect_ok(run(session).status);
    EXPECT_TRUE(same_bits(row_of(expected_, *model_, end - 1), last_logits(*session))) << end;
  }

  std::shared_ptr<Model> model_ = load(model_for(strategy()), 2);
  Tokens tokens_ = random_tokens(*model_, kLength);
  Logits expected_ = all_logits(model_, options(512), tokens_);
  SpillDirectory spill_;
};
INSTANTIATE_TEST_SUITE_P(Strategies, OldTextSessions,
                         testing::Combine(testing::ValuesIn(kStrategies), testing::Values(0, 40),
                                          testing::Values(ElementType::kInt8)));
INSTANTIATE_TEST_SUITE_P(
    Int4, OldTextSessions,
    testing::Combine(testing::Values("full(kv_chunk=16)", "dca(kv_chunk=48)", "longheads(chunk=16, chunks=5)",
                                     "rerope(window=40, kv_chunk=16)", "beacon(ratio=4, kv_chunk=16)"),
                     testing::Values(0), testing::Values(ElementType::kInt4)));

TEST_P(OldTextSessions, SplitsAndBlocksChangeNoBit) {
  for (const auto& [block, step] : {std::pair<int64_t, size_t>{1, 0}, {7, 0}, {64, 29}, {16, 1}, {512, 100}}) {
    EXPECT_TRUE(same_bits(expected_, all_logits(model_, options(block), tokens_, step))) << block << ", " << step;
  }
}

// It is read so: from the token on for which text is old, and not before.
TEST_P(OldTextSessions, IsReadNarrow) {
  const Logits full = all_logits(model_, with_old(strategy(), kNoLimit, 512), tokens_);
  const int64_t chunk = take(choose_strategy(*model_, options()))->kv_chunk();
  const int64_t first = chunk + ceil_div(std::get<1>(GetParam()), chunk) * chunk;
  const auto same = static_cast<size_t>(std::min(first, kLength) * vocab_size(*model_));
  EXPECT_TRUE(same_bits(std::span(full).first(same), std::span(expected_).first(same)));
  // A window of beacon holds no text that is older.
  const bool never = strategy().starts_with("beacon") && std::get<1>(GetParam()) > 0;
  EXPECT_EQ(same_bits(full, expected_), never || std::get<1>(GetParam()) >= kLength);
}

TEST_P(OldTextSessions, TiersAndBudgetsChangeNoBit) {
  const auto read = [&](const std::shared_ptr<Session>& session) {
    for (int64_t end = 50; end < kLength; end += 50) go_on(session, end);
    go_on(session);
  };
  const auto whole = make_session(model_, options());
  read(whole);
  const SessionStats all = stats(*whole);
  const int64_t kept = all.kv_bytes_peak - all.kv_full_bytes - all.kv_narrow_bytes;  // by selections
  for (const bool compresses : {false, true}) {
    for (const int64_t part : {2, 4}) {
      SessionOptions small = options();
      small.spill_directory = spill_.path();
      if (compresses) small.compressed_budget_bytes = int64_t{1} << 20;
      small.kv_budget_bytes = kept + (all.kv_full_bytes + all.kv_narrow_bytes) / part + 6 * all.kv_record_bytes;
      const auto session = make_session(model_, small);
      read(session);
      const SessionStats now = stats(*session);
      EXPECT_LE(now.kv_bytes_peak, small.kv_budget_bytes);
      EXPECT_EQ(now.kv_full_bytes, all.kv_full_bytes);
      EXPECT_EQ(now.kv_narrow_bytes, all.kv_narrow_bytes);
    }
  }
}

TEST_P(OldTextSessions, GoesOnAfterSavingAndInForks) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/saved.quire";
  auto session = make_session(model_, options());
  for (const int64_t n : {30, 64, 101, 190}) {
    go_on(session, n);
    expect_ok(session->save(path, {}));
    LoadOptions loading;
    const auto loaded = take(Session::load(model_, path, loading));
    const auto fork = take(loaded->fork());
    go_on(fork);
    go_on(loaded);
    expect_ok(loaded->save(path, {}));  // behind what is there
    go_on(take(Session::load(model_, path, loading)));
    go_on(take(session->fork()));
    session = take(session->fork());
  }
}

TEST_P(OldTextSessions, ATextThatWasCutGoesOn) {
  const auto session = make_session(model_, options());
  for (const auto& [all, n] : std::vector<std::pair<int64_t, int64_t>>{
           {100, 97}, {120, 60}, {200, 190}, {230, 128}, {230, 200}, {230, 16}, {90, 89}, {230, 165}}) {
    SCOPED_TRACE(std::to_string(n) + " of " + std::to_string(all));
    const int64_t before = std::min(position(*session).tokens, n);
    expect_ok(session->truncate(before));
    expect_ok(session->feed_tokens(tokens(before, n)));
    expect_ok(session->feed_tokens(random_tokens(*model_, all - n, 77)));
    expect_ok(run(session).status);
    expect_ok(session->truncate(n));
    expect_ok(run(session).status);
    EXPECT_TRUE(same_bits(row_of(expected_, *model_, n - 1), last_logits(*session)));
    if (n == 200) expect_ok(session->reset());
  }
}

TEST_P(OldTextSessions, SessionsShareWhatOneHasComputed) {
  SessionOptions reusing = options();
  reusing.reuse_prefixes = true;
  const auto first = make_session(model_, reusing);
  go_on(first, 200);
  int64_t reused = 0;
  for (const int64_t n : {40, 150, 190, 200, 230}) {
    const auto second = make_session(model_, reusing);
    go_on(second, n);
    reused = stats(*second).n_reused;
    expect_ok(second->truncate(n - 9));
    go_on(second, n);
  }
  EXPECT_EQ(reused > 0, !strategy().starts_with("beacon"));
}

// Whether the first one has become older meanwhile, or was cut.
TEST_P(OldTextSessions, SessionsOfOneSnapshotShareIt) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/saved.quire";
  const auto saved = make_session(model_, options());
  go_on(saved, 200);
  expect_ok(saved->save(path, {}));
  LoadOptions loading;
  loading.session.reuse_prefixes = true;
  const auto first = take(Session::load(model_, path, loading));
  go_on(first, 210);
  const auto second = take(Session::load(model_, path, loading));
  go_on(second);
  const auto third = take(Session::load(model_, path, loading));
  second->close();
  go_on(third);
  // What comes behind chunks that were dropped is not shared.
  if (!strategy().starts_with("beacon") && !strategy().starts_with("streaming_llm")) {
    EXPECT_GT(stats(*first).kv_chunks_restored, 0);
    EXPECT_EQ(stats(*third).kv_chunks_restored, 0);
  }
  expect_ok(first->truncate(100));
  const auto fourth = take(Session::load(model_, path, loading));
  go_on(fourth);
  expect_ok(third->truncate(60));
  go_on(third);
  go_on(first);
}

INSTANTIATE_TEST_SUITE_P(Late, OldTextSessions,
                         testing::Combine(testing::Values("full(kv_chunk=16)"), testing::Values(230),
                                          testing::Values(ElementType::kInt8)));

// Of a long text, full records are held of so many tokens and the spare chunks; the plan says so.
TEST(OldTextMemory, IsWhatThePlanSays) {
  const auto model = load("short_128");
  for (const auto& [after, type] :
       {std::pair<int64_t, ElementType>{0, ElementType::kInt8}, {40, ElementType::kInt8}, {100, ElementType::kInt4}}) {
    for (const int64_t n : {20, 64, 65, 160, 300, 333}) {
      SCOPED_TRACE(std::to_string(n) + " tokens, after " + std::to_string(after));
      SessionOptions options = with_old("full(kv_chunk=16)", after, 24, type);
      const auto session = make_session(model, options);
      expect_ok(session->feed_tokens(random_tokens(*model, n)));
      expect_ok(run(session).status);
      const SessionStats now = stats(*session);
      MemoryRequest request;
      request.path = source_path("tests/golden/models/short_128");
      request.strategy = options.strategy;
      request.old_text = options.old_text;
      request.n_tokens = n;
      request.prefill_block = options.prefill_block;
      const MemoryPlan plan = take(plan_memory(model->llama->backend(), request));
      const int64_t layers = model->llama->config().n_layers;
      EXPECT_GE(plan.kv_bytes, now.kv_bytes_peak);  // whatever feeds the text comes in
      EXPECT_LE(plan.kv_bytes, now.kv_bytes_peak + 2 * layers * now.kv_record_bytes);
      EXPECT_EQ(now.kv_bytes, now.kv_full_bytes + now.kv_narrow_bytes);
      const int64_t old = std::max<int64_t>(0, (n / kChunk * kChunk - after) / kChunk - ChunkStore::kSpareChunks);
      EXPECT_EQ(now.kv_full_bytes, (ceil_div(n, kChunk) - old) * layers * now.kv_record_bytes);
      EXPECT_EQ(now.kv_narrow_bytes, options.old_text.before(n - 1, kChunk) * plan.kv_bytes_per_token);
    }
  }
}

// A session that finds narrow records of its text made does not make them again.
TEST(OldTextMemory, NarrowRecordsAreSharedWhoeverMadeThem) {
  const auto model = load("short_128");
  SessionOptions options = with_old("full(kv_chunk=16)", 128, 16);
  options.reuse_prefixes = true;
  const auto first = make_session(model, options);
  expect_ok(first->feed_tokens(random_tokens(*model, 128)));
  expect_ok(run(first).status);
  const auto second = take(first->fork());
  EXPECT_EQ(stats(*first).kv_narrow_bytes, 0);
  const auto used = [&] { return model->residency->budget()->used(); };
  const int64_t before = used();
  const auto go_on = [&](Session& session, uint32_t seed) {
    expect_ok(session.feed_tokens(random_tokens(*model, 64, seed)));
    expect_ok(run(session.shared_from_this()).status);
    return stats(session);
  };
  const SessionStats one = go_on(*first, 2);
  EXPECT_GT(one.kv_narrow_bytes, 0);
  const int64_t after_one = used();
  const SessionStats two = go_on(*second, 3);
  EXPECT_EQ(two.kv_narrow_bytes, one.kv_narrow_bytes);
  EXPECT_EQ(used() - after_one, after_one - before - one.kv_narrow_bytes);  // its own full records
}

TEST(OldTextSnapshots, OfOtherTypesAreRefusedByTheField) {
  const auto model = load("short_128");
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/saved.quire";
  for (const ElementType type : {ElementType::kInt8, ElementType::kInt4}) {
    const ElementType other = type == ElementType::kInt8 ? ElementType::kInt4 : ElementType::kInt8;
    const std::string name = element_name(type);
    const auto session = make_session(model, with_old("full(kv_chunk=16)", 40, 24, type));
    expect_ok(session->feed_tokens(random_tokens(*model, 100)));
    expect_ok(run(session).status);
    expect_ok(session->save(path, {}));
    const auto refusal = [&](ElementType own, int64_t after) {
      LoadOptions loading;
      loading.old_text_given = true;
      loading.session.old_text = {.type = own, .after = after};
      return Session::load(model, path, loading).status();
    };
    EXPECT_THAT(refusal(type, 50).message(), HasSubstr("its old_after is 40; here it is 50"));
    EXPECT_THAT(refusal(type, kNoLimit).message(), HasSubstr("its kv_old_type is " + name + "; here it is none"));
    EXPECT_THAT(refusal(other, 40).message(),
                HasSubstr("its kv_old_type is " + name + "; here it is " + element_name(other)));
    expect_ok(refusal(type, 40));
    const auto fingerprint = [&](ElementType own, int64_t after) {
      return make_session(model, with_old("full(kv_chunk=16)", after, 24, own))->fingerprint();
    };
    EXPECT_EQ(session->fingerprint(), fingerprint(type, 40));
    EXPECT_NE(session->fingerprint(), fingerprint(other, 40));
    EXPECT_NE(session->fingerprint(), fingerprint(type, 50));
    EXPECT_NE(session->fingerprint(), fingerprint(type, kNoLimit));
  }
}

// tests/golden/snapshots/version_2.quire: random_tokens(150), three generated ones, and random_tokens(5, seed 2)
// pending.
TEST(OldTextSnapshots, OfVersion2StayReadable) {
  const std::string golden = source_path("tests/golden/snapshots/version_2.quire");
  const SessionOptions options = with_old("longheads(chunk=16, chunks=5)", 0);
  const auto model = load("short_128");
  if (const char* out = std::getenv("QUIRE_WRITE_GOLDEN_SNAPSHOT")) {
    const auto session = make_session(model, options);
    expect_ok(session->feed_tokens(random_tokens(*model, 150)));
    expect_ok(run(session, generating(3)).status);
    expect_ok(session->feed_tokens(random_tokens(*model, 5, 2)));
    expect_ok(session->save(out, {}));
  }
  expect_ok(verify_snapshot(golden, {}));
  const auto loaded = take(Session::load(model, golden, LoadOptions()));
  ASSERT_EQ(position(*loaded), (Position{153, 5}));
  EXPECT_EQ(loaded->options().old_text.after, 0);
  std::vector<int32_t> tokens;
  expect_ok(loaded->tokens(&tokens));
  expect_ok(run(loaded).status);
  // Keys and values in the file may have been computed with other instructions.
  const Logits expected = all_logits(model, options, tokens), actual = last_logits(*loaded);
  const auto last = row_of(expected, *model, 157);
  for (size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], last[i], 2e-2) << i;
}

}  // namespace
}  // namespace quire::test
