/* Streams that work ahead, with drafts too, and whose reader takes part: stops added on the way, constraints on the
   next token. */
#include "abi_test.h"

static quire_session* fed(quire_model* model) {
  quire_session* session = open_session(model, "streaming_llm(sinks=4, recent=80)", 0, 0);
  feed_some(session, model, 40);
  return session;
}

static quire_stream* open_greedy(quire_session* session, uint32_t flags, int32_t max_undelivered,
                                 quire_status expected) {
  quire_stream_options options;
  quire_stream* stream = NULL;
  quire_error err;
  quire_stream_options_init(&options, sizeof options);
  options.flags = QUIRE_STREAM_IGNORE_EOS | flags;
  options.max_tokens = 20;
  options.max_undelivered = max_undelivered;
  CHECK(quire_stream_open(session, &options, &stream, &err) == expected);
  return stream;
}

/* The next token; -1: the end. */
static int32_t next_token(quire_stream* stream, quire_event* event) {
  quire_event_init(event, sizeof *event);
  do {
    if (quire_stream_next(stream, -1, event, NULL) != QUIRE_OK) return -2;
  } while (event->kind != QUIRE_EVENT_TOKEN && event->kind != QUIRE_EVENT_END);
  return event->kind == QUIRE_EVENT_TOKEN ? event->token : -1;
}

static void test_ahead(quire_model* model, const transcript* whole) {
  quire_session* session = fed(model);
  quire_stream* stream;
  quire_event event;
  int64_t n_tokens, n_pending;
  size_t i;
  open_greedy(session, 0, -1, QUIRE_ERROR_INVALID_ARGUMENT);
  open_greedy(session, 0, 4097, QUIRE_ERROR_INVALID_ARGUMENT);
  stream = open_greedy(session, 0, 4096, QUIRE_OK);
  for (i = 0; i < 7; ++i) CHECK(next_token(stream, &event) == whole->tokens[i]);
  CHECK(event.n_tokens == 47);
  CHECK(quire_stream_close(stream, NULL) == QUIRE_OK);
  quire_stream_release(stream);
  CHECK(quire_session_get_token_counts(session, &n_tokens, &n_pending, NULL) == QUIRE_OK);
  CHECK(n_tokens == 47 && n_pending == 0);
  stream = open_greedy(session, 0, 8, QUIRE_OK);
  for (i = 7; i < 20; ++i) CHECK(next_token(stream, &event) == whole->tokens[i]);
  quire_stream_release(stream);
  quire_session_release(session);
}

/* Chunks of 16 tokens of a prompt of n_tokens and of what a stream made behind it that nobody reads. */
static int64_t chunks_ahead(quire_model* model, size_t n_tokens) {
  quire_session* session = open_session(model, "full(kv_chunk=16)", 0, 0);
  quire_session* other = fed(model);
  quire_session_stats stats;
  quire_model_info info;
  quire_stream* stream;
  transcript answer;
  feed_some(session, model, n_tokens);
  stream = open_greedy(session, 0, 0, QUIRE_OK);
  run_greedy(other, 40,
             &answer); /* the engine serves both in turn, so that by now the other one has what it may have */
  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  CHECK(quire_session_get_stats(session, &stats, NULL) == QUIRE_OK);
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  CHECK(quire_model_get_info(model, &info, NULL) == QUIRE_OK);
  quire_stream_release(stream);
  quire_session_release(other);
  quire_session_release(session);
  return stats.kv_chunks / info.n_layers;
}

/* By default eight tokens wait, the last of which is not computed. */
static void test_default(quire_model* model) {
  CHECK(chunks_ahead(model, 2 * 16 - 7) == 2);
  CHECK(chunks_ahead(model, 2 * 16 - 6) == 3);
}

static void test_drafts(quire_model* model, const transcript* whole) {
  static const struct {
    int32_t tokens, match;
    uint32_t flags;
  } wrong[] = {{-1, 0, 0}, {32, 0, 0}, {4, -1, 0}, {4, 65, 0}, {4, 0, QUIRE_STREAM_CONSTRAIN}};
  quire_session* session = fed(model);
  quire_session_stats stats;
  quire_stream_options options;
  quire_stream* stream = NULL;
  quire_event event;
  size_t i;
  for (i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    quire_stream_options_init(&options, sizeof options);
    options.max_tokens = 20;
    options.flags = wrong[i].flags;
    options.draft_tokens = wrong[i].tokens;
    options.draft_match = wrong[i].match;
    CHECK(quire_stream_open(session, &options, &stream, NULL) == QUIRE_ERROR_INVALID_ARGUMENT);
  }
  quire_stream_options_init(&options, sizeof options);
  options.flags = QUIRE_STREAM_IGNORE_EOS;
  options.max_tokens = 20;
  options.draft_tokens = 31;
  options.draft_match = 1;
  CHECK(quire_stream_open(session, &options, &stream, NULL) == QUIRE_OK);
  for (i = 0; i < 20; ++i) CHECK(next_token(stream, &event) == whole->tokens[i]);
  CHECK(next_token(stream, &event) == -1 && event.finish_reason == QUIRE_FINISH_MAX_TOKENS);
  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  CHECK(quire_session_get_stats(session, &stats, NULL) == QUIRE_OK);
  CHECK(stats.n_generated == 20 && stats.n_drafted > 0);
  CHECK(0 <= stats.n_accepted && stats.n_accepted <= stats.n_drafted && stats.n_accepted < 20);
  quire_stream_release(stream);
  quire_session_release(session);
}

static void test_add_stops(quire_model* model, const transcript* whole) {
  const quire_text strings[2] = {{"never in the text", 17}, {"nor this", 8}};
  const quire_text broken = {"\xff", 1};
  int32_t stop = whole->tokens[12];
  int32_t bound;
  for (bound = 1; bound <= 16; bound += 15) {
    quire_session* session = fed(model);
    quire_stream* stream = open_greedy(session, 0, bound, QUIRE_OK);
    quire_event event;
    size_t i;
    CHECK(next_token(stream, &event) == whole->tokens[0]);
    CHECK(quire_stream_add_stop_ids(NULL, &stop, 1, NULL) == QUIRE_ERROR_INVALID_ARGUMENT);
    CHECK(quire_stream_add_stop_ids(stream, NULL, 1, NULL) == QUIRE_ERROR_INVALID_ARGUMENT);
    CHECK(quire_stream_add_stop_ids(stream, &stop, 4097, NULL) == QUIRE_ERROR_INVALID_ARGUMENT);
    CHECK(quire_stream_add_stop_strings(stream, NULL, 1, NULL) == QUIRE_ERROR_INVALID_ARGUMENT);
    CHECK(quire_stream_add_stop_strings(stream, &broken, 1, NULL) == QUIRE_ERROR_INVALID_TEXT);
    CHECK(quire_stream_add_stop_strings(stream, strings, 2, NULL) == QUIRE_OK);
    CHECK(quire_stream_add_stop_ids(stream, &stop, 1, NULL) == QUIRE_OK);
    CHECK(quire_stream_add_stop_ids(stream, NULL, 0, NULL) == QUIRE_OK);
    for (i = 1; whole->tokens[i] != stop; ++i) CHECK(next_token(stream, &event) == whole->tokens[i]);
    CHECK(next_token(stream, &event) == -1);
    CHECK(event.finish_reason == QUIRE_FINISH_STOP_ID && event.token == stop);
    CHECK(quire_stream_close(stream, NULL) == QUIRE_OK);
    CHECK(quire_stream_add_stop_ids(stream, &stop, 1, NULL) == QUIRE_ERROR_CLOSED);
    quire_stream_release(stream);
    quire_session_release(session);
  }
}

static void test_allow(quire_model* model) {
  quire_session* session = fed(model);
  quire_stream* stream;
  quire_event event;
  uint32_t words[64] = {0};
  quire_model_info info = {0};
  size_t n_words;
  info.struct_size = sizeof info;
  CHECK(quire_model_get_info(model, &info, NULL) == QUIRE_OK);
  n_words = ((size_t)info.vocab_size + 31) / 32;
  CHECK(n_words <= 64);
  open_greedy(session, QUIRE_STREAM_CONSTRAIN, 2, QUIRE_ERROR_INVALID_ARGUMENT);
  stream = open_greedy(session, 0, 1, QUIRE_OK);
  CHECK(quire_stream_allow(stream, NULL, 0, NULL) == QUIRE_ERROR_INVALID_ARGUMENT);
  CHECK(quire_stream_close(stream, NULL) == QUIRE_OK);
  quire_stream_release(stream);
  stream = open_greedy(session, QUIRE_STREAM_CONSTRAIN, 0, QUIRE_OK);
  CHECK(next_token(stream, &event) == -2); /* refused: nothing was allowed */
  CHECK(quire_stream_allow(NULL, NULL, 0, NULL) == QUIRE_ERROR_INVALID_ARGUMENT);
  CHECK(quire_stream_allow(stream, NULL, n_words, NULL) == QUIRE_ERROR_INVALID_ARGUMENT);
  CHECK(quire_stream_allow(stream, words, n_words, NULL) == QUIRE_ERROR_INVALID_ARGUMENT);
  words[11 / 32] = 1u << 11 % 32;
  CHECK(quire_stream_allow(stream, words, n_words + 1, NULL) == QUIRE_ERROR_INVALID_ARGUMENT);
  CHECK(quire_stream_allow(stream, words, n_words, NULL) == QUIRE_OK);
  CHECK(quire_stream_allow(stream, words, n_words, NULL) == QUIRE_ERROR_INVALID_ARGUMENT);
  CHECK(next_token(stream, &event) == 11);
  CHECK(quire_stream_allow(stream, NULL, 0, NULL) == QUIRE_OK);
  CHECK(next_token(stream, &event) >= 0);
  CHECK(quire_stream_close(stream, NULL) == QUIRE_OK);
  CHECK(quire_stream_allow(stream, NULL, 0, NULL) == QUIRE_ERROR_CLOSED);
  quire_stream_release(stream);
  quire_session_release(session);
}

void test_reading_along(void) {
  loaded l = open_model("short_128");
  quire_session* session = fed(l.model);
  transcript whole;
  run_greedy(session, 20, &whole);
  CHECK(whole.n_tokens == 20);
  quire_session_release(session);
  test_ahead(l.model, &whole);
  test_default(l.model);
  test_drafts(l.model, &whole);
  test_add_stops(l.model, &whole);
  test_allow(l.model);
  close_model(&l);
}
