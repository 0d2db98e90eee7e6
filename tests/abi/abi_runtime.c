/* Runtimes and cancel handles. */
#include "abi_test.h"

static void test_create_errors(void) {
  quire_runtime* runtime = NULL;
  quire_runtime_options options;
  quire_error err;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_runtime_create(NULL, NULL, &err));
#define REFUSED(field, value, status, message)                      \
  do {                                                              \
    quire_runtime_options_init(&options, sizeof options);           \
    options.field = (value);                                        \
    EXPECT(status, quire_runtime_create(&options, &runtime, &err)); \
    CHECK_MESSAGE(message);                                         \
    CHECK(runtime == NULL);                                         \
  } while (0)
  REFUSED(n_threads, -1, QUIRE_ERROR_INVALID_ARGUMENT, "n_threads");
  REFUSED(n_threads, 1025, QUIRE_ERROR_INVALID_ARGUMENT, "1024");
  REFUSED(log_level, 5, QUIRE_ERROR_INVALID_ARGUMENT, "log_level");
  REFUSED(log_level, -1, QUIRE_ERROR_INVALID_ARGUMENT, "log_level");
  REFUSED(n_io_threads, -2, QUIRE_ERROR_INVALID_ARGUMENT, "n_io_threads");
  REFUSED(n_io_threads, 65, QUIRE_ERROR_INVALID_ARGUMENT, "n_io_threads");
  REFUSED(n_kept_log_lines, -1, QUIRE_ERROR_INVALID_ARGUMENT, "n_kept_log_lines");
  REFUSED(n_kept_log_lines, 65537, QUIRE_ERROR_INVALID_ARGUMENT, "n_kept_log_lines");
  REFUSED(flags, 1, QUIRE_ERROR_INVALID_ARGUMENT, "flags");
  REFUSED(kv_host_budget_bytes, -1, QUIRE_ERROR_INVALID_ARGUMENT, "kv_host_budget_bytes");
  REFUSED(kv_device_budget_bytes, -1, QUIRE_ERROR_INVALID_ARGUMENT, "kv_device_budget_bytes");
  REFUSED(kv_compressed_budget_bytes, -1, QUIRE_ERROR_INVALID_ARGUMENT, "kv_compressed_budget_bytes");
  REFUSED(kv_file_budget_bytes, -1, QUIRE_ERROR_INVALID_ARGUMENT, "kv_file_budget_bytes");
  REFUSED(prefix_cache_bytes, -1, QUIRE_ERROR_INVALID_ARGUMENT, "prefix_cache_bytes");
#undef REFUSED
  {
    tracker t;
    tracker_options(&t, &options);
    options.free = NULL;
    EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_runtime_create(&options, &runtime, &err));
    CHECK_MESSAGE("alloc and free");
    tracker_options(&t, &options);
    options.alloc = NULL;
    EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_runtime_create(&options, &runtime, &err));
    CHECK(t.n_destroyed == 0);
  }
}

static void test_lifetime(void) {
  quire_runtime* runtime = NULL;
  quire_runtime_options options;
  quire_error err;
  EXPECT_OK(quire_runtime_create(NULL, &runtime, &err));
  quire_runtime_retain(runtime);
  quire_runtime_release(runtime);
  EXPECT_OK(quire_runtime_close(runtime, &err));
  EXPECT_OK(quire_runtime_close(runtime, &err));
  quire_runtime_release(runtime);
  quire_runtime_retain(NULL);
  quire_runtime_release(NULL);
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_runtime_close(NULL, &err));
  quire_runtime_options_init(&options, sizeof options);
  for (int32_t n = 1; n <= 9; n += 4) {
    options.n_threads = n;
    EXPECT_OK(quire_runtime_create(&options, &runtime, &err));
    quire_runtime_release(runtime);
  }
}

static quire_status load_on(quire_runtime* runtime, const char* device, char* chosen, char* reason, size_t cap,
                            quire_error* err) {
  const char* path = model_path("short_128");
  quire_model* model = NULL;
  quire_model_options options;
  size_t n = 0;
  quire_model_options_init(&options, sizeof options);
  options.device = device;
  options.device_len = device ? strlen(device) : 0;
  const quire_status status = quire_model_load(runtime, path, strlen(path), &options, &model, err);
  if (status != QUIRE_OK) return status;
  CHECK(quire_model_get_metadata(model, "device", 6, chosen, cap - 1, &n, err) == QUIRE_OK);
  chosen[n] = '\0';
  CHECK(quire_model_get_metadata(model, "device_reason", 13, reason, cap - 1, &n, err) == QUIRE_OK);
  reason[n] = '\0';
  quire_model_release(model);
  return status;
}

static void test_devices(void) {
  char chosen[256], reason[256];
  quire_runtime* runtime = NULL;
  quire_device_info info;
  int32_t n = 0;
  quire_error err;
  EXPECT_OK(quire_runtime_create(NULL, &runtime, &err));
  EXPECT_OK(quire_runtime_get_device_count(runtime, &n, &err));
  CHECK(n >= 1);
  for (int32_t i = 0; i < n; ++i) {
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    EXPECT_OK(quire_runtime_get_device_info(runtime, i, &info, &err));
    CHECK(info.kind >= QUIRE_DEVICE_CPU && info.name[0] != '\0' && info.description[0] != '\0');
    CHECK((info.flags == QUIRE_DEVICE_USABLE) == (info.obstacle[0] == '\0'));
    CHECK(info.memory_bytes >= info.free_bytes && info.free_bytes > 0);
    EXPECT(info.flags ? QUIRE_OK : QUIRE_ERROR_UNSUPPORTED,
           load_on(runtime, info.name, chosen, reason, sizeof chosen, &err));
    if (info.flags) CHECK(strcmp(chosen, info.name) == 0 && strcmp(reason, "asked for") == 0);
  }
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_runtime_get_device_info(runtime, n, &info, &err));
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_runtime_get_device_info(runtime, -1, &info, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_runtime_get_device_info(runtime, 0, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_runtime_get_device_count(runtime, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_runtime_get_device_count(NULL, &n, &err));

  EXPECT_OK(load_on(runtime, NULL, chosen, reason, sizeof chosen, &err));
  CHECK(strcmp(chosen, "cpu") == 0 && strstr(reason, "only usable") != NULL);
  EXPECT_OK(load_on(runtime, "auto", chosen, reason, sizeof chosen, &err));
  CHECK(strcmp(chosen, "cpu") == 0);
  EXPECT(QUIRE_ERROR_UNSUPPORTED, load_on(runtime, "cuda:0", chosen, reason, sizeof chosen, &err));
  CHECK_MESSAGE("no plugin is looked for");
  EXPECT(QUIRE_ERROR_UNSUPPORTED, load_on(runtime, "cuda", chosen, reason, sizeof chosen, &err));
  CHECK_MESSAGE("cuda: QUIRE_CUDA_PLUGIN is \"none\", so no plugin is looked for; there is: auto, cpu");
  static const char* const unknown[] = {"gpu", "cpu:0", "cuda:", "cuda:x", "cuda:12345", "CPU", " cpu"};
  for (size_t i = 0; i < QUIRE_COUNT(unknown); ++i) {
    EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, load_on(runtime, unknown[i], chosen, reason, sizeof chosen, &err));
    CHECK_MESSAGE("auto, cpu");
  }
  quire_runtime_stats stats;
  memset(&stats, 0, sizeof stats);
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_runtime_get_stats(runtime, &stats, &err));
  stats.struct_size = sizeof stats;
  EXPECT_OK(quire_runtime_get_stats(runtime, &stats, &err));
  CHECK(stats.prefix_cache_bytes == 0 && stats.prefix_cache_texts == 0 && stats.prefix_cache_tokens == 0);
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_runtime_get_stats(runtime, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_runtime_get_stats(NULL, &stats, &err));
  EXPECT_OK(quire_runtime_close(runtime, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_runtime_get_stats(runtime, &stats, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_runtime_get_device_count(runtime, &n, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_runtime_get_device_info(runtime, 0, &info, &err));
  quire_runtime_release(runtime);
}

static void test_cancel_handle(void) {
  quire_cancel* cancel = NULL;
  quire_error err;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_cancel_create(NULL, &err));
  EXPECT_OK(quire_cancel_create(&cancel, &err));
  quire_cancel_trigger(cancel);
  quire_cancel_retain(cancel);
  quire_cancel_release(cancel);
  quire_cancel_trigger(cancel); /* the other reference */
  quire_cancel_release(cancel);
  quire_cancel_retain(NULL);
  quire_cancel_trigger(NULL);
  quire_cancel_release(NULL);
}

void test_runtime(void) {
  test_create_errors();
  test_lifetime();
  test_devices();
  test_cancel_handle();
}
