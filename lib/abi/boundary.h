// What every exported function goes through: exceptions and Status become a status code and an error record; structs
// are copied in and out by their declared size.
#pragma once

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>

#include "include/quire/quire.h"
#include "lib/session/contain.h"
#include "lib/support/host_call.h"
#include "lib/support/status.h"
#include "lib/support/utf8.h"

namespace quire::abi {

// Fills *err (may be null) and returns the code.
int32_t report(const Status& status, quire_error* err) noexcept;

inline Status invalid(std::string message, int64_t offset = -1) {
  return Status(Code::kInvalidArgument, std::move(message), offset);
}

// Runs body() -> Status and reports it. No exception passes.
template <typename Body>
int32_t guard(quire_error* err, const Body& body) noexcept {
  const HostCall call;
  return report(contain(body), err);
}

template <typename T>
void init_struct(T* object, size_t size) noexcept {
  if (!object || size < 2 * sizeof(uint32_t)) return;
  std::memset(static_cast<void*>(object), 0, size);
  object->struct_size = static_cast<uint32_t>(size);
}

// No struct of quire.h will ever be larger. A greater struct_size was never set, and the memory that it promises is not
// read.
constexpr uint32_t kMostStructBytes = 4096;

// The struct_size of a caller's struct called `name`.
inline Status check_struct_size(uint32_t size, const char* name) {
  if (size >= 2 * sizeof(uint32_t) && size <= kMostStructBytes) return {};
  return invalid(std::string(name) + ".struct_size is " + std::to_string(size) +
                 "; expected sizeof the struct, set by its _init function, or by hand where it has none");
}

// Copies an options struct of any declared size; fields it does not have are zero. NULL: all zero.
template <typename T>
Status read_options(const T* in, uint32_t known_flags, const char* name, T* out) {
  static_assert(sizeof(T) <= kMostStructBytes);
  std::memset(static_cast<void*>(out), 0, sizeof *out);
  if (!in) return {};
  const uint32_t size = in->struct_size;
  QUIRE_TRY(check_struct_size(size, name));
  if (size < sizeof *out && size % alignof(T) != 0) {
    return invalid(std::string(name) + ".struct_size is " + std::to_string(size) + ", which cuts a field");
  }
  std::memcpy(static_cast<void*>(out), in, std::min<size_t>(size, sizeof *out));
  const auto* bytes = reinterpret_cast<const unsigned char*>(in);
  for (size_t i = sizeof *out; i < size; ++i) {
    if (bytes[i] != 0) {
      return invalid(std::string(name) + " has a field at byte " + std::to_string(i) + " that this version (" +
                         quire_get_version_string() + ") does not know",
                     static_cast<int64_t>(i));
    }
  }
  if ((out->flags & ~known_flags) != 0) {
    return invalid(std::string(name) + ".flags has unknown bits: " + std::to_string(out->flags & ~known_flags));
  }
  return {};
}

// Whether an output struct of the caller's can be written.
template <typename T>
Status check_output(const T* out, const char* name) {
  static_assert(sizeof(T) <= kMostStructBytes);
  return out ? check_struct_size(out->struct_size, name) : invalid(std::string(name) + " is NULL");
}

// Writes an output struct into the caller's, whose struct_size says how much of it exists.
template <typename T>
Status write_output(T full, const char* name, T* out) {
  QUIRE_TRY(check_output(out, name));
  const size_t size = std::min<size_t>(out->struct_size, sizeof full);
  full.struct_size = static_cast<uint32_t>(size);
  std::memcpy(static_cast<void*>(out), &full, size);
  return {};
}

// A text argument.
Status read_text(const char* data, size_t size, const char* name, std::string_view* out);
// The same, not empty.
Status read_path(const char* path, size_t path_len, const char* name, std::string* out);

// The (buf, cap, *needed) convention of quire.h for a result of n elements: fill(buf) -> Status copies all of them.
// Where that fails *needed keeps its value. `name` is that of the buffer.
template <typename T, typename Fill>
Status write_array(size_t n, const char* name, T* buf, size_t cap, size_t* needed, const Fill& fill) {
  if (!buf && cap > 0) return invalid(std::string(name) + " is NULL but cap is " + std::to_string(cap));
  const bool fits = buf && cap >= n;
  if (fits) QUIRE_TRY(fill(buf));
  if (needed) *needed = n;
  if (fits || (cap == 0 && !buf)) return {};
  return Status(Code::kBufferTooSmall,
                std::string(name) + " has room for " + std::to_string(cap) + "; needed are " + std::to_string(n));
}

// The same for what is in memory already.
template <typename Range, typename T>
Status write_array(const Range& all, const char* name, T* buf, size_t cap, size_t* needed) {
  return write_array(std::size(all), name, buf, cap, needed, [&](T* to) {
    std::copy(std::begin(all), std::end(all), to);
    return Status();
  });
}

// Text into an array of an output struct: made valid and printable, so that a NUL of the caller's does not end it, cut
// at a code point if too long, NUL-terminated.
template <size_t kSize>
void copy_text(std::string_view text, char (&out)[kSize]) {
  out[utf8_printable(text, out, kSize - 1)] = '\0';
}

// Text without a terminating NUL.
inline Status write_text(std::string_view text, char* buf, size_t cap, size_t* needed) {
  return write_array(text, "buf", buf, cap, needed);
}

// value in [least, most], or a message that names the field.
Status check_range(const char* name, int64_t value, int64_t least, int64_t most);

}  // namespace quire::abi
