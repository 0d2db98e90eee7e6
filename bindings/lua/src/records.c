/* Tables of Lua to structs of C, and back, by the descriptions in interface.c. */
#define _POSIX_C_SOURCE 200809L
#include "raw.h"

#include <string.h>

static void read_record(lua_State* L, int index, const record* of, char* to);

static int wrong(lua_State* L, const char* name, const char* expected, int index) {
  return luaL_error(L, "%s: expected %s, not %s", name, expected, luaL_typename(L, index));
}

static lua_Integer integer_at(lua_State* L, int index, const char* name, lua_Integer least, lua_Integer most) {
  int is_integer;
  const lua_Integer value = lua_tointegerx(L, index, &is_integer);
  if (!is_integer) wrong(L, name, "an integer", index);
  if (value < least || value > most) luaL_error(L, "%s: %I is out of range", name, (LUAI_UACINT)value);
  return value;
}

static double number_at(lua_State* L, int index, const char* name) {
  int is_number;
  const double value = lua_tonumberx(L, index, &is_number);
  if (!is_number) wrong(L, name, "a number", index);
  return value;
}

/* The value at `index` as a scalar of C. */
void scalar_at(lua_State* L, int index, const char* name, int kind, void* to) {
  switch (kind) {
    case FIELD_INT32_T:
      *(int32_t*)to = (int32_t)integer_at(L, index, name, INT32_MIN, INT32_MAX);
      break;
    case FIELD_UINT32_T:
      *(uint32_t*)to = (uint32_t)integer_at(L, index, name, 0, UINT32_MAX);
      break;
    case FIELD_INT64_T:
      *(int64_t*)to = integer_at(L, index, name, INT64_MIN, INT64_MAX);
      break;
    case FIELD_UINT64_T:
      *(uint64_t*)to = (uint64_t)integer_at(L, index, name, INT64_MIN, INT64_MAX);
      break;
    case FIELD_SIZE_T:
      *(size_t*)to = (size_t)integer_at(L, index, name, 0, INT64_MAX);
      break;
    case FIELD_FLOAT:
      *(float*)to = (float)number_at(L, index, name);
      break;
    default:
      *(double*)to = number_at(L, index, name);
      break;
  }
}

static size_t scalar_size(int kind) {
  return kind == FIELD_INT32_T || kind == FIELD_UINT32_T || kind == FIELD_FLOAT ? 4 : 8;
}

const char* text_at(lua_State* L, int index, const char* name, size_t* len) {
  if (lua_type(L, index) != LUA_TSTRING) wrong(L, name, "a string", index);
  return lua_tolstring(L, index, len); /* the argument that it is, or the table that it lies in, keeps it */
}

static void read_element(lua_State* L, const char* name, int element, const record* of, char* to) {
  if (of == &fields_of_quire_text) {
    quire_text* text = (quire_text*)to;
    text->data = text_at(L, -1, name, &text->len);
  } else if (of) {
    read_record(L, lua_gettop(L), of, to);
  } else {
    scalar_at(L, -1, name, element, to);
  }
}

/* Leaves the array on the stack, above what was there. */
static const void* read_list(lua_State* L, int index, const char* name, int element, const record* of, size_t* n) {
  if (!lua_istable(L, index)) wrong(L, name, "a list", index);
  const size_t size = of ? of->size : scalar_size(element);
  *n = lua_rawlen(L, index);
  luaL_checkstack(L, 16, NULL);
  char* array = lua_newuserdatauv(L, *n * size + 1, 0);
  memset(array, 0, *n * size + 1);
  for (size_t i = 0; i < *n; ++i) {
    lua_rawgeti(L, index, (lua_Integer)i + 1);
    read_element(L, name, element, of, array + i * size);
    lua_remove(L, lua_gettop(L));
  }
  return array;
}

static void refuse_unknown(lua_State* L, int index, const record* of) {
  lua_pushnil(L);
  while (lua_next(L, index)) {
    const char* key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : luaL_typename(L, -2);
    const field* f = of->fields;
    while (f->name && strcmp(f->name, key) != 0) ++f;
    if (!f->name) luaL_error(L, "there is no option %s", key);
    lua_pop(L, 1);
  }
}

/* The value on the top of the stack. Returns whether it must stay there. */
static int read_field(lua_State* L, const field* f, char* to, callbacks** calls) {
  const int index = lua_gettop(L);
  switch (f->kind) {
    case FIELD_TEXT:
      *(const char**)(to + f->offset) = text_at(L, index, f->name, (size_t*)(to + f->second));
      return 0;
    case FIELD_LIST:
      *(const void**)(to + f->offset) = read_list(L, index, f->name, f->element, f->of, (size_t*)(to + f->second));
      return 1;
    case FIELD_HANDLE:
      *(void**)(to + f->offset) = handle_at(L, index, f->type);
      return 0;
    case FIELD_BYTES:
      set_bytes(L, index, (quire_snapshot_reader*)to);
      return 0;
    case FIELD_PROGRESS:
    case FIELD_WRITE:
    case FIELD_COMMIT:
    case FIELD_READ:
      if (!lua_isfunction(L, index)) wrong(L, f->name, "a function", index);
      if (!*calls) {
        *calls = new_callbacks(L);
        lua_pushvalue(L, index);
      }
      set_callback(L, *calls, f, to);
      return 1;
    case FIELD_CHARS:
      return luaL_error(L, "%s can only be read", f->name);
    default:
      scalar_at(L, index, f->name, f->kind, to + f->offset);
      return 0;
  }
}

static void read_record(lua_State* L, int index, const record* of, char* to) {
  callbacks* calls = NULL;
  if (!lua_istable(L, index)) wrong(L, of->name, "a table", index);
  luaL_checkstack(L, 64, NULL);
  refuse_unknown(L, index, of);
  if (of->grows) *(uint32_t*)to = (uint32_t)of->size;
  for (const field* f = of->fields; f->name; ++f) {
    lua_pushstring(L, f->name);
    if (lua_rawget(L, index) == LUA_TNIL || !read_field(L, f, to, &calls)) lua_pop(L, 1);
  }
}

const void* record_at(lua_State* L, int index, const record* of) {
  if (lua_isnoneornil(L, index)) return NULL;
  char* to = lua_newuserdatauv(L, of->size, 0);
  memset(to, 0, of->size);
  read_record(L, index, of, to);
  return to;
}

const void* list_at(lua_State* L, int index, int element, const record* of, size_t* n) {
  *n = 0;
  return lua_isnoneornil(L, index) ? NULL : read_list(L, index, of ? of->name : "ids", element, of, n);
}

static void push_scalar(lua_State* L, int kind, const void* from) {
  switch (kind) {
    case FIELD_INT32_T:
      lua_pushinteger(L, *(const int32_t*)from);
      break;
    case FIELD_UINT32_T:
      lua_pushinteger(L, *(const uint32_t*)from);
      break;
    case FIELD_FLOAT:
      lua_pushnumber(L, (lua_Number) * (const float*)from);
      break;
    case FIELD_DOUBLE:
      lua_pushnumber(L, *(const double*)from);
      break;
    default:
      lua_pushinteger(L, *(const int64_t*)from);
      break;
  }
}

void push_filled(lua_State* L, const void* from, size_t n, int element, const record* of) {
  if (element == FIELD_CHARS) {
    lua_pushlstring(L, from, n);
    return;
  }
  const size_t size = of ? of->size : scalar_size(element);
  lua_createtable(L, n < INT32_MAX ? (int)n : 0, 0);
  for (size_t i = 0; i < n; ++i) {
    const char* at = (const char*)from + i * size;
    if (of)
      push_record(L, at, of);
    else
      push_scalar(L, element, at);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
}

static void push_text(lua_State* L, const char* text, size_t len) {
  lua_pushlstring(L, text ? text : "", text ? len : 0);
}

void push_record(lua_State* L, const void* record_of, const record* of) {
  const char* from = record_of;
  luaL_checkstack(L, 8, NULL);
  lua_createtable(L, 0, 16);
  for (const field* f = of->fields; f->name; ++f) {
    const char* at = from + f->offset;
    if (f->kind == FIELD_CHARS)
      push_text(L, at, strnlen(at, f->second));
    else if (f->kind == FIELD_TEXT)
      push_text(L, *(const char* const*)at, *(const size_t*)(from + f->second));
    else if (f->kind == FIELD_LIST)
      push_filled(L, *(const void* const*)at, *(const size_t*)(from + f->second), f->element, f->of);
    else if (f->kind <= FIELD_DOUBLE)
      push_scalar(L, f->kind, at);
    else
      continue;
    lua_setfield(L, -2, f->name);
  }
}
