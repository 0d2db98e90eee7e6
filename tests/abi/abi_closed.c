/* After close every call says so. */
#include "abi_test.h"

typedef struct handles {
  quire_session* session;
  quire_stream* stream;
} handles;

static handles computing(quire_model* model) {
  handles h = {open_session(model, "dca", 0, 16), NULL};
  quire_stream_options options;
  quire_error err;
  feed_some(h.session, model, 1000);
  quire_stream_options_init(&options, sizeof options);
  options.max_tokens = 10;
  EXPECT_OK(quire_stream_open(h.session, &options, &h.stream, &err));
  return h;
}

static void expect_session_closed(handles h) {
  quire_stream* stream = NULL;
  quire_event event;
  quire_session_stats stats;
  float row[64];
  int32_t id = 5, kind;
  int64_t n = -7, handle;
  char text[64];
  size_t needed;
  quire_error err;
  quire_event_init(&event, sizeof event);
  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  EXPECT(QUIRE_ERROR_CLOSED, quire_session_feed_text(h.session, "a", 1, 0, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_session_feed_tokens(h.session, &id, 1, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_session_edit_text(h.session, "a", 1, NULL, NULL, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_session_edit_tokens(h.session, &id, 1, NULL, NULL, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_session_feed_positions(h.session, &id, &n, 1, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_session_feed_messages(h.session, NULL, 0, NULL, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_session_discard_pending(h.session, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_session_reset(h.session, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_session_truncate(h.session, 0, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_session_fill_random(h.session, 8, 1, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_session_get_token_counts(h.session, &n, &n, &err));
  CHECK(n == -7);
  EXPECT(QUIRE_ERROR_CLOSED, quire_session_get_logits(h.session, -1, 1, row, 64, NULL, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_session_get_scores(h.session, 0, 1, row, 64, NULL, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_session_get_passages(h.session, -1, 0, 5, NULL, 0, &needed, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_session_get_label_shares(h.session, -1, 0, NULL, 0, &needed, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_session_get_stats(h.session, &stats, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_session_get_strategy(h.session, text, sizeof text, &needed, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_stream_open(h.session, NULL, &stream, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_stream_next(h.stream, -1, &event, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_stream_get_wait_handle(h.stream, &handle, &kind, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_stream_cancel(h.stream, &err));
  EXPECT_OK(quire_stream_close(h.stream, &err));
  EXPECT_OK(quire_session_close(h.session, &err));
}

static void release(handles h) {
  quire_session_release(h.session);
  quire_stream_release(h.stream);
}

static void test_closed_session(void) {
  loaded l = open_model("short_128");
  handles h = computing(l.model), ended = computing(l.model);
  transcript out;
  quire_session* other;
  quire_error err;
  EXPECT_OK(quire_session_close(h.session, &err));
  expect_session_closed(h);
  release(h);
  read_stream(ended.stream, &out); /* a stream that had ended is closed with its session, too */
  EXPECT_OK(quire_session_close(ended.session, &err));
  expect_session_closed(ended);
  release(ended);
  EXPECT_OK(quire_session_create(l.model, NULL, &other, &err)); /* the model is open */
  quire_session_release(other);
  close_model(&l);
}

static void expect_model_closed(loaded l, quire_tokenizer* tokenizer) {
  const char* path = model_path("short_128");
  quire_model* model = NULL;
  quire_session* session = NULL;
  quire_tokenizer* second = NULL;
  quire_model_info info;
  int32_t ids[8] = {5};
  char text[64];
  size_t needed;
  quire_error err;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  EXPECT(QUIRE_ERROR_CLOSED, quire_model_load(l.runtime, path, strlen(path), NULL, &model, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_model_get_info(l.model, &info, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_model_get_metadata(l.model, "tokenizer", 9, text, sizeof text, &needed, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_model_get_tokenizer(l.model, &second, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_session_create(l.model, NULL, &session, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_model_describe_strategy(l.model, NULL, text, sizeof text, &needed, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_tokenizer_encode(tokenizer, "a", 1, 0, ids, 8, &needed, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_tokenizer_decode(tokenizer, ids, 1, 0, text, sizeof text, &needed, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_tokenizer_get_token_bytes(tokenizer, 5, text, sizeof text, &needed, &err));
  CHECK(model == NULL && session == NULL && second == NULL);
}

static void test_closed_runtime(void) {
  loaded l = open_model("short_128");
  handles h = computing(l.model), ended = computing(l.model);
  quire_tokenizer* tokenizer = NULL;
  transcript out;
  quire_error err;
  EXPECT_OK(quire_model_get_tokenizer(l.model, &tokenizer, &err));
  read_stream(ended.stream, &out);
  EXPECT_OK(quire_runtime_close(l.runtime, &err));
  expect_session_closed(h);
  expect_session_closed(ended);
  expect_model_closed(l, tokenizer);
  EXPECT_OK(quire_runtime_close(l.runtime, &err));
  release(h);
  release(ended);
  close_model(&l);
  quire_tokenizer_release(tokenizer);
}

void test_closed(void) {
  test_closed_session();
  test_closed_runtime();
}
