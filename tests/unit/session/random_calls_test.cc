// Whatever is called in whatever order, wherever records lie: the tokens are those of a session in memory that was told
// the same text.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <thread>

#include "lib/kv/compressed_tier.h"
#include "lib/session/document_store.h"
#include "tests/seed.h"
#include "tests/unit/kv/spill_directory.h"
#include "tests/unit/model/temporary_folder.h"
#include "tests/unit/session/memory_streams.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

const char* const kStrategies[] = {"full(kv_chunk=16)",
                                   "dca(kv_chunk=32)",
                                   "dca(chunk=8, parts=intra, kv_chunk=16)",
                                   "longheads(chunk=16, chunks=5)",
                                   "longheads(chunk=32, chunks=4, select=group, positions=dca, vectors=bf16)",
                                   "dca_topk(chunk=16, chunks=6, sticky=2, kv_chunk=32, one_in=6)",
                                   "dca_topk(chunk=16, chunks=4, reading=selected, represent=minmax, kv_chunk=16)",
                                   "streaming_llm(sinks=3, recent=50, kv_chunk=16)",
                                   "streaming_llm(sinks=20, recent=17, kv_chunk=32)",
                                   "scca_flow(chunk=16, kv_chunk=16)",
                                   "self_extend(group=4, window=20)",
                                   "beacon(ratio=4, kv_chunk=16)"};

// No call of a test makes a text longer than that. At the end of a test 17 tokens more follow.
constexpr int64_t kMostTokens = 320;

// A session, and what changed its text since it was empty.
struct Told {
  std::shared_ptr<Session> session;
  std::vector<std::function<void(const std::shared_ptr<Session>&)>> story;

  void tell(std::function<void(const std::shared_ptr<Session>&)> what) {
    what(session);
    story.push_back(std::move(what));
  }
};

// The last stream of a session has a reference to it until the engine lets go of it, a moment later. From here on the
// caller has the only one: when that goes, so does the session's memory.
void wait_until_alone(const std::shared_ptr<Session>& session) {
  while (session.use_count() > 1) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

// It goes on as a session in memory that is told the same.
void expect_as_told(const Told& one, const std::shared_ptr<Model>& plain, const SessionOptions& options) {
  const auto expected = make_session(plain, options);
  for (const auto& what : one.story) what(expected);
  ASSERT_EQ(position(*one.session).tokens + position(*one.session).pending,
            position(*expected).tokens + position(*expected).pending);
  const auto go_on = [&](const std::shared_ptr<Session>& session) {
    expect_ok(session->feed_tokens(random_tokens(*plain, 9, 77)));
    const Outcome outcome = run(session, generating(8));
    expect_ok(outcome.status);
    return std::pair(last_logits(*session), outcome.tokens);
  };
  const auto right = go_on(expected), own = go_on(one.session);
  ASSERT_TRUE(same_bits(own.first, right.first));
  ASSERT_EQ(own.second, right.second);
}

// Where the records of a runtime's sessions can lie, and in which types.
struct Storage {
  ElementType kv_type;
  int64_t old_after;     // int8 from there on; kNoLimit: never
  int64_t n_compressed;  // records of most_bytes() in a session's compressed memory
  bool file;             // below that
  bool keeps;            // what sessions leave when they are released
};
constexpr Storage kStorages[] = {{ElementType::kF16, kNoLimit, 0, true, false},
                                 {ElementType::kBF16, 40, 12, true, true},
                                 {ElementType::kF32, kNoLimit, 4000, false, true}};

// What of it changes tokens.
SessionOptions options_for(const char* strategy, const Storage& storage) {
  SessionOptions options = with_strategy(strategy);
  options.prefill_block = 24;
  options.kv_type = storage.kv_type;
  if (!options.old_text.narrows()) options.old_text = {.type = ElementType::kInt8, .after = storage.old_after};
  return options;
}

// And what does not. record_bytes: of the largest records.
void lie_in(const Storage& storage, const std::string& directory, int64_t record_bytes, SessionOptions* options) {
  options->reuse_prefixes = true;
  if (storage.file) options->spill_directory = directory;
  if (storage.n_compressed > 0) {
    // Full and narrow records each have a tier there, with working memory of its own.
    const auto element = static_cast<int64_t>(element_bytes(storage.kv_type));
    options->compressed_budget_bytes = 2 * CompressedTier::most_bytes(record_bytes, element, storage.n_compressed);
  }
}

class RandomCalls : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Strategies, RandomCalls, testing::ValuesIn(kStrategies));

TEST_P(RandomCalls, GiveTheTokensOfASessionInMemory) {
  const auto plain = load(model_for(GetParam()), 2);
  const TemporaryFolder folder;
  const SpillDirectory spill;
  const auto documents = take(DocumentStore::open(folder.file("documents"), {}));
  int64_t n_reused = 0, n_mounted = 0, n_compressed = 0, n_kept = 0;
  for (uint32_t round = 0; round < 3; ++round) {
    SCOPED_TRACE(seed_trace() + ", round " + std::to_string(round));
    std::mt19937 random = seeded_random(round);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint32_t>(n)); };
    const Storage& storage = kStorages[round];
    const SessionOptions options = options_for(GetParam(), storage);
    // A runtime in which two texts of such a length do not fit beside each other, but what stays in memory does:
    // representations, also of a fifth that takes the place of one, and a step's records.
    const auto measured = make_session(plain, options);
    expect_ok(measured->feed_tokens(random_tokens(*plain, kMostTokens + 17)));
    expect_ok(run(measured).status);
    RuntimeOptions small;
    small.n_threads = 2;
    small.n_io_threads = round == 1 ? -1 : 2;
    const SessionStats whole = stats(*measured);
    small.kv_memory_bytes =
        4 * (whole.kv_bytes_peak - whole.kv_full_bytes - whole.kv_narrow_bytes) + whole.kv_bytes_peak;
    if (storage.keeps) small.prefix_cache_bytes = whole.kv_bytes_peak;
    const auto model = load(model_for(GetParam()), small);
    SessionOptions spilling = options;
    lie_in(storage, spill.path(), whole.kv_record_bytes, &spilling);
    LoadOptions loading;
    lie_in(storage, spill.path(), whole.kv_record_bytes, &loading.session);

    std::vector<Told> told;
    told.push_back({make_session(model, spilling), {}});
    int n_saved = 0;
    for (int call = 0; call < 60; ++call) {
      SCOPED_TRACE("call " + std::to_string(call));
      const auto which = static_cast<size_t>(below(static_cast<int64_t>(told.size())));
      Told& one = told[which];
      const Position at = position(*one.session);
      const auto seed_of_call = static_cast<uint32_t>(call + 100);
      switch (below(10)) {
        case 0:
        case 1:
          if (at.tokens + at.pending > kMostTokens - 50) break;
          one.tell([n = 1 + below(50), seed_of_call, &model](const std::shared_ptr<Session>& session) {
            expect_ok(session->feed_tokens(random_tokens(*model, n, seed_of_call)));
          });
          break;
        case 2:
          if (at.tokens + at.pending == 0 || at.tokens + at.pending > kMostTokens - 11) break;
          one.tell([n = below(12), drafted = below(16), seed_of_call, &plain](const std::shared_ptr<Session>& session) {
            StreamOptions generate = generating(n, 0.8f, seed_of_call);
            // Of few different tokens, so that drafts are right now and then.
            for (int32_t id = 9; id < vocab_size(*plain); ++id) {
              generate.sampling.logit_bias.emplace_back(id, -INFINITY);
            }
            if (&session->model() != plain.get()) generate.draft_tokens = drafted;
            generate.draft_match = 1;
            expect_ok(run(session, generate).status);
          });
          break;
        case 3:
          if (at.tokens == 0) break;
          one.tell(
              [n = below(at.tokens)](const std::shared_ptr<Session>& session) { expect_ok(session->truncate(n)); });
          break;
        case 4: {  // what a cancelled stream had not read is pending again
          if (at.pending == 0) break;
          const auto stream = take(GenerationStream::open(one.session, generating(3)));
          const StreamEvent* event = nullptr;
          if (below(2) == 0) (void)stream->next(-1, &event);
          expect_ok(stream->cancel());
          (void)read(*stream);
          break;
        }
        case 5:
          if (told.size() < 4 && below(2) == 0) {
            told.push_back({take(one.session->fork()), one.story});
          } else if (told.size() < 4) {  // another session is told the same
            Told other{make_session(model, spilling), {}};
            for (const auto& what : one.story) other.tell(what);
            n_reused += stats(*other.session).n_reused;
            told.push_back(std::move(other));
          } else {
            wait_until_alone(one.session);
            told.erase(told.begin() + static_cast<int64_t>(which));
          }
          break;
        case 8:  // some of the text becomes other tokens
          if (at.tokens + at.pending > kMostTokens - 19) break;
          one.tell([seed_of_call, &model](const std::shared_ptr<Session>& session) {
            std::mt19937 draw(seed_of_call);
            Tokens text;
            expect_ok(session->tokens(&text));
            const auto begin = static_cast<int64_t>(draw() % (text.size() + 1));
            const auto end = std::min<int64_t>(begin + draw() % 20, static_cast<int64_t>(text.size()));
            const Tokens other = random_tokens(*model, draw() % 20, seed_of_call);
            text.erase(text.begin() + begin, text.begin() + end);
            text.insert(text.begin() + begin, other.begin(), other.end());
            EditResult result;
            expect_ok(session->edit_tokens(text, {}, &result));
          });
          break;
        case 9: {  // what was read is a document, and another session begins with it
          if (at.tokens + at.pending == 0) break;
          one.tell([](const std::shared_ptr<Session>& session) { expect_ok(run(session).status); });
          Tokens text;
          expect_ok(one.session->tokens(&text));
          const auto put = documents->put(*one.session, {});
          if (!put.ok()) {  // the first token was generated, or too little of what came before that is kept
            EXPECT_TRUE(put.status().code() == Code::kEmpty || put.status().code() == Code::kUnsupported)
                << put.status().message();
            break;
          }
          StoreMatch match;
          auto mounted = take(documents->load(model, spilling, text, &match));
          if (!mounted) break;
          ++n_mounted;
          text.resize(static_cast<size_t>(match.n_tokens));
          wait_until_alone(one.session);
          one.session = std::move(mounted);
          one.story.clear();
          one.story.push_back([text](const std::shared_ptr<Session>& session) {
            expect_ok(session->feed_tokens(text));
            expect_ok(run(session).status);
          });
          break;
        }
        default: {
          if (at.tokens + at.pending == 0) break;
          wait_until_alone(one.session);
          if (below(3) == 0) {
            MemorySink sink;
            expect_ok(one.session->save_to(sink, {}));
            one.session = take(Session::load(model, std::make_shared<MemorySource>(std::move(sink.bytes)), loading));
            break;
          }
          const std::string path = folder.path() + "/" + std::to_string(n_saved++ % 5) + ".quire";
          expect_ok(one.session->save(path, {}));
          one.session = take(Session::load(model, path, loading));
          break;
        }
      }
      for (const Told& each : told) expect_counted(*each.session);
      if (HasFailure()) return;
      ASSERT_LE(model->residency->budget()->used(), small.kv_memory_bytes);
    }
    for (Told& one : told) {
      n_compressed += stats(*one.session).kv_compressed.bytes_written;
      expect_as_told(one, plain, options);
    }
    n_kept += model->runtime->prefix_cache().stats().n_hits;
  }
  // Others could not go on from a part of what is left by those that drop or condense text.
  const bool drops = std::string(GetParam()).starts_with("streaming_llm");
  const bool condenses = std::string(GetParam()).starts_with("beacon");
  EXPECT_GT(n_compressed, 0);
  EXPECT_TRUE(drops || condenses || n_mounted > 0);
  EXPECT_TRUE(drops || (n_reused > 0) == !condenses);
  EXPECT_TRUE(drops || (n_kept > 0) == !condenses);
}

// Eight threads at once, in a runtime too small for their sessions: they read a common document or a text of their own,
// open the document from its file, fork, cut, cancel, save, load and close.
TEST_P(RandomCalls, GiveThemOnManyThreads) {
  constexpr int kThreads = 8;
  constexpr int64_t kMost = 160;  // tokens of a session, before an answer
  const auto plain = load(model_for(GetParam()), 2);
  const TemporaryFolder folder;
  const SpillDirectory spill;
  const auto number = std::find(std::begin(kStrategies), std::end(kStrategies), GetParam()) - kStrategies;
  const Storage& storage = kStorages[number % std::ssize(kStorages)];
  const SessionOptions options = options_for(GetParam(), storage);
  const Tokens document = random_tokens(*plain, 100, 1000);
  const std::string document_path = folder.path() + "/document.quire";
  const auto read_document = [document](const std::shared_ptr<Session>& session) {
    expect_ok(session->feed_tokens(document));
    expect_ok(run(session).status);
  };
  const auto measured = make_session(plain, options);
  read_document(measured);
  expect_ok(measured->save(document_path, {}));
  expect_ok(measured->feed_tokens(random_tokens(*plain, kMost - 100)));
  expect_ok(run(measured).status);
  const SessionStats whole = stats(*measured);
  RuntimeOptions small;
  small.n_threads = 2;
  small.n_io_threads = 2;
  small.kv_memory_bytes =
      2 * kThreads * (whole.kv_bytes_peak - whole.kv_full_bytes - whole.kv_narrow_bytes) + 4 * whole.kv_bytes_peak;
  if (storage.keeps) small.prefix_cache_bytes = whole.kv_bytes_peak;
  const auto model = load(model_for(GetParam()), small);
  SessionOptions spilling = options;
  lie_in(storage, spill.path(), whole.kv_record_bytes, &spilling);
  LoadOptions loading;
  lie_in(storage, spill.path(), whole.kv_record_bytes, &loading.session);

  std::vector<std::vector<Told>> told(kThreads);
  const auto work = [&](int thread) {
    std::mt19937 random(static_cast<uint32_t>(thread));
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint32_t>(n)); };
    std::vector<Told>& own = told[static_cast<size_t>(thread)];
    own.push_back({make_session(model, spilling), {}});
    for (int call = 0; call < 40 && !testing::Test::HasFailure(); ++call) {
      Told& one = own[static_cast<size_t>(below(static_cast<int64_t>(own.size())))];
      const Position at = position(*one.session);
      switch (below(7)) {
        case 0:
          if (at.tokens + at.pending > 0) break;
          if (below(2) == 0) {
            one.tell(read_document);
          } else {
            one = {take(Session::load(model, document_path, loading)), {read_document}};
          }
          break;
        case 1:
          if (at.tokens + at.pending > kMost - 40) break;
          one.tell([n = 1 + below(40), seed = static_cast<uint32_t>(random()),
                    &model](const std::shared_ptr<Session>& session) {
            expect_ok(session->feed_tokens(random_tokens(*model, n, seed)));
          });
          break;
        case 2:
          if (at.tokens + at.pending == 0) break;
          one.tell([n = below(6), seed = random()](const std::shared_ptr<Session>& session) {
            expect_ok(run(session, generating(n, 0.8f, seed)).status);
          });
          break;
        case 3: {  // what a cancelled stream had not read is pending again
          if (at.pending == 0) break;
          const auto stream = take(GenerationStream::open(one.session, generating(3)));
          const StreamEvent* event = nullptr;
          if (below(2) == 0) (void)stream->next(-1, &event);
          expect_ok(stream->cancel());
          (void)read(*stream);
          break;
        }
        case 4:
          one.tell([n = at.tokens / 2](const std::shared_ptr<Session>& session) { expect_ok(session->truncate(n)); });
          break;
        case 5:
          if (own.size() == 1) {
            own.push_back({take(one.session->fork()), one.story});
          } else {
            own.erase(own.begin());
          }
          break;
        default: {
          const std::string path = folder.path() + "/" + std::to_string(thread) + ".quire";
          expect_ok(one.session->save(path, {}));
          one.session = take(Session::load(model, path, loading));
          break;
        }
      }
      EXPECT_LE(model->residency->budget()->used(), small.kv_memory_bytes);
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) threads.emplace_back(work, t);
  for (std::thread& thread : threads) thread.join();
  int64_t n_missed = 0;
  for (const std::vector<Told>& own : told) {
    for (const Told& one : own) {
      n_missed += stats(*one.session).kv_misses;
      expect_as_told(one, plain, options);
    }
  }
  EXPECT_GT(n_missed, 0);  // records were not all in memory
}

}  // namespace
}  // namespace quire::test
