// Layers with a window drop what lies behind it: the tokens are those of a session that keeps it, to the bit, however
// the text comes, wherever records lie, and whatever became of the session before; and memory holds what it should.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "lib/model/memory_plan.h"
#include "lib/session/describe_snapshot.h"
#include "tests/source_path.h"
#include "tests/unit/kv/spill_directory.h"
#include "tests/unit/model/temporary_folder.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

// Of gemma3: the window, the layers that have it, and the others.
constexpr int64_t kWindow = 40, kWindowed = 2, kOthers = 2;
constexpr int64_t kChunk = 16, kLength = 230;

struct Case {
  const char* strategy;
  int64_t old_after;  // kNoLimit: no text is old
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.strategy;
  if (c.old_after != kNoLimit) *out << ", old after " << c.old_after;
}

const Case kCases[] = {{"full(kv_chunk=16)", kNoLimit},
                       {"full(kv_chunk=16)", 0},
                       {"dca(kv_chunk=16)", kNoLimit},
                       {"dca(kv_chunk=48)", 40},
                       {"longheads(chunk=16, chunks=5)", kNoLimit},
                       {"longheads(chunk=16, chunks=4, select=group, begin=70)", 40},
                       {"dca_topk(chunk=16, chunks=6, sticky=2, kv_chunk=32, one_in=6)", kNoLimit},
                       {"self_extend(group=4, window=20, kv_chunk=16)", kNoLimit},
                       {"streaming_llm(sinks=3, recent=20, kv_chunk=16)", kNoLimit},
                       {"streaming_llm(sinks=3, recent=100, kv_chunk=16)", kNoLimit}};

SessionOptions options_of(const Case& c, bool keeps, int64_t block = 24) {
  SessionOptions options = with_strategy(c.strategy);
  options.old_text = {.type = ElementType::kInt8, .after = c.old_after};
  options.keep_behind_windows = keeps;
  options.prefill_block = block;
  return options;
}

class WindowLayerSessions : public testing::TestWithParam<Case> {
 protected:
  bool streams() const { return std::string(GetParam().strategy).starts_with("streaming"); }
  SessionOptions options(int64_t block = 24) const { return options_of(GetParam(), false, block); }
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

  std::shared_ptr<Model> model_ = load("gemma3", 2);
  Tokens tokens_ = random_tokens(*model_, kLength);
  Logits expected_ = all_logits(model_, options_of(GetParam(), true, 512), tokens_);
  SpillDirectory spill_;
};
INSTANTIATE_TEST_SUITE_P(Strategies, WindowLayerSessions, testing::ValuesIn(kCases));

TEST_P(WindowLayerSessions, SplitsAndBlocksChangeNoBit) {
  for (const auto& [block, step] : {std::pair<int64_t, size_t>{1, 0}, {7, 0}, {64, 29}, {16, 1}, {512, 100}}) {
    EXPECT_TRUE(same_bits(expected_, all_logits(model_, options(block), tokens_, step))) << block << ", " << step;
  }
}

TEST_P(WindowLayerSessions, TiersAndBudgetsChangeNoBit) {
  const auto whole = make_session(model_, options());
  go_on(whole);
  const SessionStats all = stats(*whole);
  const int64_t kept = all.kv_bytes_peak - all.kv_full_bytes - all.kv_narrow_bytes;  // by selections
  for (const bool compresses : {false, true}) {
    for (const int64_t part : {2, 4}) {
      SessionOptions small = options();
      small.spill_directory = spill_.path();
      if (compresses) small.compressed_budget_bytes = int64_t{1} << 20;
      small.kv_budget_bytes = kept + (all.kv_full_bytes + all.kv_narrow_bytes) / part + 6 * all.kv_record_bytes;
      const auto session = make_session(model_, small);
      for (int64_t end = 50; end < kLength; end += 50) go_on(session, end);
      go_on(session);
      EXPECT_LE(stats(*session).kv_bytes_peak, small.kv_budget_bytes);
    }
  }
}

TEST_P(WindowLayerSessions, GoesOnAfterSavingAndInForks) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/saved.quire";
  auto session = make_session(model_, options());
  for (const int64_t n : {30, 64, 101, 190}) {
    go_on(session, n);
    expect_ok(session->save(path, {}));
    const auto loaded = take(Session::load(model_, path, LoadOptions()));
    const auto fork = take(loaded->fork());
    go_on(fork);
    go_on(loaded);
    expect_ok(loaded->save(path, {}));  // behind what is there
    expect_ok(verify_snapshot(path, {}));
    go_on(take(Session::load(model_, path, LoadOptions())));
    LoadOptions keeping;
    keeping.session.keep_behind_windows = true;
    go_on(take(Session::load(model_, path, keeping)));
    go_on(take(session->fork()));
    session = take(session->fork());
  }
}

TEST_P(WindowLayerSessions, ATextThatWasCutGoesOn) {
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

// Whether they keep what lies behind windows or not, in any order.
TEST_P(WindowLayerSessions, SessionsShareWhatOneHasComputed) {
  for (const bool keeps : {false, true}) {
    SessionOptions reusing = options();
    reusing.reuse_prefixes = true;
    reusing.keep_behind_windows = keeps;
    const auto first = make_session(model_, reusing);
    go_on(first, 200);
    for (const int64_t n : {40, 100, 150, 190, 200, 230}) {
      reusing.keep_behind_windows = n % 100 == 50;
      const auto second = make_session(model_, reusing);
      go_on(second, n);
      expect_ok(second->truncate(n - 9));
      go_on(second, n);
    }
    go_on(first);
  }
}

// Also where the first one has dropped more meanwhile, or was cut.
TEST_P(WindowLayerSessions, SessionsOfOneSnapshotShareIt) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/saved.quire";
  const auto saved = make_session(model_, options());
  go_on(saved, 160);
  expect_ok(saved->save(path, {}));
  LoadOptions loading;
  loading.session.reuse_prefixes = true;
  {
    SessionOptions reusing = options();
    reusing.reuse_prefixes = true;
    const auto ahead = make_session(model_, reusing);
    go_on(ahead);
    // It has chunks from that one, and those of layers with a window, which that one has dropped, from the snapshot.
    const auto mixed = take(Session::load(model_, path, loading));
    expect_ok(mixed->truncate(105));
    go_on(mixed);
  }
  const auto first = take(Session::load(model_, path, loading));
  go_on(first);
  const auto second = take(Session::load(model_, path, loading));
  go_on(second);
  const auto third = take(Session::load(model_, path, loading));
  second->close();
  go_on(third);
  expect_ok(first->truncate(100));
  const auto fourth = take(Session::load(model_, path, loading));
  go_on(fourth);
  expect_ok(third->truncate(60));
  go_on(third);
  go_on(first);
}

// ---- what is held

constexpr Case kFull{"full(kv_chunk=16)", kNoLimit};

// Chunks of layers with a window behind n tokens that came in blocks of `block`.
int64_t windowed_chunks(int64_t n) {
  const int64_t first = ChunkStore::first_spare_query(n, kChunk) - kWindow + 1;
  return ceil_div(n, kChunk) - std::max<int64_t>(0, first) / kChunk;
}

TEST(WindowLayerMemory, IsWhatThePlanSays) {
  const auto model = load("gemma3");
  for (const bool keeps : {false, true}) {
    for (const int64_t n : {20, 64, 103, 104, 160, 250, 1000}) {
      SCOPED_TRACE(n);
      const SessionOptions options = options_of(kFull, keeps);
      const auto session = make_session(model, options);
      expect_ok(session->feed_tokens(random_tokens(*model, n)));
      expect_ok(run(session).status);
      const SessionStats now = stats(*session);
      MemoryRequest request;
      request.path = source_path("tests/golden/models/gemma3");
      request.strategy = options.strategy;
      request.keeps_behind_windows = keeps;
      request.n_tokens = n;
      request.prefill_block = options.prefill_block;
      const MemoryPlan plan = take(plan_memory(model->llama->backend(), request));
      EXPECT_EQ(plan.kv_bytes, now.kv_bytes_peak);
      EXPECT_EQ(plan.kv_bytes_per_token, (keeps ? kOthers + kWindowed : kOthers) * now.kv_record_bytes / kChunk);
      const int64_t all = ceil_div(n, kChunk), windowed = keeps ? all : windowed_chunks(n);
      EXPECT_EQ(now.kv_chunks, kOthers * all + kWindowed * windowed);
      EXPECT_EQ(now.kv_chunks_evicted, kWindowed * (all - windowed));
      EXPECT_EQ(now.kv_bytes, now.kv_chunks * now.kv_record_bytes);
    }
  }
}

// Tokens that are computed again where a session of `kept` tokens is cut.
int64_t n_reread(const std::shared_ptr<Session>& session, int64_t kept) {
  expect_ok(session->truncate(kept));
  const int64_t before = stats(*session).n_prefilled;
  expect_ok(run(session).status);
  return stats(*session).n_prefilled - before;
}

// A document, two questions with long answers, and a third one.
std::shared_ptr<Session> conversation(const std::shared_ptr<Model>& model, bool keeps) {
  auto session = make_session(model, options_of(kFull, keeps));
  for (const int64_t n : {300, 20, 150, 20, 150, 40}) {
    if (n == 150) {
      expect_ok(run(session, generating(n)).status);
    } else {
      expect_ok(session->feed_tokens(random_tokens(*model, n, static_cast<uint32_t>(n))));
    }
  }
  expect_ok(run(session).status);
  return session;
}

TEST(WindowLayerMemory, ATextCanBeCutWhereItWasFedAndGenerated) {
  const auto model = load("gemma3");
  const auto whole = conversation(model, false);
  ASSERT_EQ(position(*whole), (Position{680, 0}));
  Tokens tokens;
  expect_ok(whole->tokens(&tokens));
  const Logits expected = all_logits(model, options_of(kFull, true), tokens);
  // Where nothing is read again but the last token: up to four chunks before the end, and where something was fed or
  // generated, and up to a chunk before that. Elsewhere, what follows the last such place.
  const std::pair<int64_t, int64_t> cuts[] = {{680, 0}, {620, 1}, {560, 560 - 496}, {490, 1},  {475, 1},
                                              {470, 1}, {460, 1}, {420, 420 - 320}, {320, 1},  {305, 1},
                                              {300, 1}, {290, 1}, {272, 272},       {250, 250}};
  for (const auto& [n, again] : cuts) {
    SCOPED_TRACE(n);
    const auto fork = take(whole->fork());
    EXPECT_EQ(n_reread(fork, n), again);
    EXPECT_TRUE(same_bits(row_of(expected, *model, n - 1), last_logits(*fork)));
    const auto keeping = conversation(model, true);
    EXPECT_EQ(n_reread(keeping, n), n == 680 ? 0 : 1);
  }
}

// What was fed since, within what is held anyway, does not count.
TEST(WindowLayerMemory, ShortFeedsAtTheEndTakeNoPlaces) {
  const auto model = load("gemma3");
  const auto session = make_session(model, options_of(kFull, false));
  for (const int64_t n : {300, 320, 17, 17, 17, 17}) expect_ok(session->feed_tokens(random_tokens(*model, n)));
  expect_ok(run(session).status);
  EXPECT_EQ(n_reread(session, 300), 1);
}

TEST(WindowLayerMemory, SessionsFindATextWhereItWasFedAndAtItsEnd) {
  const auto model = load("gemma3");
  SessionOptions reusing = options_of(kFull, false);
  reusing.reuse_prefixes = true;
  const auto first = make_session(model, reusing);
  const Tokens text = random_tokens(*model, 700);
  const auto part = [&](int64_t begin, int64_t end) { return std::span(text).subspan(begin, end - begin); };
  expect_ok(first->feed_tokens(part(0, 300)));
  expect_ok(first->feed_tokens(part(300, 700)));
  expect_ok(run(first).status);
  const auto reused = [&](int64_t n) {
    const auto second = make_session(model, reusing);
    expect_ok(second->feed_tokens(part(0, n)));
    expect_ok(second->feed_tokens(random_tokens(*model, 30, 5)));
    expect_ok(run(second).status);
    return stats(*second).n_reused;
  };
  EXPECT_EQ(reused(700), 688);
  EXPECT_EQ(reused(640), 640);  // some chunks before the end
  EXPECT_EQ(reused(500), 304);  // the document's, which ends in that chunk
  EXPECT_EQ(reused(300), 288);
  EXPECT_EQ(reused(230), 0);
}

// Where a budget has no room for more, places and spare chunks go, and the text goes on.
TEST(WindowLayerMemory, SpareChunksGoWhereABudgetHasNoRoom) {
  const auto model = load("gemma3");
  SessionOptions options = options_of(kFull, false, 16);
  const auto probe = make_session(model, options);
  expect_ok(probe->feed_tokens(Tokens{5}));
  expect_ok(run(probe).status);
  const int64_t record = stats(*probe).kv_record_bytes;
  // 20 chunks of the other layers, and of those with a window 4: the window's in part, and the block's.
  options.kv_budget_bytes = record * (20 * kOthers + 4 * kWindowed);
  MemoryRequest request;
  request.path = source_path("tests/golden/models/gemma3");
  request.strategy = options.strategy;
  request.prefill_block = options.prefill_block;
  request.kv_budget_bytes = options.kv_budget_bytes;
  request.n_tokens = 20 * kChunk;
  EXPECT_EQ(take(plan_memory(model->llama->backend(), request)).kv_bytes, options.kv_budget_bytes);
  const Tokens text = random_tokens(*model, 20 * kChunk + 1);
  const Logits expected = all_logits(model, options_of(kFull, true), text);
  const auto session = make_session(model, options);
  for (int64_t n = 0; n < 20 * kChunk; n += 40) expect_ok(session->feed_tokens(std::span(text).subspan(n, 40)));
  expect_ok(run(session).status);
  EXPECT_EQ(stats(*session).kv_bytes_peak, options.kv_budget_bytes);
  EXPECT_TRUE(same_bits(row_of(expected, *model, 20 * kChunk - 1), last_logits(*session)));
  expect_ok(session->feed_tokens({&text.back(), 1}));
  EXPECT_EQ(run(session).status.code(), Code::kBudget);
  EXPECT_EQ(position(*session), (Position{20 * kChunk, 1}));
  --request.kv_budget_bytes;
  EXPECT_EQ(plan_memory(model->llama->backend(), request).status().code(), Code::kBudget);
}

// Chunks whose keys were dropped in some layers are not taken over elsewhere.
TEST(WindowLayerMemory, AnEditMovesWhatIsHeldInAllLayers) {
  const auto model = load("gemma3");
  const Tokens old = random_tokens(*model, 300);
  Tokens now = random_tokens(*model, 32, 9);
  now.insert(now.end(), old.begin(), old.end());
  const Logits expected = all_logits(model, options_of(kFull, true), now);
  for (const bool keeps : {false, true}) {
    const auto session = make_session(model, options_of(kFull, keeps));
    expect_ok(session->feed_tokens(old));
    expect_ok(run(session).status);
    EditResult result;
    EditOptions options;
    options.reuse = EditReuse::kApproximate;
    expect_ok(session->edit_tokens(now, options, &result));
    // All but the last tokens of what is held: the last chunk in part, a window, and the spare ones.
    EXPECT_EQ(result.n_moved, keeps ? 288 : (windowed_chunks(300) - 1) * kChunk);
    expect_ok(run(session).status);
    expect_ok(session->edit_tokens(now, EditOptions(), &result));
    expect_ok(run(session).status);
    EXPECT_TRUE(same_bits(row_of(expected, *model, 331), last_logits(*session)));
  }
}

// ---- released sessions

// Of a text that is kept, what goes to make room is what no other one can go on behind.
TEST(WindowLayerMemory, TextsAreKeptAsFarAsTheyAreOfUse) {
  const auto read = [](const std::shared_ptr<Model>& model, std::span<const int32_t> text) {
    SessionOptions options = options_of(kFull, false);
    options.reuse_prefixes = true;
    const auto session = make_session(model, options);
    const size_t n = std::min<size_t>(300, text.size());
    expect_ok(session->feed_tokens(text.first(n)));
    expect_ok(session->feed_tokens(text.subspan(n)));
    expect_ok(run(session).status);
    const SessionStats now = stats(*session);
    session->close();
    return now;
  };
  const auto loaded = [](int64_t bytes) {
    RuntimeOptions runtime;
    runtime.n_threads = 2;
    runtime.prefix_cache_bytes = int64_t{1} << 30;
    runtime.kv_memory_bytes = bytes;
    return load("gemma3", runtime);
  };
  // All but the last chunk, which is not complete: of layers with a window the last ones, and those where 300 tokens
  // had been fed.
  const int64_t kept_records = kOthers * 43 + kWindowed * (windowed_chunks(700) - 1 + 5);
  const auto probe = loaded(0);
  const Tokens text = random_tokens(*probe, 700), other = random_tokens(*probe, 112, 3);
  const int64_t record = read(probe, text).kv_record_bytes;
  const auto model = loaded((kept_records + 8) * record);
  const auto kept = [&] { return model->runtime->prefix_cache().stats().bytes / record; };
  (void)read(model, text);
  for (int i = 0; i < 1000 && kept() == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(kept(), kept_records);
  // Seven chunks need the room of five: behind four of them the spare ones end.
  SessionOptions sharing = options_of(kFull, false);
  sharing.reuse_prefixes = true;
  const auto live = make_session(model, sharing);
  expect_ok(live->feed_tokens(other));
  expect_ok(run(live).status);
  EXPECT_EQ(kept(), kOthers * 19 + kWindowed * 5);
  live->close();
  EXPECT_EQ(read(model, text).n_reused, 19 * kChunk);
}

// ---- snapshots

TEST(WindowLayerSnapshots, AreSmallAndOfVersion3) {
  const auto model = load("gemma3");
  const TemporaryFolder folder;
  const auto strategy = take(choose_strategy(*model, options_of(kFull, false)));
  int64_t bytes[2];
  for (const bool keeps : {false, true}) {
    const std::string path = folder.path() + (keeps ? "/keeps" : "/drops");
    const auto session = make_session(model, options_of(kFull, keeps));
    expect_ok(session->feed_tokens(random_tokens(*model, 1000)));
    expect_ok(run(session).status);
    expect_ok(session->save(path, {}));
    EXPECT_EQ(take(SnapshotFile::open(take(ReadFile::open(path))))->version(), 3);
    bytes[keeps] = static_cast<int64_t>(std::filesystem::file_size(path));
  }
  const int64_t dropped =
      kWindowed * (63 - windowed_chunks(1000)) *
      static_cast<int64_t>(kv_neutral_bytes(model->llama->kv_geometry(*strategy, ElementType::kF16)));
  EXPECT_GE(bytes[1] - bytes[0], dropped);
  EXPECT_LE(bytes[1] - bytes[0], dropped + dropped / 8) << "and what the index says of these";
}

// Records of each kind are as many as its layers, of which there are not equally many.
TEST(WindowLayerSnapshots, AreAppendedToByKind) {
  const TemporaryFolder folder;
  const std::filesystem::path copy = folder.file("uneven"), saved = folder.file("saved.quire");
  std::filesystem::copy(source_path("tests/golden/models/gemma3"), copy);
  std::ifstream file(copy / "config.json");
  auto config = nlohmann::json::parse(file);
  config["layer_types"] = {"sliding_attention", "sliding_attention", "full_attention", "sliding_attention"};
  std::ofstream(copy / "config.json") << config;
  ModelLoadOptions loading;
  loading.device = "cpu";
  const auto model = take(load_model(make_runtime({}), copy.string(), loading));
  for (const int64_t old_after : {kNoLimit, int64_t{0}}) {
    const Case full{"full(kv_chunk=16)", old_after};
    const Tokens text = random_tokens(*model, 250);
    const Logits expected = all_logits(model, options_of(full, true), text);
    auto session = make_session(model, options_of(full, false));
    for (int64_t n = 50; n <= 250; n += 50) {
      expect_ok(session->feed_tokens(std::span(text).subspan(n - 50, 50)));
      expect_ok(run(session).status);
      expect_ok(session->save(saved.string(), {}));
      expect_ok(verify_snapshot(saved.string(), {}));
      session = take(Session::load(model, saved.string(), LoadOptions()));
      EXPECT_TRUE(same_bits(row_of(expected, *model, n - 1), last_logits(*session)));
    }
  }
}

// A session has a chunk from another one, and that of layers with a window, which the other one has dropped, from its
// snapshot, where it cannot be changed: tokens that the chunk would go on with come into one of the session's own.
TEST(WindowLayerSnapshots, AreNotWrittenTo) {
  const auto model = load("gemma3");
  const TemporaryFolder folder;
  const std::string path = folder.file("saved.quire");
  const Tokens text = random_tokens(*model, 230);
  const auto read = [&](const std::shared_ptr<Session>& session, size_t end) {
    const Position at = position(*session);
    expect_ok(session->feed_tokens(std::span(text).subspan(static_cast<size_t>(at.tokens), end - at.tokens)));
    expect_ok(run(session).status);
    return last_logits(*session);
  };
  SessionOptions options = options_of(kFull, false);
  const auto saved = make_session(model, options);
  (void)read(saved, 160);
  expect_ok(saved->save(path, {}));
  options.reuse_prefixes = true;
  const auto ahead = make_session(model, options);
  const Logits expected = read(ahead, 230);
  LoadOptions loading;
  loading.session.reuse_prefixes = true;
  // Nine new chunks in four layers, seven shared ones in two, and little else.
  loading.session.kv_budget_bytes = (9 * (kOthers + kWindowed) + 14) * stats(*ahead).kv_record_bytes;
  const auto loaded = take(Session::load(model, path, loading));
  ahead->close();
  expect_ok(loaded->truncate(105));
  const int64_t before = stats(*loaded).n_prefilled;
  EXPECT_TRUE(same_bits(read(loaded, 230), expected));
  EXPECT_EQ(stats(*loaded).n_prefilled - before, 230 - 96) << "from the chunk's beginning on";
}

// tests/golden/snapshots/version_3.quire: random_tokens(180), three generated ones, and random_tokens(5, seed 2)
// pending.
TEST(WindowLayerSnapshots, OfVersion3StayReadable) {
  const std::string golden = source_path("tests/golden/snapshots/version_3.quire");
  const SessionOptions options = options_of({"longheads(chunk=16, chunks=5)", 0}, false);
  const auto model = load("gemma3");
  if (const char* out = std::getenv("QUIRE_WRITE_GOLDEN_SNAPSHOT")) {
    const auto session = make_session(model, options);
    expect_ok(session->feed_tokens(random_tokens(*model, 180)));
    expect_ok(run(session, generating(3)).status);
    expect_ok(session->feed_tokens(random_tokens(*model, 5, 2)));
    expect_ok(session->save(out, {}));
  }
  expect_ok(verify_snapshot(golden, {}));
  const auto loaded = take(Session::load(model, golden, LoadOptions()));
  ASSERT_EQ(position(*loaded), (Position{183, 5}));
  std::vector<int32_t> tokens;
  expect_ok(loaded->tokens(&tokens));
  expect_ok(run(loaded).status);
  // Keys and values in the file may have been computed with other instructions.
  const Logits expected = all_logits(model, options, tokens), actual = last_logits(*loaded);
  const auto last = row_of(expected, *model, 187);
  for (size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], last[i], 2e-2) << i;
}

}  // namespace
}  // namespace quire::test
