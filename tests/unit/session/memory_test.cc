// KV memory: bounded by a window, by a budget, and what a session that ran out of it still has.

#include <gtest/gtest.h>

#include "tests/unit/session/session_fixture.h"
#include "tests/unit/session/test_memory.h"

namespace quire::test {
namespace {

TEST(SessionMemory, StreamingLlmHoldsWhatItsLastTurnsSee) {
  const auto model = load("short_128");
  SessionOptions options = with_strategy("streaming_llm(sinks=4, recent=100, kv_chunk=16)");
  options.prefill_block = 16;
  const auto session = make_session(model, options);
  // Sinks share the first chunk. The text can be cut where one of the last four turns began, which may be a turn before
  // the spare chunks, and what is seen there touches two chunks more; a block touches one.
  constexpr int64_t kTurn = 56;
  const int64_t layers = model->llama->config().n_layers;
  const int64_t most = layers * (1 + (100 + 5 * kTurn) / 16 + 2 + 1);
  int64_t evicted_before = 0;
  std::vector<int64_t> held;
  for (int part = 0; part < 40; ++part) {
    ASSERT_TRUE(session->feed_tokens(random_tokens(*model, 52, static_cast<uint32_t>(part))).ok());
    expect_ok(run(session, generating(4)).status);
    const SessionStats now = stats(*session);
    EXPECT_LE(now.kv_chunks, most);
    EXPECT_EQ(now.kv_bytes % now.kv_chunks, 0);
    if (part >= 8) held.push_back(now.kv_chunks);
    if (part >= 8) {
      EXPECT_GT(now.kv_chunks_evicted, evicted_before);
    }
    evicted_before = now.kv_chunks_evicted;
  }
  EXPECT_LE(*std::max_element(held.begin(), held.end()) - *std::min_element(held.begin(), held.end()), layers);
  const SessionStats now = stats(*session);
  EXPECT_EQ(now.n_tokens, 40 * kTurn);
  EXPECT_LE(now.kv_bytes_peak, most * (now.kv_bytes / now.kv_chunks));
  // Everything else was dropped.
  EXPECT_EQ(now.kv_chunks + now.kv_chunks_evicted, layers * ((40 * kTurn - 1 + 15) / 16));
}

TEST(SessionMemory, AWindowWithoutSinksLetsGoOfTheFirstChunksToo) {
  const auto model = load("short_128");
  SessionOptions options = with_strategy("streaming_llm(sinks=0, recent=40, kv_chunk=16)");
  options.prefill_block = 16;
  const auto session = make_session(model, options);
  ASSERT_TRUE(session->feed_tokens(random_tokens(*model, 320)).ok());
  expect_ok(run(session).status);
  const int64_t layers = model->llama->config().n_layers;
  EXPECT_EQ(stats(*session).kv_chunks, layers * 8);  // keys from 200 on: what is seen from 240 on
  EXPECT_EQ(stats(*session).kv_chunks_evicted, layers * 12);
}

TEST(SessionMemory, AModelsOwnWindowBoundsIt) {
  const auto model = load("mistral_window_64");
  SessionOptions options = with_strategy("full(kv_chunk=16)");
  options.overflow = OverflowPolicy::kError;  // beyond the 2048 trained positions nothing is out of reach
  options.prefill_block = 32;
  const auto session = make_session(model, options);
  ASSERT_TRUE(session->feed_tokens(random_tokens(*model, 2400)).ok());
  expect_ok(run(session, generating(5)).status);
  const SessionStats now = stats(*session);
  EXPECT_EQ(now.reach, kNoLimit);
  EXPECT_LE(now.kv_bytes_peak / (now.kv_bytes / now.kv_chunks),
            model->llama->config().n_layers * ((63 + 32) / 16 + 2 + ChunkStore::kSpareChunks));
  EXPECT_EQ(now.kv_chunks + now.kv_chunks_evicted, model->llama->config().n_layers * ((2404 + 15) / 16));
}

// Each kind of layer drops what it sees no more: with a method that looks back less far than the window, too.
TEST(SessionMemory, LayersWithAWindowKeepWhatTheySee) {
  const auto model = load("qwen2_window_layers");
  SessionOptions options = with_strategy("streaming_llm(sinks=0, recent=10, kv_chunk=16)");
  options.prefill_block = 16;
  const auto session = make_session(model, options);
  expect_ok(session->feed_tokens(random_tokens(*model, 320)));
  expect_ok(run(session).status);
  const int64_t layers = model->llama->config().n_layers;
  // What is seen from 240 on: keys from 230 on in two layers; in the two others from 201 on, of a window of 40.
  EXPECT_EQ(stats(*session).kv_chunks, layers / 2 * (6 + 8));
  EXPECT_EQ(stats(*session).kv_chunks_evicted, layers / 2 * (14 + 12));
  // What is kept behind a window is kept as long as the others keep it: here keys from 40 on.
  options.strategy = "streaming_llm(sinks=0, recent=200, kv_chunk=16)";
  options.keep_behind_windows = true;
  const auto keeping = make_session(model, options);
  expect_ok(keeping->feed_tokens(random_tokens(*model, 320)));
  expect_ok(run(keeping).status);
  EXPECT_EQ(stats(*keeping).kv_chunks, layers * 18);
}

// What auto chooses for a budget stays within it.
TEST(SessionMemory, AutoKeepsItsPromise) {
  // The third one's window is of some layers: what these need comes on top.
  const std::pair<const char*, int64_t> models[] = {
      {"short_128", 69}, {"mistral_window_64", 69}, {"qwen2_window_layers", 108}};
  for (const auto& [name, least] : models) {
    const auto model = load(name);
    const ModelConfig& config = model->llama->config();
    const int64_t token_bytes = int64_t{4} * config.n_layers * config.n_kv_heads * config.head_dim;
    for (const int64_t tokens : {least, least + 31, int64_t{150}, int64_t{200}, int64_t{300}}) {
      SessionOptions options = with_strategy("auto");
      options.overflow = OverflowPolicy::kError;
      options.expected_tokens = 1000;
      options.prefill_block = 20;
      options.kv_budget_bytes = tokens * token_bytes;
      const auto session = make_session(model, options);
      ASSERT_TRUE(session->feed_tokens(random_tokens(*model, 990)).ok());
      const Outcome outcome = run(session, generating(10));
      expect_ok(outcome.status);
      EXPECT_EQ(outcome.tokens.size(), 10u);
      EXPECT_LE(stats(*session).kv_bytes_peak, options.kv_budget_bytes) << session->strategy();
    }
  }
}

TEST(SessionMemory, FullAttentionHoldsAllChunks) {
  const auto model = load("short_128");
  const auto session = make_session(model, with_strategy("dca(kv_chunk=16)"));
  ASSERT_TRUE(session->feed_tokens(random_tokens(*model, 1000)).ok());
  expect_ok(run(session).status);
  EXPECT_EQ(stats(*session).kv_chunks, 63 * model->llama->config().n_layers);
  EXPECT_EQ(stats(*session).kv_chunks_evicted, 0);
  EXPECT_EQ(stats(*session).kv_bytes, stats(*session).kv_bytes_peak);
}

TEST(SessionMemory, ABudgetStopsAtABlockBoundaryAndIsNeverExceeded) {
  const auto model = load("short_128");
  const Tokens tokens = random_tokens(*model, 200);
  SessionOptions options = with_strategy("dca(kv_chunk=32)");
  options.prefill_block = 24;
  const auto probe = make_session(model, options);
  ASSERT_TRUE(probe->feed_tokens(Tokens{5}).ok());
  expect_ok(run(probe).status);
  const int64_t chunk_bytes = stats(*probe).kv_bytes;  // one chunk in every layer
  options.kv_budget_bytes = 3 * chunk_bytes;           // 96 tokens: four blocks
  const auto session = make_session(model, options);
  ASSERT_TRUE(session->feed_tokens(tokens).ok());
  for (int attempt = 0; attempt < 2; ++attempt) {
    const Outcome outcome = run(session);
    EXPECT_EQ(outcome.status.code(), Code::kBudget);
    EXPECT_EQ(position(*session), (Position{96, 104}));
    EXPECT_EQ(stats(*session).kv_bytes_peak, 3 * chunk_bytes);
  }
  // It still is a session of 96 tokens: the same logits, and one more token (which is not computed yet) can be had.
  const Logits all = all_logits(model, with_strategy("dca(kv_chunk=32)"), tokens);
  EXPECT_TRUE(same_bits(row_of(all, *model, 95), last_logits(*session)));
  expect_ok(session->discard_pending());
  EXPECT_EQ(run(session, generating(1)).tokens.size(), 1u);
  EXPECT_EQ(run(session, generating(1)).status.code(), Code::kBudget);
  EXPECT_EQ(position(*session), (Position{97, 0}));
}

TEST(SessionMemory, AfterRunningOutOfMemoryTheSessionGoesOn) {
  static TestMemory memory;
  const auto model = load("short_128", memory.runtime());
  const Tokens tokens = random_tokens(*model, 300);
  SessionOptions options = with_strategy("dca(kv_chunk=32)");
  options.prefill_block = 24;
  const Logits all = all_logits(model, options, tokens);
  int failures = 0;
  for (const int64_t left : {0, 1, 2, 3, 5, 7}) {
    const auto session = make_session(model, options);
    ASSERT_TRUE(session->feed_tokens(tokens).ok());
    memory.left = left;
    const Outcome outcome = run(session);
    memory.left = INT64_MAX;
    const Position here = position(*session);
    EXPECT_EQ(here.tokens + here.pending, 300);
    EXPECT_EQ(outcome.status.code(), Code::kOutOfMemory);
    EXPECT_EQ(here.tokens % 24, 0);
    ++failures;
    expect_ok(run(session).status);
    EXPECT_EQ(position(*session), (Position{300, 0}));
    EXPECT_TRUE(same_bits(row_of(all, *model, 299), last_logits(*session))) << left << " blocks";
  }
  EXPECT_EQ(failures, 6);
}

}  // namespace
}  // namespace quire::test
