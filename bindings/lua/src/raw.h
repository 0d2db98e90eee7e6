/* The C module of Lua 5.4: what its generated functions (interface.c) are made of. bindings/plans.py says how C's
 * parameters become Lua's. All of it runs on the thread that runs the Lua state; only snapshot_bytes.c has functions
 * for the library's threads. */
#ifndef QUIRE_LUA_RAW_H_
#define QUIRE_LUA_RAW_H_

#include <lauxlib.h>
#include <lua.h>
#include <stddef.h>
#include <stdint.h>

#include "quire/quire.h"

#pragma GCC visibility push(hidden) /* the host may have functions of the same names */

/* What a field of a struct is in Lua; the scalars are named as C's types are. */
enum {
  FIELD_INT32_T = 1,
  FIELD_UINT32_T,
  FIELD_INT64_T,
  FIELD_UINT64_T,
  FIELD_SIZE_T,
  FIELD_FLOAT,
  FIELD_DOUBLE,
  FIELD_TEXT,     /* a string; `second` is the offset of its length */
  FIELD_CHARS,    /* a string in the struct itself; `second` is the room for it */
  FIELD_LIST,     /* a list; `second` is the offset of the number of its elements */
  FIELD_HANDLE,   /* a handle */
  FIELD_PROGRESS, /* functions, called on this thread during the call alone; `second` is the offset of user_data */
  FIELD_WRITE,
  FIELD_COMMIT,
  FIELD_READ,
  FIELD_BYTES /* bytes for a snapshot reader (snapshot_bytes.c) */
};

typedef struct record record;

typedef struct field {
  const char* name; /* NULL behind the last one */
  int kind;         /* FIELD_* */
  size_t offset;
  size_t second;
  int element;      /* of a list of scalars: FIELD_* */
  const record* of; /* of a list of structs */
  const char* type; /* of a handle */
} field;

struct record {
  const char* name;
  size_t size;
  int grows; /* it begins with struct_size */
  const field* fields;
};

/* records.c. The pointers that these return stay good until the C function that called them returns. */
const char* text_at(lua_State* L, int index, const char* name, size_t* len);
void scalar_at(lua_State* L, int index, const char* name, int kind, void* to); /* kind: FIELD_* */
const void* record_at(lua_State* L, int index, const record* of);              /* NULL for nil */
const void* list_at(lua_State* L, int index, int element, const record* of, size_t* n);
void push_record(lua_State* L, const void* from, const record* of);
/* The result of a `buf, cap, *needed` function. */
void push_filled(lua_State* L, const void* from, size_t n, int element, const record* of);

/* callbacks.c: writes a function of C and its user_data, which call the Lua function on the top of the stack. */
typedef struct callbacks callbacks;
callbacks* new_callbacks(lua_State* L);
void set_callback(lua_State* L, callbacks* calls, const field* f, char* to);

/* snapshot_bytes.c */
void set_bytes(lua_State* L, int index, quire_snapshot_reader* to);
void open_snapshot_bytes(lua_State* L); /* adds bytes to the table on the top of the stack */

/* native.c */
void check(lua_State* L, quire_status status, const quire_error* err); /* raises a failure */
void* handle_at(lua_State* L, int index, const char* type);            /* NULL where it was released */
int new_handle(lua_State* L, const char* type);                        /* pushes one that holds nothing; its index */
void push_handle(lua_State* L, int index, void* pointer);              /* puts `pointer` into it, and pushes it */

/* interface.c */
typedef struct handle_type {
  const char* name; /* NULL behind the last one */
  void (*release)(void*);
} handle_type;
extern const handle_type handle_types[];
extern const luaL_Reg raw_functions[];
extern const record fields_of_quire_event;
extern const record fields_of_quire_text;

#pragma GCC visibility pop

#endif
