// Strategies that drop keys: a text is cut, taken over and kept at the places where it was fed or generated, to the bit
// as if it had been read anew, and without being read again; and memory holds what it should.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "lib/model/memory_plan.h"
#include "tests/source_path.h"
#include "tests/unit/kv/spill_directory.h"
#include "tests/unit/model/temporary_folder.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

constexpr int64_t kChunk = 16;
constexpr int64_t kFeed = 96;  // blocks and windows end where they do in a text that is fed at once

struct Case {
  const char* model;
  const char* strategy;
  bool shares = true;  // chunks with other sessions
  int64_t old_after = kNoLimit;
  bool keeps_behind_windows = false;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model << ", " << c.strategy;
  if (c.old_after != kNoLimit) *out << ", old after " << c.old_after;
  if (c.keeps_behind_windows) *out << ", keeping all behind windows";
}

const Case kCases[] = {{"short_128", "streaming_llm(sinks=3, recent=50, kv_chunk=16)"},
                       {"short_128", "lm_infinite(sinks=20, recent=40, kv_chunk=16)"},
                       {"text_256", "s2(group=32, kv_chunk=16)"},
                       {"short_128", "streaming_llm(sinks=3, recent=50, kv_chunk=16)", true, 100},
                       {"text_256", "scca_fixed(chunk=32, kv_chunk=16)"},
                       {"text_256", "scca_flow(chunk=32, kv_chunk=16)"},
                       {"short_128", "dca(chunk=8, parts=intra, kv_chunk=16)"},
                       {"mistral_window_64", "full(kv_chunk=16)"},
                       {"mistral_window_64", "full(kv_chunk=16)", true, 0},
                       {"gemma3", "streaming_llm(sinks=3, recent=70, kv_chunk=16)"},
                       {"gemma3", "streaming_llm(sinks=3, recent=70, kv_chunk=16)", true, kNoLimit, true},
                       {"gemma3", "streaming_llm(sinks=3, recent=10, kv_chunk=16)", true, kNoLimit, true},
                       {kWithBeacons, "beacon(ratio=4, kv_chunk=16)", false},
                       {kWithBeacons, "beacon(ratio=4, kv_chunk=16)", false, 0}};

class DroppedKeys : public testing::TestWithParam<Case> {
 protected:
  SessionOptions options() const {
    SessionOptions options = with_strategy(GetParam().strategy);
    options.old_text = {.type = ElementType::kInt8, .after = GetParam().old_after};
    options.keep_behind_windows = GetParam().keeps_behind_windows;
    options.prefill_block = 24;
    return options;
  }
  SessionOptions sharing() const {
    SessionOptions options = this->options();
    options.reuse_prefixes = true;
    return options;
  }
  MemoryRequest request(int64_t n_tokens) const {
    MemoryRequest request;
    const std::string golden = source_path("tests/golden/");
    if (GetParam().model == kWithBeacons) {
      request.path = golden + "models/text_256";
      request.beacon_directory = golden + "beacon/plugin";
    } else {
      request.path = golden + "models/" + GetParam().model;
    }
    request.strategy = GetParam().strategy;
    request.old_text = options().old_text;
    request.keeps_behind_windows = GetParam().keeps_behind_windows;
    request.n_tokens = n_tokens;
    request.prefill_block = options().prefill_block;
    return request;
  }
  std::shared_ptr<Model> load_keeping(int64_t bytes) const {
    RuntimeOptions runtime;
    runtime.n_threads = 2;
    runtime.prefix_cache_bytes = bytes;
    return load(GetParam().model, runtime);
  }

  // Of old text full records go soon, and with them what is read at a place that is not old there.
  bool keeps_places() const { return GetParam().old_after == kNoLimit || GetParam().old_after == 0; }
  // Texts go on anywhere at a chunk's edge.
  bool sees_own_chunk_alone() const {
    return std::string(GetParam().strategy).find("parts=intra") != std::string::npos;
  }

  std::shared_ptr<Model> model_ = load(GetParam().model);
};
INSTANTIATE_TEST_SUITE_P(Strategies, DroppedKeys, testing::ValuesIn(kCases));

// Tokens that are computed or taken over again where a session is cut to n tokens.
int64_t n_reread(const std::shared_ptr<Session>& session, int64_t n) {
  const auto n_read = [&] { return stats(*session).n_prefilled + stats(*session).n_reused; };
  expect_ok(session->truncate(n));
  const int64_t before = n_read();
  expect_ok(run(session).status);
  return n_read() - before;
}

// A document, two questions with answers, and a third one.
std::shared_ptr<Session> conversation(const std::shared_ptr<Model>& model, const SessionOptions& options) {
  auto session = make_session(model, options);
  for (const int64_t n : {300, 20, 60, 20, 60, 40}) {
    if (n == 60) {
      expect_ok(run(session, generating(n)).status);
    } else {
      expect_ok(session->feed_tokens(random_tokens(*model, n, static_cast<uint32_t>(n))));
    }
  }
  expect_ok(run(session).status);
  return session;
}

TEST_P(DroppedKeys, ATextCanBeCutWhereItWasFedAndGenerated) {
  const auto whole = conversation(model_, options());
  ASSERT_EQ(position(*whole), (Position{500, 0}));
  EXPECT_GT(stats(*whole).kv_chunks_evicted, 0);
  Tokens tokens;
  expect_ok(whole->tokens(&tokens));
  const Logits expected = all_logits(model_, options(), tokens);
  const TemporaryFolder folder;
  expect_ok(whole->save(folder.path() + "/saved.quire", {}));
  const auto loaded = take(Session::load(model_, folder.path() + "/saved.quire", {}));
  // Up to four chunks before the end, and the last four places where something was fed or generated, nothing is read
  // again but what of a chunk cannot be written to, or is old.
  const std::pair<int64_t, bool> cuts[] = {{499, true}, {470, true},  {436, true}, {460, true}, {450, true},
                                           {400, true}, {390, true},  {380, true}, {320, true}, {310, true},
                                           {304, true}, {250, false}, {17, false}};
  for (const auto& [n, held] : cuts) {
    SCOPED_TRACE(n);
    for (const auto& session : {whole, loaded}) {
      const auto fork = take(session->fork());
      const int64_t again = n_reread(fork, n);
      if (held && (keeps_places() || n >= 436)) {
        EXPECT_LE(again, kChunk);
      }
      EXPECT_TRUE(same_bits(row_of(expected, *model_, n - 1), last_logits(*fork)));
      EXPECT_EQ(stats(*fork).n_tokens, n);
    }
  }
}

// What is there after a cut says nothing of what is there after the next one.
TEST_P(DroppedKeys, ATextCanBeCutAgain) {
  const auto whole = conversation(model_, options());
  Tokens tokens;
  expect_ok(whole->tokens(&tokens));
  const Logits expected = all_logits(model_, options(), tokens);
  for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{400, 320},
                                           {320, 310, 249},
                                           {381, 256, 249},
                                           {305, 301},
                                           {249, 245, 17},
                                           {248, 400, 241}}) {
    const auto fork = take(whole->fork());
    for (const int64_t n : cuts) {
      SCOPED_TRACE(n);
      const int64_t n_tokens = stats(*fork).n_tokens;
      if (n > n_tokens) {
        expect_ok(fork->feed_tokens(std::span(tokens).subspan(n_tokens, n - n_tokens)));
      } else {
        expect_ok(fork->truncate(n));
      }
      expect_ok(run(fork).status);
      EXPECT_TRUE(same_bits(row_of(expected, *model_, n - 1), last_logits(*fork)));
    }
  }
}

// Chunks that are kept for the first place alone have narrow records alone, and are young again for the second place.
TEST(DroppedOldKeys, AreNoFullOnesWhenTheyAreYoungAgain) {
  const auto model = load("short_128");
  SessionOptions options = with_strategy("streaming_llm(sinks=3, recent=20, kv_chunk=16)");
  options.old_text = {.type = ElementType::kInt8, .after = 150};
  const Tokens text = random_tokens(*model, 400);
  const Logits expected = all_logits(model, options, text);
  const auto session = make_session(model, options);
  for (const auto& [begin, end] : {std::pair{0, 180}, {180, 260}, {260, 400}}) {
    expect_ok(session->feed_tokens(std::span(text).subspan(begin, end - begin)));
    expect_ok(run(session).status);
  }
  for (const int64_t n : {260, 180}) {
    expect_ok(session->truncate(n));
    expect_ok(run(session).status);
    EXPECT_TRUE(same_bits(row_of(expected, *model, n - 1), last_logits(*session)));
  }
}

TEST_P(DroppedKeys, LoadedTextsAreSharedWithTheirGaps) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/saved.quire";
  expect_ok(conversation(model_, sharing())->save(path, {}));
  LoadOptions loading;
  loading.session = sharing();
  const auto restored = [&] {
    const auto session = take(Session::load(model_, path, loading));
    expect_ok(session->feed_tokens(random_tokens(*model_, 5)));
    expect_ok(run(session).status);
    return std::pair(session, stats(*session).kv_chunks_restored);
  };
  const auto first = restored(), second = restored();
  EXPECT_TRUE(same_bits(last_logits(*first.first), last_logits(*second.first)));
  EXPECT_EQ(first.second > 0, !sees_own_chunk_alone());
  if (GetParam().shares) {  // but for the chunk that is written to
    EXPECT_LE(second.second, first.second / 4);
  }
}

TEST_P(DroppedKeys, SessionsFindATextWhereItWasFedAndAtItsEnd) {
  const auto first = make_session(model_, sharing());
  const Tokens text = random_tokens(*model_, 700);
  const auto part = [&](int64_t begin, int64_t end) { return std::span(text).subspan(begin, end - begin); };
  expect_ok(first->feed_tokens(part(0, 300)));
  expect_ok(first->feed_tokens(part(300, 700)));
  expect_ok(run(first).status);
  const auto reused = [&](int64_t n) {
    SCOPED_TRACE(n);
    const Tokens more = random_tokens(*model_, 30, 5);
    Tokens all(text.begin(), text.begin() + n);
    all.insert(all.end(), more.begin(), more.end());
    const auto second = make_session(model_, sharing()), alone = make_session(model_, options());
    for (const auto& session : {second, alone}) {
      expect_ok(session->feed_tokens(all));
      expect_ok(run(session).status);
    }
    EXPECT_TRUE(same_bits(last_logits(*alone), last_logits(*second)));
    const int64_t n_reused = stats(*second).n_reused;
    if (n_reused == 688) {  // it can be cut a few chunks before the end, within what was taken over
      const int64_t cut = n_reused - 2 * kChunk + 3;
      const auto fork = take(second->fork()), other = take(alone->fork());
      EXPECT_LE(n_reread(fork, cut), kChunk);
      EXPECT_LE(n_reread(other, cut), kChunk);
      EXPECT_TRUE(same_bits(last_logits(*other), last_logits(*fork)));
    }
    // It goes on as any other.
    for (const auto& session : {second, alone}) {
      expect_ok(session->feed_tokens(more));
      expect_ok(run(session).status);
      expect_ok(session->truncate(n));
      expect_ok(run(session).status);
    }
    EXPECT_TRUE(same_bits(last_logits(*alone), last_logits(*second)));
    return n_reused;
  };
  const bool shares = GetParam().shares;
  EXPECT_EQ(reused(700), shares ? 688 : 0);
  EXPECT_EQ(reused(640), shares ? 640 : 0);
  EXPECT_GE(reused(500), shares && keeps_places() ? 288 : 0);  // the document's
  EXPECT_EQ(reused(300), shares && keeps_places() ? 288 : 0);
  if (!sees_own_chunk_alone()) {
    EXPECT_LT(reused(200), 200 - kChunk);
  }
}

TEST_P(DroppedKeys, ReleasedSessionsAreFound) {
  const auto model = load_keeping(int64_t{1} << 30);
  const Tokens text = random_tokens(*model, 400);
  const Logits expected = all_logits(model_, options(), text);
  const auto read = [&] {
    const auto session = make_session(model, sharing());
    expect_ok(session->feed_tokens(text));
    expect_ok(run(session).status);
    EXPECT_TRUE(same_bits(row_of(expected, *model, 399), last_logits(*session)));
    const int64_t n_reused = stats(*session).n_reused;
    session->close();
    return n_reused;
  };
  const auto kept = [&] { return model->runtime->prefix_cache().stats(); };
  EXPECT_EQ(read(), 0);
  for (int i = 0; i < 1000 && GetParam().shares && kept().bytes == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(read(), GetParam().shares ? 384 : 0);
  EXPECT_EQ(kept().n_hits > 0, GetParam().shares);
}

// Behind what a step takes over, queries see less of the text before it. If the step then has no room, the text goes on
// from where it was.
TEST_P(DroppedKeys, WhatIsTakenOverWithoutRoomLosesNothing) {
  if (!GetParam().shares) GTEST_SKIP();
  SessionOptions sharing = this->sharing();
  sharing.prefill_block = 320;
  const Tokens text = random_tokens(*model_, 900);
  const auto part = [&](int64_t begin, int64_t end) { return std::span(text).subspan(begin, end - begin); };
  const auto read = [&](const std::shared_ptr<Session>& session, std::span<const int32_t> tokens) {
    expect_ok(session->feed_tokens(tokens));
    expect_ok(run(session).status);
  };
  const auto alone = make_session(model_, sharing);
  read(alone, text);
  int64_t n_without_room = 0;
  Status status(Code::kBudget, "");
  for (int64_t more = 0; !status.ok(); more += stats(*alone).kv_record_bytes) {
    SCOPED_TRACE(more);
    RuntimeOptions runtime;
    runtime.n_threads = 2;
    runtime.kv_memory_bytes = stats(*alone).kv_bytes_peak + more;
    const auto model = load(GetParam().model, runtime);
    const auto session = make_session(model, sharing);
    read(session, part(0, 240));
    auto longer = take(session->fork());
    read(longer, part(240, 464));
    read(longer, random_tokens(*model, 3));
    expect_ok(session->feed_tokens(part(240, 900)));
    status = run(session).status;
    if (!status.ok()) {
      ASSERT_EQ(status.code(), Code::kBudget) << status.message();
      ++n_without_room;
    }
    longer.reset();
    expect_ok(run(session).status);
    ASSERT_TRUE(same_bits(last_logits(*alone), last_logits(*session)));
  }
  EXPECT_GT(n_without_room, 0);
}

// A longer text that begins as a shorter one lacks what the shorter one's end sees.
TEST_P(DroppedKeys, AShorterTextIsKeptBesideALongerOne) {
  const Tokens text = random_tokens(*model_, 600);
  const auto read = [&](const std::shared_ptr<Model>& model, std::span<const int32_t> tokens) {
    const auto session = make_session(model, sharing());
    expect_ok(session->feed_tokens(tokens));
    expect_ok(run(session).status);
    const int64_t n_reused = stats(*session).n_reused;
    session->close();
    for (int i = 0; i < 1000 && session.use_count() > 1; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return n_reused;
  };
  Tokens other(text.begin(), text.begin() + 300);
  for (const int32_t id : random_tokens(*model_, 40, 9)) other.push_back(id);
  for (const bool longer_first : {false, true}) {
    SCOPED_TRACE(longer_first ? "the longer one first" : "the shorter one first");
    const auto model = load_keeping(int64_t{1} << 30);
    if (longer_first) read(model, text);
    read(model, std::span(text).first(300));
    if (!longer_first) read(model, text);
    // Where a window's records are gone, the shorter text is computed anew, and what of it others hold it does not
    // keep.
    const bool drops_windows = !model->llama->config().window_layers.empty() && !GetParam().keeps_behind_windows;
    if (!longer_first || !drops_windows) {
      EXPECT_EQ(read(model, other), GetParam().shares ? 288 : 0);
    }
    EXPECT_EQ(read(model, text), GetParam().shares ? 592 : 0);
  }
}

TEST_P(DroppedKeys, MemoryIsWhatThePlanSays) {
  for (const int64_t n : {30, 100, 103, 160, 250, 1000}) {
    SCOPED_TRACE(n);
    const auto session = make_session(model_, options());
    expect_ok(session->feed_tokens(random_tokens(*model_, n)));
    expect_ok(run(session).status);
    const MemoryPlan plan = take(plan_memory(model_->llama->backend(), request(n)));
    EXPECT_EQ(plan.kv_bytes, stats(*session).kv_bytes_peak);
  }
}

// What is kept beside what is seen goes where a budget has no room, and the text goes on.
TEST_P(DroppedKeys, AsMuchAsIsSeenSuffices) {
  constexpr int64_t kTokens = 480;
  const Tokens text = random_tokens(*model_, kTokens);
  const Logits expected = all_logits(model_, options(), text);
  for (const int64_t block : {24, 96}) {
    MemoryRequest request = this->request(kTokens);
    request.prefill_block = block;
    const int64_t all = take(plan_memory(model_->llama->backend(), request)).kv_bytes;
    request.kv_budget_bytes = 1;
    const std::string needs = plan_memory(model_->llama->backend(), request).status().message();
    ASSERT_THAT(needs, HasSubstr("the KV cache needs "));
    const int64_t least = std::stoll(needs.substr(needs.find("needs ") + 6));
    EXPECT_LT(least, all);
    for (int64_t budget = least; budget < all; budget += std::max<int64_t>(1, (all - least) / 9)) {
      SCOPED_TRACE(std::to_string(budget) + " bytes, blocks of " + std::to_string(block));
      request.kv_budget_bytes = budget;
      EXPECT_EQ(take(plan_memory(model_->llama->backend(), request)).kv_bytes, budget);
      SessionOptions small = options();
      small.prefill_block = block;
      small.kv_budget_bytes = budget;
      const auto session = make_session(model_, small);
      for (int64_t n = 0; n < kTokens; n += kFeed) expect_ok(session->feed_tokens(std::span(text).subspan(n, kFeed)));
      expect_ok(run(session).status);
      EXPECT_LE(stats(*session).kv_bytes_peak, budget);
      EXPECT_TRUE(same_bits(row_of(expected, *model_, kTokens - 1), last_logits(*session)));
      for (const int64_t n : {470, 460, 200}) {  // what is gone is read again
        expect_ok(session->truncate(n));
        expect_ok(run(session).status);
        EXPECT_TRUE(same_bits(row_of(expected, *model_, n - 1), last_logits(*session)));
      }
    }
  }
}

// The same of a session that takes a text over.
TEST_P(DroppedKeys, AsMuchAsIsSeenSufficesToTakeATextOver) {
  const Tokens text = random_tokens(*model_, 480);
  const auto first = make_session(model_, sharing());
  expect_ok(first->feed_tokens(text));
  expect_ok(run(first).status);
  MemoryRequest request = this->request(480);
  request.kv_budget_bytes = 1;
  const std::string needs = plan_memory(model_->llama->backend(), request).status().message();
  ASSERT_THAT(needs, HasSubstr("the KV cache needs "));
  SessionOptions small = sharing();
  small.kv_budget_bytes = std::stoll(needs.substr(needs.find("needs ") + 6));
  const auto second = make_session(model_, small);
  expect_ok(second->feed_tokens(text));
  expect_ok(run(second).status);
  EXPECT_EQ(stats(*second).n_reused, GetParam().shares ? 464 : 0);
  EXPECT_LE(stats(*second).kv_bytes_peak, small.kv_budget_bytes);
  EXPECT_TRUE(same_bits(last_logits(*first), last_logits(*second)));
}

// The same of a file: its budget holds what is seen.
TEST_P(DroppedKeys, AFileOfAsMuchAsIsSeenSuffices) {
  constexpr int64_t kTokens = 480;
  const SpillDirectory spill;
  const Tokens text = random_tokens(*model_, kTokens);
  const Logits expected = all_logits(model_, options(), text);
  MemoryRequest request = this->request(kTokens);
  request.spill = true;
  request.spill_budget_bytes = 1;
  const std::string needs = plan_memory(model_->llama->backend(), request).status().message();
  ASSERT_THAT(needs, HasSubstr("bytes of the file"));
  request.spill_budget_bytes = std::stoll(needs.substr(needs.find("needs ") + 6));
  expect_ok(plan_memory(model_->llama->backend(), request).status());
  SessionOptions small = options();
  small.spill_directory = spill.path();
  small.spill_budget_bytes = request.spill_budget_bytes;
  small.kv_budget_bytes = int64_t{1} << 20;
  const auto session = make_session(model_, small);
  for (int64_t n = 0; n < kTokens; n += kFeed) expect_ok(session->feed_tokens(std::span(text).subspan(n, kFeed)));
  expect_ok(run(session).status);
  EXPECT_TRUE(same_bits(row_of(expected, *model_, kTokens - 1), last_logits(*session)));
}

}  // namespace
}  // namespace quire::test
