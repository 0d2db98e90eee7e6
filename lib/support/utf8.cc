#include "lib/support/utf8.h"

#include <cstdint>

namespace quire {
namespace {

struct Sequence {
  enum class Kind {
    kValid,
    kInvalid,
    kCut,  // invalid only because the text ends here
  };
  size_t length;  // bytes that belong together (for invalid ones: the maximal subpart, at least 1)
  Kind kind;
};

Sequence next_sequence(std::string_view text, size_t at) {
  using Kind = Sequence::Kind;
  auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(at);
  if (first < 0x80) return {1, Kind::kValid};
  size_t need = 0;
  uint8_t low = 0x80, high = 0xBF;  // allowed range of the second byte (Unicode table 3-7)
  if (first >= 0xC2 && first <= 0xDF) {
    need = 2;
  } else if (first >= 0xE0 && first <= 0xEF) {
    need = 3;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
  } else if (first >= 0xF0 && first <= 0xF4) {
    need = 4;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
  } else {
    return {1, Kind::kInvalid};
  }
  for (size_t i = 1; i < need; ++i) {
    if (at + i >= text.size()) return {i, Kind::kCut};
    if (byte(at + i) < low || byte(at + i) > high) return {i, Kind::kInvalid};
    low = 0x80, high = 0xBF;
  }
  return {need, Kind::kValid};
}

// Gives the text in pieces, with U+FFFD in place of every maximal invalid part, until `write` returns false.
template <typename Write>
void for_sanitized(std::string_view text, const Write& write) {
  for (size_t at = 0; at < text.size();) {
    const Sequence s = next_sequence(text, at);
    if (!write(s.kind == Sequence::Kind::kValid ? text.substr(at, s.length) : "\xEF\xBF\xBD")) return;
    at += s.length;
  }
}

}  // namespace

size_t utf8_first_invalid(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Sequence s = next_sequence(text, at);
    if (s.kind != Sequence::Kind::kValid) return at;
    at += s.length;
  }
  return at;
}

size_t utf8_complete_prefix(std::string_view text) {
  // Only the last three bytes can begin an unfinished sequence.
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const size_t at = text.size() - back;
    const auto b = static_cast<uint8_t>(text[at]);
    if (b < 0x80) break;
    if (b >= 0xC0) return next_sequence(text, at).kind == Sequence::Kind::kCut ? at : text.size();
  }
  return text.size();
}

std::string utf8_sanitize(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for_sanitized(text, [&](std::string_view piece) {
    out.append(piece);
    return true;
  });
  return out;
}

size_t utf8_printable(std::string_view text, char* out, size_t room) {
  constexpr char kDigits[] = "0123456789abcdef";
  char escape[] = "\\x00";
  size_t n = 0;
  for_sanitized(text, [&](std::string_view piece) {
    const auto first = static_cast<uint8_t>(piece[0]);
    if ((first < 0x20 && first != '\n' && first != '\t') || first == 0x7F) {
      escape[2] = kDigits[first >> 4];
      escape[3] = kDigits[first & 15];
      piece = escape;
    }
    if (piece.size() > room - n) return false;
    piece.copy(out + n, piece.size());
    n += piece.size();
    return true;
  });
  return n;
}

}  // namespace quire
