/* Where an answer came from: passages and labels, with every error. */
#include "abi_test.h"

enum { kPages = 12, kMost = 8 };

static const char* page = "the reader turns the page and reads on, leaf by leaf. ";

static void feed_pages(quire_session* session, char* text, size_t* text_len) {
  const int64_t page_bytes = (int64_t)strlen(page);
  quire_label labels[kPages];
  quire_error err;
  text[0] = '\0';
  for (int64_t p = 0; p < kPages; ++p) {
    strcat(text, page);
    labels[p].begin = p * page_bytes;
    labels[p].end = (p + 1) * page_bytes;
    labels[p].id = 100 + p;
  }
  *text_len = strlen(text);
  EXPECT_OK(quire_session_feed_labelled(session, text, *text_len, 0, labels, kPages, &err));
}

static void check_passages(const quire_session* session, size_t text_len, int64_t end) {
  quire_passage found[kMost];
  quire_label_attention labels[kPages];
  size_t n = 0, n_labels = 0;
  double all = 0, labelled = 0;
  quire_error err;
  CHECK_OUTPUT(quire_label_attention, kPages, quire_session_get_label_shares(session, -1, 0, buf, cap, needed, &err));
  EXPECT_OK(quire_session_get_label_shares(session, -1, 0, labels, kPages, &n_labels, &err));
  EXPECT_OK(quire_session_get_passages(session, -1, 0, kMost, NULL, 0, &n, &err));
  CHECK(n > 1 && n <= kMost && n_labels == kPages);
  EXPECT(QUIRE_ERROR_BUFFER_TOO_SMALL, quire_session_get_passages(session, -1, 0, kMost, found, n - 1, &n, &err));
  EXPECT_OK(quire_session_get_passages(session, -1, 0, kMost, found, kMost, &n, &err));
  for (size_t i = 0; i < n; ++i) {
    const quire_passage* p = &found[i];
    CHECK(p->share > 0 && (i == 0 || p->share <= found[i - 1].share));
    CHECK(p->first_token >= 4 && p->n_tokens > 0 && p->n_tokens <= 64 && p->first_token + p->n_tokens <= end);
    CHECK(p->feed == 0 && p->begin >= 0 && p->begin < p->end && p->end <= (int64_t)text_len);
    CHECK(p->label >= 0 && p->label < kPages && p->label_id == 100 + p->label);
    /* The label is of the pages that the passage's bytes are of. */
    CHECK(p->label >= p->begin / (int64_t)strlen(page) && p->label <= p->end / (int64_t)strlen(page));
    all += p->share;
  }
  CHECK(all <= 1.0001);
  for (int64_t p = 0; p < kPages; ++p) labelled += labels[p].share;
  CHECK(labelled > 0.9999 && labelled < 1.0001);
}

void test_cite(void) {
  loaded l = open_model("text_256");
  quire_session* session = open_session(l.model, "dca", 0, 16);
  quire_stream_options options;
  quire_stream* stream = NULL;
  quire_passage found[kMost];
  quire_label_attention labels[kPages];
  static char text[4096];
  static transcript out;
  size_t text_len = 0, n = 0;
  int64_t n_document = 0, n_tokens = 0;
  quire_error err;
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_session_get_passages(session, -1, 0, kMost, found, kMost, &n, &err));
  feed_pages(session, text, &text_len);
  EXPECT_OK(quire_session_get_token_counts(session, NULL, &n_document, &err));
  EXPECT_OK(quire_session_feed_text(session, "who turns the page? ", 20, 0, &err));

  quire_stream_options_init(&options, sizeof options);
  options.flags = QUIRE_STREAM_IGNORE_EOS;
  options.max_tokens = 5;
  options.cite_end = 10; /* without the flag */
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_stream_open(session, &options, &stream, &err));
  CHECK_MESSAGE("cite_end");
  options.flags |= QUIRE_STREAM_CITE;
  options.cite_end = n_document + 1000;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_stream_open(session, &options, &stream, &err));
  options.cite_end = -1;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_stream_open(session, &options, &stream, &err));
  options.cite_end = n_document;
  run_stream(session, &options, &out);
  EXPECT_OK(quire_session_get_token_counts(session, &n_tokens, NULL, &err));
  check_passages(session, text_len, n_document);

  EXPECT_OK(quire_session_get_passages(session, n_tokens - 5, 1, 1, found, kMost, &n, &err));
  CHECK(n == 1);
  EXPECT_OK(quire_session_get_label_shares(session, n_tokens - 1, 1, labels, kPages, &n, &err));
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_session_get_passages(session, n_tokens - 5, 6, 1, found, kMost, &n, &err));
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_session_get_label_shares(session, 3, 1, labels, kPages, &n, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_passages(session, -2, 0, 1, found, kMost, &n, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_passages(session, -1, 1, 1, found, kMost, &n, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_passages(session, -1, 0, 0, found, kMost, &n, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_passages(session, -1, 0, 1025, found, kMost, &n, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_label_shares(session, 5, 0, labels, kPages, &n, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_passages(NULL, -1, 0, 1, found, kMost, &n, &err));

  run_greedy(session, 3, &out); /* a stream that does not cite keeps nothing */
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_session_get_passages(session, -1, 0, kMost, found, kMost, &n, &err));
  EXPECT_OK(quire_stream_open(session, &options, &stream, &err));
  EXPECT(QUIRE_ERROR_BUSY, quire_session_get_label_shares(session, -1, 0, labels, kPages, &n, &err));
  quire_stream_release(stream);
  quire_session_release(session);
  close_model(&l);
}
