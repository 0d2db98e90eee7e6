/* What C calls back, on whatever thread. JavaScript runs on its own thread only, to which threadsafe functions carry
 * the numbers and messages; snapshots go to and come from memory of C. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "raw.h"

static bool is_function(napi_env env, napi_value value) {
  napi_valuetype kind;
  return napi_typeof(env, value, &kind) == napi_ok && kind == napi_function;
}

static bool new_threadsafe(napi_env env, napi_value function, const char* name, void* context, napi_finalize finalize,
                           napi_threadsafe_function_call_js call, napi_threadsafe_function* out) {
  napi_value text;
  return napi_create_string_utf8(env, name, NAPI_AUTO_LENGTH, &text) == napi_ok &&
         napi_create_threadsafe_function(env, function, NULL, text, 0, 1, context, finalize, context, call, out) ==
             napi_ok;
}

/* ---- Progress: of many reports that come before JavaScript runs, it is told the last ---- */

struct progress {
  napi_threadsafe_function function;
  napi_ref callback;
  pthread_mutex_t mutex;
  bool untold;
  int64_t done, total;
};

static void tell(napi_env env, progress* p, napi_value callback) {
  pthread_mutex_lock(&p->mutex);
  const bool untold = p->untold;
  const int64_t done = p->done, total = p->total;
  p->untold = false;
  pthread_mutex_unlock(&p->mutex);
  if (!untold) return;
  napi_value receiver, arguments[2];
  napi_get_undefined(env, &receiver);
  napi_create_int64(env, done, &arguments[0]);
  napi_create_int64(env, total, &arguments[1]);
  napi_call_function(env, receiver, callback, 2, arguments, NULL);
}

static void tell_progress(napi_env env, napi_value callback, void* context, void* data) {
  (void)data;
  if (env) tell(env, context, callback);
}

static void on_progress(void* user_data, int64_t done, int64_t total) {
  progress* p = user_data;
  pthread_mutex_lock(&p->mutex);
  const bool queued = p->untold;
  p->untold = true;
  p->done = done;
  p->total = total;
  pthread_mutex_unlock(&p->mutex);
  if (!queued) napi_call_threadsafe_function(p->function, NULL, napi_tsfn_nonblocking);
}

static void free_progress(napi_env env, void* data, void* hint) {
  progress* p = data;
  (void)hint;
  if (p->callback) napi_delete_reference(env, p->callback);
  pthread_mutex_destroy(&p->mutex);
  free(p);
}

bool set_progress(napi_env env, call* c, napi_value value, const field* f, char* to) {
  if (!c->async || !is_function(env, value)) return wrong(env, f->name, "a function, of a call that returns a promise");
  progress* p = calloc(1, sizeof *p);
  if (!p) return napi_throw_error(env, NULL, "out of memory") != napi_ok;
  pthread_mutex_init(&p->mutex, NULL);
  napi_create_reference(env, value, 1, &p->callback);
  if (!new_threadsafe(env, value, "quire progress", p, free_progress, tell_progress, &p->function)) {
    free_progress(env, p, NULL);
    return napi_throw_error(env, NULL, "no threadsafe function") != napi_ok;
  }
  c->progress = p;
  *(quire_progress_callback*)(to + f->offset) = on_progress;
  *(void**)(to + f->second) = p;
  return true;
}

void finish_progress(napi_env env, progress* p) {
  napi_value callback = NULL;
  if (napi_get_reference_value(env, p->callback, &callback) == napi_ok && callback) tell(env, p, callback);
  napi_release_threadsafe_function(p->function, napi_tsfn_abort);
}

/* ---- Carriers: who calls has one hold on it, the environment the other. Either may go first ---- */

struct carrier {
  napi_threadsafe_function function;
  pthread_mutex_t mutex;
  bool open; /* the function is there: the environment frees it when it ends, whoever still holds it */
  int holds;
};

static void let_go(carrier* to) { /* with the mutex, which it unlocks */
  const bool last = --to->holds == 0;
  pthread_mutex_unlock(&to->mutex);
  if (!last) return;
  pthread_mutex_destroy(&to->mutex);
  free(to);
}

/* The environment ends, or who calls let go before. */
static void end_carrier(napi_env env, void* data, void* hint) {
  carrier* to = data;
  (void)env, (void)hint;
  pthread_mutex_lock(&to->mutex);
  to->open = false;
  let_go(to);
}

carrier* new_carrier(napi_env env, napi_value function, const char* name, napi_threadsafe_function_call_js call) {
  carrier* to = calloc(1, sizeof *to);
  if (!to) return NULL;
  pthread_mutex_init(&to->mutex, NULL);
  to->open = true;
  to->holds = 2;
  if (new_threadsafe(env, function, name, to, end_carrier, call, &to->function)) return to;
  pthread_mutex_destroy(&to->mutex);
  free(to);
  return NULL;
}

bool carry(carrier* to, void* data) {
  pthread_mutex_lock(&to->mutex);
  const bool taken = to->open && napi_call_threadsafe_function(to->function, data, napi_tsfn_nonblocking) == napi_ok;
  pthread_mutex_unlock(&to->mutex);
  return taken;
}

void drop_carrier(carrier* to) {
  pthread_mutex_lock(&to->mutex);
  if (to->open) napi_release_threadsafe_function(to->function, napi_tsfn_release);
  let_go(to);
}

/* ---- Log ---- */

typedef struct message {
  int32_t level;
  size_t len;
  char text[];
} message;

static void on_log(void* user_data, int32_t level, const char* text, size_t len) {
  message* m = malloc(sizeof *m + len);
  if (!m) return;
  m->level = level;
  m->len = len;
  memcpy(m->text, text, len);
  if (!carry(user_data, m)) free(m);
}

static void tell_log(napi_env env, napi_value callback, void* context, void* data) {
  message* m = data;
  (void)context;
  if (env) {
    napi_value receiver, arguments[2];
    napi_get_undefined(env, &receiver);
    napi_create_int32(env, m->level, &arguments[0]);
    napi_create_string_utf8(env, m->text, m->len, &arguments[1]);
    napi_call_function(env, receiver, callback, 2, arguments, NULL);
  }
  free(m);
}

static void on_log_destroy(void* user_data) { drop_carrier(user_data); }

bool set_log(napi_env env, call* c, napi_value value, quire_runtime_options* to) {
  if (!is_function(env, value)) return wrong(env, "log", "a function");
  carrier* log = new_carrier(env, value, "quire log", tell_log);
  if (!log) return napi_throw_error(env, NULL, "no threadsafe function") != napi_ok;
  napi_unref_threadsafe_function(env, log->function); /* it keeps no process alive */
  c->log = log;
  to->log = on_log;
  to->log_user_data = log;
  to->log_destroy = on_log_destroy;
  return true;
}

/* ---- Snapshots in memory ---- */

struct bytes {
  size_t size;
  char data[];
};

static int64_t on_read(void* user_data, int64_t offset, void* buffer, size_t n, quire_error* err) {
  const bytes* source = user_data;
  (void)err;
  const size_t left = source->size - (size_t)offset;
  n = n < left ? n : left;
  memcpy(buffer, source->data + offset, n);
  return (int64_t)n;
}

static void on_read_destroy(void* user_data) { drop_source(user_data); }

void drop_source(bytes* source) { free(source); }

/* A copy: sessions read it on other threads, as long as any of them lives. */
bool set_source(napi_env env, call* c, napi_value value, quire_snapshot_reader* to) {
  void* data;
  size_t size;
  bool typed = false;
  napi_typedarray_type type = napi_int8_array;
  if (napi_is_typedarray(env, value, &typed) == napi_ok && typed)
    napi_get_typedarray_info(env, value, &type, &size, &data, NULL, NULL);
  if (type != napi_uint8_array) return wrong(env, "bytes", "a Uint8Array");
  bytes* source = malloc(sizeof *source + size + 1);
  if (!source) return napi_throw_error(env, NULL, "out of memory") != napi_ok;
  source->size = size;
  if (size) memcpy(source->data, data, size);
  c->source = source;
  to->read = on_read;
  to->destroy = on_read_destroy;
  to->user_data = source;
  to->n_bytes = (int64_t)size;
  return true;
}

static int64_t on_write(void* user_data, const void* from, size_t n, quire_error* err) {
  sink* to = user_data;
  if (n > to->most - to->size) {
    to->full = true;
    return -1;
  }
  if (to->size + n > to->room) {
    const size_t room = 2 * (to->size + n);
    char* grown = realloc(to->data, room);
    if (!grown) {
      strcpy(err->message, "no memory for the snapshot");
      return -1;
    }
    to->data = grown;
    to->room = room;
  }
  memcpy(to->data + to->size, from, n);
  to->size += n;
  return (int64_t)n;
}

bool set_sink(napi_env env, call* c, napi_value value, quire_snapshot_writer* to) {
  int64_t most;
  if (napi_get_value_int64(env, value, &most) != napi_ok || most < 1)
    return wrong(env, "write", "the most bytes to collect");
  c->sink.most = (size_t)most;
  c->collects = true;
  to->write = on_write;
  to->user_data = &c->sink;
  return true;
}
