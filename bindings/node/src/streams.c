/* Events of a stream: taken one by one without waiting, and a wait for the next one that lets the event loop go on, by
 * libuv's poll on the stream's file descriptor. */
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "raw.h"

/* Lives as long as libuv needs it, which may be longer than the stream. */
typedef struct waiter {
  uv_poll_t poll;
  napi_env env;
  napi_ref callback; /* of the wait under way, or NULL */
  bool polls;        /* also between waits: most waits are followed by the next */
  napi_async_cleanup_hook_handle hook;
  stream_state* state; /* NULL: the stream is gone */
} waiter;

struct stream_state {
  handle* owner; /* NULL: it was closed. Whichever of it and `take` goes last, the other one knows */
  quire_event event;
  quire_error err;
  double* numbers; /* of a Float64Array: kind, token, n_tokens, logprob, number of top_logprobs */
  napi_ref array;
  waiter* waiter; /* NULL: there was no wait yet, or the environment ends */
};

/* ---- Waiting ---- */

static void on_closed(uv_handle_t* poll) {
  waiter* w = poll->data;
  napi_remove_async_cleanup_hook(w->hook);
  free(w);
}

static void close_waiter(waiter* w) {
  if (w->state) w->state->waiter = NULL;
  w->state = NULL;
  if (w->callback) napi_delete_reference(w->env, w->callback);
  w->callback = NULL;
  if (!uv_is_closing((uv_handle_t*)&w->poll)) uv_close((uv_handle_t*)&w->poll, on_closed);
}

static void on_environment_ends(napi_async_cleanup_hook_handle hook, void* data) {
  (void)hook; /* on_closed removes it, which lets the environment end */
  close_waiter(data);
}

/* Ends the wait under way: calls back. */
static void wake(waiter* w) {
  napi_handle_scope scope;
  napi_value callback = NULL, global;
  if (!w || !w->callback) return;
  const napi_ref reference = w->callback;
  const napi_env env = w->env; /* what is called back may close the stream */
  w->callback = NULL;
  uv_unref((uv_handle_t*)&w->poll);
  napi_open_handle_scope(env, &scope);
  napi_get_reference_value(env, reference, &callback);
  napi_delete_reference(env, reference);
  if (callback && napi_get_global(env, &global) == napi_ok)
    napi_make_callback(env, NULL, global, callback, 0, NULL, NULL);
  napi_close_handle_scope(env, scope);
}

static void on_ready(uv_poll_t* poll, int status, int events) {
  waiter* w = poll->data;
  (void)status, (void)events; /* of an error the next event tells */
  if (w->callback) {
    wake(w);
  } else { /* nobody takes what is there */
    uv_poll_stop(poll);
    w->polls = false;
  }
}

static waiter* new_waiter(napi_env env, stream_state* state) {
  int64_t fd;
  int32_t kind;
  uv_loop_t* loop;
  quire_error err;
  const quire_status status = quire_stream_get_wait_handle(state->owner->pointer, &fd, &kind, &err);
  if (status < 0) {
    throw_error(env, status, err.message, err.offset, err.os_error);
    return NULL;
  }
  waiter* w = calloc(1, sizeof *w);
  if (!w || napi_get_uv_event_loop(env, &loop) != napi_ok || uv_poll_init(loop, &w->poll, (int)fd) != 0) {
    free(w);
    napi_throw_error(env, NULL, "the event loop cannot wait for this stream");
    return NULL;
  }
  w->poll.data = w;
  w->env = env;
  w->state = state;
  napi_add_async_cleanup_hook(env, on_environment_ends, w, &w->hook);
  return w;
}

/* streamWait(handle, callback): calls back once an event may be there. One wait at a time. */
static napi_value stream_wait(napi_env env, napi_callback_info info) {
  size_t n = 2;
  napi_value arguments[2];
  napi_get_cb_info(env, info, &n, arguments, NULL, NULL);
  handle* h = handle_of(env, arguments[0], "stream", &type_of_quire_stream);
  if (!h || !h->stream) return NULL;
  if (!h->stream->waiter) h->stream->waiter = new_waiter(env, h->stream);
  waiter* w = h->stream->waiter;
  if (!w) return NULL;
  if (w->callback) {
    wrong(env, "callback", "none, while another one waits");
  } else if (napi_create_reference(env, arguments[1], 1, &w->callback) == napi_ok) {
    uv_ref((uv_handle_t*)&w->poll);
    if (!w->polls) uv_poll_start(&w->poll, UV_READABLE, on_ready);
    w->polls = true;
  }
  return NULL;
}

/* streamWake(handle): ends a wait, for what is waited for will not come. */
static napi_value stream_wake(napi_env env, napi_callback_info info) {
  size_t n = 1;
  napi_value argument;
  napi_get_cb_info(env, info, &n, &argument, NULL, NULL);
  handle* h = handle_of(env, argument, "stream", &type_of_quire_stream);
  if (h && h->stream) wake(h->stream->waiter);
  return NULL;
}

/* ---- Taking ---- */

/* take(): the next event's text; null: nothing yet; undefined: the end event was taken before. It is called for each
 * token, so the numbers go through memory that both sides have. */
static napi_value take(napi_env env, napi_callback_info info) {
  void* data;
  napi_value value = NULL;
  napi_get_cb_info(env, info, NULL, NULL, NULL, &data);
  stream_state* s = data;
  if (!s->owner) {
    throw_error(env, QUIRE_ERROR_CLOSED, "this Stream was closed", -1, 0);
    return NULL;
  }
  const quire_status status = quire_stream_next(s->owner->pointer, 0, &s->event, &s->err);
  if (status == QUIRE_OK) {
    s->numbers[0] = s->event.kind;
    s->numbers[1] = s->event.token;
    s->numbers[2] = (double)s->event.n_tokens;
    s->numbers[3] = s->event.logprob;
    s->numbers[4] = (double)s->event.n_top_logprobs;
    napi_create_string_utf8(env, s->event.text ? s->event.text : "", s->event.text_len, &value);
  } else if (status == QUIRE_TIMEOUT) {
    napi_get_null(env, &value);
  } else if (status < 0) {
    throw_error(env, status, s->err.message, s->err.offset, s->err.os_error);
  }
  return value;
}

static void free_state(napi_env env, void* data, void* hint) {
  stream_state* s = data;
  (void)hint;
  if (s->owner) close_stream_state(s->owner);
  if (s->array) napi_delete_reference(env, s->array);
  free(s);
}

/* streamTaker(handle, numbers): the function `take` of a stream. Its state lives as long as that. */
static napi_value stream_taker(napi_env env, napi_callback_info info) {
  size_t n = 2, length = 0;
  napi_value arguments[2], function;
  napi_typedarray_type type = napi_int8_array;
  void* numbers = NULL;
  napi_get_cb_info(env, info, &n, arguments, NULL, NULL);
  handle* h = handle_of(env, arguments[0], "stream", &type_of_quire_stream);
  if (!h) return NULL;
  napi_get_typedarray_info(env, arguments[1], &type, &length, &numbers, NULL, NULL);
  if (type != napi_float64_array || length < 5 || h->stream) {
    wrong(env, "numbers", "a Float64Array of 5, once");
    return NULL;
  }
  stream_state* s = calloc(1, sizeof *s);
  if (!s) return NULL;
  s->owner = h;
  s->numbers = numbers;
  quire_event_init(&s->event, sizeof s->event);
  if (napi_create_function(env, "take", NAPI_AUTO_LENGTH, take, s, &function) != napi_ok ||
      napi_add_finalizer(env, function, s, free_state, NULL, NULL) != napi_ok) {
    free(s);
    return NULL;
  }
  napi_create_reference(env, arguments[1], 1, &s->array);
  napi_set_named_property(env, function, "handle", arguments[0]);
  h->stream = s;
  return function;
}

/* streamEvent(handle): all of the event that was taken last. */
static napi_value stream_event(napi_env env, napi_callback_info info) {
  size_t n = 1;
  napi_value argument;
  napi_get_cb_info(env, info, &n, &argument, NULL, NULL);
  handle* h = handle_of(env, argument, "stream", &type_of_quire_stream);
  return h && h->stream ? record_value(env, &h->stream->event, &fields_of_quire_event) : NULL;
}

void close_stream_state(handle* h) {
  if (!h->stream) return;
  h->stream->owner = NULL;
  if (h->stream->waiter) close_waiter(h->stream->waiter);
  h->stream = NULL;
}

bool export_streams(napi_env env, napi_value exports) {
  napi_property_descriptor own[] = {
      {"streamTaker", NULL, stream_taker, NULL, NULL, NULL, napi_default_jsproperty, NULL},
      {"streamEvent", NULL, stream_event, NULL, NULL, NULL, napi_default_jsproperty, NULL},
      {"streamWait", NULL, stream_wait, NULL, NULL, NULL, napi_default_jsproperty, NULL},
      {"streamWake", NULL, stream_wake, NULL, NULL, NULL, napi_default_jsproperty, NULL}};
  return napi_define_properties(env, exports, sizeof own / sizeof *own, own) == napi_ok;
}
