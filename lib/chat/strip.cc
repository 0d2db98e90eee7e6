#include "lib/chat/strip.h"

#include <algorithm>

namespace quire {
namespace {

bool is_space(std::string_view character) {
  if (character.size() == 1) {
    const char c = character[0];
    return c == ' ' || (c >= '\t' && c <= '\r') || (c >= '\x1c' && c <= '\x1f');
  }
  if (character == "\xC2\x85" || character == "\xC2\xA0" || character == "\xE1\x9A\x80") return true;
  if (character == "\xE2\x81\x9F" || character == "\xE3\x80\x80") return true;
  if (character.size() != 3 || !character.starts_with("\xE2\x80")) return false;
  const auto last = static_cast<unsigned char>(character[2]);
  return last <= 0x8A || last == 0xA8 || last == 0xA9 || last == 0xAF;
}

// Bytes of the character that the text begins with.
size_t first_bytes(std::string_view text) {
  size_t n = 1;
  while (n < text.size() && (static_cast<unsigned char>(text[n]) & 0xC0) == 0x80) ++n;
  return n;
}

size_t last_bytes(std::string_view text) {
  size_t n = 1;
  while (n < text.size() && (static_cast<unsigned char>(text[text.size() - n]) & 0xC0) == 0x80) ++n;
  return n;
}

}  // namespace

std::string_view strip_end(std::string_view text) {
  while (!text.empty()) {
    const size_t n = last_bytes(text);
    if (!is_space(text.substr(text.size() - n))) break;
    text.remove_suffix(n);
  }
  return text;
}

std::string_view strip_front(std::string_view text) {
  while (!text.empty()) {
    const size_t n = first_bytes(text);
    if (!is_space(text.substr(0, n))) break;
    text.remove_prefix(n);
  }
  return text;
}

std::string_view strip(std::string_view text) { return strip_end(strip_front(text)); }

std::string_view strip_newlines_front(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of('\n'), text.size()));
}

std::string_view strip_newlines_end(std::string_view text) { return text.substr(0, text.find_last_not_of('\n') + 1); }

std::string_view strip_newlines(std::string_view text) { return strip_newlines_end(strip_newlines_front(text)); }

std::string without(std::string_view text, std::string_view part) {
  std::string rest;
  for (;;) {
    const size_t at = text.find(part);
    rest += text.substr(0, at);
    if (at == std::string_view::npos) return rest;
    text.remove_prefix(at + part.size());
  }
}

}  // namespace quire
