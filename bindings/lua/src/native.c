/* quire.native: the raw layer of Lua 5.4. Handles, errors, and the one function that is called for each token. */
#define _GNU_SOURCE
#include "raw.h"

#include <dlfcn.h>
#include <string.h>

typedef struct handle {
  void* pointer; /* NULL: released */
  const handle_type* type;
} handle;

static const char raise_key; /* its address: of the function that raises errors, in the registry */

void check(lua_State* L, quire_status status, const quire_error* err) {
  if (status >= 0) return;
  lua_rawgetp(L, LUA_REGISTRYINDEX, &raise_key);
  lua_pushinteger(L, status);
  lua_pushstring(L, err->message);
  lua_pushinteger(L, err->offset);
  lua_pushinteger(L, err->os_error);
  lua_call(L, 4, 0);
}

void* handle_at(lua_State* L, int index, const char* type) {
  return ((handle*)luaL_checkudata(L, index, type))->pointer;
}

int new_handle(lua_State* L, const char* type) {
  handle* h = lua_newuserdatauv(L, sizeof *h, 0);
  h->pointer = NULL;
  h->type = handle_types;
  while (strcmp(h->type->name, type) != 0) ++h->type;
  luaL_setmetatable(L, type);
  return lua_gettop(L);
}

void push_handle(lua_State* L, int index, void* pointer) {
  ((handle*)lua_touserdata(L, index))->pointer = pointer;
  lua_pushvalue(L, index);
}

/* Whether a function of C below this one has the handle: while it reads its arguments or makes results, the
 * collector may run, and with it a finalizer of the user that closes anything. */
static int is_used(lua_State* L, const handle* h) {
  lua_Debug frame;
  for (int level = 1; lua_getstack(L, level, &frame); ++level) {
    lua_getinfo(L, "S", &frame);
    for (int i = 1; *frame.what == 'C' && lua_getlocal(L, &frame, i); ++i) {
      const int found = lua_touserdata(L, -1) == h;
      lua_pop(L, 1);
      if (found) return 1;
    }
  }
  return 0;
}

/* What the collector does with a handle. */
static int collect(lua_State* L) {
  handle* h = lua_touserdata(L, 1);
  h->type->release(h->pointer);
  h->pointer = NULL;
  return 0;
}

/* release(handle): drops its reference now, or leaves that to the collector where a call under way has it; a second
 * time does nothing. */
static int release(lua_State* L) {
  handle* h = lua_touserdata(L, 1);
  luaL_argexpected(L, h, 1, "handle");
  return is_used(L, h) ? 0 : collect(L);
}

/* on_error(function): called as function(code, message, offset, os_error) where a call fails; it must raise. */
static int on_error(lua_State* L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_settop(L, 1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &raise_key);
  return 0;
}

static void push_token(lua_State* L, const quire_event* event) {
  lua_createtable(L, 0, 6);
  lua_pushliteral(L, "token");
  lua_setfield(L, -2, "kind");
  lua_pushlstring(L, event->text_len ? event->text : "", event->text_len);
  lua_setfield(L, -2, "text");
  lua_pushinteger(L, event->token);
  lua_setfield(L, -2, "token");
  lua_pushnumber(L, (lua_Number)event->logprob);
  lua_setfield(L, -2, "logprob");
  lua_pushinteger(L, event->n_tokens);
  lua_setfield(L, -2, "n_tokens");
}

/* stream_next(stream, timeout_ms): an event, nil at the end, or false where none came in time. A token's `kind` is
 * "token"; of other events it is the number, and all fields are there. */
static int stream_next(lua_State* L) {
  quire_stream* stream = handle_at(L, 1, "quire_stream");
  const int32_t timeout_ms = (int32_t)luaL_checkinteger(L, 2);
  quire_event event = {.struct_size = sizeof event};
  quire_error err;
  const quire_status status = quire_stream_next(stream, timeout_ms, &event, &err);
  check(L, status, &err);
  if (status == QUIRE_END) return 0;
  if (status == QUIRE_TIMEOUT) {
    lua_pushboolean(L, 0);
  } else if (event.kind == QUIRE_EVENT_TOKEN && event.n_top_logprobs == 0) {
    push_token(L, &event);
  } else {
    push_record(L, &event, &fields_of_quire_event);
  }
  return 1;
}

/* Lua unloads its modules when a state is closed, while threads of the library may still run for it. */
static void never_unload(void) {
  Dl_info info;
  if (dladdr(&raise_key, &info)) dlopen(info.dli_fname, RTLD_NOW | RTLD_NODELETE);
}

__attribute__((visibility("default"))) int luaopen_quire_native(lua_State* L) {
  static const luaL_Reg functions[] = {
      {"release", release}, {"on_error", on_error}, {"stream_next", stream_next}, {NULL, NULL}};
  never_unload();
  for (const handle_type* type = handle_types; type->name; ++type) {
    luaL_newmetatable(L, type->name);
    lua_pushcfunction(L, collect);
    lua_setfield(L, -2, "__gc");
    lua_pop(L, 1);
  }
  lua_newtable(L);
  luaL_setfuncs(L, raw_functions, 0);
  luaL_setfuncs(L, functions, 0);
  open_snapshot_bytes(L);
  return 1;
}
