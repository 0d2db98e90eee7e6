// What a runtime keeps of released sessions: it is found by the next ones, changes no bit, and never takes the room of
// those that live.

#include <gtest/gtest.h>

#include <thread>

#include "tests/unit/kv/spill_directory.h"
#include "tests/unit/session/memory_streams.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

constexpr int64_t kMuch = int64_t{1} << 30;

const char* const kStrategies[] = {"full(kv_chunk=16)", "dca(kv_chunk=16)", "longheads(chunk=16, chunks=5)",
                                   "dca_topk(chunk=16, chunks=6, sticky=2, kv_chunk=32, one_in=6)"};

std::shared_ptr<Model> load_keeping(int64_t bytes, int64_t kv_bytes = 0) {
  RuntimeOptions options;
  options.n_threads = 2;
  options.prefix_cache_bytes = bytes;
  options.kv_memory_bytes = kv_bytes;
  return load("short_128", std::move(options));
}

SessionOptions sharing(const std::string& strategy = "full(kv_chunk=16)") {
  SessionOptions options = with_strategy(strategy);
  options.reuse_prefixes = true;
  options.prefill_block = 24;
  return options;
}

int64_t held(const Model& model) { return model.residency->budget()->used(); }
PrefixCacheStats kept(const Model& model) { return model.runtime->prefix_cache().stats(); }

// The text is read by a session that is released then. How many tokens it took over.
int64_t read_and_release(const std::shared_ptr<Model>& model, const SessionOptions& options, const Tokens& text,
                         Logits* logits = nullptr) {
  const auto session = make_session(model, options);
  expect_ok(session->feed_tokens(text));
  const Outcome outcome = run(session);
  expect_ok(outcome.status);
  if (outcome.prefill.empty()) return -1;
  if (logits) *logits = last_logits(*session);
  session->close();  // the engine may hold it for a moment
  return outcome.prefill.back().reused;
}

Tokens head(const Tokens& text, int64_t n) { return {text.begin(), text.begin() + n}; }

class PrefixCaches : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Strategies, PrefixCaches, testing::ValuesIn(kStrategies));

TEST_P(PrefixCaches, KeepWhatTheNextSessionFinds) {
  const auto plain = load_keeping(0);
  const SpillDirectory spill;
  const Tokens text = random_tokens(*plain, 200);
  for (const bool narrow : {false, true}) {
    for (const bool spills : {false, true}) {
      SCOPED_TRACE(std::to_string(narrow) + ", " + std::to_string(spills));
      const auto model = load_keeping(kMuch);
      SessionOptions options = sharing(GetParam());
      if (narrow) options.old_text.after = 40;
      const int64_t chunk = std::string(GetParam()).starts_with("dca_topk") ? 32 : 16;
      Logits right, own;
      EXPECT_EQ(read_and_release(plain, options, text, &right), 0);
      EXPECT_EQ(held(*plain), 0);
      if (spills) options.spill_directory = spill.path();
      EXPECT_EQ(read_and_release(model, options, text, &own), 0);
      EXPECT_TRUE(same_bits(own, right));
      const PrefixCacheStats before = kept(*model);
      EXPECT_GT(before.bytes, 0);
      EXPECT_EQ(read_and_release(model, options, text, &own), 192);
      EXPECT_TRUE(same_bits(own, right));
      EXPECT_EQ(kept(*model).n_hits, before.n_hits + 192);
      EXPECT_EQ(kept(*model).n_texts, before.n_texts);
      EXPECT_EQ(kept(*model).bytes, before.bytes);
      // Of a text that ends earlier, full records of what is young there were dropped where old text is narrow.
      EXPECT_EQ(read_and_release(model, options, head(text, 100), &own), narrow && chunk == 16 ? 0 : 96);
      // Another text of the same beginning.
      Tokens other = head(text, 150);
      other.resize(200, 7);
      EXPECT_EQ(read_and_release(plain, options, other, &right), 0);
      EXPECT_EQ(read_and_release(model, options, other, &own), 150 / chunk * chunk);
      EXPECT_TRUE(same_bits(own, right));
    }
  }
}

// A loaded session shares the chunks that others have in memory. When it goes they are kept, but not its snapshot.
TEST(PrefixCache, LetsGoOfSnapshots) {
  const auto model = load_keeping(kMuch);
  const auto session = make_session(model, sharing());
  expect_ok(session->feed_tokens(random_tokens(*model, 200)));
  expect_ok(run(session).status);
  MemorySink sink;
  expect_ok(session->save_to(sink, {}));
  auto source = std::make_shared<MemorySource>(sink.bytes);
  const std::weak_ptr<MemorySource> snapshot = source;
  LoadOptions loading;
  loading.session = sharing();
  const auto loaded = take(Session::load(model, std::shared_ptr<const ByteSource>(std::move(source)), loading));
  EXPECT_FALSE(snapshot.expired());
  loaded->close();
  EXPECT_EQ(kept(*model).n_texts, 1);
  EXPECT_TRUE(snapshot.expired());
}

// As many bytes as two texts take: the one that was used longest ago goes, from its end on.
TEST(PrefixCache, DropsWhatWasUsedLongestAgo) {
  const SessionOptions options = sharing();
  int64_t bytes = 0;
  {
    const auto model = load_keeping(kMuch);
    read_and_release(model, options, random_tokens(*model, 200, 1));
    bytes = kept(*model).bytes;
    EXPECT_EQ(held(*model), bytes);
  }
  const auto model = load_keeping(2 * bytes);
  const auto text = [&](uint32_t seed) { return random_tokens(*model, 200, seed); };
  const auto read = [&](uint32_t seed) {
    const int64_t reused = read_and_release(model, options, text(seed));
    EXPECT_LE(kept(*model).bytes, 2 * bytes);
    EXPECT_EQ(held(*model), kept(*model).bytes);
    return reused;
  };
  EXPECT_EQ(read(1), 0);
  EXPECT_EQ(read(2), 0);
  EXPECT_EQ(read(1), 192);
  EXPECT_EQ(read(3), 0);  // the second one goes
  EXPECT_EQ(read(1), 192);
  EXPECT_EQ(read(2), 0);  // the third one goes
  EXPECT_EQ(read(1), 192);
  // A text that needs half of it: half of the one used longest ago stays, its beginning.
  EXPECT_EQ(read_and_release(model, options, head(text(4), 96)), 0);
  EXPECT_EQ(read(2), 96);
  // A longer one than all: as much of it as fits.
  const Tokens longer = random_tokens(*model, 1000, 9);
  EXPECT_EQ(read_and_release(model, options, longer), 0);
  EXPECT_EQ(kept(*model).n_texts, 1);
  EXPECT_EQ(read_and_release(model, options, longer), 384);
}

TEST(PrefixCache, LivesNoLongerThanItsModelAndKeepsNothingOfOthers) {
  RuntimeOptions small;
  small.n_threads = 2;
  small.prefix_cache_bytes = kMuch;
  auto model = load("short_128", std::move(small));
  const auto runtime = model->runtime;
  const Tokens text = random_tokens(*model, 100);
  SessionOptions apart = sharing();
  apart.reuse_prefixes = false;
  read_and_release(model, apart, text);
  EXPECT_EQ(runtime->prefix_cache().stats().n_texts, 0);
  read_and_release(model, sharing(), head(text, 15));  // no complete chunk
  EXPECT_EQ(runtime->prefix_cache().stats().n_texts, 0);
  read_and_release(model, sharing(), text);
  EXPECT_EQ(runtime->prefix_cache().stats().n_texts, 1);
  const auto residency = model->residency;
  model.reset();
  // The engine may hold the sessions' streams, and so the model, for a moment.
  for (int i = 0; i < 1000 && runtime->prefix_cache().stats().n_texts > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(runtime->prefix_cache().stats().n_texts, 0);
  EXPECT_EQ(residency->budget()->used(), 0);
}

// Forks that are released while others live, and the last one.
TEST(PrefixCache, KeepsForksOnce) {
  const auto model = load_keeping(kMuch);
  auto session = make_session(model, sharing());
  const Tokens text = random_tokens(*model, 100);
  expect_ok(session->feed_tokens(text));
  expect_ok(run(session).status);
  {
    const auto fork = take(session->fork());
    expect_ok(fork->feed_tokens(random_tokens(*model, 50, 2)));
    expect_ok(run(fork).status);
    fork->close();
  }
  const int64_t bytes = kept(*model).bytes;
  session->close();
  EXPECT_EQ(kept(*model).bytes, bytes);
  EXPECT_EQ(kept(*model).n_texts, 1);
  EXPECT_EQ(held(*model), bytes);
  EXPECT_EQ(read_and_release(model, sharing(), text), 96);
}

// A runtime in which one text fits: what is kept goes as far as a live session needs the room.
TEST(PrefixCache, MakesRoomForASessionThatLives) {
  const SpillDirectory spill;
  for (const std::string strategy : kStrategies) {
    for (const bool spills : {false, true}) {
      SCOPED_TRACE(strategy + (spills ? ", spilling" : ""));
      int64_t whole = 0;
      {
        const auto measured = make_session(load_keeping(0), sharing(strategy));
        expect_ok(measured->feed_tokens(random_tokens(measured->model(), 220)));
        expect_ok(run(measured).status);
        whole = stats(*measured).kv_bytes_peak + 2 * stats(*measured).kv_record_bytes;
      }
      const auto model = load_keeping(kMuch, whole);
      SessionOptions options = sharing(strategy);
      if (spills) options.spill_directory = spill.path();
      for (uint32_t seed = 1; seed < 5; ++seed) {
        EXPECT_EQ(read_and_release(model, options, random_tokens(*model, 200, seed)), 0);
        EXPECT_LE(held(*model), whole);
        EXPECT_GT(kept(*model).bytes, 0);
        const auto live = make_session(model, sharing(strategy));  // which is not held in a file
        expect_ok(live->feed_tokens(random_tokens(*model, 220, 100 + seed)));
        expect_ok(run(live).status);
        EXPECT_LE(held(*model), whole);
      }
    }
  }
}

// Files of released sessions count in the runtime's budget, too.
TEST(PrefixCache, MakesRoomInFiles) {
  const SpillDirectory spill;
  RuntimeOptions small;
  small.n_threads = 2;
  small.prefix_cache_bytes = kMuch;
  small.kv_file_bytes = int64_t{24} << 20;
  const auto model = load("short_128", std::move(small));
  SessionOptions options = sharing();
  options.spill_directory = spill.path();
  for (uint32_t seed = 1; seed < 8; ++seed) {
    EXPECT_EQ(read_and_release(model, options, random_tokens(*model, 200, seed)), 0);
    EXPECT_LE(model->runtime->kv_file()->used(), int64_t{24} << 20);
    EXPECT_EQ(read_and_release(model, options, random_tokens(*model, 200, seed)), 192);
  }
  EXPECT_LT(kept(*model).n_texts, 7);
}

// Eight threads open, feed and release sessions of a few texts with common beginnings, in a runtime whose memory does
// not hold them all.
TEST(PrefixCache, ServesManyThreads) {
  constexpr int kThreads = 8;
  for (const std::string strategy :
       {"full(kv_chunk=16)", "dca_topk(chunk=16, chunks=6, sticky=2, kv_chunk=32, one_in=6)"}) {
    SCOPED_TRACE(strategy);
    const auto plain = load_keeping(0);
    std::vector<Tokens> texts;
    std::vector<Logits> right;
    int64_t whole = 0;
    for (uint32_t i = 0; i < 6; ++i) {
      Tokens text = head(random_tokens(*plain, 150, 1 + i % 2), 40 + 16 * static_cast<int64_t>(i));
      const Tokens more = random_tokens(*plain, 40, 10 + i);
      text.insert(text.end(), more.begin(), more.end());
      const auto session = make_session(plain, sharing(strategy));
      expect_ok(session->feed_tokens(text));
      expect_ok(run(session).status);
      right.push_back(last_logits(*session));
      whole = std::max(whole, stats(*session).kv_bytes_peak);
      texts.push_back(text);
    }
    const SpillDirectory spill;
    const auto model = load_keeping(3 * whole, (kThreads + 2) * whole);
    const auto work = [&](uint32_t thread) {
      std::mt19937 random(thread);
      for (int turn = 0; turn < 12 && !testing::Test::HasFailure(); ++turn) {
        const size_t which = random() % texts.size();
        SessionOptions options = sharing(strategy);
        if (random() % 2 == 0) options.spill_directory = spill.path();
        Logits own;
        read_and_release(model, options, texts[which], &own);
        EXPECT_TRUE(same_bits(own, right[which]));
        EXPECT_LE(held(*model), (kThreads + 2) * whole);
        EXPECT_LE(kept(*model).bytes, 3 * whole);
      }
    };
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < kThreads; ++t) threads.emplace_back(work, t);
    for (std::thread& thread : threads) thread.join();
    EXPECT_GT(kept(*model).n_hits, 0);
  }
}

}  // namespace
}  // namespace quire::test
