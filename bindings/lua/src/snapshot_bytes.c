/* What the library's own threads use. They never enter Lua: what they do here is C alone, on memory that both sides
 * count references to, because either may let go of it last. */
#include "raw.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define LOG_QUEUE "quire_log_queue"
#define BYTES "quire_bytes"
#define MOST_LINES 4096 /* more, and the oldest go */

typedef struct line {
  struct line* next;
  int32_t level;
  size_t len;
  char text[];
} line;

typedef struct shared {
  pthread_mutex_t mutex;
  int references;
  int lent; /* the library was given a reference */
  line *first, *last;
  int n_lines;
  int64_t n_lost;
  size_t n_bytes; /* and the bytes of a snapshot */
  char bytes[];
} shared;

static void let_go(void* user_data) {
  shared* s = user_data;
  pthread_mutex_lock(&s->mutex);
  const int left = --s->references;
  pthread_mutex_unlock(&s->mutex);
  if (left > 0) return;
  while (s->first) {
    line* next = s->first->next;
    free(s->first);
    s->first = next;
  }
  pthread_mutex_destroy(&s->mutex);
  free(s);
}

static void on_log(void* user_data, int32_t level, const char* message, size_t len) {
  shared* s = user_data;
  line* added = malloc(sizeof *added + len);
  if (added) {
    *added = (line){.level = level, .len = len};
    memcpy(added->text, message, len);
  }
  pthread_mutex_lock(&s->mutex);
  if (!added) {
    ++s->n_lost;
  } else {
    *(s->first ? &s->last->next : &s->first) = added;
    s->last = added;
    if (++s->n_lines > MOST_LINES) {
      line* oldest = s->first;
      s->first = oldest->next;
      --s->n_lines;
      ++s->n_lost;
      free(oldest);
    }
  }
  pthread_mutex_unlock(&s->mutex);
}

static int64_t on_read(void* user_data, int64_t offset, void* buffer, size_t n, quire_error* err) {
  const shared* s = user_data;
  (void)err;
  memcpy(buffer, s->bytes + offset, n); /* offset + n is at most n_bytes, says quire.h */
  return (int64_t)n;
}

static void lend(shared* s) {
  pthread_mutex_lock(&s->mutex);
  ++s->references;
  s->lent = 1;
  pthread_mutex_unlock(&s->mutex);
}

static shared* shared_at(lua_State* L, int index, const char* type) {
  return *(shared**)luaL_checkudata(L, index, type);
}

void set_log(lua_State* L, int index, quire_runtime_options* to) {
  shared* s = shared_at(L, index, LOG_QUEUE);
  lend(s);
  to->log = on_log;
  to->log_user_data = s;
  to->log_destroy = let_go;
}

void set_bytes(lua_State* L, int index, quire_snapshot_reader* to) {
  shared* s = shared_at(L, index, BYTES);
  lend(s);
  to->n_bytes = (int64_t)s->n_bytes;
  to->read = on_read;
  to->destroy = let_go;
  to->user_data = s;
}

static int new_shared(lua_State* L, const char* type, const char* bytes, size_t n_bytes) {
  shared** held = lua_newuserdatauv(L, sizeof *held, 0);
  *held = calloc(1, sizeof **held + n_bytes);
  if (!*held) return luaL_error(L, "not enough memory");
  pthread_mutex_init(&(*held)->mutex, NULL);
  (*held)->references = 1;
  (*held)->n_bytes = n_bytes;
  if (n_bytes) memcpy((*held)->bytes, bytes, n_bytes);
  luaL_setmetatable(L, type);
  return 1;
}

/* log_queue(): for the field `log` of runtime_create. */
static int new_log_queue(lua_State* L) { return new_shared(L, LOG_QUEUE, NULL, 0); }

/* bytes(string): a copy, for the field `bytes` of session_load_from's reader. */
static int new_bytes(lua_State* L) {
  size_t n;
  const char* bytes = luaL_checklstring(L, 1, &n);
  return new_shared(L, BYTES, bytes, n);
}

/* queue:take(): the level and text of the oldest line, or nil; then how many lines were lost since. */
static int take(lua_State* L) {
  shared* s = shared_at(L, 1, LOG_QUEUE);
  pthread_mutex_lock(&s->mutex);
  line* taken = s->first;
  const int64_t n_lost = s->n_lost;
  if (taken) {
    s->first = taken->next;
    --s->n_lines;
    s->n_lost = 0;
  }
  pthread_mutex_unlock(&s->mutex);
  if (!taken) return 0;
  lua_pushinteger(L, taken->level);
  lua_pushlstring(L, taken->text, taken->len);
  lua_pushinteger(L, n_lost);
  free(taken);
  return 3;
}

/* object:abandon(): the call that was given it failed, so the library has no reference after all. */
static int abandon(lua_State* L) {
  shared** held = luaL_testudata(L, 1, LOG_QUEUE);
  shared* s = held ? *held : shared_at(L, 1, BYTES);
  if (s->lent) {
    s->lent = 0;
    let_go(s);
  }
  return 0;
}

static int collect(lua_State* L) {
  shared** held = lua_touserdata(L, 1);
  if (*held) let_go(*held);
  *held = NULL;
  return 0;
}

void open_shared(lua_State* L) {
  static const luaL_Reg methods[] = {{"take", take}, {"abandon", abandon}, {"__gc", collect}, {NULL, NULL}};
  static const luaL_Reg functions[] = {{"log_queue", new_log_queue}, {"bytes", new_bytes}, {NULL, NULL}};
  static const char* const types[] = {LOG_QUEUE, BYTES};
  for (size_t i = 0; i < 2; ++i) {
    luaL_newmetatable(L, types[i]);
    luaL_setfuncs(L, methods, 0);
    lua_pushvalue(L, -1);
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);
  }
  luaL_setfuncs(L, functions, 0);
}
