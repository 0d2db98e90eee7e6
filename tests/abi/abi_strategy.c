/* Strategy expressions, without a model. */
#include <math.h>

#include "abi_test.h"

static quire_position_view view_of(int32_t query_kind, int64_t n_queries, int32_t key_kind, int64_t n_keys) {
  quire_position_view view;
  quire_position_view_init(&view, sizeof view);
  view.query_kind = query_kind;
  view.key_kind = key_kind;
  view.n_queries = n_queries;
  view.n_keys = n_keys;
  return view;
}

static void test_describe(void) {
  static const char* const good[] = {"full",
                                     "dca",
                                     "streaming_llm",
                                     " dca ( chunk = 48 ) + yarn(factor=2) ",
                                     "streaming_llm(sinks=2, recent=40) + ntk(factor=4)",
                                     "rerope(leaky=4)",
                                     "self_extend(group=4)",
                                     "lm_infinite + yarn(factor=2)",
                                     "s2",
                                     "scca_fixed(mask=slot)",
                                     "scca_flow + pi(factor=2)",
                                     "sda(reading=kv)",
                                     "long_mixed + pi(factor=4)",
                                     "longheads(positions=dca, dca_chunk=100, pick=random)",
                                     "auto",
                                     "dca(ignore_window=1) + dynamic_ntk(factor=2, length=1024)",
                                     "full + none"};
  quire_error err;
  for (size_t i = 0; i < QUIRE_COUNT(good); ++i) {
    quire_strategy_options options = strategy_options(good[i], 256);
    char first[512], second[512];
    size_t n = 0, m = 0;
    EXPECT_OK(quire_strategy_describe(&options, NULL, 0, &n, &err));
    CHECK(n > 0 && n <= sizeof first);
    first[0] = 'x';
    EXPECT(QUIRE_ERROR_BUFFER_TOO_SMALL, quire_strategy_describe(&options, first, n - 1, &n, &err));
    CHECK(first[0] == 'x');
    EXPECT_OK(quire_strategy_describe(&options, first, sizeof first, &n, &err));
    options.strategy = first;
    options.strategy_len = n;
    EXPECT_OK(quire_strategy_describe(&options, second, sizeof second, &m, &err)); /* canonical: a fixed point */
    CHECK(n == m && memcmp(first, second, n) == 0);
  }
}

static void test_bad_expressions(void) {
  static const struct {
    const char* expression;
    quire_status status;
    int64_t column;
  } bad[] = {
      {"", QUIRE_ERROR_BAD_STRATEGY, 0},
      {"dcb", QUIRE_ERROR_BAD_STRATEGY, 0},
      {"  dcb", QUIRE_ERROR_BAD_STRATEGY, 2},
      {"dca(chunk=)", QUIRE_ERROR_BAD_STRATEGY, 10},
      {"dca(chnk=16)", QUIRE_ERROR_BAD_STRATEGY, 4},
      {"dca + pi(factor=0.5)", QUIRE_ERROR_BAD_STRATEGY, 16},
      {"full, dca", QUIRE_ERROR_BAD_STRATEGY, 4},
      {"full + dca", QUIRE_ERROR_UNSUPPORTED, 7},
      {"auto(chunk=16)", QUIRE_ERROR_BAD_STRATEGY, 5},
      {"full + dynamic_ntk(factor=2)", QUIRE_ERROR_BAD_STRATEGY, 7},
      {"full + longrope(length=1024)", QUIRE_ERROR_UNSUPPORTED, 7},
      {"rerope + streaming_llm", QUIRE_ERROR_UNSUPPORTED, 9},
      {"long_mixed(heads=sda2x8)", QUIRE_ERROR_BAD_STRATEGY, 17},
      {"longheads(chunk=16, chunks=17)", QUIRE_ERROR_BAD_STRATEGY, 27},
  };
  const quire_position_view view = view_of(QUIRE_KV_TEXT, 2, QUIRE_KV_TEXT, 2);
  quire_strategy_options options;
  double matrix[4];
  quire_error err;
  for (size_t i = 0; i < QUIRE_COUNT(bad); ++i) {
    options = strategy_options(bad[i].expression, 256);
    EXPECT(bad[i].status, quire_strategy_describe(&options, NULL, 0, NULL, &err));
    CHECK(err.offset == bad[i].column);
    if (err.offset != bad[i].column) printf("  \"%s\": column %d\n", bad[i].expression, (int)err.offset);
    EXPECT(bad[i].status, quire_strategy_get_positions(&options, &view, matrix, QUIRE_COUNT(matrix), NULL, &err));
    CHECK(err.offset == bad[i].column);
  }
}

/* What needs the length of the text has it from expected_tokens. */
static void test_expected_tokens(void) {
  quire_strategy_options options = strategy_options("longheads + dynamic_ntk(factor=2)", 256);
  char text[512] = "";
  size_t n = 0;
  quire_error err;
  EXPECT(QUIRE_ERROR_BAD_STRATEGY, quire_strategy_describe(&options, text, sizeof text - 1, &n, &err));
  CHECK_MESSAGE("expected_tokens");
  options.expected_tokens = 1000;
  EXPECT_OK(quire_strategy_describe(&options, text, sizeof text - 1, &n, &err));
  CHECK(strstr(text, "length=1000") != NULL);
  memset(text, 0, sizeof text);
  options = strategy_options("beacon", 4096);
  EXPECT(QUIRE_ERROR_BAD_STRATEGY, quire_strategy_describe(&options, text, sizeof text - 1, &n, &err));
  options.expected_tokens = 10000; /* and 1024 more: (4096 - 1024) * 4 + 1024 hold them */
  EXPECT_OK(quire_strategy_describe(&options, text, sizeof text - 1, &n, &err));
  CHECK(strstr(text, "window=1024") != NULL && strstr(text, "ratio=4") != NULL);
  memset(text, 0, sizeof text);
  options.strategy = "auto"; /* of a Llama model, which has no beacon weights */
  options.strategy_len = 4;
  EXPECT_OK(quire_strategy_describe(&options, text, sizeof text - 1, &n, &err));
  CHECK(strncmp(text, "dca(", 4) == 0);
  options.expected_tokens = -1;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_strategy_describe(&options, NULL, 0, NULL, &err));
  CHECK_MESSAGE("expected_tokens");
}

static void test_options(void) {
  quire_strategy_options options = strategy_options("full", 256);
  LARGER(quire_strategy_options) larger;
  char text[64];
  size_t n = 0;
  quire_error err;
  options.strategy = NULL;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_strategy_describe(&options, NULL, 0, NULL, &err));
  options.strategy_len = 0; /* full */
  EXPECT_OK(quire_strategy_describe(&options, text, sizeof text, &n, &err));
  CHECK(n > 4 && memcmp(text, "full", 4) == 0);
  options.strategy = "full";
  options.strategy_len = SIZE_MAX;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_strategy_describe(&options, NULL, 0, NULL, &err));
  CHECK_MESSAGE("strategy has a length of");
  options.strategy = NULL;
  options.strategy_len = 0;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_strategy_describe(&options, NULL, 9, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_strategy_describe(NULL, NULL, 0, NULL, &err));
  options.flags = 1;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_strategy_describe(&options, NULL, 0, NULL, &err));
  CHECK_MESSAGE("flags");
  options.flags = 0;
  options.reserved = 1;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_strategy_describe(&options, NULL, 0, NULL, &err));
  CHECK_MESSAGE("reserved");
  options = strategy_options("full", 256);
  options.struct_size = offsetof(quire_strategy_options, expected_tokens);
  options.n_heads = -1; /* not read */
  EXPECT_OK(quire_strategy_describe(&options, NULL, 0, NULL, &err));
  options.struct_size = 4;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_strategy_describe(&options, NULL, 0, NULL, &err));
  CHECK_MESSAGE("struct_size");
  memset(&larger, 0, sizeof larger);
  larger.known = strategy_options("full", 256);
  larger.known.struct_size = sizeof larger;
  EXPECT_OK(quire_strategy_describe(&larger.known, NULL, 0, NULL, &err));
  larger.tail[1] = 1;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_strategy_describe(&larger.known, NULL, 0, NULL, &err));
  CHECK_MESSAGE("quire_strategy_options");
  for (int64_t train_len = -1; train_len <= 0; ++train_len) {
    options = strategy_options("full", train_len);
    EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_strategy_describe(&options, NULL, 0, NULL, &err));
    CHECK_MESSAGE("train_len");
  }
  /* The number of heads is refused before a head is looked for among them. */
  static const int32_t wrong[] = {INT32_MIN, -1, 65537};
  for (size_t i = 0; i < QUIRE_COUNT(wrong); ++i) {
    const quire_position_view view = view_of(QUIRE_KV_TEXT, 2, QUIRE_KV_TEXT, 2);
    double matrix[4];
    options = strategy_options("full", 256);
    options.n_heads = wrong[i];
    EXPECT(QUIRE_ERROR_INVALID_ARGUMENT,
           quire_strategy_get_positions(&options, &view, matrix, QUIRE_COUNT(matrix), NULL, &err));
    CHECK_MESSAGE("n_heads");
  }
}

/* The list as text; that it says what the parser takes is tested where JSON can be read, in tests/python. */
static void test_list(void) {
  quire_strategy_options options = strategy_options("full", 4096);
  size_t n = 0;
  quire_error err;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_strategy_get_list(&options, NULL, 0, &n, &err));
  CHECK_MESSAGE("strategy");
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_strategy_get_list(NULL, NULL, 0, &n, &err));
  quire_strategy_options_init(&options, sizeof options);
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_strategy_get_list(&options, NULL, 0, &n, &err));
  CHECK_MESSAGE("train_len");
  options.train_len = 4096;
  EXPECT_OK(quire_strategy_get_list(&options, NULL, 0, &n, &err));
  CHECK(n > 1000);
  CHECK_OUTPUT(char, n, quire_strategy_get_list(&options, buf, cap, needed, &err));
  options.train_len = 1; /* too short for most: they are listed, with the obstacle */
  EXPECT_OK(quire_strategy_get_list(&options, NULL, 0, &n, &err));
}

static void test_positions(void) {
  quire_strategy_options options = strategy_options("full", 256);
  const quire_position_view view = view_of(QUIRE_KV_TEXT, 8, QUIRE_KV_TEXT, 8);
  quire_position_view other;
  double matrix[8 * 8];
  quire_error err;
  EXPECT_OK(quire_strategy_get_positions(&options, &view, matrix, QUIRE_COUNT(matrix), NULL, &err));
  for (int r = 0; r < 8; ++r) {
    for (int j = 0; j < 8; ++j) CHECK(j <= r ? matrix[8 * r + j] == r - j : isnan(matrix[8 * r + j]));
  }
  CHECK_OUTPUT(double, 64, quire_strategy_get_positions(&options, &view, buf, cap, needed, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT,
         quire_strategy_get_positions(&options, NULL, matrix, QUIRE_COUNT(matrix), NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT,
         quire_strategy_get_positions(NULL, &view, matrix, QUIRE_COUNT(matrix), NULL, &err));
#define REFUSED(field, value)                                                                        \
  do {                                                                                               \
    other = view;                                                                                    \
    other.field = (value);                                                                           \
    EXPECT(QUIRE_ERROR_INVALID_ARGUMENT,                                                             \
           quire_strategy_get_positions(&options, &other, matrix, QUIRE_COUNT(matrix), NULL, &err)); \
    CHECK_MESSAGE(#field);                                                                           \
  } while (0)
  REFUSED(struct_size, 4);
  REFUSED(flags, 2);
  REFUSED(head, -1);
  REFUSED(head, 32);
  REFUSED(head, INT32_MAX);
  REFUSED(query_kind, 2);
  REFUSED(key_kind, -1);
  REFUSED(reserved, 1);
  REFUSED(first_query, -1);
  REFUSED(first_query, INT64_MAX);
  REFUSED(n_queries, 0);
  REFUSED(n_queries, INT64_MAX);
  REFUSED(n_keys, -1);
  REFUSED(n_keys, INT64_MAX);
  options.n_heads = 4;
  REFUSED(head, 4);
#undef REFUSED
  options = strategy_options("s2", 16);
  options.n_heads = 2;
  other = view;
  other.head = 1;
  EXPECT_OK(quire_strategy_get_positions(&options, &other, matrix, QUIRE_COUNT(matrix), NULL, &err));
  CHECK(isnan(matrix[2 * 8 + 1]) && matrix[2 * 8 + 2] == 0); /* the second head's groups begin half a group later */
}

/* Many rows come out as few: rows are planned in pieces. */
static void test_rows_in_pieces(void) {
  static const char* const expressions[] = {"dca", "streaming_llm", "beacon(window=64, ratio=4)", "longheads"};
  static double all[600 * 600], some[3 * 600];
  for (size_t e = 0; e < QUIRE_COUNT(expressions); ++e) {
    const quire_strategy_options options = strategy_options(expressions[e], 256);
    quire_position_view view = view_of(QUIRE_KV_TEXT, 600, QUIRE_KV_TEXT, 600);
    quire_error err;
    EXPECT_OK(quire_strategy_get_positions(&options, &view, all, QUIRE_COUNT(all), NULL, &err));
    view.n_queries = 3;
    for (view.first_query = 254; view.first_query < 590; view.first_query += 107) {
      int n_different = 0;
      EXPECT_OK(quire_strategy_get_positions(&options, &view, some, QUIRE_COUNT(some), NULL, &err));
      for (size_t i = 0; i < QUIRE_COUNT(some); ++i) {
        const double one = all[600 * view.first_query + (int64_t)i];
        n_different += isnan(one) ? !isnan(some[i]) : one != some[i];
      }
      CHECK(n_different == 0);
    }
  }
}

/* matrix[rows][columns] is what the text says: distances, "." for NaN. */
static void check_matrix(const double* matrix, size_t n, const char* expected) {
  char text[1024] = "";
  size_t length = 0;
  for (size_t i = 0; i < n; ++i) {
    if (isnan(matrix[i])) {
      length += (size_t)snprintf(text + length, sizeof text - length, "%s.", i > 0 ? " " : "");
    } else {
      length += (size_t)snprintf(text + length, sizeof text - length, "%s%g", i > 0 ? " " : "", matrix[i]);
    }
  }
  CHECK(strcmp(text, expected) == 0);
  if (strcmp(text, expected) != 0) printf("  %s\n  expected %s\n", text, expected);
}

/* Two windows of four tokens are condensed into four entries; the third window's two see them. */
static void test_memory(void) {
  quire_strategy_options options = strategy_options("beacon(ratio=2, window=4, stride=4)", 16);
  quire_position_view view = view_of(QUIRE_KV_TEXT, 4, QUIRE_KV_CONDENSED, 6);
  double matrix[4 * 12];
  quire_error err;
  view.first_query = 7; /* the last token of the second window, and the third window's first three */
  EXPECT_OK(quire_strategy_get_positions(&options, &view, matrix, QUIRE_COUNT(matrix), NULL, &err));
  check_matrix(matrix, 24, "5 4 . . . . 4 3 2 1 . . 5 4 3 2 . . 6 5 4 3 . .");
  view = view_of(QUIRE_KV_CONDENSED, 3, QUIRE_KV_TEXT, 12);
  view.first_query = 3; /* across two windows */
  EXPECT_OK(quire_strategy_get_positions(&options, &view, matrix, QUIRE_COUNT(matrix), NULL, &err));
  check_matrix(matrix, 36, ". . . . 4 3 2 1 . . . . . . . . . . . . 2 1 . . . . . . . . . . 4 3 2 1");
  view = view_of(QUIRE_KV_CONDENSED, 3, QUIRE_KV_CONDENSED, 5);
  view.first_query = 3;
  EXPECT_OK(quire_strategy_get_positions(&options, &view, matrix, QUIRE_COUNT(matrix), NULL, &err));
  check_matrix(matrix, 15, "6 5 . 0 . 6 5 4 3 0 8 7 6 5 .");
  view.first_query = (1 << 23) - 2; /* of 2^24 tokens; later windows may be condensed more */
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT,
         quire_strategy_get_positions(&options, &view, matrix, QUIRE_COUNT(matrix), NULL, &err));
  CHECK_MESSAGE("entry 8388608");

  view = view_of(QUIRE_KV_TEXT, 2, QUIRE_KV_CONDENSED, 2);
  options = strategy_options("full", 16);
  EXPECT_OK(quire_strategy_get_positions(&options, &view, matrix, QUIRE_COUNT(matrix), NULL, &err));
  check_matrix(matrix, 4, ". . . .");
  view.query_kind = QUIRE_KV_CONDENSED;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT,
         quire_strategy_get_positions(&options, &view, matrix, QUIRE_COUNT(matrix), NULL, &err));
  CHECK_MESSAGE("no condensed entries");
  size_t needed = 0;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_strategy_get_positions(&options, &view, NULL, 0, &needed, &err));
  CHECK(needed == 0);                                                    /* what cannot be given has no size */
  options = strategy_options("beacon(ratio=0, window=4, stride=4)", 16); /* keeps its tokens */
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT,
         quire_strategy_get_positions(&options, &view, matrix, QUIRE_COUNT(matrix), NULL, &err));
  CHECK_MESSAGE("entry 1");
}

void test_strategy(void) {
  test_describe();
  test_bad_expressions();
  test_expected_tokens();
  test_options();
  test_list();
  test_positions();
  test_rows_in_pieces();
  test_memory();
}
