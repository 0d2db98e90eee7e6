/* What the C99 test of quire.h is written with: counted checks, and shortcuts for the everyday calls. */
#ifndef QUIRE_TESTS_ABI_ABI_TEST_H_
#define QUIRE_TESTS_ABI_ABI_TEST_H_

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "quire/quire.h"

/* A failed check is printed and counted; the test goes on. */
void check_that(int passed, const char* file, int line, const char* what);
int checks_failed(void);
int checks_made(void);

#define CHECK(condition) check_that((condition) ? 1 : 0, __FILE__, __LINE__, #condition)

/* The call returns `expected`, and the record `err` that it was given agrees. */
void check_status(quire_status status, quire_status expected, const quire_error* err, const char* file, int line,
                  const char* call);
#define EXPECT(expected, call) check_status((call), (expected), &err, __FILE__, __LINE__, #call)
#define EXPECT_OK(call) EXPECT(QUIRE_OK, call)
#define CHECK_MESSAGE(part) CHECK(strstr(err.message, (part)) != NULL)

#define QUIRE_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* `call` reads a result of n elements of `type` with the arguments buf, cap and needed, which are declared here: by the
 * one convention of quire.h. */
#define CHECK_OUTPUT(type, n, call)                                       \
  do {                                                                    \
    type room[(n) + 1];                                                   \
    type *buf = NULL, *const all = room;                                  \
    size_t cap = 0, found = 0, *needed = &found;                          \
    EXPECT_OK(call);                                                      \
    CHECK(found == (n));                                                  \
    memset(room, 0xAB, sizeof room);                                      \
    buf = all;                                                            \
    cap = (n)-1;                                                          \
    found = 0;                                                            \
    EXPECT(QUIRE_ERROR_BUFFER_TOO_SMALL, call);                           \
    CHECK(found == (n) && untouched(room, sizeof room));                  \
    cap = (n);                                                            \
    found = 0;                                                            \
    EXPECT_OK(call);                                                      \
    CHECK(found == (n) && !untouched(room, (n) * sizeof *room));          \
    CHECK(untouched(room + (n), sizeof *room));                           \
    cap = (n) + 1;                                                        \
    needed = NULL;                                                        \
    EXPECT_OK(call);                                                      \
    CHECK(untouched(room + (n), sizeof *room));                           \
    buf = NULL;                                                           \
    needed = &found;                                                      \
    EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, call); /* no buffer, but room */ \
  } while (0)
/* Every byte is still 0xAB. */
int untouched(const void* memory, size_t size);

/* A struct of a caller that was compiled against a later header: 16 bytes longer than today's. */
#define LARGER(type)  \
  struct {            \
    type known;       \
    uint64_t tail[2]; \
  }

/* Where the tiny models lie. text_256 has text and 256 positions; short_128 has 128. */
void set_model_root(const char* path);
const char* model_path(const char* name);

/* A runtime with two threads and the model of that name. Stops the program if they cannot be had: nothing else would
 * work. */
typedef struct loaded {
  quire_runtime* runtime;
  quire_model* model;
} loaded;
loaded open_model(const char* name);
void close_model(loaded* l);

/* A session by strategy expression (NULL: default options), overflow policy and prefill block (0: default). */
quire_session* open_session(quire_model* model, const char* strategy, int32_t overflow, int32_t prefill_block);

/* What quire_session_get_tier_stats says. */
quire_tier_stats tier_of(const quire_session* session, int32_t tier);

/* Options of a strategy for a model of that trained length; what to change is the caller's. */
quire_strategy_options strategy_options(const char* expression, int64_t train_len);

/* n token ids that are not control tokens, the same for the same seed. */
void some_tokens(int32_t* ids, size_t n, int32_t vocab, uint32_t seed);
void feed_some(quire_session* session, quire_model* model, size_t n);

/* What a stream gave until its end or its failure. */
typedef struct transcript {
  int32_t tokens[1024];
  float logprobs[1024];
  size_t n_tokens;
  char text[16384];
  size_t text_len;
  size_t n_prefill_events;
  size_t n_warnings;
  size_t n_notices;
  char notice[512];
  int32_t finish;
  int32_t end_token;
  int32_t stop_index;
  int64_t end_position;
  quire_status failure; /* QUIRE_OK, or what next returned */
  quire_error err;
} transcript;
/* Reads to the end and checks that the events are consistent. */
void read_stream(quire_stream* stream, transcript* out);
/* Opens a stream, reads it and closes it. */
void run_stream(quire_session* session, const quire_stream_options* options, transcript* out);
/* The same with greedy choice of n tokens that end-of-text does not stop. */
void run_greedy(quire_session* session, int64_t n, transcript* out);

/* Callbacks that count. */
typedef struct tracker {
  int64_t bytes;
  int64_t n_allocs;
  int n_destroyed;
  int n_logged;
  int32_t worst_level; /* highest number seen */
  char last_log[256];
  int gate_closed; /* allocations wait while it is */
} tracker;
void tracker_options(tracker* t, quire_runtime_options* options);
int64_t tracker_bytes(tracker* t);
int tracker_destroyed(tracker* t);
void tracker_gate(tracker* t, int closed);
/* Waits until so many destroy callbacks ran (teardown runs on the runtime's threads); 0 after ten seconds. */
int tracker_wait_destroyed(tracker* t, int wanted);
/* Waits until the runtime holds so many bytes again (what is dropped is freed on its threads); 0 after ten seconds. */
int tracker_wait_bytes(tracker* t, int64_t wanted);

/* The parts. */
void test_version_and_structs(void);
void test_runtime(void);
void test_callbacks(void);
void test_model(void);
void test_load_errors(void);
void test_tokenizer(void);
void test_chat(void);
void test_model_files(void);
void test_snapshot(void);
void test_snapshot_streams(void);
void test_store(void);
void test_strategy(void);
void test_session(void);
void test_session_results(void);
void test_overflow_and_budget(void);
void test_stream(void);
void test_stream_errors(void);
void test_wait_handle(void);
void test_finish_reasons(void);
void test_sampling(void);
void test_truncate(void);
void test_labels(void);
void test_cite(void);
void test_sampling_chain(void);
void test_reading_along(void);
void test_dry(void);
void test_memory_plan(void);
void test_spill(void);
void test_edit(void);
void test_prefix(void);
void test_adapter(void);
void test_closed(void);

#endif
