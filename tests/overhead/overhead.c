/* The overhead comparison's C program: what every binding's program does, with nothing between it and quire.h.
 *
 *   c_overhead MODEL_DIR N_TOKENS
 *
 * README.md has the contract.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "quire/quire.h"

typedef struct {
  quire_runtime* runtime;
  quire_model* model;
  quire_session* session;
  int64_t prompt_tokens;
  quire_error error;
} client;

static const char kPrompt[] = "Once upon a time";

static double seconds_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Opens a stream and takes all its events. Text is added up so that each event is looked at. */
static quire_status generate(client* c, int64_t max_tokens, int64_t* n_tokens, size_t* text_len) {
  quire_stream_options options;
  quire_stream* stream = NULL;
  quire_event event;
  quire_status status;
  quire_stream_options_init(&options, sizeof options);
  options.max_tokens = max_tokens;
  options.flags = QUIRE_STREAM_IGNORE_EOS;
  if ((status = quire_stream_open(c->session, &options, &stream, &c->error)) < 0) return status;
  quire_event_init(&event, sizeof event);
  while ((status = quire_stream_next(stream, -1, &event, &c->error)) == QUIRE_OK) {
    *n_tokens += event.kind == QUIRE_EVENT_TOKEN;
    *text_len += event.text_len;
  }
  quire_stream_release(stream);
  return status;
}

static quire_status prepare(client* c, const char* model) {
  quire_runtime_options threads;
  quire_session_options options;
  quire_status status;
  int64_t n_tokens = 0;
  size_t text_len = 0;
  quire_runtime_options_init(&threads, sizeof threads);
  threads.n_threads = 1;
  quire_session_options_init(&options, sizeof options);
  options.strategy = "full";
  options.strategy_len = strlen(options.strategy);
  options.overflow = QUIRE_OVERFLOW_EXTRAPOLATE;
  if ((status = quire_runtime_create(&threads, &c->runtime, &c->error)) < 0) return status;
  if ((status = quire_model_load(c->runtime, model, strlen(model), NULL, &c->model, &c->error)) < 0) return status;
  if ((status = quire_session_create(c->model, &options, &c->session, &c->error)) < 0) return status;
  if ((status = quire_session_feed_text(c->session, kPrompt, strlen(kPrompt), 0, &c->error)) < 0) return status;
  if ((status = generate(c, 0, &n_tokens, &text_len)) < 0) return status;
  return quire_session_get_token_counts(c->session, &c->prompt_tokens, NULL, &c->error);
}

/* A round for each line of stdin. The program itself allocates nothing meanwhile. */
static quire_status answer(client* c, int64_t max_tokens) {
  char line[64];
  quire_status status;
  puts("{\"ready\":true}");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    int64_t n_tokens = 0;
    size_t text_len = 0;
    double begin;
    if ((status = quire_session_truncate(c->session, c->prompt_tokens, &c->error)) < 0) return status;
    begin = seconds_now();
    if ((status = generate(c, max_tokens, &n_tokens, &text_len)) < 0) return status;
    printf("{\"tokens\":%" PRId64 ",\"seconds\":%.9f,\"allocations\":0}\n", n_tokens, seconds_now() - begin);
    fflush(stdout);
    if (text_len == 0) return QUIRE_ERROR_EMPTY;
  }
  return QUIRE_OK;
}

int main(int argc, char** argv) {
  client c = {0};
  quire_status status;
  if (argc != 3) {
    fprintf(stderr, "usage: %s MODEL_DIR N_TOKENS\n", argv[0]);
    return 2;
  }
  if ((status = prepare(&c, argv[1])) >= 0) status = answer(&c, strtoll(argv[2], NULL, 10));
  if (status < 0) fprintf(stderr, "%s: %s\n", quire_get_status_name(status), c.error.message);
  quire_session_release(c.session);
  quire_model_release(c.model);
  quire_runtime_release(c.runtime);
  return status < 0 ? 1 : 0;
}
