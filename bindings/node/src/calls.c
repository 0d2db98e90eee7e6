/* One call of a function of quire.h: its arguments are read, it runs, and its results are made. raw.NAME(...) does all
 * of that at once; raw.async.NAME(...) returns a Promise and runs it on a thread of libuv's pool, or of its own. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "raw.h"

typedef struct block {
  struct block* next;
  max_align_t data[];
} block;

void* allocate(call* c, size_t size) {
  block* made = calloc(1, sizeof *made + size);
  if (!made) return NULL;
  made->next = c->blocks;
  c->blocks = made;
  return made->data;
}

bool hold(napi_env env, call* c, handle* h) {
  if (c->n_held == MAX_HANDLES) return wrong(env, "handles", "fewer in one call");
  h->type->retain(h->pointer);
  c->held[c->n_held].type = h->type;
  c->held[c->n_held++].pointer = h->pointer;
  return true;
}

/* ---- Arguments ---- */

static bool read_handle(napi_env env, call* c, const step* s, napi_value value) {
  handle* h = handle_of(env, value, s->name, s->handle);
  if (!h || !hold(env, c, h)) return false;
  c->slots[s->slot].p = h->pointer;
  if (c->of->exclusive && (h->type == &type_of_quire_session || h->type == &type_of_quire_stream)) {
    if (h->calls) {
      throw_error(env, QUIRE_ERROR_BUSY, "another call on it is under way: wait for its promise", -1, 0);
      return false;
    }
    c->exclusive = h;
    if (c->async) napi_create_reference(env, value, 1, &c->self);
  }
  return true;
}

static bool read_options(napi_env env, call* c, const step* s, napi_value value) {
  if (is_nothing(env, value)) return true;
  char* to = allocate(c, s->of->size);
  c->slots[s->slot].p = to;
  return to ? read_record(env, c, value, s->of, to) : napi_throw_error(env, NULL, "out of memory") != napi_ok;
}

/* Slots of what has a length are followed by the slot of that, save where two lists share one. */
static bool read_sized(napi_env env, call* c, const step* s, napi_value value) {
  slot* to = &c->slots[s->slot];
  size_t n = 0;
  if (s->what == STEP_TEXT) {
    if (!read_text(env, c, value, s->name, (const char**)&to->p, &n)) return false;
  } else if (!read_list(env, c, value, s->name, s->kind, s->of, (const void**)&to->p, &n)) {
    return false;
  }
  const bool second = s != c->of->steps && s->what == STEP_LIST && s[-1].what == STEP_LIST;
  if (second && n != c->cap) return wrong(env, s->name, "one for each id");
  c->cap = n; /* read here before it has its own meaning */
  if (s[1].what == STEP_COUNT) c->slots[s[1].slot].n = n;
  return true;
}

static bool read_arguments(napi_env env, call* c, napi_value* arguments) {
  for (const step* s = c->of->steps; s->what; ++s) {
    bool good = true;
    switch (s->what) {
      case STEP_HANDLE:
        good = read_handle(env, c, s, *arguments++);
        break;
      case STEP_TEXT:
      case STEP_LIST:
        good = read_sized(env, c, s, *arguments++);
        break;
      case STEP_OPTIONS:
        good = read_options(env, c, s, *arguments++);
        break;
      case STEP_SCALAR:
        good = read_scalar(env, *arguments++, s->name, s->kind, &c->slots[s->slot]);
        break;
      case STEP_RESULT:
        good = (c->slots[s->slot].p = allocate(c, s->of->size)) != NULL;
        if (good && s->of->grows) *(uint32_t*)c->slots[s->slot].p = (uint32_t)s->of->size;
        break;
      default:
        break;
    }
    if (!good) return false;
  }
  return true;
}

/* ---- Running, on any thread ---- */

static const step* filled_step(const call* c) {
  for (const step* s = c->of->steps; s->what; ++s)
    if (s->what == STEP_FILLED) return s;
  return NULL;
}

static void run(call* c) {
  const step* filled = filled_step(c);
  c->cap = 0;
  c->of->run(c);
  if (!filled || c->status < 0) return;
  const size_t size = filled->of                                                  ? filled->of->size
                      : filled->kind == FIELD_CHAR || filled->kind == FIELD_BYTES ? 1
                                                                                  : scalar_size(filled->kind);
  do { /* what is asked for may grow meanwhile */
    c->cap = c->needed;
    c->slots[filled->slot].p = allocate(c, c->cap * size + 1);
    if (!c->slots[filled->slot].p) {
      c->status = QUIRE_ERROR_OUT_OF_MEMORY;
      strcpy(c->err.message, "no memory for the result");
      return;
    }
    c->of->run(c);
  } while (c->status == QUIRE_ERROR_BUFFER_TOO_SMALL && c->needed > c->cap);
}

/* ---- Results ---- */

static napi_value step_value(napi_env env, call* c, const step* s) {
  slot* from = &c->slots[s->slot];
  napi_value value;
  switch (s->what) {
    case STEP_MADE:
      value = new_handle(env, s->handle, from->p);
      from->p = NULL;
      return value;
    case STEP_RESULT:
      return record_value(env, from->p, s->of);
    case STEP_NUMBER:
      return scalar_value(env, s->kind, from);
    case STEP_FILLED:
      return filled_value(env, from->p, c->needed, s->kind, s->of);
    default:
      return NULL;
  }
}

static void free_collected(napi_env env, void* data, void* hint) {
  (void)env, (void)hint;
  free(data);
}

static napi_value collected_value(napi_env env, call* c) {
  napi_value value = NULL;
  bool thrown = false;
  const bool made =
      napi_create_external_buffer(env, c->sink.size, c->sink.data, free_collected, NULL, &value) == napi_ok;
  if (!made) napi_is_exception_pending(env, &thrown);
  if (made || thrown) { /* where it throws, the finalizer has been called */
    c->sink.data = NULL;
  } else { /* hosts such as Electron allow no memory from outside */
    napi_create_buffer_copy(env, c->sink.size, c->sink.data, NULL, &value);
  }
  return value;
}

/* Nothing, the only result, or an array of them. NULL with an exception pending: the call failed. */
static napi_value results(napi_env env, call* c) {
  napi_value found[4], value = NULL;
  uint32_t n = 0;
  if (c->sink.full) {
    napi_throw_range_error(env, "ERR_BUFFER_TOO_LARGE", "the snapshot is larger than a Buffer can be: use save(path)");
    return NULL;
  }
  if (c->of->returns == RETURNS_STATUS && c->status < 0) {
    throw_error(env, c->status, c->err.message, c->err.offset, c->err.os_error);
    return NULL;
  }
  if (c->of->returns == RETURNS_TEXT) return filled_value(env, c->text, strlen(c->text), FIELD_CHAR, NULL);
  if (c->of->returns == RETURNS_NUMBER) return scalar_value(env, FIELD_INT32_T, &c->status);
  for (const step* s = c->of->steps; s->what; ++s) {
    if (s->what < STEP_MADE) continue;
    if (!(found[n++] = step_value(env, c, s))) return NULL;
  }
  if (c->collects) found[n++] = collected_value(env, c);
  if (n == 0)
    napi_get_undefined(env, &value);
  else if (n == 1)
    return found[0];
  else
    napi_create_array_with_length(env, n, &value);
  for (uint32_t i = 0; n && i < n; ++i) napi_set_element(env, value, i, found[i]);
  return value;
}

static void free_call(napi_env env, call* c, bool ran) {
  const bool kept = ran && c->status >= 0; /* the library has them, and drops them itself */
  bool made = false;
  for (const step* s = c->of->steps; s->what; ++s) {
    if (s->what != STEP_MADE) continue;
    made = true;
    if (c->slots[s->slot].p) s->handle->release(c->slots[s->slot].p); /* nobody could take it */
  }
  if (c->progress) finish_progress(env, c->progress);
  if (c->log && !kept) drop_carrier(c->log);
  if (c->source && !(kept && made)) drop_source(c->source);
  for (int i = 0; i < c->n_held; ++i) c->held[i].type->release(c->held[i].pointer);
  if (c->self) napi_delete_reference(env, c->self);
  if (c->work) napi_delete_async_work(env, c->work);
  free(c->sink.data);
  for (block *next, *b = c->blocks; b; b = next) {
    next = b->next;
    free(b);
  }
  free(c);
}

/* ---- The two ways to call ---- */

static call* new_call(napi_env env, napi_callback_info info, bool async) {
  void* data;
  size_t n = MAX_SLOTS;
  napi_value arguments[MAX_SLOTS];
  if (napi_get_cb_info(env, info, &n, arguments, NULL, &data) != napi_ok) return NULL;
  call* c = calloc(1, sizeof *c);
  if (!c) return NULL;
  c->of = data;
  c->async = async;
  if (read_arguments(env, c, arguments)) return c;
  free_call(env, c, false);
  return NULL;
}

static napi_value call_now(napi_env env, napi_callback_info info) {
  call* c = new_call(env, info, false);
  if (!c) return NULL;
  run(c);
  const napi_value value = results(env, c);
  free_call(env, c, true);
  return value;
}

static void execute(napi_env env, void* data) {
  (void)env;
  run(data);
}

static void complete(napi_env env, napi_status status, void* data) {
  call* c = data;
  if (c->exclusive) --c->exclusive->calls;
  if (status != napi_ok) { /* the environment ended before it ran */
    free_call(env, c, false);
    return;
  }
  if (c->progress) finish_progress(env, c->progress);
  c->progress = NULL;
  const napi_value value = results(env, c);
  napi_value error;
  bool pending = false;
  if (napi_is_exception_pending(env, &pending) == napi_ok && pending &&
      napi_get_and_clear_last_exception(env, &error) == napi_ok) {
    napi_reject_deferred(env, c->deferred, error);
  } else if (value) {
    napi_resolve_deferred(env, c->deferred, value);
  }
  free_call(env, c, true);
}

static void complete_alone(napi_env env, napi_value callback, void* context, void* data) {
  (void)callback, (void)context;
  if (env)
    complete(env, napi_ok, data);
  else
    free_call(NULL, data, true); /* which has nothing of an environment */
}

static void* execute_alone(void* data) {
  call* c = data;
  carrier* finished = c->finished;
  run(c);
  if (!carry(finished, c)) free_call(NULL, c, true);
  drop_carrier(finished);
  return NULL;
}

/* What ends other calls must not wait for one of libuv's threads: they are few, and all may be in such calls. Nor does
 * the environment wait for this thread when it ends. */
static bool start_alone(napi_env env, call* c) {
  pthread_t thread;
  pthread_attr_t attributes;
  if (!(c->finished = new_carrier(env, NULL, c->of->name, complete_alone))) return false;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  const bool began = pthread_create(&thread, &attributes, execute_alone, c) == 0;
  pthread_attr_destroy(&attributes);
  if (!began) drop_carrier(c->finished);
  return began;
}

static bool start_pooled(napi_env env, call* c) {
  napi_value name;
  return napi_create_string_utf8(env, c->of->name, NAPI_AUTO_LENGTH, &name) == napi_ok &&
         napi_create_async_work(env, NULL, name, execute, complete, c, &c->work) == napi_ok &&
         napi_queue_async_work(env, c->work) == napi_ok;
}

static napi_value call_async(napi_env env, napi_callback_info info) {
  call* c = new_call(env, info, true);
  if (!c) return NULL;
  napi_value promise;
  if (napi_create_promise(env, &c->deferred, &promise) == napi_ok &&
      (c->of->closes ? start_alone : start_pooled)(env, c)) {
    if (c->exclusive) ++c->exclusive->calls;
    return promise;
  }
  free_call(env, c, false);
  napi_throw_error(env, NULL, "the call cannot be queued");
  return NULL;
}

bool export_functions(napi_env env, napi_value exports) {
  napi_value async;
  if (napi_create_object(env, &async) != napi_ok) return false;
  for (const function* f = raw_functions; f->name; ++f) {
    napi_value now, later;
    if (napi_create_function(env, f->name, NAPI_AUTO_LENGTH, call_now, (void*)f, &now) != napi_ok ||
        napi_create_function(env, f->name, NAPI_AUTO_LENGTH, call_async, (void*)f, &later) != napi_ok ||
        napi_set_named_property(env, exports, f->name, now) != napi_ok ||
        napi_set_named_property(env, async, f->name, later) != napi_ok) {
      return false;
    }
  }
  return napi_set_named_property(env, exports, "async", async) == napi_ok;
}
