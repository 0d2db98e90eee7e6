/* The strategy's reach with each policy, and the KV budget. */
#include <stdlib.h>

#include "abi_test.h"

static quire_stream_options greedy(int64_t max_tokens) {
  quire_stream_options options;
  quire_stream_options_init(&options, sizeof options);
  options.flags = QUIRE_STREAM_IGNORE_EOS;
  options.max_tokens = max_tokens;
  return options;
}

static void test_overflow_is_an_error(quire_model* model) {
  static const int32_t policies[] = {QUIRE_OVERFLOW_DEFAULT, QUIRE_OVERFLOW_ERROR};
  for (size_t i = 0; i < QUIRE_COUNT(policies); ++i) {
    quire_session* session = open_session(model, "full", policies[i], 0);
    quire_stream_options options = greedy(29);
    quire_stream* stream = NULL;
    transcript out;
    int64_t n_tokens = -1, n_pending = -1;
    quire_error err;
    feed_some(session, model, 100);
    EXPECT(QUIRE_ERROR_OVERFLOW, quire_stream_open(session, &options, &stream, &err));
    CHECK(err.offset == 129);
    CHECK_MESSAGE("128");
    CHECK(stream == NULL);
    options.max_tokens = INT64_MAX;
    EXPECT(QUIRE_ERROR_OVERFLOW, quire_stream_open(session, &options, &stream, &err));
    EXPECT_OK(quire_session_get_token_counts(session, &n_tokens, &n_pending, &err));
    CHECK(n_tokens == 0 && n_pending == 100);
    run_greedy(session, 28, &out);
    CHECK(out.n_tokens == 28 && out.finish == QUIRE_FINISH_MAX_TOKENS && out.end_position == 128);
    options.max_tokens = 1;
    EXPECT(QUIRE_ERROR_OVERFLOW, quire_stream_open(session, &options, &stream, &err));
    quire_session_release(session);
  }
}

static void test_stop_at_the_reach(quire_model* model) {
  quire_session* session = open_session(model, "full", QUIRE_OVERFLOW_STOP, 32);
  transcript out;
  quire_session_stats stats;
  quire_error err;
  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  feed_some(session, model, 120);
  run_greedy(session, 100, &out);
  CHECK(out.finish == QUIRE_FINISH_REACH && out.n_tokens == 8 && out.end_position == 128);
  run_greedy(session, 100, &out);
  CHECK(out.finish == QUIRE_FINISH_REACH && out.n_tokens == 0);
  EXPECT_OK(quire_session_reset(session, &err));
  feed_some(session, model, 200); /* nothing is dropped: the rest stays pending */
  run_greedy(session, 5, &out);
  CHECK(out.finish == QUIRE_FINISH_REACH && out.n_tokens == 0 && out.end_position == 128);
  EXPECT_OK(quire_session_get_stats(session, &stats, &err));
  CHECK(stats.n_tokens == 128 && stats.n_pending == 72 && stats.reach == 128);
  quire_session_release(session);
}

static void test_extrapolate(quire_model* model) {
  quire_session* session = open_session(model, "full", QUIRE_OVERFLOW_EXTRAPOLATE, 0);
  transcript out;
  feed_some(session, model, 150);
  run_greedy(session, 10, &out);
  CHECK(out.finish == QUIRE_FINISH_MAX_TOKENS && out.n_tokens == 10 && out.end_position == 160);
  CHECK(out.n_warnings == 1);
  quire_session_release(session);
  session = open_session(model, "full", QUIRE_OVERFLOW_EXTRAPOLATE, 0);
  feed_some(session, model, 100);
  run_greedy(session, 10, &out);
  CHECK(out.n_warnings == 0); /* within the reach there is nothing to warn of */
  quire_session_release(session);
}

/* What a message calls needed is what the call needs. */
static int64_t needed_bytes(const char* message) {
  const char* at = strstr(message, "needs ");
  return at ? strtoll(at + 6, NULL, 10) : -1;
}

static void test_budget(quire_model* model) {
  quire_session_options options;
  quire_session* session = NULL;
  quire_session* roomy = open_session(model, "full", 0, 16);
  transcript out, expected;
  int64_t n_tokens = 0, n_pending = 0, needed;
  quire_error err;
  feed_some(roomy, model, 64);
  run_greedy(roomy, 8, &expected);

  quire_session_options_init(&options, sizeof options);
  options.prefill_block = 16;
  options.kv_host_budget_bytes = 1;
  EXPECT_OK(quire_session_create(model, &options, &session, &err));
  feed_some(session, model, 64);
  run_greedy(session, 8, &out);
  CHECK(out.failure == QUIRE_ERROR_BUDGET && out.n_tokens == 0);
  needed = needed_bytes(out.err.message);
  CHECK(needed > 1 && strstr(out.err.message, "budget is 1") != NULL);
  quire_session_release(session);

  options.kv_host_budget_bytes = needed; /* enough for the first chunk, not for all */
  EXPECT_OK(quire_session_create(model, &options, &session, &err));
  feed_some(session, model, 64);
  run_greedy(session, 8, &out);
  CHECK(out.failure == QUIRE_ERROR_BUDGET);
  CHECK(needed_bytes(out.err.message) > needed);
  EXPECT_OK(quire_session_get_token_counts(session, &n_tokens, &n_pending, &err));
  CHECK(n_tokens > 0 && n_tokens % 16 == 0 && n_pending == 64 - n_tokens);
  CHECK(tier_of(session, QUIRE_TIER_HOST).bytes <= needed && tier_of(session, QUIRE_TIER_HOST).bytes_peak <= needed);
  EXPECT_OK(quire_session_discard_pending(session, &err)); /* and the session goes on */
  EXPECT_OK(quire_session_reset(session, &err));
  feed_some(session, model, 16);
  run_greedy(session, 0, &out);
  CHECK(out.failure == QUIRE_OK && out.end_position == 16);
  quire_session_release(session);

  options.kv_host_budget_bytes = tier_of(roomy, QUIRE_TIER_HOST).bytes_peak;
  EXPECT_OK(quire_session_create(model, &options, &session, &err));
  feed_some(session, model, 64);
  run_greedy(session, 8, &out);
  CHECK(out.failure == QUIRE_OK && out.n_tokens == 8);
  CHECK(memcmp(out.tokens, expected.tokens, 8 * sizeof out.tokens[0]) == 0);
  quire_session_release(session);
  quire_session_release(roomy);
}

void test_overflow_and_budget(void) {
  loaded l = open_model("short_128");
  test_overflow_is_an_error(l.model);
  test_stop_at_the_reach(l.model);
  test_extrapolate(l.model);
  test_budget(l.model);
  close_model(&l);
}
