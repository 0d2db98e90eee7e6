/* Stores of documents: put, found, loaded, listed, verified, removed, and refused. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "abi_test.h"

static char directory[] = "/tmp/quire_abi_store_XXXXXX";
static char path[64];

static quire_store* open_store(int64_t budget) {
  quire_store_options options;
  quire_store* store = NULL;
  quire_error err;
  quire_store_options_init(&options, sizeof options);
  options.budget_bytes = budget;
  EXPECT_OK(quire_store_open(path, strlen(path), &options, &store, &err));
  return store;
}

static int describes(quire_store* store, const char* part) {
  char text[4096];
  size_t n = 0;
  quire_error err;
  EXPECT_OK(quire_store_describe(store, text, sizeof text - 1, &n, &err));
  text[n] = '\0';
  return strstr(text, part) != NULL;
}

static void count(void* seen, int64_t done, int64_t total) { *(int*)seen += done <= total; }

static void test_round_trip(quire_model* model) {
  static transcript expected, out;
  quire_store* store = open_store(0);
  quire_session* session = open_session(model, "full(kv_chunk=16)", 0, 16);
  quire_session* loaded = NULL;
  quire_session_options options;
  quire_snapshot_options snapshot;
  quire_store_match match, again;
  quire_error err;
  int32_t ids[140];
  size_t n = 0;
  int seen = 0;
  some_tokens(ids, QUIRE_COUNT(ids), 128, 5);
  quire_store_match_init(&match, sizeof match);
  quire_store_match_init(&again, sizeof again);
  quire_snapshot_options_init(&snapshot, sizeof snapshot);
  snapshot.progress = count;
  snapshot.progress_user_data = &seen;
  quire_session_options_init(&options, sizeof options);
  options.strategy = "full(kv_chunk=16)";
  options.strategy_len = strlen(options.strategy);

  EXPECT_OK(quire_store_find(store, model, &options, ids, 140, &match, &err));
  CHECK(match.n_tokens == 0 && match.name[0] == '\0' && strstr(match.reason, "empty") != NULL);
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_store_load(store, model, &options, ids, 140, &match, &loaded, &err));
  CHECK_MESSAGE("empty");
  EXPECT(QUIRE_ERROR_EMPTY, quire_store_put(store, session, NULL, 0, NULL, &match, &err));
  EXPECT_OK(quire_session_feed_tokens(session, ids, 100, &err));
  run_greedy(session, 1, &expected);
  EXPECT_OK(quire_store_put(store, session, "a book", 6, &snapshot, &match, &err));
  CHECK(match.n_tokens == 100 && match.n_computed > 80 && strlen(match.name) == 32 && match.reason[0] == '\0');
  CHECK(seen > 2);
  EXPECT_OK(quire_store_put(store, session, NULL, 0, NULL, NULL, &err)); /* is there already */
  CHECK(describes(store, "\"title\":\"a book\"") && describes(store, "\"in_use\":false"));
  CHECK(describes(store, match.name) && describes(store, "\"n_tokens\":100,"));
  EXPECT_OK(quire_store_find(store, model, &options, ids, 140, &again, &err));
  CHECK(again.n_tokens == 100 && strcmp(again.name, match.name) == 0);
  EXPECT_OK(quire_store_load(store, model, &options, ids, 140, &again, &loaded, &err));
  CHECK(describes(store, "\"in_use\":true"));
  EXPECT_OK(quire_session_get_token_counts(loaded, &again.n_computed, NULL, &err));
  CHECK(again.n_computed == again.n_tokens);
  seen = 0;
  EXPECT_OK(quire_store_verify(store, match.name, 32, &snapshot, &err));
  CHECK(seen > 2);
  quire_store_retain(store);
  quire_store_release(store);

  /* Removed while it is read. */
  EXPECT_OK(quire_store_remove(store, match.name, 32, &err));
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_store_remove(store, match.name, 32, &err));
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_store_verify(store, match.name, 32, NULL, &err));
  EXPECT_OK(quire_session_truncate(session, 100, &err));
  EXPECT_OK(quire_session_feed_tokens(session, ids + 100, 40, &err));
  EXPECT_OK(quire_session_feed_tokens(loaded, ids + 100, 40, &err));
  run_greedy(session, 20, &expected);
  run_greedy(loaded, 20, &out);
  CHECK(out.n_tokens == 20 && memcmp(out.tokens, expected.tokens, 20 * sizeof out.tokens[0]) == 0);
  CHECK_OUTPUT(char, (EXPECT_OK(quire_store_describe(store, NULL, 0, &n, &err)), n),
               quire_store_describe(store, buf, cap, needed, &err));
  quire_session_release(loaded);
  quire_session_release(session);
  quire_store_release(store);
}

static void test_refusals(quire_model* model) {
  quire_store* store = open_store(1000);
  quire_store* none = NULL;
  quire_session* session = open_session(model, "full", 0, 0);
  quire_session* loaded = NULL;
  quire_store_options options;
  quire_store_match match;
  quire_cancel* cancel = NULL;
  quire_snapshot_options snapshot;
  quire_error err;
  char title[1025];
  size_t n = 0;
  const int32_t ids[2] = {3, 4};
  quire_store_match_init(&match, sizeof match);
  quire_store_options_init(&options, sizeof options);
  options.flags = QUIRE_STORE_MUST_EXIST;
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_store_open("/no/such", 8, &options, &none, &err));
  memset(title, 'n', sizeof title);
  EXPECT(QUIRE_ERROR_IO, quire_store_open(title, 300, &options, &none, &err));
  CHECK(err.os_error == ENAMETOOLONG);
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_store_open("/dev/null\0x", 11, &options, &none, &err));
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_store_open(directory, strlen(directory), &options, &none, &err));
  CHECK_MESSAGE("no document store");
  options.flags = 2;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_store_open(path, strlen(path), &options, &none, &err));
  options.flags = 0;
  options.budget_bytes = -1;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_store_open(path, strlen(path), &options, &none, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_store_open(NULL, 0, NULL, &none, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_store_open("a\0b", 3, NULL, &none, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_store_open(path, strlen(path), NULL, NULL, &err));
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_store_open("/no/such", 8, NULL, &none, &err));
  CHECK(none == NULL);

  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_store_put(NULL, session, NULL, 0, NULL, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_store_put(store, NULL, NULL, 0, NULL, NULL, &err));
  feed_some(session, model, 100);
  {
    static transcript out;
    run_greedy(session, 0, &out);
  }
  EXPECT(QUIRE_ERROR_BUDGET, quire_store_put(store, session, NULL, 0, NULL, NULL, &err));
  CHECK_MESSAGE("1000");
  EXPECT(QUIRE_ERROR_INVALID_TEXT, quire_store_put(store, session, "a\xff", 2, NULL, NULL, &err));
  CHECK(err.offset == 1);
  memset(title, 'a', sizeof title);
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_store_put(store, session, title, sizeof title, NULL, NULL, &err));
  quire_store_release(store);
  store = open_store(0);
  quire_snapshot_options_init(&snapshot, sizeof snapshot);
  EXPECT_OK(quire_cancel_create(&cancel, &err));
  quire_cancel_trigger(cancel);
  snapshot.cancel = cancel;
  EXPECT(QUIRE_ERROR_CANCELLED, quire_store_put(store, session, NULL, 0, &snapshot, NULL, &err));
  quire_cancel_release(cancel);
  match.struct_size = 4;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_store_put(store, session, NULL, 0, NULL, &match, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_store_find(store, model, NULL, ids, 2, &match, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_store_load(store, model, NULL, ids, 2, &match, &loaded, &err));
  match.struct_size = sizeof match;
  CHECK(describes(store, "\"entries\":[]"));

  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_store_find(NULL, model, NULL, ids, 2, &match, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_store_find(store, NULL, NULL, ids, 2, &match, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_store_find(store, model, NULL, NULL, 2, &match, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_store_find(store, model, NULL, ids, 0, &match, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_store_find(store, model, NULL, ids, SIZE_MAX, &match, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_store_load(store, model, NULL, ids, SIZE_MAX, NULL, &loaded, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_store_find(store, model, NULL, ids, 2, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_store_load(store, model, NULL, ids, 2, NULL, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_store_load(NULL, model, NULL, ids, 2, NULL, &loaded, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_store_remove(store, "../x", 4, &err));
  CHECK_MESSAGE("32 hexadecimal digits");
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_store_remove(NULL, "x", 1, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_store_verify(store, NULL, 0, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_store_verify(NULL, "x", 1, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_store_describe(NULL, NULL, 0, &n, &err));
  EXPECT_OK(quire_session_close(session, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_store_put(store, session, NULL, 0, NULL, NULL, &err));
  quire_session_release(session);
  quire_store_retain(NULL);
  quire_store_release(NULL);
  quire_store_release(store);
}

void test_store(void) {
  loaded l = open_model("text_256");
  char lock[80];
  CHECK(mkdtemp(directory) != NULL);
  snprintf(path, sizeof path, "%s/store", directory);
  test_round_trip(l.model);
  test_refusals(l.model);
  snprintf(lock, sizeof lock, "%s/store.lock", path);
  CHECK(remove(lock) == 0 && rmdir(path) == 0 && rmdir(directory) == 0); /* nothing else is left */
  close_model(&l);
}
