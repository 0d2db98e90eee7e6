/* The smallest complete client: load a model, feed it a file, ask, and print the answer as it comes.
 *
 *   quire_c_minimal MODEL_DIR FILE QUESTION [STRATEGY]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quire/quire.h"

/* Everything a run holds. Releasing NULL does nothing, so one place cleans up after any failure. */
typedef struct {
  quire_runtime* runtime;
  quire_model* model;
  quire_session* session;
  quire_stream* stream;
  quire_error error;
} client;

/* Reads a whole file; NULL if it cannot. The caller frees. */
static char* read_file(const char* path, size_t* len) {
  FILE* file = fopen(path, "rb");
  char* text = NULL;
  size_t capacity = 1 << 16, n = 0;
  *len = 0;
  if (!file) return NULL;
  do {
    char* grown = realloc(text, capacity *= 2);
    if (!grown) break;
    text = grown;
    n = fread(text + *len, 1, capacity - *len, file);
    *len += n;
  } while (n > 0);
  if (n > 0 || ferror(file)) {
    free(text);
    text = NULL;
  }
  fclose(file);
  return text;
}

/* Prints the stream's text. Each event's text lives until the next call. */
static quire_status print_answer(client* c) {
  quire_event event;
  quire_event_init(&event, sizeof event);
  for (;;) {
    quire_status status = quire_stream_next(c->stream, -1, &event, &c->error);
    if (status != QUIRE_OK) return status == QUIRE_END ? QUIRE_OK : status;
    if (event.text_len > 0) {
      fwrite(event.text, 1, event.text_len, stdout);
      fflush(stdout);
    }
    if (event.kind == QUIRE_EVENT_WARNING) fprintf(stderr, "warning: %.*s\n", (int)event.message_len, event.message);
  }
}

/* A document may be much longer than the model's window: "dca" keeps every token of it in view. */
static quire_status ask(client* c, char** argv, const char* strategy, const char* document, size_t document_len) {
  quire_session_options options;
  quire_stream_options generate;
  quire_status status;
  quire_session_options_init(&options, sizeof options);
  options.strategy = strategy;
  options.strategy_len = strlen(strategy);
  quire_stream_options_init(&generate, sizeof generate);
  generate.max_tokens = 48;

  if ((status = quire_runtime_create(NULL, &c->runtime, &c->error)) < 0) return status;
  if ((status = quire_model_load(c->runtime, argv[1], strlen(argv[1]), NULL, &c->model, &c->error)) < 0) return status;
  if ((status = quire_session_create(c->model, &options, &c->session, &c->error)) < 0) return status;
  if ((status = quire_session_feed_text(c->session, document, document_len, 0, &c->error)) < 0) return status;
  if ((status = quire_session_feed_text(c->session, argv[3], strlen(argv[3]), 0, &c->error)) < 0) return status;
  if ((status = quire_stream_open(c->session, &generate, &c->stream, &c->error)) < 0) return status;
  return print_answer(c);
}

int main(int argc, char** argv) {
  client c = {0};
  size_t len = 0;
  char* document = argc < 4 ? NULL : read_file(argv[2], &len);
  quire_status status;
  int written;
  if (!document) {
    if (argc < 4) fprintf(stderr, "usage: %s MODEL_DIR FILE QUESTION [STRATEGY]\n", argv[0]);
    if (argc >= 4) perror(argv[2]);
    return argc < 4 ? 2 : 1;
  }
  status = ask(&c, argv, argc > 4 ? argv[4] : "dca", document, len);
  puts("");
  written = fflush(stdout) == 0 && !ferror(stdout);
  if (status < 0) fprintf(stderr, "%s: %s\n", quire_get_status_name(status), c.error.message);
  if (!written) fprintf(stderr, "the answer could not be written\n");
  free(document);
  quire_stream_release(c.stream);
  quire_session_release(c.session);
  quire_model_release(c.model);
  quire_runtime_release(c.runtime);
  return status < 0 || !written ? 1 : 0;
}
