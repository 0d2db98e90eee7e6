// The benchmarks' hook: a session filled with random keys and values is a session like any other.

#include <gtest/gtest.h>

#include "lib/session/document_store.h"
#include "tests/unit/kv/spill_directory.h"
#include "tests/unit/model/temporary_folder.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

SessionOptions stored_as(ElementType type, const std::string& strategy) {
  SessionOptions options = with_strategy(strategy);
  options.kv_type = type;
  return options;
}

TEST(FillRandom, HoldsTheRecordsOfARealPrefill) {
  for (const std::string strategy : {"full(kv_chunk=16)", "dca(kv_chunk=32)", "streaming_llm(sinks=4, recent=90)",
                                     "streaming_llm(sinks=0, recent=40, kv_chunk=16)", "beacon(ratio=4, kv_chunk=16)",
                                     "beacon(sequence=x0.x4.x0.x8, kv_chunk=16)"}) {
    const auto model = load(model_for(strategy));
    const auto real = make_session(model, with_strategy(strategy));
    expect_ok(real->feed_tokens(random_tokens(*model, 500)));
    expect_ok(run(real).status);
    const auto filled = make_session(model, with_strategy(strategy));
    expect_ok(filled->fill_random(501, 3));
    EXPECT_EQ(position(*filled), (Position{501, 0}));
    EXPECT_EQ(stats(*filled).kv_bytes, stats(*real).kv_bytes) << strategy;
    EXPECT_EQ(stats(*filled).kv_chunks_evicted, stats(*real).kv_chunks_evicted) << strategy;
    EXPECT_LE(stats(*filled).kv_bytes_peak, stats(*real).kv_bytes_peak) << strategy;
    EXPECT_EQ(stats(*filled).n_prefilled, 0);
  }
}

TEST(FillRandom, GivesFiniteLogitsThatDependOnTheSeedAlone) {
  const auto model = load("short_128");
  for (const ElementType type : {ElementType::kF32, ElementType::kF16, ElementType::kBF16}) {
    const auto logits = [&](uint64_t seed) {
      const auto session = make_session(model, stored_as(type, "dca"));
      expect_ok(session->fill_random(300, seed));
      expect_ok(run(session, generating(3)).status);  // kNumeric if a key or value were not finite
      EXPECT_EQ(position(*session), (Position{303, 0}));
      return last_logits(*session);
    };
    const Logits first = logits(1);
    EXPECT_TRUE(same_bits(first, logits(1))) << element_name(type);
    EXPECT_FALSE(same_bits(first, logits(2))) << element_name(type);
  }
}

// Representations and the queries of the chunk in progress are there as well; selection goes on when it completes.
TEST(FillRandom, ServesAStrategyThatSelectsChunks) {
  const auto model = load("short_128");
  for (const int64_t n : {200, 209, 216}) {
    const auto session = make_session(model, with_strategy("longheads(chunk=16, chunks=4)"));
    expect_ok(session->fill_random(n, 7));
    expect_ok(session->feed_tokens(random_tokens(*model, 20)));
    expect_ok(run(session, generating(20)).status);
    EXPECT_EQ(position(*session), (Position{n + 40, 0}));
  }
}

// Of whichever type they are: a choice by numbers that are not finite would be none.
TEST(FillRandom, RepresentationsAreFinite) {
  const auto model = load("short_128");
  for (const auto& [strategy, kv_type, type] :
       {std::tuple{"dca_topk(chunk=16, chunks=4, kv_chunk=16)", ElementType::kF16, ElementType::kF16},
        {"dca_topk(chunk=16, chunks=4, kv_chunk=16)", ElementType::kBF16, ElementType::kBF16},
        {"longheads(chunk=16, chunks=4)", ElementType::kF16, ElementType::kF32},
        {"longheads(chunk=16, chunks=4, vectors=bf16)", ElementType::kF16, ElementType::kBF16}}) {
    SessionOptions options = with_strategy(strategy);
    options.kv_type = kv_type;
    const auto session = make_session(model, options);
    expect_ok(session->fill_random(300, 7));
    const auto work = take(session->begin_work());
    const auto& pages = work.contents().kv().representations(0).pages;
    ASSERT_FALSE(pages.empty());
    Backend& backend = model->llama->backend();
    const auto queue = take(backend.create_queue());
    int64_t n_wrong = 0;
    for (const auto& page : pages) {
      std::vector<std::byte> bytes(page->size());
      expect_ok(backend.download(*queue, *page, 0, bytes.data(), bytes.size()));
      expect_ok(finish_queue(backend, *queue));
      for (int64_t i = 0; i < static_cast<int64_t>(bytes.size() / element_bytes(type)); ++i) {
        n_wrong += std::abs(load_element(type, bytes.data(), i)) < 0.5f ? 0 : 1;
      }
    }
    EXPECT_EQ(n_wrong, 0) << strategy;
  }
}

TEST(FillRandom, TheSessionReadsOnAndStartsAnew) {
  const auto model = load("short_128");
  const auto session = make_session(model, with_strategy("dca(kv_chunk=16)"));
  expect_ok(session->fill_random(1, 1));  // nothing in the cache yet
  EXPECT_EQ(stats(*session).kv_bytes, 0);
  expect_ok(session->feed_tokens(random_tokens(*model, 40)));
  expect_ok(run(session, generating(2)).status);
  EXPECT_EQ(position(*session), (Position{43, 0}));
  EXPECT_EQ(stats(*session).n_prefilled, 40);
  EXPECT_EQ(session->fill_random(5, 1).code(), Code::kInvalidArgument);
  EXPECT_EQ(position(*session), (Position{43, 0}));
  expect_ok(session->reset());

  // What was there leaves no trace.
  const Tokens tokens = random_tokens(*model, 60);
  expect_ok(session->fill_random(200, 1));
  expect_ok(session->reset());
  expect_ok(session->feed_tokens(tokens));
  expect_ok(run(session).status);
  const Logits all = all_logits(model, with_strategy("dca(kv_chunk=16)"), tokens);
  EXPECT_TRUE(same_bits(row_of(all, *model, 59), last_logits(*session)));
}

// How many tokens were taken over from other sessions.
int64_t reused(const std::shared_ptr<Session>& session, const Tokens& tokens) {
  expect_ok(session->feed_tokens(tokens));
  expect_ok(run(session).status);
  return stats(*session).n_reused;
}

// No other session gets the random keys for those of the text, wherever they went.
TEST(FillRandom, ItsKeysAreOfNoText) {
  const TemporaryFolder folder;
  const auto model = load("short_128");
  SessionOptions options = with_strategy("full(kv_chunk=16)");
  options.reuse_prefixes = true;
  const auto filled = make_session(model, options);
  expect_ok(filled->fill_random(200, 3));
  Tokens tokens;
  expect_ok(filled->tokens(&tokens));
  const Logits all = all_logits(model, with_strategy("full(kv_chunk=16)"), tokens);
  const auto expected = row_of(all, *model, 199);

  expect_ok(filled->save(folder.file("filled"), {}));
  const auto loaded = take(Session::load(model, folder.file("filled"), {}));
  const auto other = make_session(model, options);
  EXPECT_EQ(reused(other, tokens), 0);
  EXPECT_TRUE(same_bits(expected, last_logits(*other)));
  other->close();

  const auto store = take(DocumentStore::open(folder.file("store"), {}));
  for (const auto& session : {filled, loaded}) {
    EXPECT_EQ(store->put(*session, {}).status().code(), Code::kEmpty);
    EditResult result;
    expect_ok(session->edit_tokens(tokens, {}, &result));
    EXPECT_EQ(result.n_kept, 0);
    expect_ok(run(session).status);
    EXPECT_TRUE(same_bits(expected, last_logits(*session)));
  }
}

// It takes part again where it is as new.
TEST(FillRandom, SharesTextsAgainOnceItIsEmpty) {
  const auto model = load("short_128");
  SessionOptions options = with_strategy("full(kv_chunk=16)");
  options.reuse_prefixes = true;
  const Tokens tokens = random_tokens(*model, 60);
  const auto other = make_session(model, options);
  EXPECT_EQ(reused(other, tokens), 0);
  const auto filled = make_session(model, options);
  expect_ok(filled->fill_random(200, 3));
  expect_ok(filled->reset());
  EXPECT_EQ(reused(filled, tokens), 48);

  options.kv_budget_bytes = 400000;
  const auto failed = make_session(model, options);
  EXPECT_EQ(failed->fill_random(1 << 20, 1).code(), Code::kBudget);
  EXPECT_EQ(reused(failed, tokens), 48);
}

TEST(FillRandom, StopsAtTheBudgetAndLeavesNothing) {
  const auto model = load("short_128");
  SessionOptions options = with_strategy("dca(kv_chunk=16)");
  options.kv_budget_bytes = 40000;
  const auto session = make_session(model, options);
  const Status status = session->fill_random(1 << 20, 1);
  EXPECT_EQ(status.code(), Code::kBudget);
  EXPECT_NE(status.message().find("40000"), std::string::npos) << status.message();
  EXPECT_EQ(position(*session), (Position{0, 0}));
  EXPECT_EQ(stats(*session).kv_bytes, 0);
  expect_ok(session->fill_random(17, 1));
}

TEST(FillRandom, LeavesItsMemoryToOthers) {
  const SpillDirectory spill;
  RuntimeOptions runtime;
  runtime.kv_memory_bytes = 200000;
  const auto model = load("short_128", runtime);
  SessionOptions options = with_strategy("dca(kv_chunk=16)");
  const auto other = make_session(model, options);
  options.spill_directory = spill.path();
  const auto filled = make_session(model, options);
  expect_ok(filled->fill_random(2000, 1));
  // It gets all of the memory, and is refused more; it does not wait for what was filled.
  expect_ok(other->feed_tokens(random_tokens(*model, 2000)));
  EXPECT_EQ(run(other).status.code(), Code::kBudget);
  EXPECT_GT(stats(*other).kv_bytes, 150000);
  other->close();
  expect_ok(run(filled, generating(2)).status);
}

}  // namespace
}  // namespace quire::test
