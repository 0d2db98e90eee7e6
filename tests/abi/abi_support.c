/* Checks, models, sessions and streams for the C99 test. */
#include <pthread.h>
#include <stdlib.h>

#include "abi_test.h"

/* Guards the counts: callbacks check too, on threads of the library. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int made;
static int failed;
static char model_root[2048];

static int read_count(const int* count) {
  pthread_mutex_lock(&lock);
  int result = *count;
  pthread_mutex_unlock(&lock);
  return result;
}

void check_that(int passed, const char* file, int line, const char* what) {
  pthread_mutex_lock(&lock);
  ++made;
  if (!passed) ++failed;
  pthread_mutex_unlock(&lock);
  if (!passed) printf("%s:%d: failed: %s\n", file, line, what);
}

int checks_failed(void) { return read_count(&failed); }
int checks_made(void) { return read_count(&made); }

void check_status(quire_status status, quire_status expected, const quire_error* err, const char* file, int line,
                  const char* call) {
  int good = status == expected && err->code == (status < 0 ? status : QUIRE_OK) &&
             (status < 0) == (err->message[0] != '\0') && memchr(err->message, 0, sizeof err->message) != NULL;
  check_that(good, file, line, call);
  if (!good) {
    printf("  returned %s, expected %s; code %d, message \"%s\"\n", quire_get_status_name(status),
           quire_get_status_name(expected), (int)err->code, err->message);
  }
}

int untouched(const void* memory, size_t size) {
  const unsigned char* bytes = memory;
  while (size > 0 && bytes[size - 1] == 0xAB) --size;
  return size == 0;
}

void set_model_root(const char* path) { snprintf(model_root, sizeof model_root, "%s", path); }

const char* model_path(const char* name) {
  static char path[sizeof model_root + 64];
  snprintf(path, sizeof path, "%s/%s", model_root, name);
  return path;
}

static void need(quire_status status, const quire_error* err, const char* what) {
  if (status == QUIRE_OK) return;
  printf("cannot go on: %s: %s: %s\n", what, quire_get_status_name(status), err->message);
  exit(1);
}

loaded open_model(const char* name) {
  loaded l = {NULL, NULL};
  quire_error err;
  quire_runtime_options options;
  const char* path = model_path(name);
  quire_runtime_options_init(&options, sizeof options);
  options.n_threads = 2;
  need(quire_runtime_create(&options, &l.runtime, &err), &err, "quire_runtime_create");
  need(quire_model_load(l.runtime, path, strlen(path), NULL, &l.model, &err), &err, path);
  return l;
}

void close_model(loaded* l) {
  quire_model_release(l->model);
  quire_runtime_release(l->runtime);
  l->model = NULL;
  l->runtime = NULL;
}

quire_session* open_session(quire_model* model, const char* strategy, int32_t overflow, int32_t prefill_block) {
  quire_session* session = NULL;
  quire_error err;
  quire_session_options options;
  quire_session_options_init(&options, sizeof options);
  options.strategy = strategy;
  options.strategy_len = strategy ? strlen(strategy) : 0;
  options.overflow = overflow;
  options.prefill_block = prefill_block;
  options.flags = QUIRE_SESSION_NO_PREFIX_REUSE; /* what sessions compute is compared */
  need(quire_session_create(model, &options, &session, &err), &err, "quire_session_create");
  return session;
}

quire_tier_stats tier_of(const quire_session* session, int32_t tier) {
  quire_tier_stats stats;
  quire_error err;
  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  EXPECT_OK(quire_session_get_tier_stats(session, tier, &stats, &err));
  CHECK(stats.struct_size == sizeof stats && stats.tier == tier);
  return stats;
}

quire_strategy_options strategy_options(const char* expression, int64_t train_len) {
  quire_strategy_options options;
  quire_strategy_options_init(&options, sizeof options);
  options.strategy = expression;
  options.strategy_len = strlen(expression);
  options.train_len = train_len;
  return options;
}

void some_tokens(int32_t* ids, size_t n, int32_t vocab, uint32_t seed) {
  uint32_t state = seed * 2654435761u + 12345u;
  for (size_t i = 0; i < n; ++i) {
    state = state * 1664525u + 1013904223u;
    ids[i] = 3 + (int32_t)((state >> 8) % (uint32_t)(vocab - 3));
  }
}

void feed_some(quire_session* session, quire_model* model, size_t n) {
  int32_t ids[2048];
  quire_error err;
  quire_model_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  if (n > QUIRE_COUNT(ids)) n = QUIRE_COUNT(ids);
  need(quire_model_get_info(model, &info, &err), &err, "quire_model_get_info");
  some_tokens(ids, n, info.vocab_size, 7);
  need(quire_session_feed_tokens(session, ids, n, &err), &err, "quire_session_feed_tokens");
}

static void add_text(transcript* out, const quire_event* event) {
  CHECK((event->text == NULL) == (event->text_len == 0));
  if (event->text_len > sizeof out->text - 1 - out->text_len) return;
  if (event->text_len > 0) memcpy(out->text + out->text_len, event->text, event->text_len);
  out->text_len += event->text_len;
  out->text[out->text_len] = '\0';
}

static void add_event(const quire_event* event, int64_t* last_done, transcript* out) {
  CHECK(event->struct_size == sizeof *event);
  CHECK(event->flags == 0);
  if (event->kind != QUIRE_EVENT_WARNING && event->kind != QUIRE_EVENT_NOTICE) {
    CHECK(event->code == 0 && !event->message && event->message_len == 0);
  }
  switch (event->kind) {
    case QUIRE_EVENT_PREFILL:
      ++out->n_prefill_events;
      CHECK(event->done > *last_done && event->reused >= 0 && event->reused + event->done <= event->total);
      CHECK(event->reuse_miss >= QUIRE_REUSE_COMPLETE && event->reuse_miss <= QUIRE_REUSE_MEMORY);
      CHECK(event->n_per_second > 0 && event->token == -1);
      *last_done = event->done;
      break;
    case QUIRE_EVENT_TOKEN:
      if (out->n_tokens < QUIRE_COUNT(out->tokens)) {
        out->tokens[out->n_tokens] = event->token;
        out->logprobs[out->n_tokens++] = event->logprob;
      }
      CHECK(event->logprob <= 0 && event->finish_reason == QUIRE_FINISH_NONE);
      add_text(out, event);
      break;
    case QUIRE_EVENT_END:
      out->finish = event->finish_reason;
      out->end_token = event->token;
      out->stop_index = event->stop_index;
      out->end_position = event->n_tokens;
      CHECK(event->finish_reason != QUIRE_FINISH_NONE);
      add_text(out, event);
      break;
    case QUIRE_EVENT_NOTICE:
      CHECK(event->code == QUIRE_NOTICE_AUTO_CHOICE && !event->text && event->text_len == 0);
      CHECK(event->message_len > 0 && event->message_len < sizeof out->notice);
      CHECK(out->n_prefill_events + out->n_tokens == 0); /* before everything else */
      if (event->message_len < sizeof out->notice) memcpy(out->notice, event->message, event->message_len);
      ++out->n_notices;
      break;
    default:
      CHECK(event->kind == QUIRE_EVENT_WARNING && event->message_len > 0 && !event->text && event->text_len == 0);
      CHECK(event->code == QUIRE_WARNING_ADAPTER_BASE || event->code == QUIRE_WARNING_UNTRAINED_POSITIONS);
      ++out->n_warnings;
      break;
  }
}

void read_stream(quire_stream* stream, transcript* out) {
  int64_t last_done = 0;
  quire_event event;
  quire_status status;
  memset(out, 0, sizeof *out);
  quire_event_init(&event, sizeof event);
  while ((status = quire_stream_next(stream, -1, &event, &out->err)) == QUIRE_OK) add_event(&event, &last_done, out);
  if (status != QUIRE_END) {
    quire_error err;
    out->failure = status;
    EXPECT(QUIRE_END, quire_stream_next(stream, -1, &event, &err));
  }
}

void run_stream(quire_session* session, const quire_stream_options* options, transcript* out) {
  quire_stream* stream = NULL;
  quire_error err;
  need(quire_stream_open(session, options, &stream, &err), &err, "quire_stream_open");
  read_stream(stream, out);
  EXPECT_OK(quire_stream_close(stream, &err));
  quire_stream_release(stream);
}

void run_greedy(quire_session* session, int64_t n, transcript* out) {
  quire_stream_options options;
  quire_stream_options_init(&options, sizeof options);
  options.flags = QUIRE_STREAM_IGNORE_EOS;
  options.max_tokens = n;
  run_stream(session, &options, out);
}
