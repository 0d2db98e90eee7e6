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
  REFUSED(backend, 99, QUIRE_ERROR_UNSUPPORTED, "backend 99");
  REFUSED(log_level, 5, QUIRE_ERROR_INVALID_ARGUMENT, "log_level");
  REFUSED(log_level, -1, QUIRE_ERROR_INVALID_ARGUMENT, "log_level");
  REFUSED(n_io_threads, -2, QUIRE_ERROR_INVALID_ARGUMENT, "n_io_threads");
  REFUSED(n_io_threads, 65, QUIRE_ERROR_INVALID_ARGUMENT, "n_io_threads");
  REFUSED(flags, 1, QUIRE_ERROR_INVALID_ARGUMENT, "flags");
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
  options.backend = QUIRE_BACKEND_CPU;
  for (int32_t n = 1; n <= 9; n += 4) {
    options.n_threads = n;
    EXPECT_OK(quire_runtime_create(&options, &runtime, &err));
    quire_runtime_release(runtime);
  }
}

static void test_cancel_handle(void) {
  quire_cancel* cancel = NULL;
  quire_error err;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_cancel_create(NULL, &err));
  EXPECT_OK(quire_cancel_create(&cancel, &err));
  quire_cancel_trigger(cancel);
  quire_cancel_trigger(cancel);
  quire_cancel_release(cancel);
  quire_cancel_trigger(NULL);
  quire_cancel_release(NULL);
}

void test_runtime(void) {
  test_create_errors();
  test_lifetime();
  test_cancel_handle();
}
