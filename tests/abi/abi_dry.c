/* What breaks a repetition for DRY, by the text of tokens. */
#include "abi_test.h"

/* The first ordinary token whose bytes are `text`; with NULL the n-th one of two to eight letters. */
static int32_t token_of(quire_model* model, const char* text, int n) {
  quire_tokenizer* tokenizer = NULL;
  quire_error err;
  int32_t found = -1;
  EXPECT_OK(quire_model_get_tokenizer(model, &tokenizer, &err));
  for (int32_t id = 3; id < quire_tokenizer_get_vocab_size(tokenizer) && found < 0; ++id) {
    char bytes[16];
    size_t needed = 0;
    size_t letters = 0;
    if (quire_tokenizer_get_token_bytes(tokenizer, id, bytes, sizeof bytes, &needed, NULL) != QUIRE_OK) continue;
    if (text && needed == strlen(text) && memcmp(bytes, text, needed) == 0) found = id;
    while (letters < needed && bytes[letters] >= 'a' && bytes[letters] <= 'z') ++letters;
    if (!text && letters == needed && needed >= 2 && needed <= 8 && n-- == 0) found = id;
  }
  CHECK(found >= 0);
  quire_tokenizer_release(tokenizer);
  return found;
}

static quire_text text_of(quire_model* model, int32_t id, char* buffer) {
  quire_tokenizer* tokenizer = NULL;
  quire_text text = {buffer, 0};
  quire_error err;
  EXPECT_OK(quire_model_get_tokenizer(model, &tokenizer, &err));
  EXPECT_OK(quire_tokenizer_get_token_bytes(tokenizer, id, buffer, 16, &text.len, &err));
  quire_tokenizer_release(tokenizer);
  return text;
}

/* Reads "a middle next filler filler a middle" and asks for one token. A bias makes it `next`, unless DRY says that
 * this would continue a repetition. 1: `next` came. */
static int continues(quire_model* model, int32_t middle, const quire_text* breakers, size_t n_breakers, int32_t m,
                     int32_t n) {
  const int32_t a = token_of(model, NULL, 0), next = token_of(model, NULL, 1), filler = token_of(model, NULL, 2);
  const int32_t ids[7] = {a, middle, next, filler, filler, a, middle};
  const quire_sampler chain[2] = {{QUIRE_SAMPLER_DRY, n, m, 1e6f, 1, 0}, {QUIRE_SAMPLER_TOP_K, 1, 0, 0, 0, 0}};
  const quire_logit_bias bias = {next, 1000};
  static transcript out;
  quire_stream_options options;
  quire_error err;
  quire_session* session = open_session(model, NULL, 0, 0);
  EXPECT_OK(quire_session_feed_tokens(session, ids, QUIRE_COUNT(ids), &err));
  quire_stream_options_init(&options, sizeof options);
  options.flags = QUIRE_STREAM_IGNORE_EOS;
  options.max_tokens = 1;
  options.samplers = chain;
  options.n_samplers = 2;
  options.sampler_stride = sizeof chain[0];
  options.logit_bias = &bias;
  options.n_logit_bias = 1;
  options.dry_breakers = breakers;
  options.n_dry_breakers = n_breakers;
  run_stream(session, &options, &out);
  CHECK(out.failure == QUIRE_OK && out.n_tokens == 1);
  quire_session_release(session);
  return out.tokens[0] == next;
}

void test_dry(void) {
  loaded l = open_model("text_256");
  const int32_t word = token_of(l.model, NULL, 3), newline = token_of(l.model, "\n", 0);
  char word_bytes[16], next_bytes[16], filler_bytes[16];
  const quire_text unrelated = {"\x01never there", 12}, whole = text_of(l.model, word, word_bytes);
  const quire_text part = {whole.data + 1, whole.len - 1};
  const quire_text next = text_of(l.model, token_of(l.model, NULL, 1), next_bytes);
  const quire_text filler = text_of(l.model, token_of(l.model, NULL, 2), filler_bytes);
  const quire_text two[2] = {unrelated, whole};
  /* Length and range: two tokens repeat. */
  CHECK(!continues(l.model, word, NULL, 0, 2, 0));
  CHECK(continues(l.model, word, NULL, 0, 3, 0));
  CHECK(!continues(l.model, word, NULL, 0, 2, 7));
  CHECK(continues(l.model, word, NULL, 0, 2, 5)); /* the earlier place is out of sight */
  /* Text: of the whole token, of a part of it, of one of several, of none. */
  CHECK(!continues(l.model, word, &unrelated, 1, 2, 0));
  CHECK(continues(l.model, word, &whole, 1, 1, 0));
  CHECK(continues(l.model, word, &part, 1, 1, 0));
  CHECK(continues(l.model, word, two, 2, 1, 0));
  CHECK(!continues(l.model, word, &filler, 1, 2, 0) || memcmp(filler.data, whole.data, whole.len) == 0);
  CHECK(continues(l.model, word, &next, 1, 1, 0)); /* a breaker is never penalised itself */
  /* Newline is one by default, and none if the caller says so; a control token is always one. */
  CHECK(continues(l.model, newline, NULL, 0, 1, 0));
  CHECK(!continues(l.model, newline, &unrelated, 1, 1, 0));
  CHECK(!continues(l.model, newline, &unrelated, 0, 1, 0));
  CHECK(continues(l.model, 1, NULL, 0, 1, 0));
  CHECK(continues(l.model, 1, &unrelated, 0, 1, 0));
  close_model(&l);
}
