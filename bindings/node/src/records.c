/* Objects of JavaScript to structs of C, and back, by the descriptions in interface.c. */
#include <stdio.h>
#include <string.h>

#include "raw.h"

static bool refuse_unknown(napi_env env, napi_value value, const record* of) {
  napi_value names;
  uint32_t n;
  if (napi_get_property_names(env, value, &names) != napi_ok || napi_get_array_length(env, names, &n) != napi_ok)
    return false;
  for (uint32_t i = 0; i < n; ++i) {
    napi_value key;
    char name[80], message[128];
    size_t len;
    napi_get_element(env, names, i, &key);
    napi_get_value_string_utf8(env, key, name, sizeof name, &len);
    const field* f = of->fields;
    while (f->name && strcmp(f->name, name) != 0) ++f;
    if (f->name) continue;
    snprintf(message, sizeof message, "there is no option %s", name);
    napi_throw_type_error(env, NULL, message);
    return false;
  }
  return true;
}

static bool read_field(napi_env env, call* c, napi_value value, const field* f, char* to) {
  char* at = to + f->offset;
  handle* h;
  switch (f->kind) {
    case FIELD_TEXT:
      return read_text(env, c, value, f->name, (const char**)at, (size_t*)(to + f->second));
    case FIELD_LIST:
      return read_list(env, c, value, f->name, f->element, f->of, (const void**)at, (size_t*)(to + f->second));
    case FIELD_HANDLE:
      h = handle_of(env, value, f->name, f->handle);
      if (!h || !hold(env, c, h)) return false;
      *(void**)at = h->pointer;
      return true;
    case FIELD_PROGRESS:
      return set_progress(env, c, value, f, to);
    case FIELD_LOG:
      return set_log(env, c, value, (quire_runtime_options*)to);
    case FIELD_BYTES:
      return set_source(env, c, value, (quire_snapshot_reader*)to);
    case FIELD_WRITE:
      return set_sink(env, c, value, (quire_snapshot_writer*)to);
    case FIELD_CHARS:
      return wrong(env, f->name, "nothing: it can only be read");
    default:
      return read_scalar(env, value, f->name, f->kind, at);
  }
}

bool read_record(napi_env env, call* c, napi_value value, const record* of, char* to) {
  napi_valuetype kind;
  if (napi_typeof(env, value, &kind) != napi_ok || kind != napi_object) return wrong(env, of->name, "an object");
  if (!refuse_unknown(env, value, of)) return false;
  if (of->grows) *(uint32_t*)to = (uint32_t)of->size;
  for (const field* f = of->fields; f->name; ++f) {
    napi_value item;
    if (napi_get_named_property(env, value, f->name, &item) != napi_ok) return false;
    if (!is_nothing(env, item) && !read_field(env, c, item, f, to)) return false;
  }
  return true;
}

static napi_value field_value(napi_env env, const char* from, const field* f) {
  const char* at = from + f->offset;
  if (f->kind == FIELD_CHARS) return filled_value(env, at, strnlen(at, f->second), FIELD_CHAR, NULL);
  if (f->kind == FIELD_TEXT)
    return filled_value(env, *(const void* const*)at, *(const size_t*)(from + f->second), FIELD_CHAR, NULL);
  if (f->kind == FIELD_LIST)
    return filled_value(env, *(const void* const*)at, *(const size_t*)(from + f->second), f->element, f->of);
  return f->kind <= FIELD_DOUBLE ? scalar_value(env, f->kind, at) : NULL;
}

napi_value record_value(napi_env env, const void* from, const record* of) {
  napi_value object;
  if (napi_create_object(env, &object) != napi_ok) return NULL;
  for (const field* f = of->fields; f->name; ++f) {
    const napi_value value = field_value(env, from, f);
    if (value) napi_set_named_property(env, object, f->name, value);
  }
  return object;
}
