/* Loading a model and asking it about itself. */
#include <errno.h>
#include <stdlib.h>

#include "abi_test.h"

static void test_info(void) {
  loaded l = open_model("text_256");
  quire_model_info info;
  struct {
    uint32_t struct_size, flags;
    int32_t n_layers, canary;
  } small = {12, 0, 0, 77};
  quire_error err;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  EXPECT_OK(quire_model_get_info(l.model, &info, &err));
  CHECK(info.struct_size == sizeof info && info.flags == 0);
  CHECK(info.n_layers == 2 && info.n_query_heads == 4 && info.n_kv_heads == 2 && info.head_dim == 24);
  CHECK(info.hidden_size == 64 && info.intermediate_size == 80 && info.vocab_size == 320);
  CHECK(info.weight_type == QUIRE_TYPE_F32 && info.train_len == 256 && info.rope_theta == 10000.0);
  CHECK(info.sliding_window == 0);
  CHECK(info.n_parameters > 0 && info.weight_bytes >= 4 * info.n_parameters);
  EXPECT_OK(quire_model_get_info(l.model, (quire_model_info*)&small, &err));
  CHECK(small.struct_size == 12 && small.n_layers == 2 && small.canary == 77);
  small.struct_size = 4;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_get_info(l.model, (quire_model_info*)&small, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_get_info(l.model, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_get_info(NULL, &info, &err));
  close_model(&l);
}

static void check_metadata(quire_model* model, const char* key, const char* value) {
  char buf[4096];
  size_t needed = 0, again = 0;
  quire_error err;
  EXPECT_OK(quire_model_get_metadata(model, key, strlen(key), NULL, 0, &needed, &err));
  CHECK(needed > 0 && needed < sizeof buf);
  if (needed == 0 || needed >= sizeof buf) return;
  buf[0] = 'x';
  EXPECT(QUIRE_ERROR_BUFFER_TOO_SMALL,
         quire_model_get_metadata(model, key, strlen(key), buf, needed - 1, &again, &err));
  CHECK(again == needed && buf[0] == 'x');
  buf[needed] = '\0';
  EXPECT_OK(quire_model_get_metadata(model, key, strlen(key), buf, needed, NULL, &err));
  if (value) CHECK(strcmp(buf, value) == 0);
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_get_metadata(model, key, strlen(key), NULL, 1, &again, &err));
}

static void test_metadata(void) {
  loaded l = open_model("text_256");
  quire_error err;
  check_metadata(l.model, "architecture", "LlamaForCausalLM");
  check_metadata(l.model, "rope_type", "default");
  check_metadata(l.model, "tokenizer", "sentencepiece-bpe");
  check_metadata(l.model, "bos_token_id", "1");
  check_metadata(l.model, "eos_token_ids", "2");
  check_metadata(l.model, "config.json", NULL);
  check_metadata(l.model, "sliding_window_layers", "0");
  check_metadata(l.model, "sliding_window_tokens", "0");
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_model_get_metadata(l.model, "author", 6, NULL, 0, NULL, &err));
  CHECK_MESSAGE("author");
  /* What is quoted does not end the message. */
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_model_get_metadata(l.model, "au\0\x1b[1m", 7, NULL, 0, NULL, &err));
  CHECK_MESSAGE("au\\x00\\x1b[1m");
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_model_get_metadata(l.model, NULL, 0, NULL, 0, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_get_metadata(l.model, NULL, 3, NULL, 0, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_get_metadata(NULL, "tokenizer", 9, NULL, 0, NULL, &err));
  close_model(&l);
  l = open_model("mistral_window_64"); /* in both layers */
  check_metadata(l.model, "sliding_window_layers", "2");
  close_model(&l);
  l = open_model("qwen2_window_layers"); /* in two of four */
  check_metadata(l.model, "sliding_window_layers", "2");
  check_metadata(l.model, "sliding_window_tokens", "40");
  close_model(&l);
}

static void test_retain_and_release(void) {
  loaded l = open_model("short_128");
  quire_model_info info;
  quire_error err;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  quire_model_retain(l.model);
  quire_model_release(l.model);
  quire_runtime_release(l.runtime); /* the model keeps it */
  EXPECT_OK(quire_model_get_info(l.model, &info, &err));
  quire_model_release(l.model);
  quire_model_retain(NULL);
  quire_model_release(NULL);
}

typedef struct progress {
  int64_t done, total;
  int n_calls, in_order;
} progress;

static void on_progress(void* user_data, int64_t done, int64_t total) {
  progress* p = user_data;
  p->in_order = p->in_order && done >= p->done && done <= total && (p->n_calls == 0 || total == p->total);
  p->done = done;
  p->total = total;
  ++p->n_calls;
}

static void test_load_options(void) {
  loaded l = open_model("short_128");
  const char* path = model_path("short_128");
  static const int32_t types[] = {QUIRE_TYPE_DEFAULT, QUIRE_TYPE_F32, QUIRE_TYPE_F16, QUIRE_TYPE_BF16};
  for (size_t i = 0; i < QUIRE_COUNT(types) * 2; ++i) {
    progress p = {0, 0, 0, 1};
    quire_model* model = NULL;
    quire_model_info info;
    quire_model_options options;
    quire_error err;
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    quire_model_options_init(&options, sizeof options);
    options.load = i % 2 == 0 ? QUIRE_LOAD_MMAP : QUIRE_LOAD_READ;
    options.weight_type = types[i / 2];
    options.progress = on_progress;
    options.progress_user_data = &p;
    EXPECT_OK(quire_model_load(l.runtime, path, strlen(path), &options, &model, &err));
    CHECK(p.n_calls > 2 && p.in_order && p.done == p.total && p.total > 0);
    EXPECT_OK(quire_model_get_info(model, &info, &err));
    CHECK(info.weight_type == (types[i / 2] == QUIRE_TYPE_DEFAULT ? QUIRE_TYPE_F32 : types[i / 2]));
    quire_model_release(model);
  }
  close_model(&l);
}

void test_model(void) {
  test_info();
  test_metadata();
  test_retain_and_release();
  test_load_options();
}

/* Trips a cancel handle at the first progress report. */
static void cancel_on_progress(void* user_data, int64_t done, int64_t total) {
  (void)done;
  (void)total;
  quire_cancel_trigger(user_data);
}

/* Lets go of the runtime at the first progress report. */
static void release_on_progress(void* user_data, int64_t done, int64_t total) {
  quire_runtime** runtime = user_data;
  (void)done;
  (void)total;
  quire_runtime_release(*runtime);
  *runtime = NULL;
}

static void test_load_whose_runtime_is_released(void) {
  const char* path = model_path("short_128");
  quire_runtime* runtime = NULL;
  quire_model* model = NULL;
  quire_model_options options;
  quire_model_info info;
  quire_error err;
  EXPECT_OK(quire_runtime_create(NULL, &runtime, &err));
  quire_model_options_init(&options, sizeof options);
  options.progress = release_on_progress;
  options.progress_user_data = &runtime;
  EXPECT_OK(quire_model_load(runtime, path, strlen(path), &options, &model, &err));
  CHECK(runtime == NULL);
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  EXPECT_OK(quire_model_get_info(model, &info, &err)); /* the model keeps the runtime */
  quire_model_release(model);
}

static void test_cancelled_load(void) {
  loaded l = open_model("short_128");
  const char* path = model_path("short_128");
  quire_model* model = NULL;
  quire_cancel* cancel = NULL;
  quire_model_options options;
  quire_error err;
  EXPECT_OK(quire_cancel_create(&cancel, &err));
  quire_model_options_init(&options, sizeof options);
  options.cancel = cancel;
  EXPECT_OK(quire_model_load(l.runtime, path, strlen(path), &options, &model, &err));
  quire_model_release(model);
  model = NULL;
  options.progress = cancel_on_progress;
  options.progress_user_data = cancel;
  EXPECT(QUIRE_ERROR_CANCELLED, quire_model_load(l.runtime, path, strlen(path), &options, &model, &err));
  options.progress = NULL;
  EXPECT(QUIRE_ERROR_CANCELLED, quire_model_load(l.runtime, path, strlen(path), &options, &model, &err));
  CHECK(model == NULL);
  quire_cancel_release(cancel);
  close_model(&l);
}

void test_load_errors(void) {
  loaded l = open_model("short_128");
  const char* path = model_path("short_128");
  const size_t len = strlen(path);
  quire_model* model = NULL;
  quire_model_options options;
  quire_error err;
  char long_name[300];
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_load(NULL, path, len, NULL, &model, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_load(l.runtime, path, len, NULL, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_load(l.runtime, NULL, len, NULL, &model, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_load(l.runtime, path, 0, NULL, &model, &err));
  quire_model_options_init(&options, sizeof options);
  options.load = 3;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_load(l.runtime, path, len, &options, &model, &err));
  CHECK_MESSAGE("load");
  quire_model_options_init(&options, sizeof options);
  options.weight_type = QUIRE_TYPE_IQ4_XS + 1;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_load(l.runtime, path, len, &options, &model, &err));
  CHECK_MESSAGE("weight_type");
  options.weight_type = QUIRE_TYPE_DEFAULT;
  options.activation_type = QUIRE_TYPE_F16;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_load(l.runtime, path, len, &options, &model, &err));
  CHECK_MESSAGE("activation_type is 2");
  options.activation_type = QUIRE_TYPE_INT8;
  options.weight_type = QUIRE_TYPE_Q8_0;
  EXPECT(QUIRE_ERROR_UNSUPPORTED, quire_model_load(l.runtime, path, len, &options, &model, &err));
  CHECK_MESSAGE("q_proj.weight has rows of 60 elements; q8_0 has blocks of 32");
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_model_load(l.runtime, "/no/such/model", 14, NULL, &model, &err));
  CHECK_MESSAGE("/no/such/model");
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_model_load(l.runtime, "/no/\xff/\xc3\xa4", 8, NULL, &model, &err));
  CHECK_MESSAGE("/no/\xef\xbf\xbd/\xc3\xa4");
  memset(long_name, 'n', sizeof long_name);
  long_name[0] = '/';
  EXPECT(QUIRE_ERROR_IO, quire_model_load(l.runtime, long_name, sizeof long_name, NULL, &model, &err));
  CHECK(err.os_error == ENAMETOOLONG);
  CHECK_MESSAGE("cannot access /nnn");
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_model_load(l.runtime, "/", 1, NULL, &model, &err));
  CHECK_MESSAGE("config.json");
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_load(l.runtime, "/\0junk", 6, NULL, &model, &err));
  CHECK_MESSAGE("NUL byte");
  quire_model_options_init(&options, sizeof options);
  options.device = "cpu\0x";
  options.device_len = 5;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_load(l.runtime, path, len, &options, &model, &err));
  CHECK_MESSAGE("cpu\\x00x");
  EXPECT(QUIRE_ERROR_IO, quire_model_load(l.runtime, "/dev/null", 9, NULL, &model, &err));
  CHECK_MESSAGE("/dev/null");
  CHECK(model == NULL);
  close_model(&l);
  test_cancelled_load();
  test_load_whose_runtime_is_released();
}
