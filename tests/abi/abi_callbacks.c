/* The host's callbacks: memory comes from them and goes back, logs arrive, destroy runs once. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "abi_test.h"

/* Callbacks run on any thread. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void* tracked_alloc(void* user_data, size_t size, size_t alignment) {
  tracker* t = user_data;
  void* memory = NULL;
  if (posix_memalign(&memory, alignment, size) != 0) return NULL;
  pthread_mutex_lock(&lock);
  while (t->gate_closed) pthread_cond_wait(&changed, &lock);
  t->bytes += (int64_t)size;
  ++t->n_allocs;
  pthread_mutex_unlock(&lock);
  return memory;
}

static void tracked_free(void* user_data, void* memory, size_t size, size_t alignment) {
  tracker* t = user_data;
  (void)alignment;
  pthread_mutex_lock(&lock);
  t->bytes -= (int64_t)size;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  free(memory);
}

static void tracked_destroy(void* user_data) {
  tracker* t = user_data;
  pthread_mutex_lock(&lock);
  ++t->n_destroyed;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

static void tracked_log(void* user_data, int32_t level, const char* message, size_t message_len) {
  tracker* t = user_data;
  pthread_mutex_lock(&lock);
  ++t->n_logged;
  if (level > t->worst_level) t->worst_level = level;
  snprintf(t->last_log, sizeof t->last_log, "%.*s", (int)message_len, message);
  pthread_mutex_unlock(&lock);
}

void tracker_options(tracker* t, quire_runtime_options* options) {
  memset(t, 0, sizeof *t);
  quire_runtime_options_init(options, sizeof *options);
  options->n_threads = 2;
  options->log = tracked_log;
  options->log_user_data = t;
  options->log_destroy = tracked_destroy;
  options->alloc = tracked_alloc;
  options->free = tracked_free;
  options->alloc_user_data = t;
  options->alloc_destroy = tracked_destroy;
}

int64_t tracker_bytes(tracker* t) {
  int64_t bytes;
  pthread_mutex_lock(&lock);
  bytes = t->bytes;
  pthread_mutex_unlock(&lock);
  return bytes;
}

int tracker_destroyed(tracker* t) {
  int n;
  pthread_mutex_lock(&lock);
  n = t->n_destroyed;
  pthread_mutex_unlock(&lock);
  return n;
}

void tracker_gate(tracker* t, int closed) {
  pthread_mutex_lock(&lock);
  t->gate_closed = closed;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

static struct timespec in_ten_seconds(void) {
  struct timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += 10;
  return end;
}

int tracker_wait_destroyed(tracker* t, int wanted) {
  const struct timespec end = in_ten_seconds();
  int reached;
  pthread_mutex_lock(&lock);
  while (t->n_destroyed < wanted && pthread_cond_timedwait(&changed, &lock, &end) == 0) continue;
  reached = t->n_destroyed == wanted;
  pthread_mutex_unlock(&lock);
  return reached;
}

int tracker_wait_bytes(tracker* t, int64_t wanted) {
  const struct timespec end = in_ten_seconds();
  int reached;
  pthread_mutex_lock(&lock);
  while (t->bytes != wanted && pthread_cond_timedwait(&changed, &lock, &end) == 0) continue;
  reached = t->bytes == wanted;
  pthread_mutex_unlock(&lock);
  return reached;
}

static void test_log_levels(void) {
  const char* path = model_path("short_128");
  for (int32_t level = 0; level <= QUIRE_LOG_DEBUG; ++level) {
    tracker t;
    quire_runtime_options options;
    quire_runtime* runtime = NULL;
    quire_model* model = NULL;
    quire_error err;
    tracker_options(&t, &options);
    options.log_level = level;
    EXPECT_OK(quire_runtime_create(&options, &runtime, &err));
    EXPECT_OK(quire_model_load(runtime, path, strlen(path), NULL, &model, &err));
    quire_model_release(model);
    quire_runtime_release(runtime);
    CHECK(tracker_wait_destroyed(&t, 2));
    if (level < QUIRE_LOG_INFO) {
      CHECK(t.n_logged == 0); /* loading a good model is no warning */
    } else {
      CHECK(t.n_logged > 0);
      CHECK(t.worst_level <= level);
      CHECK(strstr(t.last_log, "short_128") != NULL);
    }
  }
}

/* The same lines for a host that takes them: loading a model logs one. */
static void test_kept_log_lines(void) {
  const char* path = model_path("short_128");
  tracker t;
  quire_runtime_options options;
  quire_runtime* runtime = NULL;
  char line[1024];
  int32_t level = 9;
  int64_t n_lost = 9;
  size_t needed = 9;
  quire_error err;
  tracker_options(&t, &options);
  options.log_level = QUIRE_LOG_INFO;
  options.n_kept_log_lines = 2;
  EXPECT_OK(quire_runtime_create(&options, &runtime, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_runtime_take_log_line(NULL, &level, &n_lost, NULL, 0, &needed, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_runtime_take_log_line(runtime, NULL, &n_lost, NULL, 0, &needed, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_runtime_take_log_line(runtime, &level, NULL, NULL, 0, &needed, &err));
  EXPECT_OK(quire_runtime_take_log_line(runtime, &level, &n_lost, line, sizeof line, &needed, &err));
  CHECK(level == 0 && n_lost == 0 && needed == 0);
  for (int i = 0; i < 5; ++i) {
    quire_model* model = NULL;
    EXPECT_OK(quire_model_load(runtime, path, strlen(path), NULL, &model, &err));
    quire_model_release(model);
  }
  CHECK(t.n_logged == 5);
  int32_t untouched = -7;
  int64_t n_untouched = -7;
  for (int i = 0; i < 2; ++i) {
    level = 0;
    EXPECT_OK(quire_runtime_take_log_line(runtime, &level, &n_lost, NULL, 0, &needed, &err));
    CHECK(level == QUIRE_LOG_INFO && needed >= strlen(t.last_log)); /* asked about, not taken */
    EXPECT(QUIRE_ERROR_BUFFER_TOO_SMALL,
           quire_runtime_take_log_line(runtime, &untouched, &n_untouched, line, needed - 1, &needed, &err));
    CHECK(untouched == -7 && n_untouched == -7);
    EXPECT_OK(quire_runtime_take_log_line(runtime, &level, &n_lost, line, needed, NULL, &err));
    CHECK(n_lost == 0 &&
          memcmp(line, t.last_log, strlen(t.last_log)) == 0); /* of which the tracker keeps the beginning */
  }
  EXPECT_OK(quire_runtime_take_log_line(runtime, &level, &n_lost, NULL, 0, &needed, &err));
  CHECK(level == 0 && needed == 0);
  {
    quire_model* model = NULL;
    EXPECT_OK(quire_model_load(runtime, path, strlen(path), NULL, &model, &err));
    quire_model_release(model);
  }
  EXPECT_OK(quire_runtime_take_log_line(runtime, &level, &n_lost, line, sizeof line, &needed, &err));
  CHECK(level == QUIRE_LOG_INFO && n_lost == 3);
  EXPECT_OK(quire_runtime_close(runtime, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_runtime_take_log_line(runtime, &level, &n_lost, line, sizeof line, &needed, &err));
  quire_runtime_release(runtime);
  CHECK(tracker_wait_destroyed(&t, 2));
  EXPECT_OK(quire_runtime_create(NULL, &runtime, &err)); /* keeps none */
  EXPECT_OK(quire_runtime_take_log_line(runtime, &level, &n_lost, line, sizeof line, &needed, &err));
  CHECK(level == 0 && needed == 0);
  quire_runtime_release(runtime);
}

static void test_memory_comes_from_the_host(void) {
  tracker t;
  quire_runtime_options options;
  quire_runtime* runtime = NULL;
  quire_model* model = NULL;
  quire_session* session;
  quire_model_info info;
  transcript out;
  const char* path = model_path("short_128");
  int64_t with_model, with_session;
  quire_error err;
  tracker_options(&t, &options);
  EXPECT_OK(quire_runtime_create(&options, &runtime, &err));
  EXPECT_OK(quire_model_load(runtime, path, strlen(path), NULL, &model, &err));
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  EXPECT_OK(quire_model_get_info(model, &info, &err));
  with_model = tracker_bytes(&t);
  CHECK(with_model > 0 && with_model <= info.weight_bytes + 65536);
  session = open_session(model, "full", 0, 0);
  feed_some(session, model, 100);
  run_greedy(session, 4, &out);
  CHECK(out.n_tokens == 4);
  with_session = tracker_bytes(&t);
  CHECK(with_session > with_model);
  EXPECT_OK(quire_session_close(session, &err));
  CHECK(tracker_bytes(&t) < with_session);
  CHECK(t.n_destroyed == 0);
  quire_session_release(session);
  quire_runtime_release(runtime);
  quire_model_release(model);
  CHECK(tracker_wait_destroyed(&t, 2));
  CHECK(tracker_bytes(&t) == 0);
}

/* A call that fails leaves user_data to the caller. */
static void test_failed_create_destroys_nothing(void) {
  tracker t;
  quire_runtime_options options;
  quire_runtime* runtime = NULL;
  quire_error err;
  tracker_options(&t, &options);
  options.n_threads = -1;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_runtime_create(&options, &runtime, &err));
  CHECK(runtime == NULL);
  CHECK(t.n_destroyed == 0);
  tracker_options(&t, &options);
  EXPECT_OK(quire_runtime_create(&options, &runtime, &err));
  EXPECT_OK(quire_runtime_close(runtime, &err));
  CHECK(tracker_destroyed(&t) == 0); /* the handle may still log */
  quire_runtime_release(runtime);
  CHECK(tracker_wait_destroyed(&t, 2));
}

void test_callbacks(void) {
  test_log_levels();
  test_kept_log_lines();
  test_memory_comes_from_the_host();
  test_failed_create_destroys_nothing();
}
