/* A client of the future, with a library that knows less: its header is quire.h with a tail behind each struct that
   grows (make_header.py). A tail of zeros is taken, another one refused; what the library fills ends where its struct
   does.

     future_client MODEL_DIR FOLDER [exact]

   exact: the library is of the header without the tails. Otherwise it may be older still. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quire/quire.h"

static struct {
  quire_runtime* runtime;
  quire_model* model;
  quire_tokenizer* tokenizer;
  quire_session* session;
  quire_adapter* adapter;
  quire_store* store;
} world;
static quire_error error;
static int exact;
static int n_failures;
static const char* model_path;
static char adapter_path[1024], snapshot_path[1024], store_path[1024], quantized_path[1024];

static void expect(int good, const char* type, const char* what) {
  if (good) return;
  fprintf(stderr, "%s: %s (%s)\n", type, what, error.message);
  ++n_failures;
}

/* `call` takes the options &o, which `prepare` fills in. */
#define TAKEN(type, init, prepare, call)                                                         \
  do {                                                                                           \
    type o;                                                                                      \
    init(&o, sizeof o);                                                                          \
    prepare;                                                                                     \
    expect((call) == QUIRE_OK, #type, "a tail of zeros is refused");                             \
    o.of_the_future[1] = 1;                                                                      \
    expect((call) == QUIRE_ERROR_INVALID_ARGUMENT, #type, "an unknown field passed");            \
    expect(strstr(error.message, #type) != NULL, #type, "the message does not name the struct"); \
  } while (0)

/* `call` fills &o. */
#define FILLED(type, call)                                                                                \
  do {                                                                                                    \
    type o;                                                                                               \
    size_t i;                                                                                             \
    const size_t known = sizeof o - sizeof o.of_the_future;                                               \
    memset(&o, 0xAB, sizeof o);                                                                           \
    o.struct_size = sizeof o;                                                                             \
    expect((call) == QUIRE_OK, #type, "the call failed");                                                 \
    expect(exact ? o.struct_size == known : o.struct_size <= known, #type, "struct_size is not known's"); \
    for (i = o.struct_size; i < sizeof o && ((unsigned char*)&o)[i] == 0xAB; ++i) continue;               \
    expect(i == sizeof o, #type, "written behind struct_size");                                           \
  } while (0)

static quire_status create_runtime(const quire_runtime_options* o) {
  quire_runtime* made = NULL;
  const quire_status status = quire_runtime_create(o, &made, &error);
  quire_runtime_release(made);
  return status;
}
static quire_status load_model(const quire_model_options* o) {
  quire_model* made = NULL;
  const quire_status status = quire_model_load(world.runtime, model_path, strlen(model_path), o, &made, &error);
  quire_model_release(made);
  return status;
}
static quire_status load_adapter(const quire_adapter_options* o) {
  quire_adapter* made = NULL;
  const quire_status status = quire_adapter_load(world.model, adapter_path, strlen(adapter_path), o, &made, &error);
  quire_adapter_release(made);
  return status;
}
static quire_status create_session(const quire_session_options* o) {
  quire_session* made = NULL;
  const quire_status status = quire_session_create(world.model, o, &made, &error);
  quire_session_release(made);
  return status;
}
static quire_status open_stream(const quire_stream_options* o) {
  quire_stream* made = NULL;
  const quire_status status = quire_stream_open(world.session, o, &made, &error);
  if (made) quire_stream_close(made, NULL);
  quire_stream_release(made);
  return status;
}
static quire_status open_store(const quire_store_options* o) {
  quire_store* made = NULL;
  const quire_status status = quire_store_open(store_path, strlen(store_path), o, &made, &error);
  quire_store_release(made);
  return status;
}

/* A snapshot in memory. */
static struct {
  char bytes[1 << 20];
  size_t n;
} memory;

static int64_t write_memory(void* user_data, const void* bytes, size_t n, quire_error* err) {
  (void)user_data, (void)err;
  if (n > sizeof memory.bytes - memory.n) return -1;
  memcpy(memory.bytes + memory.n, bytes, n);
  memory.n += n;
  return (int64_t)n;
}
static int64_t read_memory(void* user_data, int64_t offset, void* buffer, size_t n, quire_error* err) {
  (void)user_data, (void)err;
  memcpy(buffer, memory.bytes + offset, n);
  return (int64_t)n;
}

static quire_status save_to_memory(const quire_snapshot_writer* o) {
  const size_t before = memory.n;
  const quire_status status = quire_session_save_to(world.session, o, NULL, &error);
  if (before > 0) memory.n = before; /* the one that is read stays */
  return status;
}

static void take_model_structs(void) {
  TAKEN(quire_runtime_options, quire_runtime_options_init, o.n_threads = 1, create_runtime(&o));
  TAKEN(quire_model_options, quire_model_options_init, (void)0, load_model(&o));
  TAKEN(quire_adapter_options, quire_adapter_options_init, (void)0, load_adapter(&o));
  TAKEN(quire_quantize_options, quire_quantize_options_init, o.n_threads = 1,
        quire_model_quantize(model_path, strlen(model_path), quantized_path, strlen(quantized_path), &o, &error));
  TAKEN(quire_strategy_options, quire_strategy_options_init, o.train_len = 256,
        quire_strategy_describe(&o, NULL, 0, NULL, &error));
}

static void take_session_structs(void) {
  quire_strategy_options strategy;
  const quire_message message = {"user", 4, "Hello", 5};
  double matrix[4];
  quire_strategy_options_init(&strategy, sizeof strategy);
  strategy.train_len = 256;
  TAKEN(quire_session_options, quire_session_options_init, (void)0, create_session(&o));
  TAKEN(quire_stream_options, quire_stream_options_init, (void)0, open_stream(&o));
  TAKEN(quire_edit_options, quire_edit_options_init, (void)0,
        quire_session_edit_text(world.session, "Rain fell", 9, &o, NULL, &error));
  TAKEN(quire_chat_options, quire_chat_options_init, (o.template_name = "llama2", o.template_name_len = 6),
        quire_tokenizer_render_chat(world.tokenizer, &message, 1, &o, NULL, 0, NULL, &error));
  TAKEN(quire_position_view, quire_position_view_init, o.n_queries = o.n_keys = 2,
        quire_strategy_get_positions(&strategy, &o, matrix, 4, NULL, &error));
}

static void take_snapshot_structs(void) {
  TAKEN(quire_snapshot_options, quire_snapshot_options_init, (void)0,
        quire_session_save(world.session, snapshot_path, strlen(snapshot_path), &o, &error));
  TAKEN(quire_snapshot_writer, quire_snapshot_writer_init, o.write = write_memory, save_to_memory(&o));
  TAKEN(quire_snapshot_reader, quire_snapshot_reader_init, (o.read = read_memory, o.n_bytes = (int64_t)memory.n),
        quire_snapshot_describe_from(&o, NULL, 0, NULL, &error));
  TAKEN(quire_store_options, quire_store_options_init, (void)0, open_store(&o));
}

static void fill_structs(void) {
  static const int32_t ids[] = {5, 6, 7};
  quire_stream_options go;
  quire_stream* stream = NULL;
  FILLED(quire_runtime_stats, quire_runtime_get_stats(world.runtime, &o, &error));
  FILLED(quire_device_info, quire_runtime_get_device_info(world.runtime, 0, &o, &error));
  FILLED(quire_model_info, quire_model_get_info(world.model, &o, &error));
  FILLED(quire_adapter_info, quire_adapter_get_info(world.adapter, &o, &error));
  FILLED(quire_edit_result, quire_session_edit_text(world.session, "Rain falls", 10, NULL, &o, &error));
  FILLED(quire_session_stats, quire_session_get_stats(world.session, &o, &error));
  FILLED(quire_tier_stats, quire_session_get_tier_stats(world.session, QUIRE_TIER_HOST, &o, &error));
  FILLED(quire_session_probes, quire_session_get_probes(world.session, &o, &error));
  FILLED(quire_store_match, quire_store_find(world.store, world.model, NULL, ids, 3, &o, &error));
  FILLED(quire_memory_plan,
         quire_runtime_plan_memory(world.runtime, model_path, strlen(model_path), NULL, NULL, 100, &o, &error));
  FILLED(quire_rate_estimate, quire_model_estimate_rates(world.model, NULL, 16, &o, &error));
  quire_stream_options_init(&go, sizeof go);
  expect(quire_stream_open(world.session, &go, &stream, &error) == QUIRE_OK, "quire_stream", "did not open");
  FILLED(quire_event, quire_stream_next(stream, -1, &o, &error));
  quire_stream_release(stream);
}

static int make_world(void) {
  return quire_runtime_create(NULL, &world.runtime, &error) == QUIRE_OK &&
         quire_model_load(world.runtime, model_path, strlen(model_path), NULL, &world.model, &error) == QUIRE_OK &&
         quire_model_get_tokenizer(world.model, &world.tokenizer, &error) == QUIRE_OK &&
         quire_session_create(world.model, NULL, &world.session, &error) == QUIRE_OK &&
         quire_session_feed_text(world.session, "Rain", 4, 0, &error) == QUIRE_OK &&
         quire_adapter_load(world.model, adapter_path, strlen(adapter_path), NULL, &world.adapter, &error) ==
             QUIRE_OK &&
         quire_store_open(store_path, strlen(store_path), NULL, &world.store, &error) == QUIRE_OK;
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  model_path = argv[1];
  exact = argc > 3 && strcmp(argv[3], "exact") == 0;
  snprintf(adapter_path, sizeof adapter_path, "%s/../../adapters/attention", model_path);
  snprintf(snapshot_path, sizeof snapshot_path, "%s/saved.quire", argv[2]);
  snprintf(store_path, sizeof store_path, "%s/store", argv[2]);
  snprintf(quantized_path, sizeof quantized_path, "%s/quantized.gguf", argv[2]);
  if (make_world()) {
    take_model_structs();
    take_session_structs();
    take_snapshot_structs();
    fill_structs();
  } else {
    expect(0, "world", "not made");
  }
  quire_store_release(world.store);
  quire_adapter_release(world.adapter);
  quire_session_release(world.session);
  quire_tokenizer_release(world.tokenizer);
  quire_model_release(world.model);
  quire_runtime_release(world.runtime);
  return n_failures ? 1 : 0;
}
