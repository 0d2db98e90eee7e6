/* Sessions: creation, feeding, position, statistics. */
#include "abi_test.h"

static void test_create_errors(quire_model* model) {
  quire_session* session = NULL;
  quire_session_options options;
  quire_error err;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_create(NULL, NULL, &session, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_create(model, NULL, NULL, &err));
#define REFUSED(field, value, message)                                                           \
  do {                                                                                           \
    quire_session_options_init(&options, sizeof options);                                        \
    options.field = (value);                                                                     \
    EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_create(model, &options, &session, &err)); \
    CHECK_MESSAGE(message);                                                                      \
    CHECK(err.offset == -1);                                                                     \
  } while (0)
  REFUSED(strategy_len, 3, "strategy");
  REFUSED(kv_type, 4, "kv_type");
  REFUSED(kv_type, -1, "kv_type");
  REFUSED(kv_type, QUIRE_TYPE_INT4, "kv_type");
  REFUSED(kv_old_type, QUIRE_TYPE_F16, "kv_old_type is 2; expected 0, 16 (QUIRE_TYPE_INT8) or 17");
  REFUSED(kv_old_type, QUIRE_TYPE_INT4 + 1, "kv_old_type is 18; expected 0, 16 (QUIRE_TYPE_INT8) or 17");
  REFUSED(old_after, 4096, "old_after is 4096 without a kv_old_type");
  REFUSED(old_after, -2, "old_after");
  REFUSED(reserved_2, 1, "reserved_2");
  REFUSED(overflow, 4, "overflow");
  REFUSED(expected_tokens, -1, "expected_tokens");
  REFUSED(kv_host_budget_bytes, -1, "kv_host_budget_bytes");
  REFUSED(kv_file_budget_bytes, -1, "kv_file_budget_bytes");
  REFUSED(kv_device_budget_bytes, -1, "kv_device_budget_bytes");
  quire_session_options_init(&options, sizeof options);
  options.kv_device_budget_bytes = 1; /* nothing of a model on the CPU lies there */
  EXPECT_OK(quire_session_create(model, &options, &session, &err));
  CHECK(tier_of(session, QUIRE_TIER_DEVICE).budget_bytes == 0);
  quire_session_release(session);
  session = NULL;
  quire_session_options_init(&options, sizeof options);
  options.kv_compressed_budget_bytes = 1;
  EXPECT(QUIRE_ERROR_BUDGET, quire_session_create(model, &options, &session, &err));
  CHECK_MESSAGE("of compressed memory at least");
  REFUSED(kv_compressed_budget_bytes, -1, "kv_compressed_budget_bytes");
  REFUSED(prefill_block, -1, "prefill_block");
  REFUSED(prefill_block, 1 << 20, "prefill_block");
  REFUSED(reserved, 1, "reserved");
#undef REFUSED
  quire_session_options_init(&options, sizeof options);
  options.strategy = "full";
  options.strategy_len = SIZE_MAX;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_create(model, &options, &session, &err));
  CHECK_MESSAGE("strategy has a length of");
  options.strategy_len = SIZE_MAX / 4; /* refused unread */
  EXPECT(QUIRE_ERROR_BAD_STRATEGY, quire_session_create(model, &options, &session, &err));
  CHECK_MESSAGE("at most 4096");
  options.strategy = "full(head=1)";
  options.strategy_len = 12;
  EXPECT(QUIRE_ERROR_BAD_STRATEGY, quire_session_create(model, &options, &session, &err));
  CHECK(err.offset == 5);
  options.strategy = "beacon";
  options.strategy_len = 6;
  EXPECT(QUIRE_ERROR_UNSUPPORTED, quire_session_create(model, &options, &session, &err));
  CHECK_MESSAGE("beacon");
  CHECK(session == NULL);
}

static void expect_position(quire_session* session, int64_t tokens, int64_t pending) {
  int64_t n_tokens = -1, n_pending = -1;
  quire_session_stats stats;
  quire_error err;
  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  EXPECT_OK(quire_session_get_token_counts(session, &n_tokens, &n_pending, &err));
  CHECK(n_tokens == tokens && n_pending == pending);
  EXPECT_OK(quire_session_get_stats(session, &stats, &err));
  CHECK(stats.n_tokens == tokens && stats.n_pending == pending);
}

static void test_feed(quire_model* model) {
  quire_session* session = open_session(model, NULL, 0, 0);
  int32_t ids[] = {3, 4, 5, 6};
  int64_t before = 0, after = 0;
  quire_error err;
  expect_position(session, 0, 0);
  EXPECT_OK(quire_session_feed_text(session, "the reader", 10, 0, &err));
  EXPECT_OK(quire_session_get_token_counts(session, NULL, &before, &err));
  CHECK(before > 1);
  EXPECT_OK(quire_session_feed_tokens(session, ids, 4, &err));
  EXPECT_OK(quire_session_get_token_counts(session, NULL, &after, &err));
  CHECK(after == before + 4);

  EXPECT(QUIRE_ERROR_INVALID_TEXT, quire_session_feed_text(session, "the \xE2\x82", 6, 0, &err));
  CHECK(err.offset == 4);
  EXPECT(QUIRE_ERROR_INVALID_TEXT, quire_session_feed_text(session, "\xAC!", 2, 0, &err));
  CHECK(err.offset == 0);
  ids[3] = 320;
  EXPECT(QUIRE_ERROR_INVALID_TOKEN, quire_session_feed_tokens(session, ids, 4, &err));
  CHECK(err.offset == 3);
  CHECK_MESSAGE("320");
  ids[1] = -1;
  EXPECT(QUIRE_ERROR_INVALID_TOKEN, quire_session_feed_tokens(session, ids, 4, &err));
  CHECK(err.offset == 1);
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_feed_text(session, NULL, 4, 0, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_feed_text(session, "a", 1, QUIRE_TEXT_CONTINUE, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_feed_text(NULL, "a", 1, 0, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_feed_tokens(session, NULL, 4, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_feed_tokens(session, ids, SIZE_MAX, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_feed_tokens(NULL, ids, 1, &err));
  {
    const int64_t falling[] = {1000, 1000};
    const int64_t gaps[] = {1000, 1002};
    ids[1] = 4;
    EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_feed_positions(session, ids, falling, 2, &err));
    CHECK(err.offset == 1);
    CHECK_MESSAGE("1001 or more");
    EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_feed_positions(session, ids, NULL, 2, &err));
    EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_feed_positions(session, NULL, gaps, 2, &err));
    EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_feed_positions(session, ids, gaps, SIZE_MAX, &err));
    EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_feed_positions(NULL, ids, gaps, 2, &err));
    ids[1] = -1;
    EXPECT(QUIRE_ERROR_INVALID_TOKEN, quire_session_feed_positions(session, ids, gaps, 2, &err));
    expect_position(session, 0, after); /* refused calls queued nothing */
    EXPECT_OK(quire_session_feed_positions(session, NULL, NULL, 0, &err));
    ids[1] = 4;
    EXPECT_OK(quire_session_feed_positions(session, ids, gaps, 2, &err));
    expect_position(session, 0, after + 2);
    EXPECT_OK(quire_session_truncate(session, after, &err));
  }
  expect_position(session, 0, after);
  EXPECT_OK(quire_session_feed_tokens(session, NULL, 0, &err));
  EXPECT_OK(quire_session_feed_text(session, NULL, 0, 0, &err));
  expect_position(session, 0, after);

  EXPECT_OK(quire_session_discard_pending(session, &err));
  expect_position(session, 0, 0);
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_discard_pending(NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_reset(NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_token_counts(NULL, &before, &after, &err));
  quire_session_release(session);
}

/* Only the first segment begins with the beginning-of-sequence token, and only if it may. */
static void test_segments(quire_model* model) {
  quire_session* session = open_session(model, NULL, 0, 0);
  int64_t with = 0, without = 0, second = 0;
  size_t later = 0;
  quire_tokenizer* tokenizer = NULL;
  quire_error err;
  EXPECT_OK(quire_session_feed_text(session, "one leaf", 8, 0, &err));
  EXPECT_OK(quire_session_get_token_counts(session, NULL, &with, &err));
  EXPECT_OK(quire_session_feed_text(session, "one leaf", 8, 0, &err));
  EXPECT_OK(quire_session_get_token_counts(session, NULL, &second, &err));
  EXPECT_OK(quire_session_discard_pending(session, &err));
  EXPECT_OK(quire_session_feed_text(session, "one leaf", 8, QUIRE_TEXT_NO_BOS, &err));
  EXPECT_OK(quire_session_get_token_counts(session, NULL, &without, &err));
  EXPECT_OK(quire_model_get_tokenizer(model, &tokenizer, &err));
  EXPECT_OK(quire_tokenizer_encode(tokenizer, "one leaf", 8, QUIRE_TEXT_CONTINUE, NULL, 0, &later, &err));
  quire_tokenizer_release(tokenizer);
  CHECK(with == without + 1 && second == with + (int64_t)later);
  EXPECT_OK(quire_session_discard_pending(session, &err));
  EXPECT_OK(quire_session_feed_text(session, "</s>", 4, QUIRE_TEXT_PARSE_SPECIAL | QUIRE_TEXT_NO_BOS, &err));
  EXPECT_OK(quire_session_get_token_counts(session, NULL, &second, &err));
  CHECK(second == 1);
  quire_session_release(session);
}

static void test_strategy_text(quire_model* model) {
  quire_session* session = open_session(model, " dca ( chunk = 48 ) ", 0, 0);
  const quire_strategy_options options = strategy_options("dca(chunk=48)", 256);
  char own[512], described[512];
  size_t n = 0, m = 0;
  quire_error err;
  EXPECT_OK(quire_session_get_strategy(session, own, sizeof own, &n, &err));
  EXPECT_OK(quire_strategy_describe(&options, described, sizeof described, &m, &err));
  CHECK(n == m && memcmp(own, described, n) == 0);
  EXPECT_OK(quire_session_get_strategy(session, NULL, 0, &m, &err));
  CHECK(n == m);
  EXPECT(QUIRE_ERROR_BUFFER_TOO_SMALL, quire_session_get_strategy(session, own, n - 1, &m, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_strategy(NULL, own, sizeof own, &m, &err));
  quire_session_release(session);
}

/* The strategy that a session of the model would have; NULL where it would not be created. */
static const char* described(quire_model* model, const char* strategy, int64_t expected_tokens, int64_t budget,
                             quire_error* err) {
  static char text[512];
  quire_session_options options;
  size_t needed = 0;
  quire_session_options_init(&options, sizeof options);
  options.strategy = strategy;
  options.strategy_len = strlen(strategy);
  options.expected_tokens = expected_tokens;
  options.kv_host_budget_bytes = budget;
  memset(text, 0, sizeof text);
  if (quire_model_describe_strategy(model, &options, text, sizeof text - 1, &needed, err) != QUIRE_OK) return NULL;
  CHECK(needed == strlen(text));
  return text;
}

static void test_describe_strategy(quire_model* model) {
  static const char full[] = "full(train_len=256, kv_chunk=64) + none";
  char buf[64] = "x";
  const char* text;
  size_t needed = 0;
  quire_error err;
  text = described(model, "auto", 256, 0, &err);
  CHECK(text && strcmp(text, full) == 0);
  text = described(model, "auto", 257, 0, &err);
  CHECK(text && strncmp(text, "dca(preset=paper, chunk=192, cap=255", 36) == 0);
  text = described(model, "auto", 4000, 400000, &err); /* 192 half-precision numbers a token */
  CHECK(text && strncmp(text, "streaming_llm(", 14) == 0);
  CHECK(!described(model, "auto", 4000, 1000, &err) && err.code == QUIRE_ERROR_BUDGET);
  CHECK_MESSAGE("bytes");
  CHECK(!described(model, "full + dynamic_ntk(factor=2)", 0, 0, &err) && err.code == QUIRE_ERROR_BAD_STRATEGY);
  CHECK(err.offset == 7);
  CHECK_MESSAGE("expected_tokens");
  text = described(model, "full + dynamic_ntk(factor=2)", 1000, 0, &err);
  CHECK(text && strstr(text, "length=1000, original=256"));
  CHECK(!described(model, "full + longrope", 1000, 0, &err) && err.code == QUIRE_ERROR_UNSUPPORTED);
  CHECK(!described(model, "full", -1, 0, &err) && err.code == QUIRE_ERROR_INVALID_ARGUMENT);

  EXPECT_OK(quire_model_describe_strategy(model, NULL, NULL, 0, &needed, &err));
  CHECK(needed == sizeof full - 1);
  EXPECT(QUIRE_ERROR_BUFFER_TOO_SMALL, quire_model_describe_strategy(model, NULL, buf, needed - 1, NULL, &err));
  CHECK(buf[0] == 'x');
  EXPECT_OK(quire_model_describe_strategy(model, NULL, buf, needed, NULL, &err));
  CHECK(memcmp(buf, full, needed) == 0);
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_describe_strategy(NULL, NULL, buf, sizeof buf, &needed, &err));
}

/* The first stream says what was chosen; get_strategy goes on saying it. */
static void test_auto(quire_model* model) {
  quire_session* session = open_session(model, "auto", 0, 0);
  transcript out;
  char own[512];
  size_t n = 0;
  quire_error err;
  feed_some(session, model, 20);
  run_greedy(session, 2, &out);
  CHECK(out.n_notices == 1 && strncmp(out.notice, "auto chose dca(", 15) == 0 && strstr(out.notice, " because "));
  EXPECT_OK(quire_session_get_strategy(session, own, sizeof own - 1, &n, &err));
  own[n] = '\0';
  CHECK(n > 0 && strstr(out.notice, own));
  run_greedy(session, 2, &out);
  CHECK(out.n_notices == 0);
  quire_session_release(session);
}

/* A model whose own window hides far keys, and one whose frequencies depend on the length of the text. */
static void test_other_checkpoints(void) {
  loaded mistral = open_model("mistral_window_64"), dynamic = open_model("mha_dynamic");
  quire_model_info info;
  const char* text;
  quire_session* session = NULL;
  quire_error err;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  EXPECT_OK(quire_model_get_info(mistral.model, &info, &err));
  CHECK(info.sliding_window == 64);
  text = described(mistral.model, "auto", 100000, 0, &err);
  CHECK(text && strncmp(text, "full(", 5) == 0);
  CHECK(!described(mistral.model, "dca", 0, 0, &err) && err.code == QUIRE_ERROR_UNSUPPORTED);
  CHECK_MESSAGE("ignore_window=1");
  text = described(mistral.model, "dca(ignore_window=1)", 0, 0, &err);
  CHECK(text && strstr(text, "ignore_window=1"));

  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_create(dynamic.model, NULL, &session, &err));
  CHECK_MESSAGE("set expected_tokens, or name a scaling");
  CHECK(session == NULL);
  text = described(dynamic.model, "full", 1000, 0, &err);
  CHECK(text && strstr(text, "dynamic_ntk(factor=2, length=1000, original=256)"));
  text = described(dynamic.model, "dca + none", 0, 0, &err);
  CHECK(text && strstr(text, "+ none"));
  close_model(&mistral);
  close_model(&dynamic);
}

static void test_stats(quire_model* model) {
  quire_session* session = open_session(model, "streaming_llm(sinks=4, recent=60)", 0, 16);
  quire_session_stats stats;
  struct {
    uint32_t struct_size, flags;
    int64_t n_tokens, canary;
  } small = {16, 0, 0, 77};
  transcript out;
  quire_error err;
  memset(&stats, 0, sizeof stats);
  feed_some(session, model, 900);
  run_greedy(session, 7, &out);
  stats.struct_size = sizeof stats;
  EXPECT_OK(quire_session_get_stats(session, &stats, &err));
  CHECK(stats.struct_size == sizeof stats && stats.flags == 0);
  CHECK(stats.n_tokens == 907 && stats.n_pending == 0 && stats.n_prefilled == 900 && stats.n_generated == 7);
  CHECK(stats.prefill_ns > 0 && stats.decode_ns > 0 && stats.reach == INT64_MAX);
  const quire_tier_stats host = tier_of(session, QUIRE_TIER_HOST);
  CHECK(host.bytes > 0 && host.bytes <= host.bytes_peak && stats.scratch_bytes > 0);
  CHECK(stats.kv_chunks > 0 && stats.kv_chunks_dropped > 0 && host.bytes % stats.kv_chunks == 0);
  EXPECT_OK(quire_session_get_stats(session, (quire_session_stats*)&small, &err));
  CHECK(small.struct_size == 16 && small.n_tokens == 907 && small.canary == 77);
  small.struct_size = 7;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_stats(session, (quire_session_stats*)&small, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_stats(session, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_stats(NULL, &stats, &err));

  quire_session_probes probes;
  memset(&probes, 0xAB, sizeof probes);
  probes.struct_size = sizeof probes;
  EXPECT_OK(quire_session_get_probes(session, &probes, &err));
  CHECK(probes.struct_size == sizeof probes && probes.flags == 0);
  CHECK(probes.tasks_after_cancel == 0 && probes.cancel_latency_ns == 0); /* nothing was cancelled */
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_probes(session, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_probes(NULL, &probes, &err));

  EXPECT_OK(quire_session_reset(session, &err));
  expect_position(session, 0, 0);
  EXPECT_OK(quire_session_get_stats(session, &stats, &err));
  CHECK(tier_of(session, QUIRE_TIER_HOST).bytes == 0 && stats.kv_chunks == 0);
  quire_session_release(session);
}

/* A session filled at random decodes and reads on, and failures leave it empty. */
static void test_fill_random(quire_model* model) {
  quire_session* session = open_session(model, "dca", 0, 0);
  quire_session* bounded = NULL;
  quire_session_options options;
  quire_stream* stream = NULL;
  quire_stream_options streaming;
  transcript first, second;
  quire_error err;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_fill_random(NULL, 8, 1, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_fill_random(session, -1, 1, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_fill_random(session, INT64_C(1) << 31, 1, &err));
  CHECK_MESSAGE("n_tokens");
  EXPECT_OK(quire_session_fill_random(session, 0, 1, &err));
  expect_position(session, 0, 0);
  EXPECT_OK(quire_session_fill_random(session, 700, 1, &err));
  expect_position(session, 700, 0);
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_fill_random(session, 8, 1, &err));
  CHECK_MESSAGE("700");
  run_greedy(session, 6, &first);
  expect_position(session, 706, 0);
  EXPECT_OK(quire_session_reset(session, &err));
  feed_some(session, model, 10);
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_fill_random(session, 8, 1, &err));
  EXPECT_OK(quire_session_discard_pending(session, &err));
  EXPECT_OK(quire_session_fill_random(session, 700, 1, &err));
  run_greedy(session, 6, &second);
  CHECK(first.n_tokens == 6 && second.n_tokens == 6);
  CHECK(memcmp(first.tokens, second.tokens, 6 * sizeof first.tokens[0]) == 0);
  CHECK(memcmp(first.logprobs, second.logprobs, 6 * sizeof first.logprobs[0]) == 0);

  quire_stream_options_init(&streaming, sizeof streaming);
  streaming.max_tokens = 4;
  EXPECT_OK(quire_stream_open(session, &streaming, &stream, &err));
  EXPECT(QUIRE_ERROR_BUSY, quire_session_fill_random(session, 8, 1, &err));
  quire_stream_release(stream);
  quire_session_release(session);

  quire_session_options_init(&options, sizeof options);
  options.kv_host_budget_bytes = 4096;
  EXPECT_OK(quire_session_create(model, &options, &bounded, &err));
  EXPECT(QUIRE_ERROR_BUDGET, quire_session_fill_random(bounded, 1 << 20, 1, &err));
  expect_position(bounded, 0, 0);
  quire_session_release(bounded);
}

void test_session(void) {
  loaded l = open_model("text_256");
  quire_session* session;
  quire_error err;
  test_create_errors(l.model);
  test_feed(l.model);
  test_segments(l.model);
  test_strategy_text(l.model);
  test_describe_strategy(l.model);
  test_auto(l.model);
  test_other_checkpoints();
  test_stats(l.model);
  test_fill_random(l.model);
  EXPECT_OK(quire_session_create(l.model, NULL, &session, &err));
  quire_session_retain(session);
  quire_session_release(session);
  close_model(&l); /* the session keeps both */
  expect_position(session, 0, 0);
  quire_session_release(session);
  quire_session_retain(NULL);
  quire_session_release(NULL);
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_close(NULL, &err));
}
