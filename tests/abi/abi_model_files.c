/* What the files of a model hold, and GGUF files that are written. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "abi_test.h"

#define OUT "quire_abi_test.gguf"

static void test_describe(const char* path) {
  char text[65536];
  size_t n = 0;
  quire_error err;
  EXPECT_OK(quire_model_describe_files(path, strlen(path), text, sizeof text - 1, &n, &err));
  text[n] = '\0';
  CHECK(strstr(text, "\"format\":\"safetensors\"") != NULL);
  CHECK(strstr(text, "\"name\":\"model.embed_tokens.weight\"") != NULL);
  CHECK_OUTPUT(char, n, quire_model_describe_files(path, strlen(path), buf, cap, needed, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_describe_files(path, 0, text, sizeof text, &n, &err));
  CHECK_MESSAGE("path is empty");
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_model_describe_files("/no/such", 8, text, sizeof text, &n, &err));
  CHECK_MESSAGE("/no/such");
}

static void show(void* seen, int64_t done, int64_t total) { *(int*)seen += done <= total; }

static void test_quantize(const char* path) {
  quire_quantize_options options;
  quire_cancel* cancel = NULL;
  quire_error err;
  char text[65536];
  size_t needed = 0;
  int seen = 0;
  const size_t len = strlen(path), out_len = strlen(OUT);
  CHECK(strstr(quire_get_quantizations(), "q4_k_m") != NULL);
  quire_quantize_options_init(&options, sizeof options);
  options.n_threads = 1;
  options.recipe = "q8_0";
  options.recipe_len = 4;
  options.progress = show;
  options.progress_user_data = &seen;
  EXPECT_OK(quire_model_quantize(path, len, OUT, out_len, &options, &err));
  CHECK(seen > 10);
  EXPECT_OK(quire_model_describe_files(OUT, out_len, text, sizeof text - 1, &needed, &err));
  text[needed] = '\0';
  CHECK(strstr(text, "\"format\":\"gguf\"") != NULL && strstr(text, "\"type\":\"Q8_0\"") != NULL);
  CHECK(strstr(text, "\"general.architecture\":\"llama\"") != NULL);
  EXPECT_OK(quire_model_quantize(OUT, out_len, OUT, out_len, NULL, &err)); /* over itself, by the default recipe */
  remove(OUT);

  options.recipe = "q2";
  options.recipe_len = 2;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_quantize(path, len, OUT, out_len, &options, &err));
  CHECK_MESSAGE("q4_k_m");
  options.recipe = NULL;
  options.recipe_len = 0;
  options.n_threads = 1025;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_quantize(path, len, OUT, out_len, &options, &err));
  CHECK_MESSAGE("n_threads");
  options.n_threads = 0;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_quantize(path, len, OUT, 0, &options, &err));
  CHECK_MESSAGE("out_path is empty");
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_model_quantize("/no/such", 8, OUT, out_len, &options, &err));
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_model_quantize(path, len, "/no/such/out", 12, &options, &err));
  EXPECT_OK(quire_cancel_create(&cancel, &err));
  quire_cancel_trigger(cancel);
  options.cancel = cancel;
  EXPECT(QUIRE_ERROR_CANCELLED, quire_model_quantize(path, len, OUT, out_len, &options, &err));
  quire_cancel_release(cancel);
  CHECK(remove(OUT) != 0); /* no failure left a file */
}

#ifdef QUIRE_LIMITS_MEMORY
/* The system has no room for so many threads: that is no bug of the library's. */
static void test_too_many_threads(const char* path) {
  quire_quantize_options options;
  struct rlimit old, small;
  unsigned long pages = 0;
  quire_error err;
  FILE* sizes = fopen("/proc/self/statm", "r");
  CHECK(sizes != NULL && fscanf(sizes, "%lu", &pages) == 1);
  if (sizes) fclose(sizes);
  quire_quantize_options_init(&options, sizeof options);
  options.n_threads = 1024;
  CHECK(getrlimit(RLIMIT_AS, &old) == 0);
  small = old;
  small.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + ((rlim_t)256 << 20);
  CHECK(setrlimit(RLIMIT_AS, &small) == 0);
  EXPECT(QUIRE_ERROR_OUT_OF_MEMORY, quire_model_quantize(path, strlen(path), OUT, strlen(OUT), &options, &err));
  CHECK(setrlimit(RLIMIT_AS, &old) == 0);
  CHECK_MESSAGE("cannot start threads");
  CHECK(err.os_error != 0 && remove(OUT) != 0);
}
#endif

void test_model_files(void) {
  const char* path = model_path("text_256");
  test_describe(path);
  test_quantize(path);
#ifdef QUIRE_LIMITS_MEMORY
  test_too_many_threads(path);
#endif
}
