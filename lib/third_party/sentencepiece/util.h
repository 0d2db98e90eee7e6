// Copyright 2016 Google Inc.
//
// Licensed under the Apache License, Version 2.0 (the "License");
// you may not use this file except in compliance with the License.
// You may obtain a copy of the License at
//
//     http://www.apache.org/licenses/LICENSE-2.0
//
// Unless required by applicable law or agreed to in writing, software
// distributed under the License is distributed on an "AS IS" BASIS,
// WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
// See the License for the specific language governing permissions and
// limitations under the License.!
//
// Changed for Quire: see README.md in this folder.

#ifndef UTIL_H_
#define UTIL_H_

#include <string>
#include <utility>

#include "lib/third_party/sentencepiece/common.h"

#include <endian.h>
#if BYTE_ORDER == __BIG_ENDIAN
#error "The double arrays of model files are read in place: little-endian only."
#endif

namespace quire::sentencepiece {

// String utilities
namespace string_util {

template <typename T>
inline bool DecodePOD(absl::string_view str, T *result) {
  if (sizeof(*result) != str.size()) {
    return false;
  }
  memcpy(result, str.data(), sizeof(T));
  return true;
}

// Return length of a single UTF-8 source character
inline size_t OneCharLen(const char *src) {
  return "\1\1\1\1\1\1\1\1\1\1\1\1\2\2\3\4"[(*src & 0xFF) >> 4];
}

// Return (x & 0xC0) == 0x80;
// Since trail bytes are always in [0x80, 0xBF], we can optimize:
inline bool IsTrailByte(char x) { return static_cast<signed char>(x) < -0x40; }

inline bool IsValidCodepoint(char32 c) {
  return (static_cast<uint32>(c) < 0xD800) || (c >= 0xE000 && c <= 0x10FFFF);
}

char32 DecodeUTF8(const char *begin, const char *end, size_t *mblen);

inline char32 DecodeUTF8(absl::string_view input, size_t *mblen) {
  return DecodeUTF8(input.data(), input.data() + input.size(), mblen);
}

inline bool IsValidDecodeUTF8(absl::string_view input, size_t *mblen) {
  const char32 c = DecodeUTF8(input, mblen);
  return c != kUnicodeError || *mblen == 3;
}

}  // namespace string_util

namespace util {

// The outcome of a call: fine, or a message.
class Status {
 public:
  Status() = default;
  explicit Status(std::string message)
      : ok_(false), message_(std::move(message)) {}
  bool ok() const { return ok_; }
  const std::string &message() const { return message_; }

 private:
  bool ok_ = true;
  std::string message_;
};

inline Status OkStatus() { return Status(); }

inline Status InternalError(absl::string_view str) {
  return Status(std::string(str));
}

#define CHECK_OR_RETURN(condition) \
  if (!(condition)) return util::InternalError("failed: " #condition)
#define CHECK_EQ_OR_RETURN(a, b) CHECK_OR_RETURN((a) == (b))
#define CHECK_GE_OR_RETURN(a, b) CHECK_OR_RETURN((a) >= (b))

}  // namespace util
}  // namespace quire::sentencepiece
#endif  // UTIL_H_
