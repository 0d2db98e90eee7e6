/* Logits and scores: what is kept, and that the two agree. */
#include <math.h>
#include <stdlib.h>

#include "abi_test.h"

#define VOCAB 64
#define N_FED 50
#define N_NEW 6

static double log_probability(const float* row, int32_t token) {
  double most = row[0], sum = 0;
  for (int t = 1; t < VOCAB; ++t) most = row[t] > most ? row[t] : most;
  for (int t = 0; t < VOCAB; ++t) sum += exp(row[t] - most);
  return row[token] - most - log(sum);
}

static int32_t most_probable(const float* row) {
  int32_t best = 0;
  for (int32_t t = 1; t < VOCAB; ++t) best = row[t] > row[best] ? t : best;
  return best;
}

/* Scores of tokens and logits of the rows before them say the same; greedy choice takes the largest logit. */
static void test_agreement(quire_model* model, int32_t prefill_block) {
  static float rows[(N_FED + N_NEW) * VOCAB];
  float scores[N_FED + N_NEW], last[VOCAB];
  int32_t ids[N_FED + N_NEW];
  quire_session* session = open_session(model, "full", 0, prefill_block);
  quire_stream_options options;
  transcript out;
  quire_error err;
  some_tokens(ids, N_FED, VOCAB, 3);
  EXPECT_OK(quire_session_feed_tokens(session, ids, N_FED, &err));
  quire_stream_options_init(&options, sizeof options);
  options.flags = QUIRE_STREAM_SCORE | QUIRE_STREAM_KEEP_LOGITS | QUIRE_STREAM_IGNORE_EOS;
  options.max_tokens = N_NEW;
  run_stream(session, &options, &out);
  CHECK(out.n_tokens == N_NEW);
  memcpy(ids + N_FED, out.tokens, sizeof(int32_t) * N_NEW);
  EXPECT_OK(quire_session_get_logits(session, 0, N_FED + N_NEW, rows, QUIRE_COUNT(rows), NULL, &err));
  EXPECT_OK(quire_session_get_scores(session, 0, N_FED + N_NEW, scores, QUIRE_COUNT(scores), NULL, &err));
  CHECK(isnan(scores[0]));
  for (int i = 1; i < N_FED + N_NEW; ++i) {
    const float* row = rows + (i - 1) * VOCAB;
    CHECK(fabs(scores[i] - log_probability(row, ids[i])) < 1e-5);
    if (i < N_FED) continue;
    CHECK(most_probable(row) == ids[i]);
    CHECK(out.logprobs[i - N_FED] == scores[i]);
  }
  EXPECT_OK(quire_session_get_logits(session, -1, 1, last, VOCAB, NULL, &err));
  CHECK(memcmp(last, rows + (N_FED + N_NEW - 1) * VOCAB, sizeof last) == 0);
  EXPECT_OK(quire_session_get_logits(session, N_FED + N_NEW - 1, 1, last, VOCAB, NULL, &err));
  CHECK(memcmp(last, rows + (N_FED + N_NEW - 1) * VOCAB, sizeof last) == 0);
  quire_session_release(session);
}

/* Embeddings: kept on request only. */
static void test_hidden_states(quire_model* model) {
  static float states[12 * 4096];
  quire_session* session = open_session(model, "full", 0, 0);
  quire_stream_options options;
  quire_model_info info;
  transcript out;
  quire_error err;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  EXPECT_OK(quire_model_get_info(model, &info, &err));
  const size_t width = (size_t)info.hidden_size;
  CHECK(width <= 4096);
  feed_some(session, model, 6);
  run_greedy(session, 0, &out);
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_session_get_hidden_states(session, 0, 6, states, 6 * width, NULL, &err));
  feed_some(session, model, 6);
  quire_stream_options_init(&options, sizeof options);
  options.flags = QUIRE_STREAM_KEEP_HIDDEN;
  run_stream(session, &options, &out);
  EXPECT_OK(quire_session_get_hidden_states(session, 6, 6, states, 6 * width, NULL, &err));
  double squares = 0;
  for (size_t i = 0; i < 6 * width; ++i) squares += (double)states[i] * states[i];
  CHECK(squares > 0 && isfinite(squares));
  CHECK_OUTPUT(float, 2 * width, quire_session_get_hidden_states(session, 6, 2, buf, cap, needed, &err));
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_session_get_hidden_states(session, 5, 2, states, 6 * width, NULL, &err));
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_session_get_hidden_states(session, 7, 6, states, 6 * width, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_hidden_states(session, 6, 0, states, width, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_hidden_states(NULL, 6, 1, states, width, NULL, &err));
  quire_session_release(session);
}

/* What is not kept has no number of floats either: the answer would have a caller allocate that many. */
static void check_nothing_kept(const quire_session* session, int64_t first, int64_t n) {
  size_t needed = 7;
  float row[1];
  quire_error err;
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_session_get_logits(session, first, n, NULL, 0, &needed, &err));
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_session_get_logits(session, first, n, row, 1, &needed, &err));
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_session_get_scores(session, first, n, NULL, 0, &needed, &err));
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_session_get_hidden_states(session, first, n, NULL, 0, &needed, &err));
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_session_get_hidden_states(session, first, n, row, 1, &needed, &err));
  CHECK(needed == 7);
}

/* The next stream keeps its own positions and no others. */
static void test_what_is_kept(quire_model* model) {
  static float rows[64 * VOCAB];
  float scores[64];
  quire_session* session = open_session(model, "full", 0, 0);
  quire_stream_options options;
  transcript out;
  quire_error err;
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_session_get_logits(session, -1, 1, rows, QUIRE_COUNT(rows), NULL, &err));
  feed_some(session, model, 20);
  run_greedy(session, 0, &out);
  CHECK(out.finish == QUIRE_FINISH_MAX_TOKENS && out.n_tokens == 0 && out.end_position == 20);
  EXPECT_OK(quire_session_get_logits(session, -1, 1, rows, QUIRE_COUNT(rows), NULL, &err));
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_session_get_logits(session, 5, 1, rows, QUIRE_COUNT(rows), NULL, &err));
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_session_get_scores(session, 5, 1, scores, QUIRE_COUNT(scores), NULL, &err));
  check_nothing_kept(session, 5, 1);
  check_nothing_kept(session, 0, (int64_t)1 << 50);
  feed_some(session, model, 10);
  quire_stream_options_init(&options, sizeof options);
  options.flags = QUIRE_STREAM_SCORE | QUIRE_STREAM_KEEP_LOGITS;
  run_stream(session, &options, &out);
  EXPECT_OK(quire_session_get_logits(session, 20, 10, rows, QUIRE_COUNT(rows), NULL, &err));
  EXPECT_OK(quire_session_get_scores(session, 20, 10, scores, QUIRE_COUNT(scores), NULL, &err));
  CHECK_OUTPUT(float, 2 * VOCAB, quire_session_get_logits(session, 20, 2, buf, cap, needed, &err));
  CHECK_OUTPUT(float, 10, quire_session_get_scores(session, 20, 10, buf, cap, needed, &err));
  CHECK(!isnan(scores[0])); /* not the first token of the session */
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_session_get_logits(session, 19, 1, rows, QUIRE_COUNT(rows), NULL, &err));
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_session_get_logits(session, 21, 10, rows, QUIRE_COUNT(rows), NULL, &err));
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_session_get_logits(session, -2, 1, rows, QUIRE_COUNT(rows), NULL, &err));
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_session_get_scores(session, 19, 1, scores, QUIRE_COUNT(scores), NULL, &err));
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_session_get_scores(session, 21, 10, scores, QUIRE_COUNT(scores), NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT,
         quire_session_get_scores(session, 20, INT64_MAX, scores, QUIRE_COUNT(scores), NULL, &err));
  EXPECT(QUIRE_ERROR_BUFFER_TOO_SMALL, quire_session_get_logits(session, 20, 10, rows, 10 * VOCAB - 1, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_logits(session, 20, INT64_MAX, rows, 64 * VOCAB, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_logits(session, 20, 0, rows, QUIRE_COUNT(rows), NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_logits(session, 20, 1, NULL, QUIRE_COUNT(rows), NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_logits(NULL, 20, 1, rows, QUIRE_COUNT(rows), NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT,
         quire_session_get_scores(session, 20, 0, scores, QUIRE_COUNT(scores), NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_scores(session, 20, 1, NULL, 1, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_scores(NULL, 20, 1, scores, QUIRE_COUNT(scores), NULL, &err));
  quire_session_release(session);
}

void test_session_results(void) {
  loaded l = open_model("short_128");
  test_agreement(l.model, 0);
  test_agreement(l.model, 7);
  test_hidden_states(l.model);
  test_what_is_kept(l.model);
  close_model(&l);
}
