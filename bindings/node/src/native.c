/* The module: handles, errors, and what it exports. */
#include <stdlib.h>
#include <string.h>

#include "raw.h"

static const napi_type_tag handle_tag = {0x7175697265206e6f, 0x64652068616e646c};

/* ---- Errors ---- */

static void forget_factory(napi_env env, void* data, void* hint) {
  (void)env, (void)hint;
  free(data);
}

/* setErrorFactory(f): f(code, message, offset, osError) makes what failed calls throw in this environment. */
static napi_value set_error_factory(napi_env env, napi_callback_info info) {
  size_t n = 1;
  napi_value argument;
  napi_ref* factory = NULL;
  napi_get_cb_info(env, info, &n, &argument, NULL, NULL);
  napi_get_instance_data(env, (void**)&factory);
  if (*factory) napi_delete_reference(env, *factory);
  napi_create_reference(env, argument, 1, factory);
  return NULL;
}

napi_value error_of(napi_env env, int32_t code, const char* message, int64_t offset, int32_t os_error) {
  napi_ref* factory = NULL;
  napi_value function, receiver, error = NULL, arguments[4];
  napi_get_instance_data(env, (void**)&factory);
  napi_get_reference_value(env, *factory, &function);
  napi_get_undefined(env, &receiver);
  napi_create_int32(env, code, &arguments[0]);
  napi_create_string_utf8(env, message, NAPI_AUTO_LENGTH, &arguments[1]);
  napi_create_int64(env, offset, &arguments[2]);
  napi_create_int32(env, os_error, &arguments[3]);
  return napi_call_function(env, receiver, function, 4, arguments, &error) == napi_ok ? error : NULL;
}

void throw_error(napi_env env, int32_t code, const char* message, int64_t offset, int32_t os_error) {
  const napi_value error = error_of(env, code, message, offset, os_error);
  if (error) napi_throw(env, error);
}

bool wrong(napi_env env, const char* name, const char* expected) {
  char message[256] = "";
  strncat(message, name, 100);
  strcat(message, ": expected ");
  strncat(message, expected, 100);
  napi_throw_type_error(env, NULL, message);
  return false;
}

/* ---- Handles ---- */

static void drop(handle* h) {
  if (!h->pointer) return;
  close_stream_state(h);
  h->type->release(h->pointer);
  h->pointer = NULL;
}

static void collect(napi_env env, void* data, void* hint) {
  (void)env, (void)hint;
  drop(data);
  free(data);
}

napi_value new_handle(napi_env env, const handle_type* type, void* pointer) {
  napi_value object;
  handle* h = calloc(1, sizeof *h);
  if (h && napi_create_object(env, &object) == napi_ok && napi_type_tag_object(env, object, &handle_tag) == napi_ok &&
      napi_wrap(env, object, h, collect, NULL, NULL) == napi_ok) {
    *h = (handle){type, pointer, 0, NULL};
    return object;
  }
  free(h);
  type->release(pointer);
  return NULL;
}

handle* handle_of(napi_env env, napi_value value, const char* name, const handle_type* type) {
  handle* h = NULL;
  bool ours = false;
  napi_valuetype kind;
  if (napi_typeof(env, value, &kind) != napi_ok || kind != napi_object ||
      napi_check_object_type_tag(env, value, &handle_tag, &ours) != napi_ok || !ours ||
      napi_unwrap(env, value, (void**)&h) != napi_ok || (type && h->type != type)) {
    wrong(env, name, type ? type->name : "a handle");
    return NULL;
  }
  if (h->pointer) return h;
  char message[64] = "this ";
  strncat(strncat(message, h->type->name, 20), " was closed", 20);
  throw_error(env, QUIRE_ERROR_CLOSED, message, -1, 0);
  return NULL;
}

/* release(handle): drops its reference now; a second time does nothing. */
static napi_value release(napi_env env, napi_callback_info info) {
  size_t n = 1;
  napi_value argument;
  handle* h = NULL;
  bool ours = false;
  napi_get_cb_info(env, info, &n, &argument, NULL, NULL);
  if (napi_check_object_type_tag(env, argument, &handle_tag, &ours) == napi_ok && ours &&
      napi_unwrap(env, argument, (void**)&h) == napi_ok) {
    drop(h);
  } else {
    wrong(env, "release", "a handle");
  }
  return NULL;
}

NAPI_MODULE_INIT() {
  napi_property_descriptor own[] = {
      {"setErrorFactory", NULL, set_error_factory, NULL, NULL, NULL, napi_default_jsproperty, NULL},
      {"release", NULL, release, NULL, NULL, NULL, napi_default_jsproperty, NULL}};
  napi_ref* factory = calloc(1, sizeof *factory);
  if (!factory || napi_set_instance_data(env, factory, forget_factory, NULL) != napi_ok ||
      napi_define_properties(env, exports, sizeof own / sizeof *own, own) != napi_ok ||
      !export_functions(env, exports) || !export_streams(env, exports)) {
    napi_throw_error(env, NULL, "quire: the module cannot be initialized");
  }
  return exports;
}
