/* The sampling chain, biases, deadlines and reported log-probabilities. */
#include <math.h>
#include <time.h>

#include "abi_test.h"

static void refuse(quire_session* session, const quire_stream_options* options, quire_status status,
                   const char* message) {
  quire_stream* stream = NULL;
  quire_error err;
  EXPECT(status, quire_stream_open(session, options, &stream, &err));
  CHECK_MESSAGE(message);
  CHECK(err.offset == (status == QUIRE_ERROR_INVALID_TOKEN ? 1 : status == QUIRE_ERROR_INVALID_TEXT ? 0 : -1));
  CHECK(stream == NULL);
}

static void test_refused(quire_session* session) {
  const struct {
    quire_sampler sampler;
    const char* message;
  } bad[] = {
      {{0, 0, 0, 0, 0, 0}, "samplers[1].kind is 0"},
      {{99, 0, 0, 0, 0, 0}, "samplers[1].kind is 99"},
      {{QUIRE_SAMPLER_TEMPERATURE, 0, 0, 0, 0, 0}, "samplers[1].a"},
      {{QUIRE_SAMPLER_TEMPERATURE, 0, 0, -1, 0, 0}, "samplers[1].a"},
      {{QUIRE_SAMPLER_TEMPERATURE, 1, 0, 1, 0, 0}, "samplers[1].n"},
      {{QUIRE_SAMPLER_TOP_K, 0, 0, 0, 0, 0}, "samplers[1].n"},
      {{QUIRE_SAMPLER_TOP_K, 1, 0, 0.5f, 0, 0}, "samplers[1].a"},
      {{QUIRE_SAMPLER_TOP_P, 0, 0, 1.5f, 0, 0}, "samplers[1].a"},
      {{QUIRE_SAMPLER_TYPICAL, 0, 0, 0, 0, 0}, "samplers[1].a"},
      {{QUIRE_SAMPLER_TYPICAL, 0, 0, NAN, 0, 0}, "samplers[1].a"},
      {{QUIRE_SAMPLER_TEMPERATURE, 0, 0, INFINITY, 0, 0}, "samplers[1].a"},
      {{QUIRE_SAMPLER_TEMPERATURE, 0, 0, 1, 0, NAN}, "samplers[1].c"},
      {{QUIRE_SAMPLER_PENALTIES, 0, 0, 1, NAN, 0}, "samplers[1].b"},
      {{QUIRE_SAMPLER_PENALTIES, 0, 0, 1, 0, 2e6f}, "samplers[1].c"},
      {{QUIRE_SAMPLER_PENALTIES, 0, 1, 1, 0, 0}, "samplers[1].m"},
      {{QUIRE_SAMPLER_MIN_P, 0, 0, 0.1f, 0.1f, 0}, "samplers[1].b"},
      {{QUIRE_SAMPLER_PENALTIES, -1, 0, 1, 0, 0}, "samplers[1].n"},
      {{QUIRE_SAMPLER_DRY, 0, 0, 1, 1, 0}, "samplers[1].m"},
      {{QUIRE_SAMPLER_DRY, 0, 2, 1, 0.5f, 0}, "samplers[1].b"},
  };
  quire_sampler chain[2] = {{QUIRE_SAMPLER_TEMPERATURE, 0, 0, 1, 0, 0}, {0, 0, 0, 0, 0, 0}};
  quire_logit_bias bias[2] = {{5, 1}, {1 << 30, 1}};
  quire_text text = {"\xff", 1};
  quire_stream_options options;
  quire_stream_options_init(&options, sizeof options);
  options.max_tokens = 1;
  options.samplers = chain;
  options.n_samplers = 2;
  options.sampler_stride = sizeof chain[0];
  for (size_t i = 0; i < QUIRE_COUNT(bad); ++i) {
    chain[1] = bad[i].sampler;
    refuse(session, &options, QUIRE_ERROR_INVALID_ARGUMENT, bad[i].message);
  }
  chain[1] = chain[0];
  for (size_t stride = 1; stride < sizeof chain[0]; ++stride) {
    options.sampler_stride = stride;
    refuse(session, &options, QUIRE_ERROR_INVALID_ARGUMENT, "sampler_stride");
  }
  options.sampler_stride = sizeof chain[0] + 2; /* would be read unaligned */
  refuse(session, &options, QUIRE_ERROR_INVALID_ARGUMENT, "sampler_stride");
  options.sampler_stride = 4100;
  refuse(session, &options, QUIRE_ERROR_INVALID_ARGUMENT, "expected 0, or a multiple of 4 from sizeof(quire_sampler)");
  options.sampler_stride = 2 * sizeof chain[0]; /* the second one lies where a field would be that is not known */
  options.n_samplers = 1;
  refuse(session, &options, QUIRE_ERROR_INVALID_ARGUMENT, "samplers[0] has a field at byte 24");
  options.sampler_stride = sizeof chain[0];
  options.n_samplers = 65;
  refuse(session, &options, QUIRE_ERROR_INVALID_ARGUMENT, "n_samplers");
  options.n_samplers = 2;
  options.temperature = 1;
  refuse(session, &options, QUIRE_ERROR_INVALID_ARGUMENT, "temperature");
  options.temperature = 0;
  options.n_samplers = 0; /* none are given */
  options.min_p = 2;
  refuse(session, &options, QUIRE_ERROR_INVALID_ARGUMENT, "min_p");
  options.min_p = 0;
  options.n_samplers = 2;
  options.samplers = NULL;
  refuse(session, &options, QUIRE_ERROR_INVALID_ARGUMENT, "samplers is NULL");
  options.n_samplers = 0;
  options.sampler_stride = 0;
  options.n_logit_bias = 1;
  refuse(session, &options, QUIRE_ERROR_INVALID_ARGUMENT, "logit_bias is NULL");
  options.logit_bias = bias;
  options.n_logit_bias = 2;
  refuse(session, &options, QUIRE_ERROR_INVALID_TOKEN, "logit_bias[1] names token 1073741824");
  bias[1].token = -1;
  refuse(session, &options, QUIRE_ERROR_INVALID_TOKEN, "logit_bias[1] names token -1");
  bias[1].token = 6;
  bias[1].bias = NAN;
  refuse(session, &options, QUIRE_ERROR_INVALID_ARGUMENT, "logit_bias[1]");
  bias[1].bias = INFINITY;
  refuse(session, &options, QUIRE_ERROR_INVALID_ARGUMENT, "logit_bias[1]");
  options.n_logit_bias = 4097;
  refuse(session, &options, QUIRE_ERROR_INVALID_ARGUMENT, "n_logit_bias");
  options.n_logit_bias = 0;
  options.n_dry_breakers = 1;
  refuse(session, &options, QUIRE_ERROR_INVALID_ARGUMENT, "dry_breakers");
  options.dry_breakers = &text;
  refuse(session, &options, QUIRE_ERROR_INVALID_TEXT, "dry_breakers[0]");
  options.n_dry_breakers = 0;
  options.n_top_logprobs = 65;
  refuse(session, &options, QUIRE_ERROR_INVALID_ARGUMENT, "n_top_logprobs");
  options.n_top_logprobs = 0;
  options.min_tokens = -1;
  refuse(session, &options, QUIRE_ERROR_INVALID_ARGUMENT, "min_tokens");
  options.min_tokens = 0;
  options.deadline_ms = -1;
  refuse(session, &options, QUIRE_ERROR_INVALID_ARGUMENT, "deadline_ms");
}

/* The ends of the documented ranges. */
static void test_taken(quire_session* session) {
  const quire_sampler good[] = {
      {QUIRE_SAMPLER_TEMPERATURE, 0, 0, 1e-6f, 0, 0},
      {QUIRE_SAMPLER_TEMPERATURE, 0, 0, 1e6f, 0, 0},
      {QUIRE_SAMPLER_TOP_K, 1, 0, 0, 0, 0},
      {QUIRE_SAMPLER_TOP_K, INT32_MAX, 0, 0, 0, 0},
      {QUIRE_SAMPLER_TOP_P, 0, 0, 1e-30f, 0, 0},
      {QUIRE_SAMPLER_TOP_P, 0, 0, 1, 0, 0},
      {QUIRE_SAMPLER_MIN_P, 0, 0, 1e-30f, 0, 0},
      {QUIRE_SAMPLER_MIN_P, 0, 0, 1, 0, 0},
      {QUIRE_SAMPLER_TYPICAL, 0, 0, 1e-30f, 0, 0},
      {QUIRE_SAMPLER_TYPICAL, 0, 0, 1, 0, 0},
      {QUIRE_SAMPLER_PENALTIES, 0, 0, 1e-6f, -1e6f, -1e6f},
      {QUIRE_SAMPLER_PENALTIES, INT32_MAX, 0, 1e6f, 1e6f, 1e6f},
      {QUIRE_SAMPLER_DRY, 0, 1, 1e-6f, 1, 0},
      {QUIRE_SAMPLER_DRY, INT32_MAX, 1000000, 1e6f, 1e6f, 0},
  };
  static transcript out;
  quire_stream_options options;
  quire_stream_options_init(&options, sizeof options);
  options.max_tokens = 1;
  options.flags = QUIRE_STREAM_IGNORE_EOS;
  options.n_samplers = 1;
  options.sampler_stride = sizeof good[0];
  for (size_t i = 0; i < QUIRE_COUNT(good); ++i) {
    options.samplers = &good[i];
    run_stream(session, &options, &out);
    CHECK(out.failure == QUIRE_OK && out.n_tokens == 1);
  }
}

/* The simple fields are a chain; an array may have a larger stride whose tail is zero, and needs none if it is plain.
 */
static void test_same_as_simple(quire_model* model) {
  struct {
    quire_sampler known;
    int32_t tail[2];
  } chain[3] = {{{QUIRE_SAMPLER_TEMPERATURE, 0, 0, 0.8f, 0, 0}, {0, 0}},
                {{QUIRE_SAMPLER_TOP_K, 20, 0, 0, 0, 0}, {0, 0}},
                {{QUIRE_SAMPLER_TOP_P, 0, 0, 0.9f, 0, 0}, {0, 0}}};
  const quire_sampler plain[3] = {chain[0].known, chain[1].known, chain[2].known};
  static transcript simple, chained;
  quire_stream_options options;
  quire_session* session = open_session(model, NULL, 0, 0);
  feed_some(session, model, 30);
  quire_stream_options_init(&options, sizeof options);
  options.max_tokens = 60;
  options.flags = QUIRE_STREAM_IGNORE_EOS;
  options.seed = 5;
  options.temperature = 0.8f;
  options.top_k = 20;
  options.top_p = 0.9f;
  run_stream(session, &options, &simple);
  quire_session_release(session);
  session = open_session(model, NULL, 0, 0);
  feed_some(session, model, 30);
  options.temperature = options.top_p = 0;
  options.top_k = 0;
  options.samplers = &chain[0].known;
  options.n_samplers = 3;
  options.sampler_stride = sizeof chain[0];
  run_stream(session, &options, &chained);
  CHECK(simple.n_tokens == 60 && chained.n_tokens == 60);
  CHECK(memcmp(simple.tokens, chained.tokens, 60 * sizeof simple.tokens[0]) == 0);
  quire_session_release(session);
  session = open_session(model, NULL, 0, 0);
  feed_some(session, model, 30);
  options.samplers = plain;
  options.sampler_stride = 0;
  run_stream(session, &options, &chained);
  CHECK(chained.n_tokens == 60);
  CHECK(memcmp(simple.tokens, chained.tokens, 60 * sizeof simple.tokens[0]) == 0);
  quire_session_release(session);
}

static void test_top_logprobs(quire_session* session) {
  quire_stream_options options;
  quire_stream* stream = NULL;
  quire_event event;
  quire_error err;
  int n_tokens = 0;
  quire_event_init(&event, sizeof event);
  quire_stream_options_init(&options, sizeof options);
  options.max_tokens = 5;
  options.flags = QUIRE_STREAM_IGNORE_EOS;
  options.n_top_logprobs = 3;
  EXPECT_OK(quire_stream_open(session, &options, &stream, &err));
  while (quire_stream_next(stream, -1, &event, &err) == QUIRE_OK) {
    if (event.kind != QUIRE_EVENT_TOKEN) {
      CHECK(event.top_logprobs == NULL && event.n_top_logprobs == 0);
      continue;
    }
    ++n_tokens;
    CHECK(event.n_top_logprobs == 3 && event.top_logprobs[0].token == event.token);
    CHECK(event.top_logprobs[0].logprob == event.logprob);
    CHECK(event.top_logprobs[0].logprob >= event.top_logprobs[1].logprob);
    CHECK(event.top_logprobs[1].logprob >= event.top_logprobs[2].logprob);
  }
  CHECK(n_tokens == 5);
  quire_stream_release(stream);
}

/* A stop id that is the most probable token ends the text only after min_tokens. */
static void test_min_tokens(quire_model* model) {
  static transcript out;
  static const int32_t strange[3] = {-1, 1 << 30, INT32_MIN};
  int32_t first;
  quire_stream_options options;
  quire_session* session = open_session(model, NULL, 0, 0);
  feed_some(session, model, 30);
  run_greedy(session, 1, &out);
  first = out.tokens[0];
  quire_session_release(session);
  session = open_session(model, NULL, 0, 0);
  feed_some(session, model, 30);
  quire_stream_options_init(&options, sizeof options);
  options.max_tokens = 40;
  options.flags = QUIRE_STREAM_IGNORE_EOS;
  options.stop_ids = &first;
  options.n_stop_ids = 1;
  options.min_tokens = 7;
  run_stream(session, &options, &out);
  CHECK(out.n_tokens >= 7);
  for (size_t i = 0; i < out.n_tokens; ++i) CHECK(out.tokens[i] != first);
  quire_session_release(session);
  session = open_session(model, NULL, 0, 0); /* stop ids that are no tokens stop nothing */
  feed_some(session, model, 30);
  options.stop_ids = strange;
  options.n_stop_ids = 3;
  run_stream(session, &options, &out);
  CHECK(out.failure == QUIRE_OK && out.n_tokens == 40 && out.tokens[0] == first);
  quire_session_release(session);
}

static void test_deadline(quire_model* model) {
  static transcript out;
  quire_stream_options options;
  quire_stream* stream = NULL;
  quire_event event;
  quire_error err;
  int64_t n_tokens = 0, n_pending = 0;
  const struct timespec past_deadline = {0, 60 * 1000000}; /* the clock itself must pass it */
  quire_session* session = open_session(model, "dca", 0, 16);
  quire_event_init(&event, sizeof event);
  quire_stream_options_init(&options, sizeof options);
  feed_some(session, model, 40);
  options.max_tokens = 1 << 30;
  options.flags = QUIRE_STREAM_IGNORE_EOS;
  options.deadline_ms = 60;
  run_stream(session, &options, &out);
  CHECK(out.failure == QUIRE_OK && out.finish == QUIRE_FINISH_DEADLINE);
  EXPECT_OK(quire_session_get_token_counts(session, &n_tokens, &n_pending, &err));
  CHECK(n_tokens == out.end_position && n_tokens + n_pending >= 40 + (int64_t)out.n_tokens);
  /* A reader that sleeps over it finds the end behind the tokens that waited. */
  options.deadline_ms = 30;
  options.max_undelivered = 2;
  EXPECT_OK(quire_stream_open(session, &options, &stream, &err));
  nanosleep(&past_deadline, NULL);
  for (n_tokens = 0; quire_stream_next(stream, -1, &event, &err) == QUIRE_OK;) {
    n_tokens += event.kind == QUIRE_EVENT_TOKEN;
    if (event.kind == QUIRE_EVENT_END) CHECK(event.finish_reason == QUIRE_FINISH_DEADLINE);
  }
  CHECK(n_tokens <= 2);
  quire_stream_release(stream);
  run_greedy(session, 3, &out); /* and the session goes on */
  CHECK(out.failure == QUIRE_OK && out.n_tokens == 3);
  quire_session_release(session);
}

/* The deadline passes while the prompt is read: what was not read waits, and the answer is the same in the end. */
static void test_deadline_in_prompt(quire_model* model) {
  static transcript out, whole;
  int64_t n_tokens = 0, n_pending = 0;
  int n_deadlines = 0;
  quire_stream_options options;
  quire_error err;
  quire_session* session = open_session(model, "dca", 0, 16);
  quire_session* undisturbed = open_session(model, "dca", 0, 16);
  quire_stream_options_init(&options, sizeof options);
  options.deadline_ms = 1;
  feed_some(session, model, 2000);
  feed_some(undisturbed, model, 2000);
  run_greedy(undisturbed, 10, &whole);
  do {
    const int64_t before = n_pending;
    run_stream(session, &options, &out);
    CHECK(out.failure == QUIRE_OK);
    EXPECT_OK(quire_session_get_token_counts(session, &n_tokens, &n_pending, &err));
    CHECK(n_tokens == out.end_position && n_tokens + n_pending == 2000);
    CHECK(out.finish == (n_pending > 0 ? QUIRE_FINISH_DEADLINE : QUIRE_FINISH_MAX_TOKENS));
    n_deadlines += out.finish == QUIRE_FINISH_DEADLINE;
    if (n_pending == before) options.deadline_ms *= 2; /* a slow machine: not one block in time */
  } while (n_pending > 0);
  CHECK(n_deadlines > 0);
  run_greedy(session, 10, &out);
  CHECK(out.n_tokens == 10 && memcmp(out.tokens, whole.tokens, 10 * sizeof out.tokens[0]) == 0);
  quire_session_release(session);
  quire_session_release(undisturbed);
}

/* Without penalties a tiny model repeats itself; with them it cannot for long. */
static void test_penalties(quire_model* model) {
  quire_sampler chain[2] = {{QUIRE_SAMPLER_PENALTIES, 0, 0, 1, 0, 1000}, {QUIRE_SAMPLER_TOP_K, 1, 0, 0, 0, 0}};
  static transcript out;
  quire_stream_options options;
  quire_session* session = open_session(model, NULL, 0, 0);
  feed_some(session, model, 30);
  quire_stream_options_init(&options, sizeof options);
  options.max_tokens = 80;
  options.flags = QUIRE_STREAM_IGNORE_EOS;
  options.samplers = chain;
  options.n_samplers = 2;
  options.sampler_stride = sizeof chain[0];
  run_stream(session, &options, &out);
  CHECK(out.n_tokens == 80);
  for (size_t i = 0; i < out.n_tokens; ++i) {
    for (size_t j = 0; j < i; ++j) CHECK(out.tokens[i] != out.tokens[j]);
  }
  quire_session_release(session);
}

void test_sampling_chain(void) {
  loaded l = open_model("text_256");
  quire_session* session = open_session(l.model, NULL, 0, 0);
  feed_some(session, l.model, 30);
  test_refused(session);
  test_taken(session);
  test_top_logprobs(session);
  quire_session_release(session);
  test_same_as_simple(l.model);
  test_min_tokens(l.model);
  test_deadline(l.model);
  test_deadline_in_prompt(l.model);
  test_penalties(l.model);
  close_model(&l);
}
