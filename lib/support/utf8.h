// UTF-8: validation and whole code points.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace quire {

// Byte offset of the first invalid sequence, or text.size() if all is valid. A sequence cut off at the end is
// invalid; overlong forms, surrogates and code points above U+10FFFF too.
size_t utf8_first_invalid(std::string_view text);

// Length of the longest prefix that ends at a code point boundary: the bytes after it are the beginning of a
// sequence that may still become valid. (Invalid bytes count as boundaries: they will never become valid.)
size_t utf8_complete_prefix(std::string_view text);

// The text with every maximal invalid part replaced by U+FFFD.
std::string utf8_sanitize(std::string_view text);
// The same for a person to read, into `room` bytes: control bytes but for newline and tab become escapes such as
// "\x00". Nothing is cut in half; returns how many bytes were written.
size_t utf8_printable(std::string_view text, char* out, size_t room);

}  // namespace quire
