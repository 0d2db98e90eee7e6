/* Adapters: loading, what they say of themselves, sessions with them, merging, and the session's fingerprint. */
#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "abi_test.h"

static const char* attention(void) {
  static char path[2200];
  snprintf(path, sizeof path, "%s", model_path("../adapters/attention"));
  return path;
}

static quire_adapter* load(quire_model* model, const char* path) {
  quire_adapter* adapter = NULL;
  quire_error err;
  EXPECT_OK(quire_adapter_load(model, path, strlen(path), NULL, &adapter, &err));
  return adapter;
}

static void test_info(quire_model* model) {
  quire_adapter* first = load(model, attention());
  quire_adapter* second = load(model, model_path("../adapters/everything"));
  quire_adapter_info info;
  struct {
    uint32_t struct_size, flags;
    int32_t rank, canary;
  } small = {12, 0, 0, 77};
  quire_error err;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  EXPECT_OK(quire_adapter_get_info(first, &info, &err));
  CHECK(info.struct_size == sizeof info);
  CHECK(info.flags == (QUIRE_ADAPTER_REPLACES_EMBEDDING | QUIRE_ADAPTER_CHANGES_QUERIES_OR_KEYS));
  /* A and B of q, k, v and o in two layers, and the embedding. */
  CHECK(info.rank == 4 && info.n_tensors == 17 && info.n_parameters == 320 * 64 + 2 * 4 * (160 + 112 + 112 + 160));
  CHECK(info.bytes >= 4 * info.n_parameters);
  EXPECT_OK(quire_adapter_get_info(second, &info, &err));
  CHECK(info.flags ==
        (QUIRE_ADAPTER_REPLACES_LM_HEAD | QUIRE_ADAPTER_REPLACES_NORMS | QUIRE_ADAPTER_CHANGES_QUERIES_OR_KEYS));
  CHECK(info.rank == 3);
  EXPECT_OK(quire_adapter_get_info(first, (quire_adapter_info*)&small, &err));
  CHECK(small.struct_size == 12 && small.rank == 4 && small.canary == 77);
  small.struct_size = 4;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_adapter_get_info(first, (quire_adapter_info*)&small, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_adapter_get_info(first, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_adapter_get_info(NULL, &info, &err));
  quire_adapter_release(first);
  quire_adapter_release(second);
}

static void test_metadata(quire_model* model) {
  quire_adapter* adapter = load(model, attention());
  char text[64] = "x";
  size_t needed = 0;
  quire_error err;
  EXPECT_OK(quire_adapter_get_metadata(adapter, "identity", 8, NULL, 0, &needed, &err));
  CHECK(needed == 32);
  EXPECT(QUIRE_ERROR_BUFFER_TOO_SMALL, quire_adapter_get_metadata(adapter, "identity", 8, text, 31, &needed, &err));
  CHECK(text[0] == 'x');
  EXPECT_OK(quire_adapter_get_metadata(adapter, "identity", 8, text, sizeof text, &needed, &err));
  CHECK(strspn(text, "0123456789abcdef") == 32);
  EXPECT_OK(quire_adapter_get_metadata(adapter, "base_model", 10, text, sizeof text, &needed, &err));
  CHECK(needed == 8 && memcmp(text, "text_256", 8) == 0);
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_adapter_get_metadata(adapter, "author", 6, NULL, 0, NULL, &err));
  CHECK_MESSAGE("author");
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_adapter_get_metadata(adapter, NULL, 3, NULL, 0, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_adapter_get_metadata(NULL, "identity", 8, NULL, 0, NULL, &err));
  quire_adapter_release(adapter);
}

static void test_load_refusals(quire_model* model) {
  char long_name[300];
  const char* path = attention();
  quire_adapter* adapter = NULL;
  loaded other = open_model("short_128");
  quire_error err;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_adapter_load(NULL, path, strlen(path), NULL, &adapter, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_adapter_load(model, path, strlen(path), NULL, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_adapter_load(model, NULL, 5, NULL, &adapter, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_adapter_load(model, path, 0, NULL, &adapter, &err));
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_adapter_load(model, "/no/such/adapter", 16, NULL, &adapter, &err));
  CHECK_MESSAGE("/no/such/adapter");
  memset(long_name, 'n', sizeof long_name);
  EXPECT(QUIRE_ERROR_IO, quire_adapter_load(model, long_name, sizeof long_name, NULL, &adapter, &err));
  CHECK(err.os_error == ENAMETOOLONG);
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_adapter_load(model, "/", 1, NULL, &adapter, &err));
  CHECK_MESSAGE("adapter_config.json");
  EXPECT(QUIRE_ERROR_UNSUPPORTED, quire_adapter_load(model, "/dev/null", 9, NULL, &adapter, &err));
  EXPECT(QUIRE_ERROR_BAD_FILE, quire_adapter_load(other.model, path, strlen(path), NULL, &adapter, &err));
  CHECK_MESSAGE("asks for");
  CHECK(adapter == NULL);
  close_model(&other);
}

/* What progress reported; it trips the cancel handle, if there is one, when so many bytes are done. */
typedef struct watch {
  int64_t done, total;
  int n_reports, n_backwards;
  int64_t cancel_at;
  quire_cancel* cancel;
} watch;

static void watch_progress(void* user_data, int64_t done, int64_t total) {
  watch* w = user_data;
  w->n_backwards += done < w->done || done > total || (w->n_reports > 0 && total != w->total);
  ++w->n_reports;
  w->done = done;
  w->total = total;
  if (w->cancel && done >= w->cancel_at) quire_cancel_trigger(w->cancel);
}

/* Loading can be watched, and cancelled (not in its last step, which may be the last eighth); nothing of it stays. */
static void test_watched_load(void) {
  static const char* const names[] = {"../adapters/attention", "../adapters/everything"};
  tracker memory;
  quire_runtime_options runtime_options;
  quire_runtime* runtime = NULL;
  quire_model* model = NULL;
  const char* model_directory = model_path("text_256");
  quire_error err;
  tracker_options(&memory, &runtime_options);
  EXPECT_OK(quire_runtime_create(&runtime_options, &runtime, &err));
  EXPECT_OK(quire_model_load(runtime, model_directory, strlen(model_directory), NULL, &model, &err));
  const int64_t before = tracker_bytes(&memory);
  for (size_t i = 0; i < QUIRE_COUNT(names); ++i) {
    char path[2200];
    watch whole = {0, 0, 0, 0, 0, NULL};
    quire_adapter* adapter = NULL;
    quire_adapter_options options;
    snprintf(path, sizeof path, "%s", model_path(names[i]));
    quire_adapter_options_init(&options, sizeof options);
    options.progress = watch_progress;
    options.progress_user_data = &whole;
    EXPECT_OK(quire_adapter_load(model, path, strlen(path), &options, &adapter, &err));
    CHECK(whole.n_reports > 4 && whole.n_backwards == 0 && whole.done == whole.total && whole.total > 0);
    quire_adapter_release(adapter);
    CHECK(tracker_wait_bytes(&memory, before));
    for (int64_t eighth = 0; eighth < 7; ++eighth) {
      watch w = {0, 0, 0, 0, eighth * whole.total / 8, NULL};
      adapter = NULL;
      EXPECT_OK(quire_cancel_create(&w.cancel, &err));
      if (eighth == 0) quire_cancel_trigger(w.cancel); /* before it begins */
      options.cancel = w.cancel;
      options.progress_user_data = &w;
      EXPECT(QUIRE_ERROR_CANCELLED, quire_adapter_load(model, path, strlen(path), &options, &adapter, &err));
      CHECK(adapter == NULL && w.done < w.total + (eighth == 0) && (eighth > 0 || w.n_reports == 0));
      CHECK(tracker_wait_bytes(&memory, before));
      quire_cancel_release(w.cancel);
    }
  }
  quire_model_release(model);
  quire_runtime_release(runtime);
  CHECK(tracker_wait_destroyed(&memory, 2));
  CHECK(tracker_bytes(&memory) == 0);
}

static quire_session* session_with(quire_model* model, quire_adapter* adapter, double scale, const char* strategy) {
  const quire_session_adapter used = {adapter, scale};
  quire_session_options options;
  quire_session* session = NULL;
  quire_error err;
  quire_session_options_init(&options, sizeof options);
  options.strategy = strategy;
  options.strategy_len = strlen(strategy);
  options.adapters = &used;
  options.n_adapters = 1;
  EXPECT_OK(quire_model_check_session(model, &options, &err));
  EXPECT_OK(quire_session_create(model, &options, &session, &err));
  return session;
}

static int same_text(const transcript* a, const transcript* b) {
  return a->n_tokens == b->n_tokens && memcmp(a->tokens, b->tokens, a->n_tokens * sizeof a->tokens[0]) == 0;
}

/* What the adapter's session says is what the model says into which it was merged; handles go before their use ends. */
static void test_use(loaded* l) {
  quire_adapter* adapter = load(l->model, attention());
  quire_session* session = session_with(l->model, adapter, 1, "full");
  quire_session* plain = open_session(l->model, "full", 0, 0);
  quire_session* with_merged;
  quire_model* merged = NULL;
  quire_adapter_source source = {NULL, 0, 1};
  quire_model_options options;
  const char* path;
  static transcript a, b, c;
  quire_error err;
  quire_adapter_retain(adapter);
  quire_adapter_release(adapter);
  quire_adapter_release(adapter);
  feed_some(session, l->model, 40);
  feed_some(plain, l->model, 40);
  run_greedy(session, 30, &a);
  run_greedy(plain, 30, &b);
  CHECK(a.n_warnings == 1 && b.n_warnings == 0 && !same_text(&a, &b));
  run_greedy(session, 1, &c);
  CHECK(c.n_warnings == 0);
  quire_session_release(session);
  quire_session_release(plain);

  quire_model_options_init(&options, sizeof options);
  source.path = attention();
  source.path_len = strlen(source.path);
  path = model_path("text_256");
  options.merge = &source;
  options.n_merge = 1;
  EXPECT_OK(quire_model_load(l->runtime, path, strlen(path), &options, &merged, &err));
  with_merged = open_session(merged, "full", 0, 0);
  feed_some(with_merged, merged, 40);
  run_greedy(with_merged, 30, &c);
  CHECK(c.n_warnings == 1 && same_text(&a, &c));
  quire_session_release(with_merged);
  quire_model_release(merged);
}

static void test_option_errors(loaded* l) {
  quire_adapter* adapter = load(l->model, attention());
  quire_session_adapter used[2] = {{adapter, 1}, {adapter, 1}};
  quire_adapter_source source = {"/no/such/adapter", 16, 1};
  quire_session_options options;
  quire_model_options loading;
  quire_session* session = NULL;
  quire_model* model = NULL;
  loaded other = open_model("text_256");
  const char* path = model_path("text_256");
  quire_error err;
  quire_session_options_init(&options, sizeof options);
  options.adapters = used;
  options.n_adapters = 2;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_create(l->model, &options, &session, &err));
  CHECK_MESSAGE("embed_tokens");
  options.n_adapters = 1;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_create(other.model, &options, &session, &err));
  CHECK_MESSAGE("another model");
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_check_session(other.model, &options, &err));
  options.n_adapters = 65;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_create(l->model, &options, &session, &err));
  CHECK_MESSAGE("n_adapters");
  options.n_adapters = 1;
  used[0].scale = 0;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_create(l->model, &options, &session, &err));
  CHECK_MESSAGE("adapters[0].scale");
  CHECK(err.offset == 0);
  used[0].scale = NAN;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_create(l->model, &options, &session, &err));
  used[0].adapter = NULL;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_create(l->model, &options, &session, &err));
  CHECK_MESSAGE("adapters[0].adapter is NULL");
  options.adapters = NULL;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_create(l->model, &options, &session, &err));
  CHECK(session == NULL);

  quire_model_options_init(&loading, sizeof loading);
  loading.n_merge = 1;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_load(l->runtime, path, strlen(path), &loading, &model, &err));
  loading.merge = &source;
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_model_load(l->runtime, path, strlen(path), &loading, &model, &err));
  CHECK_MESSAGE("/no/such/adapter");
  source.scale = INFINITY;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_load(l->runtime, path, strlen(path), &loading, &model, &err));
  CHECK_MESSAGE("merge[0].scale");
  source.scale = 1;
  source.path_len = 0;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_load(l->runtime, path, strlen(path), &loading, &model, &err));
  CHECK_MESSAGE("merge[0].path");
  CHECK(model == NULL);
  quire_adapter_release(adapter);
  quire_adapter_retain(NULL);
  quire_adapter_release(NULL);
  close_model(&other);
}

/* Adapters of a session are not planned for. */
static void test_memory_plan_without(loaded* l) {
  const quire_session_adapter used = {load(l->model, attention()), 1};
  const char* path = model_path("text_256");
  quire_session_options options;
  quire_memory_plan plain, with;
  quire_error err;
  quire_session_options_init(&options, sizeof options);
  memset(&plain, 0, sizeof plain);
  plain.struct_size = sizeof plain;
  with = plain;
  EXPECT_OK(quire_runtime_plan_memory(l->runtime, path, strlen(path), NULL, &options, 100, &plain, &err));
  options.adapters = &used;
  options.n_adapters = 1;
  EXPECT_OK(quire_runtime_plan_memory(l->runtime, path, strlen(path), NULL, &options, 100, &with, &err));
  CHECK(memcmp(&plain, &with, sizeof plain) == 0);
  quire_adapter_release(used.adapter);
}

static void test_fingerprint(loaded* l) {
  quire_adapter* adapter = load(l->model, attention());
  quire_session* sessions[4];
  char prints[4][33] = {"", "", "", ""};
  size_t needed = 0;
  quire_error err;
  sessions[0] = open_session(l->model, "full", 0, 0);
  sessions[1] = open_session(l->model, "full(train_len=256)", 0, 64); /* the same */
  sessions[2] = session_with(l->model, adapter, 1, "full");
  sessions[3] = session_with(l->model, adapter, 0.5, "full");
  for (int i = 0; i < 4; ++i) {
    EXPECT_OK(quire_session_get_fingerprint(sessions[i], prints[i], 32, &needed, &err));
    CHECK(needed == 32 && strspn(prints[i], "0123456789abcdef") == 32);
  }
  CHECK(strcmp(prints[0], prints[1]) == 0);
  CHECK(strcmp(prints[0], prints[2]) != 0 && strcmp(prints[2], prints[3]) != 0);
  EXPECT(QUIRE_ERROR_BUFFER_TOO_SMALL, quire_session_get_fingerprint(sessions[0], prints[0], 31, &needed, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_fingerprint(NULL, prints[0], 32, &needed, &err));
  EXPECT_OK(quire_session_close(sessions[0], &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_session_get_fingerprint(sessions[0], prints[0], 32, &needed, &err));
  for (int i = 0; i < 4; ++i) quire_session_release(sessions[i]);
  quire_adapter_release(adapter);
}

static void test_after_close(void) {
  loaded l = open_model("text_256");
  quire_adapter* adapter = load(l.model, attention());
  quire_adapter* second = NULL;
  quire_adapter_info info;
  quire_error err;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  EXPECT_OK(quire_runtime_close(l.runtime, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_adapter_load(l.model, attention(), strlen(attention()), NULL, &second, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_adapter_get_info(adapter, &info, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_adapter_get_metadata(adapter, "identity", 8, NULL, 0, NULL, &err));
  close_model(&l);
  quire_adapter_release(adapter); /* the last of all handles */
}

void test_adapter(void) {
  loaded l = open_model("text_256");
  test_info(l.model);
  test_metadata(l.model);
  test_load_refusals(l.model);
  test_use(&l);
  test_option_errors(&l);
  test_memory_plan_without(&l);
  test_fingerprint(&l);
  close_model(&l);
  test_watched_load();
  test_after_close();
}
