/* Single values and lists of JavaScript to C, and results back. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "raw.h"

static bool is(napi_env env, napi_value value, napi_valuetype kind) {
  napi_valuetype found;
  return napi_typeof(env, value, &found) == napi_ok && found == kind;
}

bool is_nothing(napi_env env, napi_value value) { return is(env, value, napi_undefined) || is(env, value, napi_null); }

static bool out_of_range(napi_env env, const char* name) {
  char message[160];
  snprintf(message, sizeof message, "%.100s: out of range", name);
  napi_throw_range_error(env, NULL, message);
  return false;
}

static bool read_bigint(napi_env env, napi_value value, const char* name, int kind, void* to) {
  bool lossless = false;
  if (kind == FIELD_INT64_T) {
    napi_get_value_bigint_int64(env, value, to, &lossless);
  } else if (kind == FIELD_UINT64_T || kind == FIELD_SIZE_T) {
    napi_get_value_bigint_uint64(env, value, to, &lossless);
  } else {
    return wrong(env, name, "a number");
  }
  return lossless || out_of_range(env, name);
}

bool read_scalar(napi_env env, napi_value value, const char* name, int kind, void* to) {
  double number;
  if (is(env, value, napi_bigint)) return read_bigint(env, value, name, kind, to);
  if (napi_get_value_double(env, value, &number) != napi_ok) return wrong(env, name, "a number");
  if (kind == FIELD_FLOAT || kind == FIELD_DOUBLE) {
    if (kind == FIELD_FLOAT)
      *(float*)to = (float)number;
    else
      *(double*)to = number;
    return true;
  }
  if (!isfinite(number) || number != floor(number)) return wrong(env, name, "an integer");
  const double most = kind == FIELD_INT32_T ? INT32_MAX : kind == FIELD_UINT32_T ? UINT32_MAX : 9007199254740991.0;
  const double least = kind == FIELD_INT32_T ? INT32_MIN : kind == FIELD_INT64_T ? -9007199254740991.0 : 0;
  if (number < least || number > most) return out_of_range(env, name);
  switch (kind) {
    case FIELD_INT32_T:
      *(int32_t*)to = (int32_t)number;
      break;
    case FIELD_UINT32_T:
      *(uint32_t*)to = (uint32_t)number;
      break;
    case FIELD_INT64_T:
      *(int64_t*)to = (int64_t)number;
      break;
    default:
      *(uint64_t*)to = (uint64_t)number;
      break;
  }
  return true;
}

size_t scalar_size(int kind) { return kind == FIELD_INT32_T || kind == FIELD_UINT32_T || kind == FIELD_FLOAT ? 4 : 8; }

/* A copy of bytes, for the memory of JavaScript may move or change while C works. */
static const void* copied(napi_env env, call* c, const void* from, size_t size) {
  char* to = allocate(c, size + 1);
  if (!to)
    napi_throw_error(env, NULL, "out of memory");
  else if (size)
    memcpy(to, from, size);
  return to;
}

bool read_text(napi_env env, call* c, napi_value value, const char* name, const char** text, size_t* len) {
  bool typed = false;
  if (is(env, value, napi_string)) {
    napi_get_value_string_utf8(env, value, NULL, 0, len);
    char* to = allocate(c, *len + 1);
    *text = to;
    return to ? napi_get_value_string_utf8(env, value, to, *len + 1, len) == napi_ok
              : napi_throw_error(env, NULL, "out of memory") != napi_ok;
  }
  if (napi_is_typedarray(env, value, &typed) == napi_ok && typed) {
    napi_typedarray_type type;
    void* data;
    napi_get_typedarray_info(env, value, &type, len, &data, NULL, NULL);
    if (type == napi_uint8_array) return (*text = copied(env, c, data, *len)) != NULL;
  }
  return wrong(env, name, "a string or a Uint8Array of UTF-8");
}

static bool read_typed(napi_env env, call* c, napi_value value, const char* name, int element, const void** to,
                       size_t* n) {
  napi_typedarray_type type;
  void* data;
  napi_get_typedarray_info(env, value, &type, n, &data, NULL, NULL);
  const bool fits = (element == FIELD_INT32_T && type == napi_int32_array) ||
                    (element == FIELD_UINT32_T && type == napi_uint32_array) ||
                    (element == FIELD_INT64_T && type == napi_bigint64_array);
  if (!fits) return wrong(env, name, "an array, or a typed array of the type in C");
  return (*to = copied(env, c, data, *n * scalar_size(element))) != NULL;
}

static bool read_element(napi_env env, call* c, napi_value value, const char* name, int element, const record* of,
                         char* to) {
  if (of == &fields_of_quire_text)
    return read_text(env, c, value, name, &((quire_text*)to)->data, &((quire_text*)to)->len);
  return of ? read_record(env, c, value, of, to) : read_scalar(env, value, name, element, to);
}

bool read_list(napi_env env, call* c, napi_value value, const char* name, int element, const record* of,
               const void** to, size_t* n) {
  bool typed = false, array = false;
  if (!of && napi_is_typedarray(env, value, &typed) == napi_ok && typed)
    return read_typed(env, c, value, name, element, to, n);
  if (napi_is_array(env, value, &array) != napi_ok || !array) return wrong(env, name, "an array");
  const size_t size = of ? of->size : scalar_size(element);
  uint32_t length;
  napi_get_array_length(env, value, &length);
  char* made = allocate(c, length * size + 1);
  if (!made) return napi_throw_error(env, NULL, "out of memory") != napi_ok;
  for (uint32_t i = 0; i < length; ++i) {
    napi_handle_scope scope;
    napi_value item;
    napi_open_handle_scope(env, &scope);
    const bool good = napi_get_element(env, value, i, &item) == napi_ok &&
                      read_element(env, c, item, name, element, of, made + i * size);
    napi_close_handle_scope(env, scope);
    if (!good) return false;
  }
  *to = made;
  *n = length;
  return true;
}

napi_value scalar_value(napi_env env, int kind, const void* from) {
  napi_value value = NULL;
  switch (kind) {
    case FIELD_INT32_T:
      napi_create_int32(env, *(const int32_t*)from, &value);
      break;
    case FIELD_UINT32_T:
      napi_create_uint32(env, *(const uint32_t*)from, &value);
      break;
    case FIELD_FLOAT:
      napi_create_double(env, *(const float*)from, &value);
      break;
    case FIELD_DOUBLE:
      napi_create_double(env, *(const double*)from, &value);
      break;
    default: {
      const int64_t number = *(const int64_t*)from; /* a number while that is exact */
      const bool exact = number <= 9007199254740991 && number >= -9007199254740991;
      if (exact)
        napi_create_int64(env, number, &value);
      else
        napi_create_bigint_int64(env, number, &value);
    }
  }
  return value;
}

static napi_value typed_value(napi_env env, const void* from, size_t n, int kind) {
  napi_value buffer, value = NULL;
  void* to;
  const napi_typedarray_type type = kind == FIELD_INT32_T ? napi_int32_array
                                    : kind == FIELD_FLOAT ? napi_float32_array
                                                          : napi_float64_array;
  if (napi_create_arraybuffer(env, n * scalar_size(kind), &to, &buffer) != napi_ok) return NULL;
  if (n) memcpy(to, from, n * scalar_size(kind));
  napi_create_typedarray(env, type, n, buffer, 0, &value);
  return value;
}

napi_value filled_value(napi_env env, const void* from, size_t n, int kind, const record* of) {
  napi_value value = NULL;
  if (kind == FIELD_CHAR) {
    napi_create_string_utf8(env, from ? from : "", n, &value);
  } else if (kind == FIELD_BYTES) {
    napi_create_buffer_copy(env, n, from, NULL, &value);
  } else if (!of) {
    return typed_value(env, from, n, kind);
  } else if (napi_create_array_with_length(env, n, &value) == napi_ok) {
    for (size_t i = 0; i < n; ++i) {
      napi_handle_scope scope;
      napi_open_handle_scope(env, &scope);
      napi_set_element(env, value, (uint32_t)i, record_value(env, (const char*)from + i * of->size, of));
      napi_close_handle_scope(env, scope);
    }
  }
  return value;
}
