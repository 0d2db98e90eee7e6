/* Every reason for which a stream ends, and sampling. */
#include "abi_test.h"

static quire_session* fed_session(quire_model* model) {
  quire_session* session = open_session(model, "streaming_llm(sinks=4, recent=80)", 0, 0);
  feed_some(session, model, 40);
  return session;
}

static void greedy_options(quire_stream_options* options, int64_t n) {
  quire_stream_options_init(options, sizeof *options);
  options->flags = QUIRE_STREAM_IGNORE_EOS;
  options->max_tokens = n;
}

static void test_stop_id(quire_model* model, const transcript* whole) {
  quire_session* session = fed_session(model);
  quire_stream_options options;
  transcript out;
  size_t at = 0;
  const int32_t stops[2] = {whole->tokens[whole->n_tokens - 1], whole->tokens[10]};
  while (whole->tokens[at] != stops[0] && whole->tokens[at] != stops[1]) ++at;
  greedy_options(&options, 60);
  options.stop_ids = stops;
  options.n_stop_ids = 2;
  run_stream(session, &options, &out);
  CHECK(out.finish == QUIRE_FINISH_STOP_ID && out.end_token == whole->tokens[at]);
  CHECK(out.n_tokens == at && out.end_position == (int64_t)(40 + at)); /* the stop itself is not delivered */
  CHECK(memcmp(out.tokens, whole->tokens, at * sizeof out.tokens[0]) == 0);
  quire_session_release(session);
}

static void test_stop_string(quire_model* model, const transcript* whole) {
  quire_session* session = fed_session(model);
  quire_stream_options options;
  transcript out;
  const quire_text stops[2] = {{"never in the text", 17}, {whole->text + whole->text_len / 2, 3}};
  size_t at = 0;
  while (memcmp(whole->text + at, stops[1].data, 3) != 0) ++at;
  greedy_options(&options, 60);
  options.stop_strings = stops;
  options.n_stop_strings = 2;
  run_stream(session, &options, &out);
  CHECK(out.finish == QUIRE_FINISH_STOP_STRING && out.stop_index == 1 && out.end_token == -1);
  CHECK(out.text_len == at && memcmp(out.text, whole->text, at) == 0);
  CHECK(out.n_tokens < whole->n_tokens && out.end_position == (int64_t)(40 + out.n_tokens));
  quire_session_release(session);
}

static void test_eos(quire_model* model) {
  quire_session* session = fed_session(model);
  quire_stream_options options;
  transcript out;
  int64_t position;
  quire_stream_options_init(&options, sizeof options);
  options.max_tokens = 1000;
  options.temperature = 1000; /* nearly uniform: an end-of-text token comes sooner or later */
  options.seed = 1;
  run_stream(session, &options, &out);
  CHECK(out.finish == QUIRE_FINISH_EOS && out.end_token == 2);
  for (size_t i = 0; i < out.n_tokens; ++i) CHECK(out.tokens[i] != 2);
  position = out.end_position;
  CHECK(position == (int64_t)(40 + out.n_tokens));
  options.flags = QUIRE_STREAM_IGNORE_EOS;
  options.max_tokens = 5;
  run_stream(session, &options, &out);
  CHECK(out.finish == QUIRE_FINISH_MAX_TOKENS && out.n_tokens == 5);
  CHECK(out.tokens[0] == 2); /* the same (seed, n) again, now delivered */
  CHECK(out.end_position == position + 5);
  quire_session_release(session);
}

static void test_cancelled(quire_model* model, const transcript* whole) {
  quire_session* session = fed_session(model);
  quire_stream* stream = NULL;
  quire_stream_options options;
  quire_event event;
  transcript out;
  int64_t n_tokens = 0;
  quire_error err;
  quire_event_init(&event, sizeof event);
  greedy_options(&options, 60);
  EXPECT_OK(quire_stream_open(session, &options, &stream, &err));
  do {
    EXPECT_OK(quire_stream_next(stream, -1, &event, &err));
  } while (event.kind != QUIRE_EVENT_TOKEN);
  CHECK(event.n_tokens == 41);
  EXPECT_OK(quire_stream_cancel(stream, &err));
  EXPECT_OK(quire_stream_cancel(stream, &err));
  EXPECT_OK(quire_stream_next(stream, -1, &event, &err));
  CHECK(event.kind == QUIRE_EVENT_END && event.finish_reason == QUIRE_FINISH_CANCELLED && event.n_tokens == 41);
  EXPECT(QUIRE_END, quire_stream_next(stream, -1, &event, &err));
  quire_stream_release(stream);
  EXPECT_OK(quire_session_get_token_counts(session, &n_tokens, NULL, &err));
  CHECK(n_tokens == 41);
  run_greedy(session, 59, &out); /* as if it had never been cancelled */
  CHECK(out.n_tokens == 59 && memcmp(out.tokens, whole->tokens + 1, 59 * sizeof out.tokens[0]) == 0);
  quire_session_release(session);
}

/* The texts of the events are the text of the tokens that were delivered: what was held back of it comes with the end.
 */
static void test_text_until_cancelled(quire_model* model, const transcript* whole) {
  char stop[8];
  quire_text held_back = {stop, 1};
  int n_held = 0;
  while ((whole->text[held_back.len] & 0xC0) == 0x80) ++held_back.len;
  memcpy(stop, whole->text, held_back.len);
  stop[held_back.len++] = '\1'; /* it never comes whole */
  for (int64_t n = 1; n <= 20; ++n) {
    quire_session* session = fed_session(model);
    quire_stream* stream = NULL;
    quire_stream_options options;
    quire_event event;
    static transcript expected;
    char text[512];
    size_t text_len = 0;
    quire_error err;
    quire_event_init(&event, sizeof event);
    greedy_options(&options, n);
    options.stop_strings = &held_back;
    options.n_stop_strings = 1;
    run_stream(session, &options, &expected);
    EXPECT_OK(quire_session_reset(session, &err));
    feed_some(session, model, 40);
    options.max_tokens = 60;
    EXPECT_OK(quire_stream_open(session, &options, &stream, &err));
    for (int64_t left = n; event.kind != QUIRE_EVENT_END;) {
      EXPECT_OK(quire_stream_next(stream, -1, &event, &err));
      CHECK(text_len + event.text_len <= sizeof text);
      if (event.text_len > 0) memcpy(text + text_len, event.text, event.text_len);
      text_len += event.text_len;
      if (event.kind == QUIRE_EVENT_TOKEN && --left == 0) EXPECT_OK(quire_stream_cancel(stream, &err));
    }
    CHECK(event.finish_reason == QUIRE_FINISH_CANCELLED);
    n_held += event.text_len > 0;
    CHECK(text_len == expected.text_len && memcmp(text, expected.text, text_len) == 0);
    quire_stream_release(stream);
    quire_session_release(session);
  }
  CHECK(n_held > 0);
}

void test_finish_reasons(void) {
  loaded l = open_model("short_128");
  quire_session* session = fed_session(l.model);
  transcript whole;
  run_greedy(session, 60, &whole);
  CHECK(whole.finish == QUIRE_FINISH_MAX_TOKENS && whole.n_tokens == 60 && whole.end_token == -1);
  CHECK(whole.text_len > 20);
  quire_session_release(session);
  test_stop_id(l.model, &whole);
  test_stop_string(l.model, &whole);
  test_eos(l.model);
  test_cancelled(l.model, &whole);
  test_text_until_cancelled(l.model, &whole);
  close_model(&l);
}

static void sampled(quire_model* model, const quire_stream_options* options, int64_t first, transcript* out) {
  quire_session* session = fed_session(model);
  quire_stream_options part = *options;
  if (first == 0) {
    run_stream(session, options, out);
  } else { /* in two streams: the n-th token draws from (seed, n) wherever generation was interrupted */
    transcript head;
    part.max_tokens = first;
    run_stream(session, &part, &head);
    part.max_tokens = options->max_tokens - first;
    run_stream(session, &part, out);
    memmove(out->tokens + head.n_tokens, out->tokens, out->n_tokens * sizeof out->tokens[0]);
    memcpy(out->tokens, head.tokens, head.n_tokens * sizeof out->tokens[0]);
    out->n_tokens += head.n_tokens;
  }
  quire_session_release(session);
}

static int same(const transcript* a, const transcript* b) {
  return a->n_tokens == b->n_tokens && memcmp(a->tokens, b->tokens, a->n_tokens * sizeof a->tokens[0]) == 0;
}

void test_sampling(void) {
  loaded l = open_model("short_128");
  quire_stream_options options;
  transcript greedy, first, again, split, other;
  greedy_options(&options, 30);
  sampled(l.model, &options, 0, &greedy);
  options.temperature = 1.5f;
  options.top_k = 20;
  options.top_p = 0.95f;
  options.min_p = 0.01f;
  options.seed = 42;
  sampled(l.model, &options, 0, &first);
  sampled(l.model, &options, 0, &again);
  sampled(l.model, &options, 11, &split);
  CHECK(first.n_tokens == 30 && same(&first, &again) && same(&first, &split));
  options.seed = 43;
  sampled(l.model, &options, 0, &other);
  CHECK(!same(&first, &other));
  options.top_k = 1; /* one candidate: greedy at any temperature */
  sampled(l.model, &options, 0, &other);
  CHECK(same(&greedy, &other));
  options.top_k = 0;
  options.min_p = 1;
  sampled(l.model, &options, 0, &other);
  CHECK(same(&greedy, &other));
  options.min_p = 0;
  options.top_p = 1e-6f;
  sampled(l.model, &options, 0, &other);
  CHECK(same(&greedy, &other));
  close_model(&l);
}
