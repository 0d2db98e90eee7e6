/* The bytes of a snapshot, which a loaded session reads for as long as it lives, on threads of the library: they never
 * enter Lua. Both sides count references to the bytes, because either may let go of them last. */
#include "raw.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BYTES "quire_bytes"

typedef struct snapshot_bytes {
  pthread_mutex_t mutex;
  int references;
  int lent; /* the library was given a reference */
  size_t n_bytes;
  char bytes[];
} snapshot_bytes;

static void let_go(void* user_data) {
  snapshot_bytes* s = user_data;
  pthread_mutex_lock(&s->mutex);
  const int left = --s->references;
  pthread_mutex_unlock(&s->mutex);
  if (left > 0) return;
  pthread_mutex_destroy(&s->mutex);
  free(s);
}

static int64_t on_read(void* user_data, int64_t offset, void* buffer, size_t n, quire_error* err) {
  const snapshot_bytes* s = user_data;
  (void)err;
  memcpy(buffer, s->bytes + offset, n); /* offset + n is at most n_bytes, says quire.h */
  return (int64_t)n;
}

static snapshot_bytes* bytes_at(lua_State* L, int index) { return *(snapshot_bytes**)luaL_checkudata(L, index, BYTES); }

void set_bytes(lua_State* L, int index, quire_snapshot_reader* to) {
  snapshot_bytes* s = bytes_at(L, index);
  pthread_mutex_lock(&s->mutex);
  ++s->references;
  s->lent = 1;
  pthread_mutex_unlock(&s->mutex);
  to->n_bytes = (int64_t)s->n_bytes;
  to->read = on_read;
  to->destroy = let_go;
  to->user_data = s;
}

/* bytes(string): a copy, for the field `bytes` of session_load_from's reader. */
static int new_bytes(lua_State* L) {
  size_t n;
  const char* bytes = luaL_checklstring(L, 1, &n);
  snapshot_bytes** held = lua_newuserdatauv(L, sizeof *held, 0);
  *held = calloc(1, sizeof **held + n);
  if (!*held) return luaL_error(L, "not enough memory");
  pthread_mutex_init(&(*held)->mutex, NULL);
  (*held)->references = 1;
  (*held)->n_bytes = n;
  memcpy((*held)->bytes, bytes, n);
  luaL_setmetatable(L, BYTES);
  return 1;
}

/* bytes:abandon(): the call that was given them failed, so the library has no reference after all. */
static int abandon(lua_State* L) {
  snapshot_bytes* s = bytes_at(L, 1);
  if (s->lent) {
    s->lent = 0;
    let_go(s);
  }
  return 0;
}

static int collect(lua_State* L) {
  snapshot_bytes** held = lua_touserdata(L, 1);
  if (*held) let_go(*held);
  *held = NULL;
  return 0;
}

void open_snapshot_bytes(lua_State* L) {
  static const luaL_Reg methods[] = {{"abandon", abandon}, {"__gc", collect}, {NULL, NULL}};
  luaL_newmetatable(L, BYTES);
  luaL_setfuncs(L, methods, 0);
  lua_pushvalue(L, -1);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
  lua_pushcfunction(L, new_bytes);
  lua_setfield(L, -2, "bytes");
}
