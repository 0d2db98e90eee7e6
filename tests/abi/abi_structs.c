/* Version, status names, initialisers, and the growing of structs. */
#include "abi_test.h"

static void test_version(void) {
  char text[32];
  CHECK(quire_get_version() == QUIRE_VERSION);
  snprintf(text, sizeof text, "%d.%d.%d", (int)quire_get_version() / 10000, (int)quire_get_version() / 100 % 100,
           (int)quire_get_version() % 100);
  CHECK(strcmp(text, quire_get_version_string()) == 0);
}

static void test_status_names(void) {
  static const struct {
    quire_status status;
    const char* name;
  } names[] = {
      {QUIRE_OK, "OK"},
      {QUIRE_END, "END"},
      {QUIRE_TIMEOUT, "TIMEOUT"},
      {QUIRE_ERROR_INTERNAL, "INTERNAL"},
      {QUIRE_ERROR_INVALID_ARGUMENT, "INVALID_ARGUMENT"},
      {QUIRE_ERROR_OUT_OF_MEMORY, "OUT_OF_MEMORY"},
      {QUIRE_ERROR_IO, "IO"},
      {QUIRE_ERROR_NOT_FOUND, "NOT_FOUND"},
      {QUIRE_ERROR_BAD_FILE, "BAD_FILE"},
      {QUIRE_ERROR_UNSUPPORTED, "UNSUPPORTED"},
      {QUIRE_ERROR_BUSY, "BUSY"},
      {QUIRE_ERROR_CLOSED, "CLOSED"},
      {QUIRE_ERROR_CANCELLED, "CANCELLED"},
      {QUIRE_ERROR_OVERFLOW, "OVERFLOW"},
      {QUIRE_ERROR_BUDGET, "BUDGET"},
      {QUIRE_ERROR_BAD_STRATEGY, "BAD_STRATEGY"},
      {QUIRE_ERROR_INVALID_TEXT, "INVALID_TEXT"},
      {QUIRE_ERROR_INVALID_TOKEN, "INVALID_TOKEN"},
      {QUIRE_ERROR_NUMERIC, "NUMERIC"},
      {QUIRE_ERROR_EMPTY, "EMPTY"},
      {QUIRE_ERROR_BUFFER_TOO_SMALL, "BUFFER_TOO_SMALL"},
      {QUIRE_ERROR_DEVICE, "DEVICE"},
  };
  for (size_t i = 0; i < QUIRE_COUNT(names); ++i)
    CHECK(strcmp(quire_get_status_name(names[i].status), names[i].name) == 0);
  CHECK(strcmp(quire_get_status_name(-12345), "UNKNOWN") == 0);
  CHECK(strcmp(quire_get_status_name(INT32_MIN), "UNKNOWN") == 0);
}

/* Each initialiser zeroes exactly `size` bytes and sets struct_size; NULL and sizes below 8 do nothing. */
#define CHECK_INIT(type, init)                                                         \
  do {                                                                                 \
    union {                                                                            \
      type object;                                                                     \
      unsigned char bytes[sizeof(type) + 8];                                           \
    } u;                                                                               \
    int tail = 0, middle = 0;                                                          \
    memset(&u, 0xAB, sizeof u);                                                        \
    init(&u.object, sizeof(type));                                                     \
    for (size_t b = 4; b < sizeof(type); ++b) middle += u.bytes[b] != 0;               \
    for (size_t b = sizeof(type); b < sizeof u.bytes; ++b) tail += u.bytes[b] != 0xAB; \
    CHECK(u.object.struct_size == sizeof(type) && middle == 0 && tail == 0);           \
    memset(&u, 0xAB, sizeof u);                                                        \
    init(&u.object, 8);                                                                \
    CHECK(u.object.struct_size == 8 && u.object.flags == 0 && u.bytes[8] == 0xAB);     \
    memset(&u, 0xAB, sizeof u);                                                        \
    init(&u.object, 4);                                                                \
    CHECK(u.bytes[0] == 0xAB);                                                         \
    init(NULL, sizeof(type));                                                          \
  } while (0)

static void test_initialisers(void) {
  CHECK_INIT(quire_runtime_options, quire_runtime_options_init);
  CHECK_INIT(quire_model_options, quire_model_options_init);
  CHECK_INIT(quire_adapter_options, quire_adapter_options_init);
  CHECK_INIT(quire_strategy_options, quire_strategy_options_init);
  CHECK_INIT(quire_position_view, quire_position_view_init);
  CHECK_INIT(quire_session_options, quire_session_options_init);
  CHECK_INIT(quire_chat_options, quire_chat_options_init);
  CHECK_INIT(quire_quantize_options, quire_quantize_options_init);
  CHECK_INIT(quire_snapshot_options, quire_snapshot_options_init);
  CHECK_INIT(quire_snapshot_writer, quire_snapshot_writer_init);
  CHECK_INIT(quire_snapshot_reader, quire_snapshot_reader_init);
  CHECK_INIT(quire_store_options, quire_store_options_init);
  CHECK_INIT(quire_store_match, quire_store_match_init);
  CHECK_INIT(quire_edit_options, quire_edit_options_init);
  CHECK_INIT(quire_edit_result, quire_edit_result_init);
  CHECK_INIT(quire_stream_options, quire_stream_options_init);
  CHECK_INIT(quire_event, quire_event_init);
}

/* One function per options struct, so that the rules are checked for each in the same way. */
typedef quire_status (*use_options)(const void* options, quire_error* err);

static loaded world;

static quire_status use_runtime_options(const void* options, quire_error* err) {
  quire_runtime* runtime = NULL;
  const quire_status status = quire_runtime_create(options, &runtime, err);
  CHECK((status == QUIRE_OK) == (runtime != NULL));
  quire_runtime_release(runtime);
  return status;
}
static quire_status use_model_options(const void* options, quire_error* err) {
  quire_model* model = NULL;
  const char* path = model_path("short_128");
  const quire_status status = quire_model_load(world.runtime, path, strlen(path), options, &model, err);
  CHECK((status == QUIRE_OK) == (model != NULL));
  quire_model_release(model);
  return status;
}
static quire_status use_adapter_options(const void* options, quire_error* err) {
  loaded l = open_model("text_256");
  quire_adapter* adapter = NULL;
  const char* path = model_path("../adapters/attention");
  const quire_status status = quire_adapter_load(l.model, path, strlen(path), options, &adapter, err);
  CHECK((status == QUIRE_OK) == (adapter != NULL));
  quire_adapter_release(adapter);
  close_model(&l);
  return status;
}
static quire_status use_session_options(const void* options, quire_error* err) {
  quire_session* session = NULL;
  const quire_status status = quire_session_create(world.model, options, &session, err);
  CHECK((status == QUIRE_OK) == (session != NULL));
  quire_session_release(session);
  return status;
}
static quire_status use_stream_options(const void* options, quire_error* err) {
  quire_session* session = open_session(world.model, NULL, 0, 0);
  quire_stream* stream = NULL;
  const quire_status status = quire_stream_open(session, options, &stream, err);
  CHECK((status == QUIRE_OK) == (stream != NULL));
  quire_stream_release(stream);
  quire_session_release(session);
  return status;
}

#define CHECK_SIZES(type, init, use)                             \
  do {                                                           \
    LARGER(type) o;                                              \
    const use_options call = use;                                \
    memset(&o, 0, sizeof o);                                     \
    EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, call(&o, &err));        \
    CHECK_MESSAGE("struct_size");                                \
    o.known.struct_size = 4;                                     \
    EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, call(&o, &err));        \
    CHECK_MESSAGE("struct_size");                                \
    o.known.struct_size = 9; /* ends within a field */           \
    EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, call(&o, &err));        \
    CHECK_MESSAGE("struct_size");                                \
    init(&o.known, 8);                                           \
    EXPECT_OK(call(&o, &err));                                   \
    init(&o.known, sizeof o.known);                              \
    EXPECT_OK(call(&o, &err));                                   \
    init(&o.known, sizeof o);                                    \
    EXPECT_OK(call(&o, &err));                                   \
    o.tail[1] = 1;                                               \
    EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, call(&o, &err));        \
    CHECK(err.offset >= (int64_t)(sizeof o - sizeof o.tail[1])); \
    CHECK_MESSAGE(#type);                                        \
    init(&o.known, sizeof o.known);                              \
    o.known.flags = 1u << 31;                                    \
    EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, call(&o, &err));        \
    CHECK_MESSAGE("flags");                                      \
    EXPECT_OK(call(NULL, &err));                                 \
  } while (0)

static void test_option_sizes(void) {
  quire_error err;
  world = open_model("short_128");
  CHECK_SIZES(quire_runtime_options, quire_runtime_options_init, use_runtime_options);
  CHECK_SIZES(quire_model_options, quire_model_options_init, use_model_options);
  CHECK_SIZES(quire_adapter_options, quire_adapter_options_init, use_adapter_options);
  CHECK_SIZES(quire_session_options, quire_session_options_init, use_session_options);
  CHECK_SIZES(quire_stream_options, quire_stream_options_init, use_stream_options);
  close_model(&world);
}

/* A struct_size that no struct can have is refused before what it promises is read: there is no such memory here. */
static void test_struct_size_bounds(void) {
  static const uint32_t wrong[] = {0, 7, 4097, UINT32_MAX};
  quire_strategy_options options = strategy_options("full", 256);
  quire_runtime_options runtime_options;
  quire_runtime* runtime = NULL;
  quire_error err;
  for (size_t i = 0; i < QUIRE_COUNT(wrong); ++i) {
    options.struct_size = wrong[i];
    EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_strategy_describe(&options, NULL, 0, NULL, &err));
    CHECK_MESSAGE("struct_size");
    quire_runtime_options_init(&runtime_options, sizeof runtime_options);
    runtime_options.struct_size = wrong[i];
    EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_runtime_create(&runtime_options, &runtime, &err));
    CHECK_MESSAGE("struct_size");
  }
  world = open_model("short_128");
  for (size_t i = 0; i < QUIRE_COUNT(wrong); ++i) {
    quire_model_info info;
    memset(&info, 0xAB, sizeof info);
    info.struct_size = wrong[i];
    EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_get_info(world.model, &info, &err));
    CHECK_MESSAGE("struct_size");
    CHECK_MESSAGE("by hand"); /* it has no initialiser */
    CHECK(untouched(&info.flags, sizeof info - sizeof info.struct_size));
  }
  close_model(&world);
}

/* The record needs no initialising, is written whole but for what lies behind the message, and that is cut at a code
 * point. */
static void test_error_record(void) {
  struct {
    quire_error record;
    unsigned char behind[64];
  } u;
  memset(&u, 0xAB, sizeof u);
  CHECK(quire_runtime_create(NULL, NULL, NULL) == QUIRE_ERROR_INVALID_ARGUMENT);
  CHECK(quire_runtime_create(NULL, NULL, &u.record) == QUIRE_ERROR_INVALID_ARGUMENT);
  CHECK(u.record.code == QUIRE_ERROR_INVALID_ARGUMENT && u.record.os_error == 0 && u.record.offset == -1);
  CHECK(u.record.reserved == 0 && strcmp(u.record.message, "out is NULL") == 0);
  /* A name that is cut in a message of its own is shorter than the record: a path is not. */
  char path[2 * QUIRE_ERROR_MESSAGE_BYTES];
  quire_runtime* runtime = NULL;
  quire_model* model = NULL;
  CHECK(quire_runtime_create(NULL, &runtime, &u.record) == QUIRE_OK);
  CHECK(u.record.code == 0 && u.record.message[0] == '\0' && u.record.offset == -1);
  for (size_t shift = 0; shift < 2; ++shift) { /* whether the end falls between the bytes of an accent or not */
    for (size_t i = 0; i < sizeof path; ++i) path[i] = (i - shift) % 2 == 1 ? '\xC3' : '\xA9';
    path[0] = '/';
    path[shift] = '/';
    CHECK(quire_model_load(runtime, path, sizeof path - shift, NULL, &model, &u.record) < 0);
    const size_t length = strlen(u.record.message);
    CHECK(length >= QUIRE_ERROR_MESSAGE_BYTES - 2 && length < QUIRE_ERROR_MESSAGE_BYTES);
    CHECK(u.record.message[length - 1] == '\xA9');
  }
  CHECK(untouched(u.behind, sizeof u.behind));
  quire_runtime_release(runtime);
}

void test_version_and_structs(void) {
  test_version();
  test_status_names();
  test_initialisers();
  test_option_sizes();
  test_struct_size_bounds();
  test_error_record();
}
