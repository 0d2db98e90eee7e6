/* Prefix reuse: what events and statistics say of it, and sessions that take no part. */
#include "abi_test.h"

#define OUT "abi_prefix_test.quire"

/* What reading n tokens and generating some came to. */
typedef struct reading {
  int64_t reused, done, total;
  int32_t miss;
  quire_session_stats stats;
  transcript out;
} reading;

static quire_session* open_reusing(quire_model* model, uint32_t flags) {
  quire_session* session = NULL;
  quire_session_options options;
  quire_error err;
  quire_session_options_init(&options, sizeof options);
  options.flags = flags;
  options.strategy = "dca(kv_chunk=16)";
  options.strategy_len = strlen(options.strategy);
  options.prefill_block = 32;
  EXPECT_OK(quire_session_create(model, &options, &session, &err));
  return session;
}

static void read_text(quire_session* session, quire_model* model, uint32_t flags, reading* r) {
  quire_stream* stream = NULL;
  quire_stream_options options;
  quire_event event;
  quire_error err;
  quire_session_stats before = {0};
  memset(r, 0, sizeof *r);
  before.struct_size = r->stats.struct_size = sizeof before;
  EXPECT_OK(quire_session_get_stats(session, &before, &err));
  feed_some(session, model, 100);
  quire_stream_options_init(&options, sizeof options);
  options.max_tokens = 5;
  options.flags = flags | QUIRE_STREAM_IGNORE_EOS;
  EXPECT_OK(quire_stream_open(session, &options, &stream, &err));
  quire_event_init(&event, sizeof event);
  while (quire_stream_next(stream, -1, &event, &err) == QUIRE_OK) {
    if (event.kind == QUIRE_EVENT_TOKEN) r->out.tokens[r->out.n_tokens++] = event.token;
    CHECK(event.reserved == 0);
    if (event.kind != QUIRE_EVENT_PREFILL) {
      CHECK(event.reused == 0 && event.reuse_miss == QUIRE_REUSE_COMPLETE);
      continue;
    }
    r->reused = event.reused, r->done = event.done, r->total = event.total, r->miss = event.reuse_miss;
  }
  quire_stream_release(stream);
  EXPECT_OK(quire_session_get_stats(session, &r->stats, &err));
  CHECK(r->total == 100 && r->reused + r->done == 100 && r->out.n_tokens == 5);
  CHECK(r->stats.n_prefilled == before.n_prefilled + r->done && r->stats.n_reused == before.n_reused + r->reused);
}

void test_prefix(void) {
  static reading first, r;
  loaded l = open_model("short_128");
  quire_session *source = open_reusing(l.model, 0), *other;
  quire_error err;
  read_text(source, l.model, 0, &first);
  CHECK(first.reused == 0 && first.miss == QUIRE_REUSE_UNKNOWN);

  other = open_reusing(l.model, 0);
  read_text(other, l.model, 0, &r);
  CHECK(r.reused == 96 && r.miss == QUIRE_REUSE_COMPLETE);
  CHECK(memcmp(r.out.tokens, first.out.tokens, 5 * sizeof r.out.tokens[0]) == 0);
  /* What is computed is asked for. */
  EXPECT_OK(quire_session_reset(other, &err));
  read_text(other, l.model, QUIRE_STREAM_SCORE, &r);
  CHECK(r.stats.n_prefilled == 104 && r.miss == QUIRE_REUSE_STREAM);
  quire_session_release(other);

  /* Neither takes nor gives. */
  other = open_reusing(l.model, QUIRE_SESSION_NO_PREFIX_REUSE);
  read_text(other, l.model, 0, &r);
  CHECK(r.reused == 0 && r.miss == QUIRE_REUSE_OFF);
  EXPECT_OK(quire_session_close(source, &err));
  quire_session_release(source);
  source = open_reusing(l.model, 0);
  read_text(source, l.model, 0, &r);
  CHECK(r.reused == 0 && r.miss == QUIRE_REUSE_UNKNOWN);

  /* A session that is loaded gives what it was loaded with. */
  EXPECT_OK(quire_session_save(source, OUT, strlen(OUT), NULL, &err));
  EXPECT_OK(quire_session_close(source, &err));
  quire_session_release(source);
  quire_session_release(other);
  EXPECT_OK(quire_session_load(l.model, OUT, strlen(OUT), NULL, &source, &err));
  other = open_reusing(l.model, 0);
  read_text(other, l.model, 0, &r);
  CHECK(r.reused == 96 && memcmp(r.out.tokens, first.out.tokens, 5 * sizeof r.out.tokens[0]) == 0);
  quire_session_release(other);
  quire_session_release(source);
  remove(OUT);
  close_model(&l);
}
