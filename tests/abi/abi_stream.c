/* Streams: what they refuse, what is BUSY meanwhile, events of every size, the wait handle. */
#include <math.h>
#include <poll.h>

#include "abi_test.h"

void test_stream(void) {
  loaded l = open_model("text_256");
  quire_session* session = open_session(l.model, "dca", 0, 64);
  quire_stream* stream = NULL;
  quire_stream_options options;
  transcript out;
  int64_t n_tokens = 0;
  char decoded[sizeof out.text];
  size_t needed = 0;
  quire_tokenizer* tokenizer = NULL;
  quire_error err;
  EXPECT_OK(quire_model_get_tokenizer(l.model, &tokenizer, &err));
  feed_some(session, l.model, 600);
  quire_stream_options_init(&options, sizeof options);
  options.flags = QUIRE_STREAM_IGNORE_EOS;
  options.max_tokens = 40;
  EXPECT_OK(quire_stream_open(session, &options, &stream, &err));
  quire_stream_retain(stream);
  quire_stream_release(stream);
  read_stream(stream, &out);
  CHECK(out.n_prefill_events > 0 && out.n_tokens == 40 && out.end_position == 640);
  EXPECT_OK(quire_session_get_token_counts(session, &n_tokens, NULL, &err));
  CHECK(n_tokens == 640);
  /* The text of the events is the text of the tokens (bytes that are no text become U+FFFD in both). */
  EXPECT_OK(quire_tokenizer_decode(tokenizer, out.tokens, out.n_tokens, 0, decoded, sizeof decoded, &needed, &err));
  CHECK(needed > 0 && needed <= out.text_len && out.text_len - needed <= 1);
  CHECK(memcmp(out.text + (out.text_len - needed), decoded, needed) == 0);
  EXPECT_OK(quire_stream_cancel(stream, &err)); /* after the end: nothing happens */
  EXPECT_OK(quire_stream_close(stream, &err));
  EXPECT_OK(quire_stream_close(stream, &err));
  EXPECT_OK(quire_stream_cancel(stream, &err));
  quire_stream_release(stream);
  quire_tokenizer_release(tokenizer);
  quire_session_release(session);
  close_model(&l);
}

static void test_refused_options(quire_session* session) {
  quire_stream* stream = NULL;
  quire_stream_options options;
  int32_t id = 5;
  static const char long_text[1025] = "x";
  quire_text texts[65];
  quire_error err;
  for (size_t i = 0; i < QUIRE_COUNT(texts); ++i) texts[i].data = "stop", texts[i].len = 4;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_stream_open(NULL, NULL, &stream, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_stream_open(session, NULL, NULL, &err));
#define REFUSED(statement, message)                                                            \
  do {                                                                                         \
    quire_stream_options_init(&options, sizeof options);                                       \
    statement;                                                                                 \
    EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_stream_open(session, &options, &stream, &err)); \
    CHECK_MESSAGE(message);                                                                    \
  } while (0)
  REFUSED(options.flags = 1u << 30, "flags");
  REFUSED(options.max_tokens = -1, "max_tokens");
  REFUSED(options.temperature = -1, "temperature");
  REFUSED(options.temperature = NAN, "temperature");
  REFUSED(options.temperature = INFINITY, "temperature");
  REFUSED(options.top_k = -1, "top_k");
  REFUSED(options.top_p = 1.5f, "top_p");
  REFUSED(options.top_p = NAN, "top_p");
  REFUSED(options.min_p = -0.5f, "min_p");
  REFUSED(options.n_stop_ids = 1, "stop_ids");
  REFUSED((options.stop_ids = &id, options.n_stop_ids = 1 << 20), "n_stop_ids");
  REFUSED(options.n_stop_strings = 1, "stop_strings");
  REFUSED((options.stop_strings = texts, options.n_stop_strings = 65), "64");
  texts[1].len = 0;
  REFUSED((options.stop_strings = texts, options.n_stop_strings = 2), "stop_strings[1]");
  texts[1].data = long_text, texts[1].len = 1025;
  REFUSED((options.stop_strings = texts, options.n_stop_strings = 2), "stop_strings[1]");
  texts[1].data = NULL, texts[1].len = 1;
  REFUSED((options.stop_strings = texts, options.n_stop_strings = 2), "stop_strings[1]");
#undef REFUSED
  texts[1].data = "a\xFF", texts[1].len = 2;
  quire_stream_options_init(&options, sizeof options);
  options.stop_strings = texts, options.n_stop_strings = 2;
  EXPECT(QUIRE_ERROR_INVALID_TEXT, quire_stream_open(session, &options, &stream, &err));
  CHECK(err.offset == 1);
  quire_stream_options_init(&options, sizeof options);
  options.max_tokens = 1;
  EXPECT(QUIRE_ERROR_EMPTY, quire_stream_open(session, &options, &stream, &err));
  CHECK(stream == NULL);
}

/* While a stream is open the session refuses all but the any-thread calls. */
static void test_busy(quire_model* model) {
  quire_session* session = open_session(model, "full", 0, 0);
  quire_stream* stream = NULL;
  quire_stream* second = NULL;
  quire_stream_options options;
  quire_session_stats stats;
  float row[64];
  int32_t id = 5;
  int64_t n_tokens, n_pending;
  char text[512];
  const int64_t far = 1000;
  size_t needed;
  transcript out;
  quire_error err;
  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  feed_some(session, model, 10);
  quire_stream_options_init(&options, sizeof options);
  options.max_tokens = 3;
  options.flags = QUIRE_STREAM_IGNORE_EOS;
  EXPECT_OK(quire_stream_open(session, &options, &stream, &err));
  EXPECT(QUIRE_ERROR_BUSY, quire_stream_open(session, &options, &second, &err));
  EXPECT(QUIRE_ERROR_BUSY, quire_session_feed_text(session, "a", 1, 0, &err));
  EXPECT(QUIRE_ERROR_BUSY, quire_session_feed_tokens(session, &id, 1, &err));
  EXPECT(QUIRE_ERROR_BUSY, quire_session_feed_positions(session, &id, &far, 1, &err));
  EXPECT(QUIRE_ERROR_BUSY, quire_session_discard_pending(session, &err));
  EXPECT(QUIRE_ERROR_BUSY, quire_session_reset(session, &err));
  EXPECT(QUIRE_ERROR_BUSY, quire_session_truncate(session, 0, &err));
  EXPECT(QUIRE_ERROR_BUSY, quire_session_get_logits(session, -1, 1, row, 64, NULL, &err));
  EXPECT(QUIRE_ERROR_BUSY, quire_session_get_scores(session, 0, 1, row, 64, NULL, &err));
  EXPECT_OK(quire_session_get_token_counts(session, &n_tokens, &n_pending, &err));
  EXPECT_OK(quire_session_get_stats(session, &stats, &err));
  EXPECT_OK(quire_session_get_strategy(session, text, sizeof text, &needed, &err));
  read_stream(stream, &out);
  CHECK(out.n_tokens == 3);
  EXPECT_OK(quire_session_feed_tokens(session, &id, 1, &err)); /* the end was delivered: free again */
  EXPECT_OK(quire_stream_open(session, &options, &second, &err));
  quire_stream_release(second); /* released without waiting: the session is free as soon as nothing computes */
  EXPECT_OK(quire_session_discard_pending(session, &err));
  quire_stream_release(stream);
  quire_session_release(session);
}

/* Events into structs of other sizes; NULLs; timeouts while the engine is held up by the host's allocator. */
static void test_next(quire_model* model) {
  quire_session* session = open_session(model, "full", 0, 0);
  quire_stream* stream = NULL;
  quire_event event;
  LARGER(quire_event) large;
  struct {
    uint32_t struct_size, flags;
    int32_t kind, canary;
  } small = {12, 0, 0, 77};
  quire_error err;
  feed_some(session, model, 10);
  EXPECT_OK(quire_stream_open(session, NULL, &stream, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_stream_next(NULL, 0, &event, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_stream_next(stream, 0, NULL, &err));
  memset(&event, 0, sizeof event);
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_stream_next(stream, -1, &event, &err));
  EXPECT_OK(quire_stream_next(stream, -1, (quire_event*)&small, &err));
  CHECK(small.kind == QUIRE_EVENT_PREFILL && small.struct_size == 12 && small.canary == 77);
  memset(&large, 0xAB, sizeof large);
  large.known.struct_size = sizeof large;
  EXPECT_OK(quire_stream_next(stream, -1, &large.known, &err));
  CHECK(large.known.struct_size == sizeof(quire_event) && large.known.kind == QUIRE_EVENT_END);
  CHECK(large.known.stop_index == -1 && large.known.token == -1 && large.known.code == 0 && !large.known.message);
  CHECK((large.tail[0] & 0xFF) == 0xAB);
  quire_event_init(&event, sizeof event);
  EXPECT(QUIRE_END, quire_stream_next(stream, -1, &event, &err));
  EXPECT(QUIRE_END, quire_stream_next(stream, 0, &event, &err));
  EXPECT_OK(quire_stream_close(stream, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_stream_next(stream, 0, &event, &err));
  quire_stream_release(stream);
  quire_session_release(session);
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_stream_close(NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_stream_cancel(NULL, &err));
  quire_stream_retain(NULL);
  quire_stream_release(NULL);
}

void test_stream_errors(void) {
  loaded l = open_model("short_128");
  quire_session* session = open_session(l.model, NULL, 0, 0);
  test_refused_options(session);
  quire_session_release(session);
  test_busy(l.model);
  test_next(l.model);
  close_model(&l);
}

static int readable(int64_t handle, int timeout_ms) {
  struct pollfd p;
  p.fd = (int)handle;
  p.events = POLLIN;
  p.revents = 0;
  return poll(&p, 1, timeout_ms) == 1 && (p.revents & POLLIN) != 0;
}

/* Ready exactly while `next` has something, where no tokens come fast. The host's allocator holds the engine up, so
 * that there is nothing yet. */
void test_wait_handle(void) {
  tracker t;
  quire_runtime_options options;
  loaded l = {NULL, NULL};
  quire_session* session;
  quire_stream* stream = NULL;
  quire_event event;
  quire_status status;
  int64_t handle = -1;
  int32_t kind = 0;
  int n_events = 0;
  const char* path = model_path("short_128");
  quire_error err;
  quire_event_init(&event, sizeof event);
  tracker_options(&t, &options);
  EXPECT_OK(quire_runtime_create(&options, &l.runtime, &err));
  EXPECT_OK(quire_model_load(l.runtime, path, strlen(path), NULL, &l.model, &err));
  session = open_session(l.model, NULL, 0, 0);
  feed_some(session, l.model, 30);
  tracker_gate(&t, 1);
  EXPECT_OK(quire_stream_open(session, NULL, &stream, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_stream_get_wait_handle(NULL, &handle, &kind, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_stream_get_wait_handle(stream, NULL, &kind, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_stream_get_wait_handle(stream, &handle, NULL, &err));
  EXPECT_OK(quire_stream_get_wait_handle(stream, &handle, &kind, &err));
  CHECK(kind == QUIRE_WAIT_FD && handle >= 0);
  EXPECT(QUIRE_TIMEOUT, quire_stream_next(stream, 0, &event, &err));
  EXPECT(QUIRE_TIMEOUT, quire_stream_next(stream, 20, &event, &err));
  CHECK(!readable(handle, 20));
  tracker_gate(&t, 0);
  do {
    CHECK(readable(handle, 10000));
    CHECK(readable(handle, 0)); /* level-triggered: looking does not use it up */
    status = quire_stream_next(stream, 0, &event, &err);
    CHECK(status == QUIRE_OK);
    ++n_events;
  } while (status == QUIRE_OK && event.kind != QUIRE_EVENT_END);
  CHECK(n_events == 2);
  EXPECT_OK(quire_stream_close(stream, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_stream_get_wait_handle(stream, &handle, &kind, &err));
  quire_stream_release(stream);
  quire_session_release(session);
  close_model(&l);
  CHECK(tracker_wait_destroyed(&t, 2));
  CHECK(tracker_bytes(&t) == 0);
}
