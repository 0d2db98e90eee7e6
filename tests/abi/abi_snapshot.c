/* Forks; sessions as files: saved, loaded, described, verified, and refused. */
#include <stdio.h>
#include <stdlib.h>

#include "abi_test.h"

#define OUT "quire_abi_test.quire"

static void count(void* seen, int64_t done, int64_t total) { *(int*)seen += done <= total; }

/* Whether the description of the snapshot has that part. */
static int described(const char* path, const char* part) {
  char text[4096];
  size_t n = 0;
  quire_error err;
  EXPECT_OK(quire_snapshot_describe(path, strlen(path), text, sizeof text - 1, &n, &err));
  text[n] = '\0';
  return strstr(text, part) != NULL;
}

static void test_round_trip(quire_model* model) {
  static transcript expected, out;
  char strategy[256], saved_strategy[256], text[4096];
  quire_session_options options;
  quire_snapshot_options snapshot;
  quire_session* session = open_session(model, "longheads(chunk=16, chunks=4)", 0, 16);
  quire_session* loaded = NULL;
  quire_tier_stats tier;
  quire_error err;
  size_t n = 0;
  int seen = 0;
  const size_t len = strlen(OUT);
  feed_some(session, model, 200);
  run_greedy(session, 5, &expected);
  quire_snapshot_options_init(&snapshot, sizeof snapshot);
  snapshot.progress = count;
  snapshot.progress_user_data = &seen;
  EXPECT_OK(quire_session_save(session, OUT, len, &snapshot, &err));
  CHECK(seen > 10);
  EXPECT_OK(quire_session_save(session, OUT, len, NULL, &err)); /* over itself */
  CHECK(described(OUT, "\"unused_bytes\":0,"));
  feed_some(session, model, 3);
  EXPECT_OK(quire_session_save(session, OUT, len, NULL, &err)); /* behind itself */
  CHECK(!described(OUT, "\"unused_bytes\":0,") && described(OUT, "\"n_pending\":3,"));
  snapshot.flags = QUIRE_SNAPSHOT_WHOLE;
  EXPECT_OK(quire_session_save(session, OUT, len, &snapshot, &err));
  CHECK(described(OUT, "\"unused_bytes\":0,"));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_snapshot_verify(OUT, len, &snapshot, &err));
  CHECK_MESSAGE("flags");
  snapshot.flags = 2;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_save(session, OUT, len, &snapshot, &err));
  CHECK_MESSAGE("flags");
  snapshot.flags = 0;
  EXPECT_OK(quire_session_discard_pending(session, &err));
  EXPECT_OK(quire_session_save(session, OUT, len, NULL, &err));

  EXPECT_OK(quire_session_load(model, OUT, len, NULL, &loaded, &err));
  EXPECT_OK(quire_session_get_strategy(session, strategy, sizeof strategy - 1, &n, &err));
  strategy[n] = '\0';
  EXPECT_OK(quire_session_get_strategy(loaded, saved_strategy, sizeof saved_strategy - 1, &n, &err));
  saved_strategy[n] = '\0';
  CHECK(strcmp(strategy, saved_strategy) == 0);
  tier = tier_of(loaded, QUIRE_TIER_SNAPSHOT);
  CHECK(tier.n_chunks > 0 && tier.n_hits == 0 && tier.bytes_written == 0); /* nothing but the index was read */
  run_greedy(session, 30, &expected);
  run_greedy(loaded, 30, &out);
  CHECK(out.n_tokens == 30 && memcmp(out.tokens, expected.tokens, 30 * sizeof out.tokens[0]) == 0);
  tier = tier_of(loaded, QUIRE_TIER_SNAPSHOT);
  CHECK(tier.n_hits > 0 && tier.bytes_read > 0);
  quire_session_release(loaded);
  loaded = NULL;

  EXPECT_OK(quire_snapshot_describe(OUT, len, text, sizeof text - 1, &n, &err));
  text[n] = '\0';
  CHECK(strstr(text, "\"contents\":\"session\"") != NULL && strstr(text, "longheads") != NULL);
  CHECK_OUTPUT(char, n, quire_snapshot_describe(OUT, len, buf, cap, needed, &err));
  seen = 0;
  EXPECT_OK(quire_snapshot_verify(OUT, len, &snapshot, &err));
  CHECK(seen > 10);
  EXPECT_OK(quire_snapshot_verify(OUT, len, NULL, &err));

  /* Options that are not the saved session's. */
  quire_session_options_init(&options, sizeof options);
  options.strategy = "dca";
  options.strategy_len = 3;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_load(model, OUT, len, &options, &loaded, &err));
  CHECK_MESSAGE("its strategy is longheads");
  options.strategy = NULL;
  options.strategy_len = 0;
  options.kv_type = QUIRE_TYPE_F32;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_load(model, OUT, len, &options, &loaded, &err));
  CHECK_MESSAGE("its kv_type is f16");
  options.kv_type = 0;
  options.kv_old_type = QUIRE_TYPE_INT8;
  options.old_after = QUIRE_OLD_AT_ONCE;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_load(model, OUT, len, &options, &loaded, &err));
  CHECK_MESSAGE("its kv_old_type is none; here it is int8");
  options.kv_old_type = QUIRE_TYPE_INT4;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_load(model, OUT, len, &options, &loaded, &err));
  CHECK_MESSAGE("its kv_old_type is none; here it is int4");
  options.kv_old_type = 0;
  options.old_after = 0;
  options.kv_host_budget_bytes = 1;
  EXPECT(QUIRE_ERROR_BUDGET, quire_session_load(model, OUT, len, &options, &loaded, &err));
  CHECK(loaded == NULL);
  options.kv_host_budget_bytes = 0;
  options.flags = QUIRE_SESSION_NO_PREFIX_REUSE | QUIRE_SESSION_KEEP_BEHIND_WINDOWS;
  EXPECT_OK(quire_session_load(model, OUT, len, &options, &loaded, &err));
  quire_session_release(loaded);
  EXPECT_OK(quire_session_close(session, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_session_save(session, OUT, len, NULL, &err));
  quire_session_release(session);
}

static void test_refusals(quire_model* model) {
  quire_session* session = open_session(model, "full", 0, 0);
  quire_session* loaded = NULL;
  quire_snapshot_options snapshot;
  quire_cancel* cancel = NULL;
  quire_error err;
  char text[64];
  size_t n = 0;
  const size_t len = strlen(OUT);
  const char* config = model_path("text_256");
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_save(NULL, OUT, len, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_save(session, OUT, 0, NULL, &err));
  CHECK_MESSAGE("path is empty");
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_session_save(session, "/no/such/file", 13, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_load(NULL, OUT, len, NULL, &loaded, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_load(model, OUT, len, NULL, NULL, &err));
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_session_load(model, "/no/such", 8, NULL, &loaded, &err));
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_snapshot_describe("/no/such", 8, text, sizeof text, &n, &err));
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_snapshot_verify("/no/such", 8, NULL, &err));
  EXPECT(QUIRE_ERROR_IO, quire_session_load(model, config, strlen(config), NULL, &loaded, &err)); /* a directory */
  feed_some(session, model, 100);
  quire_snapshot_options_init(&snapshot, sizeof snapshot);
  EXPECT_OK(quire_cancel_create(&cancel, &err));
  quire_cancel_trigger(cancel);
  snapshot.cancel = cancel;
  EXPECT_OK(quire_session_save(session, OUT, len, NULL, &err)); /* of pending tokens alone */
  EXPECT(QUIRE_ERROR_CANCELLED, quire_snapshot_verify(OUT, len, &snapshot, &err));
  EXPECT_OK(quire_session_load(model, OUT, len, NULL, &loaded, &err));
  quire_session_release(loaded);
  quire_cancel_release(cancel);
  quire_session_release(session);
  CHECK(remove(OUT) == 0);
}

static void test_fork(quire_model* model) {
  static transcript expected, out;
  quire_session* session = open_session(model, "dca", 0, 16);
  quire_session* forked = NULL;
  quire_stream_options options;
  quire_stream* stream = NULL;
  quire_error err;
  int32_t ids[200];
  size_t n = 0;
  feed_some(session, model, 100);
  run_greedy(session, 1, &expected);
  feed_some(session, model, 3);
  EXPECT_OK(quire_session_get_tokens(session, ids, QUIRE_COUNT(ids), &n, &err));
  CHECK(n == 104 && ids[100] == expected.tokens[0] && ids[101] == ids[0]);
  CHECK_OUTPUT(int32_t, 104, quire_session_get_tokens(session, buf, cap, needed, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_tokens(NULL, ids, QUIRE_COUNT(ids), &n, &err));
  EXPECT_OK(quire_session_fork(session, &forked, &err));
  run_greedy(forked, 20, &out);
  run_greedy(session, 20, &expected);
  CHECK(out.n_tokens == 20 && memcmp(out.tokens, expected.tokens, 20 * sizeof out.tokens[0]) == 0);
  quire_stream_options_init(&options, sizeof options);
  EXPECT_OK(quire_stream_open(session, &options, &stream, &err));
  EXPECT(QUIRE_ERROR_BUSY, quire_session_fork(session, &forked, &err));
  EXPECT(QUIRE_ERROR_BUSY, quire_session_get_tokens(session, ids, QUIRE_COUNT(ids), &n, &err));
  EXPECT_OK(quire_stream_close(stream, &err));
  quire_stream_release(stream);
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_fork(NULL, &forked, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_fork(session, NULL, &err));
  quire_session_release(forked);
  EXPECT_OK(quire_session_close(session, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_session_fork(session, &forked, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_session_get_tokens(session, ids, QUIRE_COUNT(ids), &n, &err));
  quire_session_release(session);
}

void test_snapshot(void) {
  loaded l = open_model("text_256");
  test_fork(l.model);
  test_round_trip(l.model);
  test_refusals(l.model);
  close_model(&l);
}
