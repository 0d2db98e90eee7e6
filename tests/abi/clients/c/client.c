/* A client as others write them: the main job, an error, and the structs that the library fills.
 *
 *   client MODEL_DIR
 *
 * Prints what ../README.md says. It is stored as a binary for each version, and compiled anew for libraries of the
 * past.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quire/quire.h"

static quire_error error;

static void check(quire_status status, const char* what) {
  if (status >= 0) return;
  fprintf(stderr, "%s: %s: %s\n", what, quire_get_status_name(status), error.message);
  exit(1);
}

/* The library fills as much of a struct as it knows, at most what this program was compiled with. */
static void check_filled(const void* bytes, size_t known, size_t whole, const char* what) {
  const unsigned char* behind = (const unsigned char*)bytes;
  uint32_t struct_size;
  size_t i;
  memcpy(&struct_size, bytes, sizeof struct_size);
  for (i = struct_size; i < whole && behind[i] == 0xAB; ++i) continue;
  if (struct_size > 8 && struct_size <= known && i == whole) return;
  fprintf(stderr, "%s: struct_size %u of %zu, and byte %zu\n", what, (unsigned)struct_size, known, i);
  exit(1);
}

/* The expression `call` fills the struct u.object. */
#define FILL(type, call)                                \
  do {                                                  \
    struct {                                            \
      type object;                                      \
      unsigned char behind[64];                         \
    } u;                                                \
    memset(&u, 0xAB, sizeof u);                         \
    u.object.struct_size = sizeof u.object;             \
    check(call, #type);                                 \
    check_filled(&u, sizeof u.object, sizeof u, #type); \
  } while (0)

static void fill_structs(quire_runtime* runtime, quire_model* model, quire_session* session, const char* path) {
  quire_model_options options;
  quire_session_options session_options;
  quire_model_options_init(&options, sizeof options);
  quire_session_options_init(&session_options, sizeof session_options);
  FILL(quire_runtime_stats, quire_runtime_get_stats(runtime, &u.object, &error));
  FILL(quire_device_info, quire_runtime_get_device_info(runtime, 0, &u.object, &error));
  FILL(quire_model_info, quire_model_get_info(model, &u.object, &error));
  FILL(quire_session_stats, quire_session_get_stats(session, &u.object, &error));
  FILL(quire_tier_stats, quire_session_get_tier_stats(session, QUIRE_TIER_HOST, &u.object, &error));
  FILL(quire_memory_plan,
       quire_runtime_plan_memory(runtime, path, strlen(path), &options, &session_options, 100, &u.object, &error));
  FILL(quire_edit_result, quire_session_edit_text(session, "Rain", 4, NULL, &u.object, &error));
}

static quire_session* create_session(quire_model* model) {
  quire_session_options options;
  quire_session* session = NULL;
  quire_session_options_init(&options, sizeof options);
  options.strategy = "dca";
  options.strategy_len = 3;
  check(quire_session_create(model, &options, &session, &error), "quire_session_create");
  return session;
}

static const char* finish_name(int32_t reason) { return reason == QUIRE_FINISH_MAX_TOKENS ? "MAX_TOKENS" : "another"; }

static void print_answer(quire_session* session) {
  struct {
    quire_event object;
    unsigned char behind[64];
  } u;
  quire_stream_options options;
  quire_stream* stream = NULL;
  quire_status status;
  int64_t n_tokens = 0, n_pending = 0;
  int n = 0;
  quire_stream_options_init(&options, sizeof options);
  options.max_tokens = 16;
  options.flags = QUIRE_STREAM_IGNORE_EOS;
  check(quire_stream_open(session, &options, &stream, &error), "quire_stream_open");
  do {
    memset(&u, 0xAB, sizeof u);
    u.object.struct_size = sizeof u.object;
    status = quire_stream_next(stream, -1, &u.object, &error);
    check(status, "quire_stream_next");
    check_filled(&u, sizeof u.object, sizeof u, "quire_event");
    if (u.object.kind == QUIRE_EVENT_TOKEN) printf("%s%" PRId32, n++ ? " " : "", u.object.token);
  } while (u.object.kind != QUIRE_EVENT_END);
  check(quire_session_get_token_counts(session, &n_tokens, &n_pending, &error), "quire_session_get_token_counts");
  printf("\n%s %" PRId64 " %" PRId64 "\n", finish_name(u.object.finish_reason), n_tokens, n_pending);
  quire_stream_release(stream);
}

static void print_error(void) {
  quire_strategy_options options;
  size_t needed = 0;
  quire_status status;
  quire_strategy_options_init(&options, sizeof options);
  options.strategy = "full(wheels=3)";
  options.strategy_len = strlen(options.strategy);
  options.train_len = 4096;
  status = quire_strategy_describe(&options, NULL, 0, &needed, &error);
  printf("%s %" PRId64 "\n", quire_get_status_name(status), error.offset);
}

int main(int argc, char** argv) {
  quire_runtime_options options;
  quire_runtime* runtime = NULL;
  quire_model* model = NULL;
  quire_session* session;
  if (argc != 2) return 2;
  quire_runtime_options_init(&options, sizeof options);
  options.n_threads = 1;
  check(quire_runtime_create(&options, &runtime, &error), "quire_runtime_create");
  check(quire_model_load(runtime, argv[1], strlen(argv[1]), NULL, &model, &error), "quire_model_load");
  session = create_session(model);
  check(quire_session_feed_text(session, "Once upon a time", 16, 0, &error), "quire_session_feed_text");
  print_answer(session);
  print_error();
  fill_structs(runtime, model, session, argv[1]);
  quire_session_release(session);
  quire_model_release(model);
  quire_runtime_release(runtime);
  return 0;
}
