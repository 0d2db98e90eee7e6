/* Text to ids and back. */
#include "abi_test.h"

static const char text[] = "The reader turns the leaves.";
#define TEXT_LEN (sizeof text - 1)

static size_t encode(const quire_tokenizer* tokenizer, const char* bytes, size_t len, uint32_t flags, int32_t* ids,
                     size_t cap) {
  size_t needed = 0;
  quire_error err;
  EXPECT_OK(quire_tokenizer_encode(tokenizer, bytes, len, flags, ids, cap, &needed, &err));
  return needed;
}

static void test_encode(const quire_tokenizer* t) {
  int32_t ids[64], other[64];
  size_t n, needed = 0;
  quire_error err;
  n = encode(t, text, TEXT_LEN, 0, ids, 64);
  CHECK(n > 3 && ids[0] == quire_tokenizer_get_bos(t));
  CHECK(encode(t, text, TEXT_LEN, 0, NULL, 0) == n);
  CHECK(encode(t, text, TEXT_LEN, QUIRE_TEXT_NO_BOS, other, 64) == n - 1);
  CHECK(memcmp(ids + 1, other, (n - 1) * sizeof ids[0]) == 0);
  CHECK(encode(t, text, TEXT_LEN, QUIRE_TEXT_CONTINUE, other, 64) > 0);
  CHECK(other[0] != quire_tokenizer_get_bos(t));
  /* A control token is one only where asked for. */
  n = encode(t, "</s>", 4, QUIRE_TEXT_CONTINUE | QUIRE_TEXT_PARSE_SPECIAL, other, 64);
  CHECK(n == 1 && quire_tokenizer_is_eos(t, other[0]) == 1);
  n = encode(t, "</s>", 4, QUIRE_TEXT_CONTINUE, other, 64);
  for (size_t i = 0; i < n; ++i) CHECK(quire_tokenizer_is_eos(t, other[i]) == 0);

  n = encode(t, text, TEXT_LEN, 0, NULL, 0);
  CHECK_OUTPUT(int32_t, n, quire_tokenizer_encode(t, text, TEXT_LEN, 0, buf, cap, needed, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_tokenizer_encode(NULL, text, TEXT_LEN, 0, ids, 64, &needed, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_tokenizer_encode(t, NULL, 1, 0, ids, 64, &needed, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_tokenizer_encode(t, text, TEXT_LEN, 8, ids, 64, &needed, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_tokenizer_encode(t, text, TEXT_LEN, 0, NULL, 64, &needed, &err));
  EXPECT(QUIRE_ERROR_INVALID_TEXT, quire_tokenizer_encode(t, "ab\xFFz", 4, 0, ids, 64, &needed, &err));
  CHECK(err.offset == 2);
  EXPECT(QUIRE_ERROR_INVALID_TEXT, quire_tokenizer_encode(t, "abc\xC3", 4, 0, ids, 64, &needed, &err));
  CHECK(err.offset == 3);
}

static void test_decode(const quire_tokenizer* t) {
  int32_t ids[64];
  char buf[256];
  size_t n, needed = 0;
  quire_error err;
  n = encode(t, text, TEXT_LEN, 0, ids, 64);
  EXPECT_OK(quire_tokenizer_decode(t, ids, n, 0, buf, sizeof buf, &needed, &err));
  CHECK(needed == TEXT_LEN && memcmp(buf, text, TEXT_LEN) == 0);
  CHECK_OUTPUT(char, TEXT_LEN, quire_tokenizer_decode(t, ids, n, 0, buf, cap, needed, &err));
  EXPECT_OK(quire_tokenizer_decode(t, ids, n, QUIRE_DECODE_SPECIAL, buf, sizeof buf, &needed, &err));
  CHECK(needed > TEXT_LEN && memcmp(buf, "<s>", 3) == 0);
  EXPECT_OK(quire_tokenizer_decode(t, NULL, 0, 0, buf, sizeof buf, &needed, &err));
  CHECK(needed == 0);
  buf[0] = 'x';
  EXPECT(QUIRE_ERROR_BUFFER_TOO_SMALL, quire_tokenizer_decode(t, ids, n, 0, buf, 3, &needed, &err));
  CHECK(needed == TEXT_LEN && buf[0] == 'x');
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_tokenizer_decode(NULL, ids, n, 0, buf, sizeof buf, &needed, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_tokenizer_decode(t, NULL, 1, 0, buf, sizeof buf, &needed, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_tokenizer_decode(t, ids, SIZE_MAX, 0, buf, 9, &needed, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_tokenizer_decode(t, ids, n, 2, buf, sizeof buf, &needed, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_tokenizer_decode(t, ids, n, 0, NULL, 9, &needed, &err));
  ids[2] = quire_tokenizer_get_vocab_size(t);
  EXPECT(QUIRE_ERROR_INVALID_TOKEN, quire_tokenizer_decode(t, ids, n, 0, buf, sizeof buf, &needed, &err));
  CHECK(err.offset == 2);
  ids[1] = -1;
  EXPECT(QUIRE_ERROR_INVALID_TOKEN, quire_tokenizer_decode(t, ids, n, 0, buf, sizeof buf, &needed, &err));
  CHECK(err.offset == 1);
}

/* The bytes of a text's ids are the text, a leading space aside; a lone byte of a code point comes out as it is. */
static void test_token_bytes(const quire_tokenizer* t) {
  static const char accents[] = "\xC3\xA9\xE2\x82\xAC"; /* not in the vocabulary: byte fallback */
  int32_t ids[64];
  char buf[64], joined[256];
  size_t n, needed = 0, length = 0;
  quire_error err;
  n = encode(t, accents, sizeof accents - 1, QUIRE_TEXT_NO_BOS, ids, 64);
  for (size_t i = 0; i < n; ++i) {
    EXPECT_OK(quire_tokenizer_get_token_bytes(t, ids[i], joined + length, sizeof joined - length, &needed, &err));
    length += needed;
  }
  CHECK(length == sizeof accents && joined[0] == ' ' && memcmp(joined + 1, accents, length - 1) == 0);
  EXPECT_OK(quire_tokenizer_decode(t, ids + 1, 2, 0, buf, sizeof buf, &needed, &err));
  CHECK(needed == 2 && memcmp(buf, accents, 2) == 0);
  EXPECT_OK(quire_tokenizer_decode(t, ids + 1, 1, 0, buf, sizeof buf, &needed, &err));
  CHECK(needed == 3 && memcmp(buf, "\xEF\xBF\xBD", 3) == 0);
  EXPECT_OK(quire_tokenizer_get_token_bytes(t, quire_tokenizer_get_bos(t), buf, sizeof buf, &needed, &err));
  CHECK(needed == 0);
  EXPECT_OK(quire_tokenizer_get_token_bytes(t, ids[1], NULL, 0, &needed, &err));
  CHECK(needed == 1);
  for (int32_t id = 0; needed < 2 && id < quire_tokenizer_get_vocab_size(t); ++id) {
    EXPECT_OK(quire_tokenizer_get_token_bytes(t, id, NULL, 0, &needed, &err));
    if (needed < 2) continue;
    EXPECT(QUIRE_ERROR_BUFFER_TOO_SMALL, quire_tokenizer_get_token_bytes(t, id, buf, needed - 1, &length, &err));
    CHECK(length == needed);
  }
  CHECK(needed > 1);
  EXPECT(QUIRE_ERROR_INVALID_TOKEN, quire_tokenizer_get_token_bytes(t, -1, buf, sizeof buf, &needed, &err));
  EXPECT(QUIRE_ERROR_INVALID_TOKEN,
         quire_tokenizer_get_token_bytes(t, quire_tokenizer_get_vocab_size(t), buf, sizeof buf, &needed, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_tokenizer_get_token_bytes(NULL, 1, buf, sizeof buf, &needed, &err));
}

/* Without weights: ids, vocabulary and ends are those of the model's own tokenizer. */
static void test_alone(const quire_tokenizer* t) {
  static const char* const names[] = {"text_256", "text_256/tokenizer.model"};
  quire_runtime* runtime = NULL;
  quire_tokenizer* alone = NULL;
  int32_t ids[64];
  quire_error err;
  const size_t n = encode(t, text, TEXT_LEN, 0, ids, 64);
  EXPECT_OK(quire_runtime_create(NULL, &runtime, &err));
  for (size_t i = 0; i < QUIRE_COUNT(names); ++i) {
    const char* path = model_path(names[i]);
    int32_t other[64];
    EXPECT_OK(quire_tokenizer_load(runtime, path, strlen(path), &alone, &err));
    CHECK(encode(alone, text, TEXT_LEN, 0, other, 64) == n && memcmp(ids, other, n * sizeof *ids) == 0);
    CHECK(quire_tokenizer_get_bos(alone) == quire_tokenizer_get_bos(t));
    const int32_t size = quire_tokenizer_get_vocab_size(alone);
    CHECK(size > 0 && size <= quire_tokenizer_get_vocab_size(t));
    CHECK(i > 0 || size == quire_tokenizer_get_vocab_size(t));
    for (int32_t id = -1; id <= size; ++id) CHECK(quire_tokenizer_is_eos(alone, id) == quire_tokenizer_is_eos(t, id));
    EXPECT(QUIRE_ERROR_INVALID_TOKEN, quire_tokenizer_get_token_bytes(alone, size, NULL, 0, NULL, &err));
    quire_tokenizer_release(alone);
  }
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_tokenizer_load(runtime, "/no/such", 8, &alone, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_tokenizer_load(runtime, "", 0, &alone, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_tokenizer_load(runtime, "/a.gguf\0junk", 12, &alone, &err));
  CHECK_MESSAGE("NUL byte");
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_tokenizer_load(NULL, "/no", 3, &alone, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_tokenizer_load(runtime, "/no", 3, NULL, &err));
  const char* weights = model_path("text_256/model.safetensors");
  EXPECT(QUIRE_ERROR_BAD_FILE, quire_tokenizer_load(runtime, weights, strlen(weights), &alone, &err));
  const char* json = model_path("../../data/tokenizers/byte_level.json");
  EXPECT_OK(quire_tokenizer_load(runtime, json, strlen(json), &alone, &err));
  CHECK(quire_tokenizer_get_vocab_size(alone) == 484 && quire_tokenizer_get_bos(alone) == 480);
  int32_t of_json[4];
  CHECK(encode(alone, "<|end|>", 7, QUIRE_TEXT_PARSE_SPECIAL, of_json, 4) == 2 && of_json[0] == 480 &&
        of_json[1] == 481);
  quire_tokenizer_release(alone);
  EXPECT_OK(quire_tokenizer_load(runtime, model_path("text_256"), strlen(model_path("text_256")), &alone, &err));
  EXPECT_OK(quire_runtime_close(runtime, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_tokenizer_encode(alone, text, TEXT_LEN, 0, NULL, 0, NULL, &err));
  quire_runtime_release(runtime);
  quire_tokenizer_release(alone); /* outlives the runtime's last handle */
}

void test_tokenizer(void) {
  loaded l = open_model("text_256");
  quire_tokenizer* t = NULL;
  quire_error err;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_get_tokenizer(NULL, &t, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_get_tokenizer(l.model, NULL, &err));
  EXPECT_OK(quire_model_get_tokenizer(l.model, &t, &err));
  quire_tokenizer_retain(t);
  quire_tokenizer_release(t);
  close_model(&l); /* the tokenizer keeps the model */
  CHECK(quire_tokenizer_get_vocab_size(t) == 320);
  CHECK(quire_tokenizer_get_bos(t) == 1);
  CHECK(quire_tokenizer_is_eos(t, 2) == 1 && quire_tokenizer_is_eos(t, 1) == 0 && quire_tokenizer_is_eos(t, -5) == 0);
  CHECK(quire_tokenizer_get_vocab_size(NULL) == 0);
  CHECK(quire_tokenizer_get_bos(NULL) == -1);
  CHECK(quire_tokenizer_is_eos(NULL, 2) == 0);
  test_encode(t);
  test_decode(t);
  test_token_bytes(t);
  test_alone(t);
  quire_tokenizer_release(t);
  quire_tokenizer_retain(NULL);
  quire_tokenizer_release(NULL);
}
