/* Snapshots that go to and come from the host's callbacks, which may fail in any way. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "abi_test.h"

/* Reads come from any thread. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* A host's store of one snapshot, in memory. A call of any kind may be told to answer `answer` instead. */
typedef struct host_store {
  unsigned char* bytes;
  size_t n, room;
  size_t most; /* bytes that a call takes or gives at most */
  int64_t n_writes, n_commits, n_aborts, n_reads, n_destroyed;
  int64_t wrong_call; /* the number of the write or read that answers `answer`, from 1 on */
  int stays_wrong;    /* so do all reads behind it */
  int64_t answer;
  int commit_fails;
} host_store;

static int64_t tell(quire_error* err, int64_t answer) {
  static const quire_error zero;
  CHECK(memcmp(err, &zero, sizeof zero) == 0);
  if (answer < 0) {
    err->os_error = 77;
    memcpy(err->message, "the store is closed", 20);
  }
  return answer;
}

static int64_t store_write(void* user_data, const void* bytes, size_t n, quire_error* err) {
  host_store* s = user_data;
  CHECK(n > 0);
  if (++s->n_writes == s->wrong_call) return tell(err, s->answer == INT64_MAX ? (int64_t)n + 1 : s->answer);
  if (n > s->most) n = s->most;
  if (s->n + n > s->room) {
    s->room = 2 * (s->n + n);
    s->bytes = realloc(s->bytes, s->room);
  }
  memcpy(s->bytes + s->n, bytes, n);
  s->n += n;
  return tell(err, (int64_t)n);
}

static int32_t store_commit(void* user_data, quire_error* err) {
  host_store* s = user_data;
  ++s->n_commits;
  return (int32_t)tell(err, s->commit_fails ? -5 : 0);
}

static void store_abort(void* user_data) { ++((host_store*)user_data)->n_aborts; }

static int64_t store_read(void* user_data, int64_t offset, void* buffer, size_t n, quire_error* err) {
  host_store* s = user_data;
  int64_t answer;
  pthread_mutex_lock(&lock);
  CHECK(n > 0 && offset >= 0 && (uint64_t)offset + n <= s->n);
  ++s->n_reads;
  if (s->n_reads == s->wrong_call || (s->stays_wrong && s->n_reads > s->wrong_call)) {
    answer = tell(err, s->answer == INT64_MAX ? (int64_t)n + 1 : s->answer);
  } else {
    if (n > s->most) n = s->most;
    memcpy(buffer, s->bytes + offset, n);
    answer = tell(err, (int64_t)n);
  }
  pthread_mutex_unlock(&lock);
  return answer;
}

static void store_destroy(void* user_data) {
  pthread_mutex_lock(&lock);
  ++((host_store*)user_data)->n_destroyed;
  pthread_mutex_unlock(&lock);
}

/* Teardown runs on the runtime's threads; 0 after ten seconds. */
static int wait_destroyed(host_store* s) {
  const struct timespec moment = {0, 1000000};
  for (int i = 0; i < 10000; ++i) {
    pthread_mutex_lock(&lock);
    const int64_t n = s->n_destroyed;
    pthread_mutex_unlock(&lock);
    if (n > 0) return n == 1;
    nanosleep(&moment, NULL);
  }
  return 0;
}

static quire_snapshot_writer writer_of(host_store* s) {
  quire_snapshot_writer writer;
  quire_snapshot_writer_init(&writer, sizeof writer);
  writer.write = store_write;
  writer.commit = store_commit;
  writer.abort = store_abort;
  writer.user_data = s;
  writer.name = "row 12";
  writer.name_len = 6;
  return writer;
}

static quire_snapshot_reader reader_of(host_store* s) {
  quire_snapshot_reader reader;
  quire_snapshot_reader_init(&reader, sizeof reader);
  reader.n_bytes = (int64_t)s->n;
  reader.read = store_read;
  reader.destroy = store_destroy;
  reader.user_data = s;
  reader.name = "row 12";
  reader.name_len = 6;
  return reader;
}

static host_store empty_store(void) {
  host_store s;
  memset(&s, 0, sizeof s);
  s.most = SIZE_MAX;
  return s;
}

static quire_session* read_session(quire_model* model) {
  static transcript out;
  quire_session* session = open_session(model, "longheads(chunk=16, chunks=4)", 0, 16);
  feed_some(session, model, 200);
  run_greedy(session, 5, &out);
  return session;
}

#define OUT "quire_abi_streams.quire"

static void test_round_trip(quire_model* model) {
  static transcript expected, out, of_fork;
  host_store store = empty_store();
  quire_session* session = read_session(model);
  quire_session *loaded = NULL, *forked = NULL;
  quire_snapshot_writer writer = writer_of(&store);
  quire_snapshot_reader reader;
  quire_error err;
  size_t n = 0;
  FILE* file;
  EXPECT_OK(quire_session_save_to(session, &writer, NULL, &err));
  CHECK(store.n_writes > 10 && store.n_commits == 1 && store.n_aborts == 0);
  /* The bytes of a file. */
  EXPECT_OK(quire_session_save(session, OUT, strlen(OUT), NULL, &err));
  file = fopen(OUT, "rb");
  CHECK(file != NULL);
  for (int c; file && (c = fgetc(file)) != EOF; ++n) {
    if (n >= store.n || store.bytes[n] != c) break;
  }
  CHECK(n == store.n);
  if (file) fclose(file);
  CHECK(remove(OUT) == 0);
  /* A byte at a time, without commit and abort. */
  store.n = 0;
  store.most = 1;
  writer.commit = NULL;
  writer.abort = NULL;
  EXPECT_OK(quire_session_save_to(session, &writer, NULL, &err));
  CHECK(store.n == n && store.n_commits == 1);

  store.most = 1000;
  reader = reader_of(&store);
  EXPECT_OK(quire_snapshot_verify_from(&reader, NULL, &err));
  CHECK_OUTPUT(char, n,
               (quire_snapshot_describe_from(&reader, NULL, 0, &n, &err),
                quire_snapshot_describe_from(&reader, buf, cap, needed, &err)));
  EXPECT_OK(quire_session_load_from(model, &reader, NULL, &loaded, &err));
  memset(&reader, 0xAB, sizeof reader); /* the struct was read */
  EXPECT_OK(quire_session_fork(loaded, &forked, &err));
  run_greedy(session, 30, &expected);
  run_greedy(loaded, 30, &out);
  CHECK(out.n_tokens == 30 && memcmp(out.tokens, expected.tokens, 30 * sizeof out.tokens[0]) == 0);
  CHECK(tier_of(loaded, QUIRE_TIER_SNAPSHOT).n_hits > 0);
  /* The fork reads when the session is gone; then nobody does. */
  EXPECT_OK(quire_session_close(loaded, &err));
  quire_session_release(loaded);
  CHECK(store.n_destroyed == 0);
  run_greedy(forked, 30, &of_fork);
  CHECK(of_fork.n_tokens == 30 && memcmp(of_fork.tokens, expected.tokens, 30 * sizeof out.tokens[0]) == 0);
  quire_session_release(forked);
  CHECK(wait_destroyed(&store));
  quire_session_release(session);
  free(store.bytes);
}

static void test_failing_writes(quire_model* model) {
  static const int64_t answers[] = {-1, 0, INT64_MAX, INT64_MIN};
  static transcript before, after;
  quire_session* session = read_session(model);
  host_store store = empty_store();
  quire_snapshot_writer writer = writer_of(&store);
  quire_cancel* cancel = NULL;
  quire_snapshot_options options;
  quire_error err;
  int64_t n_calls;
  EXPECT_OK(quire_session_save_to(session, &writer, NULL, &err));
  n_calls = store.n_writes;
  for (size_t a = 0; a < QUIRE_COUNT(answers); ++a) {
    for (int64_t call = 1; call <= n_calls; ++call) {
      store.n = 0;
      store.n_writes = store.n_commits = store.n_aborts = 0;
      store.wrong_call = call;
      store.answer = answers[a];
      EXPECT(QUIRE_ERROR_IO, quire_session_save_to(session, &writer, NULL, &err));
      CHECK(store.n_writes == call && store.n_commits == 0 && store.n_aborts == 1);
      CHECK_MESSAGE("row 12");
      if (answers[a] < 0) {
        CHECK_MESSAGE("the store is closed");
        CHECK(err.os_error == 77);
      } else {
        CHECK_MESSAGE("the callback returned");
      }
    }
  }
  store.wrong_call = 0;
  store.commit_fails = 1;
  store.n_aborts = 0;
  EXPECT(QUIRE_ERROR_IO, quire_session_save_to(session, &writer, NULL, &err));
  CHECK(store.n_commits == 1 && store.n_aborts == 1 && err.os_error == 77);
  store.commit_fails = 0;
  /* Cancelled in the middle: aborted too. Refused before anything was written: not. */
  EXPECT_OK(quire_cancel_create(&cancel, &err));
  quire_cancel_trigger(cancel);
  quire_snapshot_options_init(&options, sizeof options);
  options.cancel = cancel;
  store.n_aborts = store.n_commits = 0;
  EXPECT(QUIRE_ERROR_CANCELLED, quire_session_save_to(session, &writer, &options, &err));
  CHECK(store.n_aborts == 1 && store.n_commits == 0);
  quire_cancel_release(cancel);
  run_greedy(session, 10, &before);
  CHECK(before.n_tokens == 10);
  EXPECT_OK(quire_session_truncate(session, 205, &err));
  run_greedy(session, 10, &after);
  CHECK(memcmp(before.tokens, after.tokens, 10 * sizeof before.tokens[0]) == 0);
  EXPECT_OK(quire_session_close(session, &err));
  store.n_aborts = 0;
  EXPECT(QUIRE_ERROR_CLOSED, quire_session_save_to(session, &writer, NULL, &err));
  CHECK(store.n_aborts == 0);
  quire_session_release(session);
  free(store.bytes);
}

/* Each read of opening, and of what comes later, fails in turn; then the session goes on to the same tokens. */
static void test_failing_reads(quire_model* model) {
  static const int64_t answers[] = {-1, 0, INT64_MAX, INT64_MIN};
  static transcript expected, out, rest;
  quire_session* session = read_session(model);
  quire_session* loaded = NULL;
  host_store store = empty_store();
  quire_snapshot_writer writer = writer_of(&store);
  quire_snapshot_reader reader;
  quire_error err;
  int64_t n_opening, n_all, n_failed = 0;
  EXPECT_OK(quire_session_save_to(session, &writer, NULL, &err));
  run_greedy(session, 10, &expected);
  reader = reader_of(&store);
  EXPECT_OK(quire_session_load_from(model, &reader, NULL, &loaded, &err));
  n_opening = store.n_reads;
  run_greedy(loaded, 10, &out);
  n_all = store.n_reads;
  CHECK(n_all > n_opening && n_opening > 3);
  EXPECT_OK(quire_session_close(loaded, &err));
  quire_session_release(loaded);
  CHECK(store.n_destroyed == 1);
  loaded = NULL;
  for (size_t a = 0; a < QUIRE_COUNT(answers); ++a) {
    store.answer = answers[a];
    for (int64_t call = 1; call <= n_opening; ++call) {
      store.n_reads = 0;
      store.n_destroyed = 0;
      store.wrong_call = call;
      EXPECT(QUIRE_ERROR_IO, quire_session_load_from(model, &reader, NULL, &loaded, &err));
      CHECK(loaded == NULL && store.n_destroyed == 0); /* user_data is still the host's */
      CHECK_MESSAGE("row 12");
      CHECK((err.os_error == 77) == (answers[a] < 0));
    }
    for (int64_t call = n_opening + 1; call <= n_all; ++call) {
      store.n_reads = 0;
      store.wrong_call = call;
      store.stays_wrong = call % 2 == (n_opening + 1) % 2;
      EXPECT_OK(quire_session_load_from(model, &reader, NULL, &loaded, &err));
      run_greedy(loaded, 10, &out);
      pthread_mutex_lock(&lock);
      store.stays_wrong = 0;
      pthread_mutex_unlock(&lock);
      if (out.failure != QUIRE_OK) { /* what was read ahead of need is read again */
        ++n_failed;
        CHECK(out.failure == QUIRE_ERROR_IO && strstr(out.err.message, "row 12") != NULL);
        run_greedy(loaded, 10 - (int64_t)out.n_tokens, &rest);
        CHECK(rest.failure == QUIRE_OK);
        memcpy(out.tokens + out.n_tokens, rest.tokens, rest.n_tokens * sizeof rest.tokens[0]);
        out.n_tokens += rest.n_tokens;
      }
      CHECK(out.n_tokens == 10 && memcmp(out.tokens, expected.tokens, 10 * sizeof out.tokens[0]) == 0);
      EXPECT_OK(quire_session_close(loaded, &err));
      quire_session_release(loaded);
      loaded = NULL;
    }
  }
  CHECK(n_failed > 0);
  store.wrong_call = 1;
  store.n_reads = 0;
  store.n_destroyed = 0;
  EXPECT(QUIRE_ERROR_IO, quire_snapshot_verify_from(&reader, NULL, &err));
  store.n_reads = 0;
  EXPECT(QUIRE_ERROR_IO, quire_snapshot_describe_from(&reader, NULL, 0, NULL, &err));
  store.wrong_call = 0;
  store.bytes[100] ^= 1;
  EXPECT(QUIRE_ERROR_BAD_FILE, quire_snapshot_verify_from(&reader, NULL, &err));
  CHECK_MESSAGE("row 12: block 0");
  CHECK(err.offset == 64);
  reader.n_bytes = 63;
  EXPECT(QUIRE_ERROR_BAD_FILE, quire_session_load_from(model, &reader, NULL, &loaded, &err));
  CHECK(err.offset == 63);
  CHECK(store.n_destroyed == 0);
  quire_session_release(session);
  free(store.bytes);
}

static void test_arguments(quire_model* model) {
  host_store store = empty_store();
  quire_session* session = open_session(model, "full", 0, 0);
  quire_session* loaded = NULL;
  quire_snapshot_writer writer = writer_of(&store);
  quire_snapshot_reader reader = reader_of(&store);
  quire_error err;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_save_to(NULL, &writer, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_save_to(session, NULL, NULL, &err));
  CHECK_MESSAGE("writer is NULL");
  writer.write = NULL;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_save_to(session, &writer, NULL, &err));
  CHECK_MESSAGE("write is NULL");
  writer = writer_of(&store);
  writer.flags = 1;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_save_to(session, &writer, NULL, &err));
  CHECK_MESSAGE("flags");
  writer.flags = 0;
  writer.struct_size = 4;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_save_to(session, &writer, NULL, &err));
  CHECK_MESSAGE("struct_size");
  writer = writer_of(&store);
  writer.name = NULL;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_save_to(session, &writer, NULL, &err));
  CHECK_MESSAGE("name is NULL");
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_load_from(model, NULL, NULL, &loaded, &err));
  CHECK_MESSAGE("reader is NULL");
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_load_from(NULL, &reader, NULL, &loaded, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_load_from(model, &reader, NULL, NULL, &err));
  reader.n_bytes = -1;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_load_from(model, &reader, NULL, &loaded, &err));
  CHECK_MESSAGE("n_bytes");
  reader = reader_of(&store);
  reader.read = NULL;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_load_from(model, &reader, NULL, &loaded, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_snapshot_verify_from(&reader, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_snapshot_describe_from(NULL, NULL, 0, NULL, &err));
  CHECK(loaded == NULL && store.n_writes == 0 && store.n_aborts == 0 && store.n_reads == 0 && store.n_destroyed == 0);
  quire_session_release(session);
}

void test_snapshot_streams(void) {
  loaded l = open_model("text_256");
  test_round_trip(l.model);
  test_failing_writes(l.model);
  test_failing_reads(l.model);
  test_arguments(l.model);
  close_model(&l);
}
