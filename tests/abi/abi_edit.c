/* Editing: what is kept, what is taken over, and what is refused. */
#include "abi_test.h"

#define OUT "abi_edit_test.quire"

static quire_session* open_editing(quire_model* model, const char* strategy) {
  quire_session* session = NULL;
  quire_session_options options;
  quire_error err;
  quire_session_options_init(&options, sizeof options);
  options.flags = QUIRE_SESSION_NO_PREFIX_REUSE;
  options.strategy = strategy;
  options.strategy_len = strlen(strategy);
  EXPECT_OK(quire_session_create(model, &options, &session, &err));
  return session;
}

/* Reads what is pending; the last prefill event. */
static quire_event prefill(quire_session* session) {
  quire_stream* stream = NULL;
  quire_stream_options options;
  quire_event event, last;
  quire_error err;
  memset(&last, 0, sizeof last);
  quire_stream_options_init(&options, sizeof options);
  EXPECT_OK(quire_stream_open(session, &options, &stream, &err));
  quire_event_init(&event, sizeof event);
  while (quire_stream_next(stream, -1, &event, &err) == QUIRE_OK) {
    if (event.kind == QUIRE_EVENT_PREFILL) last = event;
  }
  quire_stream_release(stream);
  return last;
}

static void test_ids(quire_model* model) {
  int32_t ids[200];
  quire_session *session = open_editing(model, "full(kv_chunk=16)"), *fork = NULL;
  quire_edit_options options;
  quire_edit_result result;
  quire_session_stats stats;
  quire_event last;
  quire_error err;
  size_t needed = 0;
  static char description[4096];
  feed_some(session, model, 200);
  EXPECT_OK(quire_session_get_tokens(session, ids, QUIRE_COUNT(ids), NULL, &err));
  (void)prefill(session);
  EXPECT_OK(quire_session_fork(session, &fork, &err));

  /* Twenty tokens in the middle go. */
  memmove(ids + 80, ids + 100, 100 * sizeof ids[0]);
  quire_edit_result_init(&result, sizeof result);
  EXPECT_OK(quire_session_edit_tokens(fork, ids, 180, NULL, &result, &err));
  CHECK(result.n_tokens == 180 && result.n_kept == 80 && result.n_moved == 0);
  last = prefill(fork);
  CHECK(last.total == 100 && last.done == 100 && last.moved == 0);

  quire_edit_options_init(&options, sizeof options);
  options.reuse = QUIRE_EDIT_APPROXIMATE;
  EXPECT_OK(quire_session_edit_tokens(session, ids, 180, &options, &result, &err));
  CHECK(result.n_tokens == 180 && result.n_kept == 80 && result.n_moved == 96);
  last = prefill(session);
  CHECK(last.total == 100 && last.done == 4 && last.moved == 96);
  stats.struct_size = sizeof stats;
  EXPECT_OK(quire_session_get_stats(session, &stats, &err));
  CHECK(stats.n_moved == 96 && stats.n_prefilled == 204);
  EXPECT_OK(quire_session_save(session, OUT, strlen(OUT), NULL, &err));
  EXPECT_OK(quire_snapshot_describe(OUT, strlen(OUT), description, sizeof description - 1, &needed, &err));
  description[needed] = '\0';
  CHECK(strstr(description, "\"n_approximate\":100") != NULL);
  remove(OUT);

  /* With some of the run read first; behind what is approximate. */
  options.reread_tokens = 40;
  EXPECT_OK(quire_session_edit_tokens(session, ids + 1, 179, &options, NULL, &err));
  (void)prefill(session);
  EXPECT_OK(quire_session_edit_tokens(session, ids + 1, 179, NULL, &result, &err));
  CHECK(result.n_kept < 179);

  options.reread_tokens = -1;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_edit_tokens(session, ids, 180, &options, NULL, &err));
  CHECK_MESSAGE("reread_tokens");
  options.reread_tokens = 0;
  options.reuse = 2;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_edit_tokens(session, ids, 180, &options, NULL, &err));
  CHECK_MESSAGE("reuse");
  options.reuse = QUIRE_EDIT_EXACT;
  options.flags = QUIRE_TEXT_NO_BOS;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_edit_tokens(session, ids, 180, &options, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_edit_tokens(NULL, ids, 180, NULL, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_edit_tokens(session, NULL, 180, NULL, NULL, &err));
  ids[5] = -3;
  EXPECT(QUIRE_ERROR_INVALID_TOKEN, quire_session_edit_tokens(session, ids, 180, NULL, NULL, &err));
  CHECK(err.offset == 5);
  EXPECT_OK(quire_session_edit_tokens(session, NULL, 0, NULL, &result, &err));
  CHECK(result.n_tokens == 0);
  quire_session_release(fork);
  quire_session_release(session);
}

static void test_text(quire_model* model) {
  static const char before[] = "The grass is green. The sky is blue. The sun is yellow.";
  static const char after[] = "The grass is green. The sky is grey. The sun is yellow.";
  const quire_label label = {20, 36, 7}, wrong = {20, 99, 7};
  quire_session* session = open_editing(model, "dca");
  quire_edit_options options;
  quire_edit_result result;
  quire_error err;
  EXPECT_OK(quire_session_feed_text(session, before, sizeof before - 1, 0, &err));
  (void)prefill(session);
  quire_edit_options_init(&options, sizeof options);
  quire_edit_result_init(&result, sizeof result);
  options.labels = &label;
  options.n_labels = 1;
  EXPECT_OK(quire_session_edit_text(session, after, sizeof after - 1, &options, &result, &err));
  CHECK(result.n_kept > 1 && result.n_kept < result.n_tokens);
  (void)prefill(session);
  EXPECT_OK(quire_session_edit_text(session, after, sizeof after - 1, NULL, &result, &err));
  CHECK(result.n_kept == result.n_tokens);
  options.labels = &wrong;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_edit_text(session, after, sizeof after - 1, &options, NULL, &err));
  CHECK(err.offset == 0);
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_edit_tokens(session, NULL, 0, &options, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_TEXT, quire_session_edit_text(session, "\xff", 1, NULL, NULL, &err));
  result.struct_size = 3;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_edit_text(session, "a", 1, NULL, &result, &err));
  quire_session_release(session);
  session = open_editing(model, "longheads(chunk=16, chunks=4)");
  quire_edit_options_init(&options, sizeof options);
  options.reuse = QUIRE_EDIT_APPROXIMATE;
  EXPECT(QUIRE_ERROR_UNSUPPORTED, quire_session_edit_text(session, "a", 1, &options, NULL, &err));
  CHECK_MESSAGE("longheads");
  quire_session_release(session);
}

/* In two of four layers the model sees 40 tokens back. */
static void test_windows(quire_model* model) {
  quire_session* session = NULL;
  quire_session_options options;
  quire_session_stats stats;
  quire_error err;
  int64_t most = 0;
  uint32_t flags;
  quire_session_options_init(&options, sizeof options);
  options.strategy = "full(kv_chunk=16)";
  options.strategy_len = strlen(options.strategy);
  for (flags = 0; flags <= QUIRE_SESSION_KEEP_BEHIND_WINDOWS; flags += QUIRE_SESSION_KEEP_BEHIND_WINDOWS) {
    options.flags = QUIRE_SESSION_NO_PREFIX_REUSE | flags;
    EXPECT_OK(quire_session_create(model, &options, &session, &err));
    feed_some(session, model, 240);
    (void)prefill(session);
    stats.struct_size = sizeof stats;
    EXPECT_OK(quire_session_get_stats(session, &stats, &err));
    CHECK(stats.kv_chunks + stats.kv_chunks_dropped == 4 * 15);
    CHECK((stats.kv_chunks_dropped == 0) == (flags != 0));
    /* Near the beginning, where all is read again if anything was dropped there. */
    EXPECT_OK(quire_session_truncate(session, 100, &err));
    CHECK(prefill(session).done == (flags ? 1 : 100));
    if (most < stats.kv_chunks) most = stats.kv_chunks;
    quire_session_release(session);
  }
  CHECK(most == 4 * 15);
  options.flags = 4;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_create(model, &options, &session, &err));
  CHECK_MESSAGE("flags");
}

void test_edit(void) {
  loaded l = open_model("text_256");
  test_ids(l.model);
  test_text(l.model);
  close_model(&l);
  l = open_model("qwen2_window_layers");
  test_windows(l.model);
  close_model(&l);
}
