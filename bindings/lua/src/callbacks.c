/* Callbacks that come on the thread of the call that was given them: they may call Lua. */
#include "raw.h"

#include <string.h>

/* The Lua functions lie on the stack of the call, at these indexes. */
struct callbacks {
  lua_State* L;
  int progress, write, commit, read;
};

callbacks* new_callbacks(lua_State* L) {
  callbacks* calls = lua_newuserdatauv(L, sizeof *calls, 0);
  memset(calls, 0, sizeof *calls);
  calls->L = L;
  return calls;
}

static void on_progress(void* user_data, int64_t done, int64_t total) {
  callbacks* calls = user_data;
  lua_State* L = calls->L;
  const int top = lua_gettop(L);
  if (!lua_checkstack(L, 16)) return;
  lua_pushvalue(L, calls->progress);
  lua_pushinteger(L, done);
  lua_pushinteger(L, total);
  lua_pcall(L, 2, 0, 0); /* the layer above catches what a function raises; here, memory may be missing */
  lua_settop(L, top);
}

/* Tells C why the Lua function failed: it returned nil, message, errno; or raised. */
static void explain(lua_State* L, int first, quire_error* err) {
  const int at = lua_isnoneornil(L, first + 1) ? first : first + 1;
  const char* message = lua_type(L, at) == LUA_TSTRING ? lua_tostring(L, at) : NULL; /* a number would take memory */
  err->os_error = (int32_t)lua_tointeger(L, first + 2);
  if (message) strncpy(err->message, message, sizeof err->message - 1);
}

typedef struct written {
  const char* bytes;
  size_t n;
} written;

/* write(function, written): what the function returns of the bytes. Their string takes memory, which may be missing. */
static int write_string(lua_State* L) {
  const written* w = lua_touserdata(L, 2);
  lua_settop(L, 1);
  lua_pushlstring(L, w->bytes, w->n);
  lua_call(L, 1, 3);
  return 3;
}

static int64_t on_write(void* user_data, const void* bytes, size_t n, quire_error* err) {
  callbacks* calls = user_data;
  lua_State* L = calls->L;
  const int top = lua_gettop(L);
  int64_t taken = -1;
  written w = {bytes, n};
  if (!lua_checkstack(L, 16)) return -1;
  lua_pushcfunction(L, write_string);
  lua_pushvalue(L, calls->write);
  lua_pushlightuserdata(L, &w);
  if (lua_pcall(L, 2, 3, 0) == LUA_OK && lua_isinteger(L, top + 1))
    taken = lua_tointeger(L, top + 1);
  else
    explain(L, top + 1, err);
  lua_settop(L, top);
  return taken;
}

static int32_t on_commit(void* user_data, quire_error* err) {
  callbacks* calls = user_data;
  lua_State* L = calls->L;
  const int top = lua_gettop(L);
  int32_t status = -1;
  if (!lua_checkstack(L, 16)) return -1;
  lua_pushvalue(L, calls->commit);
  if (lua_pcall(L, 0, 3, 0) == LUA_OK && lua_toboolean(L, top + 1))
    status = 0;
  else
    explain(L, top + 1, err);
  lua_settop(L, top);
  return status;
}

static int64_t on_read(void* user_data, int64_t offset, void* buffer, size_t n, quire_error* err) {
  callbacks* calls = user_data;
  lua_State* L = calls->L;
  const int top = lua_gettop(L);
  int64_t given = -1;
  if (!lua_checkstack(L, 16)) return -1;
  lua_pushvalue(L, calls->read);
  lua_pushinteger(L, offset);
  lua_pushinteger(L, (lua_Integer)n);
  if (lua_pcall(L, 2, 3, 0) == LUA_OK && lua_type(L, top + 1) == LUA_TSTRING) {
    size_t len;
    const char* data = lua_tolstring(L, top + 1, &len);
    given = (int64_t)len;
    memcpy(buffer, data, len < n ? len : n);
  } else {
    explain(L, top + 1, err);
  }
  lua_settop(L, top);
  return given;
}

void set_callback(lua_State* L, callbacks* calls, const field* f, char* to) {
  const int at = lua_gettop(L);
  *(void**)(to + f->second) = calls;
  switch (f->kind) {
    case FIELD_PROGRESS:
      calls->progress = at;
      *(quire_progress_callback*)(to + f->offset) = on_progress;
      break;
    case FIELD_WRITE:
      calls->write = at;
      *(quire_write_callback*)(to + f->offset) = on_write;
      break;
    case FIELD_COMMIT:
      calls->commit = at;
      *(quire_commit_callback*)(to + f->offset) = on_commit;
      break;
    default:
      calls->read = at;
      *(quire_read_callback*)(to + f->offset) = on_read;
      break;
  }
}
