/* Strategy expressions, without a model. */
#include <math.h>

#include "abi_test.h"

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
  quire_error_init(&err, sizeof err);
  for (size_t i = 0; i < QUIRE_COUNT(good); ++i) {
    char first[512], second[512];
    size_t n = 0, m = 0;
    EXPECT_OK(quire_strategy_describe(good[i], strlen(good[i]), 256, 0, NULL, 0, &n, &err));
    CHECK(n > 0 && n <= sizeof first);
    first[0] = 'x';
    EXPECT(QUIRE_ERROR_BUFFER_TOO_SMALL,
           quire_strategy_describe(good[i], strlen(good[i]), 256, 0, first, n - 1, &n, &err));
    CHECK(first[0] == 'x');
    EXPECT_OK(quire_strategy_describe(good[i], strlen(good[i]), 256, 0, first, sizeof first, &n, &err));
    EXPECT_OK(
        quire_strategy_describe(first, n, 256, 0, second, sizeof second, &m, &err)); /* canonical: a fixed point */
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
  double matrix[4];
  quire_error err;
  quire_error_init(&err, sizeof err);
  for (size_t i = 0; i < QUIRE_COUNT(bad); ++i) {
    const char* e = bad[i].expression;
    EXPECT(bad[i].status, quire_strategy_describe(e, strlen(e), 256, 0, NULL, 0, NULL, &err));
    CHECK(err.offset == bad[i].column);
    if (err.offset != bad[i].column) printf("  \"%s\": column %d\n", e, (int)err.offset);
    EXPECT(bad[i].status, quire_strategy_positions(e, strlen(e), 256, 0, 0, 0, 2, 2, matrix, &err));
    CHECK(err.offset == bad[i].column);
  }
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_strategy_describe(NULL, 4, 256, 0, NULL, 0, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_strategy_describe("full", 4, 0, 0, NULL, 0, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_strategy_describe("full", 4, 256, 0, NULL, 9, NULL, &err));
}

static void test_positions(void) {
  double matrix[8 * 8];
  quire_error err;
  quire_error_init(&err, sizeof err);
  EXPECT_OK(quire_strategy_positions("full", 4, 256, 0, 0, 0, 8, 8, matrix, &err));
  for (int r = 0; r < 8; ++r) {
    for (int j = 0; j < 8; ++j) CHECK(j <= r ? matrix[8 * r + j] == r - j : isnan(matrix[8 * r + j]));
  }
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_strategy_positions("full", 4, 256, 0, 0, 0, 8, 8, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_strategy_positions("full", 4, 256, -1, 0, 0, 8, 8, matrix, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_strategy_positions("full", 4, 256, 4, 4, 0, 8, 8, matrix, &err));
  EXPECT_OK(quire_strategy_positions("s2", 2, 16, 2, 1, 0, 8, 8, matrix, &err));
  CHECK(isnan(matrix[2 * 8 + 1]) && matrix[2 * 8 + 2] == 0); /* the second head's groups begin half a group later */
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_strategy_positions("full", 4, 256, 0, -1, 0, 8, 8, matrix, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_strategy_positions("full", 4, 256, 0, 0, -1, 8, 8, matrix, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_strategy_positions("full", 4, 256, 0, 0, 0, 0, 8, matrix, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_strategy_positions("full", 4, 256, 0, 0, 0, 8, -1, matrix, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_strategy_positions("full", 4, -7, 0, 0, 0, 8, 8, matrix, &err));
}

void test_strategy(void) {
  test_describe();
  test_bad_expressions();
  test_positions();
}
