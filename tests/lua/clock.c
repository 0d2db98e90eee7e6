/* What the overhead program asks of the system on Lua 5.4: clock() is a monotonic time in seconds; counted() returns
 * how many blocks the state has asked for since count(). */
#define _POSIX_C_SOURCE 200809L
#include <lauxlib.h>
#include <lua.h>
#include <time.h>

static lua_Alloc own;
static lua_Integer n_blocks;

static void* counting(void* data, void* block, size_t old_size, size_t size) {
  if (size > 0 && !block) ++n_blocks;
  return own(data, block, old_size, size);
}

static int clock_seconds(lua_State* L) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  lua_pushnumber(L, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
  return 1;
}

static int count(lua_State* L) {
  void* data;
  own = lua_getallocf(L, &data);
  n_blocks = 0;
  lua_setallocf(L, counting, data);
  return 0;
}

static int counted(lua_State* L) {
  void* data;
  lua_getallocf(L, &data);
  lua_setallocf(L, own, data); /* the state outlives this module */
  lua_pushinteger(L, n_blocks);
  return 1;
}

int luaopen_quire_test_clock(lua_State* L) {
  static const luaL_Reg functions[] = {{"clock", clock_seconds}, {"count", count}, {"counted", counted}, {NULL, NULL}};
  luaL_newlib(L, functions);
  return 1;
}
