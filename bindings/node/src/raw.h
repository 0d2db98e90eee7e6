/* The module for Node.js: what its generated functions (interface.c) are made of. bindings/plans.py says how C's
 * parameters become JavaScript's. Each thread that runs JavaScript has a napi_env of its own; a call is read and
 * finished on that thread, and C's function runs there or on a thread of libuv's pool. */
#ifndef QUIRE_NODE_RAW_H_
#define QUIRE_NODE_RAW_H_

#define NAPI_VERSION 8
#include <node_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quire/quire.h"

/* ---- Descriptions, which interface.c has ---- */

/* What a field of a struct is in JavaScript; the scalars are named as C's types are. */
enum {
  FIELD_INT32_T = 1,
  FIELD_UINT32_T,
  FIELD_INT64_T,
  FIELD_UINT64_T,
  FIELD_SIZE_T,
  FIELD_FLOAT,
  FIELD_DOUBLE,
  FIELD_TEXT,     /* a string, or bytes; `second` is the offset of its length */
  FIELD_CHARS,    /* a string in the struct itself; `second` is the room for it */
  FIELD_CHAR,     /* of a filled buffer: a string */
  FIELD_LIST,     /* an array; `second` is the offset of the number of its elements */
  FIELD_HANDLE,   /* a handle */
  FIELD_PROGRESS, /* a function (done, total); `second` is the offset of user_data */
  FIELD_LOG,      /* a function (level, message) */
  FIELD_WRITE,    /* true: the snapshot is the call's result, as a Buffer */
  FIELD_BYTES     /* of a snapshot reader: a Uint8Array, which is copied; of a filled buffer: a Buffer */
};

typedef struct record record;
typedef struct call call;

typedef struct handle_type {
  const char* name;
  void (*retain)(void*);
  void (*release)(void*);
} handle_type;

typedef struct field {
  const char* name; /* NULL behind the last one */
  int kind;         /* FIELD_* */
  size_t offset;
  size_t second;
  int element;               /* of a list of scalars: FIELD_* */
  const record* of;          /* of a list of structs */
  const handle_type* handle; /* of a handle */
} field;

struct record {
  const char* name;
  size_t size;
  int grows; /* it begins with struct_size */
  const field* fields;
};

enum {
  STEP_HANDLE = 1,
  STEP_TEXT,
  STEP_LIST,
  STEP_COUNT, /* of the text or list before */
  STEP_OPTIONS,
  STEP_SCALAR,
  STEP_MADE, /* from here on: results */
  STEP_RESULT,
  STEP_NUMBER,
  STEP_FILLED
};

typedef struct step {
  int what; /* STEP_*, 0 behind the last one */
  int slot;
  const char* name;
  int kind; /* FIELD_* of a scalar, or of the elements */
  const record* of;
  const handle_type* handle;
} step;

enum { RETURNS_VOID, RETURNS_STATUS, RETURNS_NUMBER, RETURNS_TEXT };

typedef struct function {
  const char* name; /* NULL behind the last one */
  void (*run)(call*);
  int returns;   /* RETURNS_* */
  int exclusive; /* one call at a time on a session or stream */
  int closes;    /* ends calls that run */
  const step* steps;
} function;

extern const function raw_functions[];
extern const handle_type type_of_quire_session;
extern const handle_type type_of_quire_stream;
extern const record fields_of_quire_text;
extern const record fields_of_quire_event;

/* ---- Handles (native.c) ---- */

typedef struct stream_state stream_state;

/* Behind an object of JavaScript. */
typedef struct handle {
  const handle_type* type;
  void* pointer;        /* one reference; NULL: released */
  int calls;            /* exclusive ones that run on another thread */
  stream_state* stream; /* of a stream from which events were taken */
} handle;

napi_value new_handle(napi_env env, const handle_type* type, void* pointer); /* takes over the reference */
/* NULL with an exception: something else, or released. */
handle* handle_of(napi_env env, napi_value value, const char* name, const handle_type* type);
napi_value error_of(napi_env env, int32_t code, const char* message, int64_t offset, int32_t os_error);
void throw_error(napi_env env, int32_t code, const char* message, int64_t offset, int32_t os_error);
/* Throws a TypeError, "name: expected ..."; false. */
bool wrong(napi_env env, const char* name, const char* expected);

/* ---- Calls (calls.c) ---- */

enum { MAX_SLOTS = 12, MAX_HANDLES = 128 };

typedef union slot {
  void* p;
  size_t n;
  int64_t i;
  uint64_t u;
  int32_t i32;
  uint32_t u32;
  double d;
  float f;
} slot;

typedef struct progress progress;
typedef struct carrier carrier;
typedef struct bytes bytes;

typedef struct sink {
  char* data;
  size_t size, room;
  size_t most; /* bytes that a Buffer of this node can have */
  bool full;   /* the snapshot has more */
} sink;

struct call {
  const function* of;
  bool async;
  slot slots[MAX_SLOTS];
  size_t cap, needed;
  quire_error err;
  int32_t status;
  const char* text;
  /* What belongs to the call until it is finished. */
  struct block* blocks;
  struct {
    const handle_type* type;
    void* pointer;
  } held[MAX_HANDLES];
  int n_held;
  handle* exclusive; /* its object is kept by `self` */
  napi_ref self;
  progress* progress;
  carrier* log;
  bytes* source;
  bool collects;
  sink sink;
  napi_async_work work;
  carrier* finished; /* of a call on a thread of its own */
  napi_deferred deferred;
};

void* allocate(call* c, size_t size); /* zeros, until the call is finished; NULL: none left */
bool hold(napi_env env, call* c, handle* h);
bool export_functions(napi_env env, napi_value exports);

/* ---- Values (values.c, records.c) ---- */

bool read_text(napi_env env, call* c, napi_value value, const char* name, const char** text, size_t* len);
bool read_scalar(napi_env env, napi_value value, const char* name, int kind, void* to);
bool read_list(napi_env env, call* c, napi_value value, const char* name, int element, const record* of,
               const void** to, size_t* n);
bool read_record(napi_env env, call* c, napi_value value, const record* of, char* to);
bool is_nothing(napi_env env, napi_value value); /* undefined or null */
size_t scalar_size(int kind);
napi_value scalar_value(napi_env env, int kind, const void* from);
napi_value record_value(napi_env env, const void* from, const record* of);
/* Structs as an array of objects; numbers as a typed array; FIELD_CHAR as a string; FIELD_BYTES as a Buffer. */
napi_value filled_value(napi_env env, const void* from, size_t n, int kind, const record* of);

/* ---- Carriers (callbacks.c) take what other threads made to JavaScript's, while its environment lives ---- */

carrier* new_carrier(napi_env env, napi_value function, const char* name, napi_threadsafe_function_call_js call);
bool carry(carrier* to, void* data); /* false: the environment ended, and `call` will not get it */
void drop_carrier(carrier* to);

/* ---- What C calls back (callbacks.c): each writes its function and its data into the struct ---- */

bool set_progress(napi_env env, call* c, napi_value value, const field* f, char* to);
void finish_progress(napi_env env, progress* p); /* tells what it was not told yet */
bool set_log(napi_env env, call* c, napi_value value, quire_runtime_options* to);
bool set_source(napi_env env, call* c, napi_value value, quire_snapshot_reader* to);
void drop_source(bytes* source);
bool set_sink(napi_env env, call* c, napi_value value, quire_snapshot_writer* to);

/* ---- Streams (streams.c) ---- */

bool export_streams(napi_env env, napi_value exports);
void close_stream_state(handle* h); /* before its reference is dropped */

#endif
