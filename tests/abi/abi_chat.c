/* Conversations: as text, as ids, and in a session. The tiny models have no chat template of their own; llama2 needs no
 * control tokens beside their "<s>" and "</s>". */
#include <stdlib.h>

#include "abi_test.h"

#define MESSAGE(role, text) \
  { role, sizeof role - 1, text, sizeof text - 1 }

static const quire_message ask[] = {MESSAGE("system", "Be brief."), MESSAGE("user", "</s> one")};
static const quire_message again[] = {MESSAGE("user", "three")};
static const char written[] = "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\n</s> one [/INST]";
#define WRITTEN_LEN (sizeof written - 1)

static quire_chat_options named(const char* name) {
  quire_chat_options options;
  quire_chat_options_init(&options, sizeof options);
  options.template_name = name;
  options.template_name_len = strlen(name);
  return options;
}

static void test_list(void) {
  char text[8192];
  size_t n = 0;
  quire_error err;
  EXPECT_OK(quire_chat_get_list(NULL, 0, &n, &err));
  CHECK(n > 0 && n < sizeof text);
  CHECK_OUTPUT(char, n, quire_chat_get_list(buf, cap, needed, &err));
  EXPECT_OK(quire_chat_get_list(text, sizeof text - 1, &n, &err));
  text[n] = '\0';
  CHECK(strstr(text, "\"llama2\"") != NULL && strstr(text, "\"qwen3\"") != NULL);
}

static void test_render(const quire_tokenizer* t) {
  quire_chat_options options = named("llama2");
  char text[256];
  size_t needed = 0;
  quire_error err;
  EXPECT_OK(quire_tokenizer_render_chat(t, ask, 2, &options, text, sizeof text, &needed, &err));
  CHECK(needed == WRITTEN_LEN && memcmp(text, written, WRITTEN_LEN) == 0);
  CHECK_OUTPUT(char, WRITTEN_LEN, quire_tokenizer_render_chat(t, ask, 2, &options, buf, cap, needed, &err));
  /* The vocabulary need not have the tokens; an answer need not be begun; a date may be given. */
  options = named("llama3.1");
  options.flags = QUIRE_CHAT_NO_ANSWER;
  options.date = "2025-03-09";
  options.date_len = 10;
  EXPECT_OK(quire_tokenizer_render_chat(t, again, 1, &options, text, sizeof text - 1, &needed, &err));
  text[needed] = '\0';
  CHECK(strstr(text, "Today Date: 09 Mar 2025") != NULL);
  CHECK(strcmp(text + needed - 15, "three<|eot_id|>") == 0);
  options = named("qwen3");
  options.flags = QUIRE_CHAT_NO_THINKING;
  EXPECT_OK(quire_tokenizer_render_chat(t, again, 1, &options, text, sizeof text - 1, &needed, &err));
  text[needed] = '\0';
  CHECK(strstr(text, "<|im_start|>assistant\n<think>\n\n</think>\n\n") != NULL);
}

static void test_encode(const quire_tokenizer* t) {
  quire_chat_options options = named("llama2");
  int32_t ids[256];
  size_t n = 0, n_eos = 0;
  quire_error err;
  EXPECT_OK(quire_tokenizer_encode_chat(t, ask, 2, &options, ids, 256, &n, &err));
  CHECK(n > 4 && ids[0] == quire_tokenizer_get_bos(t));
  for (size_t i = 0; i < n; ++i) n_eos += (size_t)quire_tokenizer_is_eos(t, ids[i]);
  CHECK(n_eos == 0); /* "</s>" of a message is text */
  CHECK_OUTPUT(int32_t, n, quire_tokenizer_encode_chat(t, ask, 2, &options, buf, cap, needed, &err));
  options = named("chatml");
  EXPECT(QUIRE_ERROR_UNSUPPORTED, quire_tokenizer_encode_chat(t, ask, 2, &options, ids, 256, &n, &err));
  CHECK_MESSAGE("<|im_start|>, <|im_end|>");
}

static void test_errors(const quire_tokenizer* t, quire_session* session) {
  static const quire_message wrong_role[] = {MESSAGE("user", "a"), MESSAGE("tool", "b")};
  static const quire_message wrong_text[] = {MESSAGE("user", "a\xFF")};
  static const quire_message null_text[] = {{"user", 4, NULL, 1}};
  static const quire_message out_of_turn[] = {MESSAGE("user", "a"), MESSAGE("user", "b")};
  quire_chat_options options = named("llama2"), bad;
  size_t needed = 7;
  quire_error err;
#define EXPECT_ALL(status, messages, n, options)                                                  \
  do {                                                                                            \
    EXPECT(status, quire_tokenizer_render_chat(t, messages, n, options, NULL, 0, &needed, &err)); \
    EXPECT(status, quire_tokenizer_encode_chat(t, messages, n, options, NULL, 0, &needed, &err)); \
    EXPECT(status, quire_session_feed_messages(session, messages, n, options, &err));             \
  } while (0)
  EXPECT_ALL(QUIRE_ERROR_NOT_FOUND, ask, 2, NULL); /* no template of its own */
  CHECK_MESSAGE("chat_template.jinja");
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_tokenizer_get_chat_template(t, NULL, 0, &needed, &err));
  EXPECT_ALL(QUIRE_ERROR_INVALID_ARGUMENT, wrong_role, 2, &options);
  CHECK(err.offset == 1);
  CHECK_MESSAGE("messages[1].role is \"tool\"");
  EXPECT_ALL(QUIRE_ERROR_INVALID_ARGUMENT, out_of_turn, 2, &options);
  CHECK(err.offset == 1);
  CHECK_MESSAGE("messages[1] (user)");
  EXPECT_ALL(QUIRE_ERROR_INVALID_TEXT, wrong_text, 1, &options);
  CHECK(err.offset == 1);
  EXPECT_ALL(QUIRE_ERROR_INVALID_ARGUMENT, null_text, 1, &options);
  EXPECT_ALL(QUIRE_ERROR_INVALID_ARGUMENT, NULL, 1, &options);
  EXPECT_ALL(QUIRE_ERROR_INVALID_ARGUMENT, NULL, 0, &options);
  EXPECT_ALL(QUIRE_ERROR_INVALID_ARGUMENT, ask, ((size_t)1 << 20) + 1, &options);
  bad = named("llama-2");
  EXPECT_ALL(QUIRE_ERROR_INVALID_ARGUMENT, ask, 2, &bad);
  CHECK_MESSAGE("mistral-v1");
  bad = named("");
  EXPECT_ALL(QUIRE_ERROR_INVALID_ARGUMENT, ask, 2, &bad);
  bad = options;
  bad.flags = 4;
  EXPECT_ALL(QUIRE_ERROR_INVALID_ARGUMENT, ask, 2, &bad);
  bad = options;
  bad.date = "09.03.2025";
  bad.date_len = 10;
  EXPECT_ALL(QUIRE_ERROR_INVALID_ARGUMENT, ask, 2, &bad);
  CHECK_MESSAGE("2025-06-30");
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_feed_messages(NULL, ask, 2, &options, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_tokenizer_render_chat(NULL, ask, 2, &options, NULL, 0, &needed, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_tokenizer_encode_chat(NULL, ask, 2, &options, NULL, 0, &needed, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_tokenizer_get_chat_template(NULL, NULL, 0, &needed, &err));
  CHECK(needed == 7);
#undef EXPECT_ALL
}

/* Options of other sizes than today's. */
static void test_option_sizes(const quire_tokenizer* t) {
  LARGER(quire_chat_options) o;
  quire_error err;
  memset(&o, 0, sizeof o);
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_tokenizer_render_chat(t, ask, 2, &o.known, NULL, 0, NULL, &err));
  CHECK_MESSAGE("struct_size");
  o.known = named("llama2");
  o.known.struct_size = sizeof o;
  EXPECT_OK(quire_tokenizer_render_chat(t, ask, 2, &o.known, NULL, 0, NULL, &err));
  o.tail[1] = 1;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_tokenizer_render_chat(t, ask, 2, &o.known, NULL, 0, NULL, &err));
  CHECK_MESSAGE("quire_chat_options");
  o.known.struct_size = 8; /* without a name */
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_tokenizer_render_chat(t, ask, 2, &o.known, NULL, 0, NULL, &err));
}

static void test_session_continues(quire_session* session, const quire_tokenizer* t) {
  quire_chat_options options = named("llama2");
  int64_t n_tokens = -1, n_pending = -1;
  size_t needed = 0;
  transcript out;
  quire_error err;
  EXPECT_OK(quire_tokenizer_encode_chat(t, ask, 2, &options, NULL, 0, &needed, &err));
  EXPECT_OK(quire_session_feed_messages(session, ask, 2, &options, &err));
  EXPECT_OK(quire_session_get_token_counts(session, &n_tokens, &n_pending, &err));
  CHECK(n_tokens == 0 && n_pending == (int64_t)needed);
  run_greedy(session, 3, &out);
  CHECK(out.n_tokens == 3);
  EXPECT_OK(quire_session_feed_messages(session, again, 1, NULL, &err)); /* the template is the conversation's */
  EXPECT_OK(quire_session_get_token_counts(session, &n_tokens, &n_pending, &err));
  CHECK(n_tokens == (int64_t)needed + 3 && n_pending > 3);
  options = named("mistral-v1");
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_feed_messages(session, again, 1, &options, &err));
  CHECK_MESSAGE("llama2");
}

void test_chat(void) {
  loaded l = open_model("text_256");
  quire_session* session = open_session(l.model, NULL, 0, 0);
  quire_tokenizer* tokenizer = NULL;
  quire_error err;
  EXPECT_OK(quire_model_get_tokenizer(l.model, &tokenizer, &err));
  test_list();
  test_render(tokenizer);
  test_encode(tokenizer);
  test_errors(tokenizer, session);
  test_option_sizes(tokenizer);
  test_session_continues(session, tokenizer);
  quire_tokenizer_release(tokenizer);
  quire_session_release(session);
  close_model(&l);
}
