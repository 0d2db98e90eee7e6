#include "lib/support/utf8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <vector>

namespace quire {
namespace {

// The oracle decodes and then asks whether this is the one way to write that code point; utf8.cc matches byte ranges.
std::optional<uint32_t> decode_one(std::string_view bytes) {
  const auto first = static_cast<uint8_t>(bytes[0]);
  const size_t n = first < 0x80 ? 1 : first >> 5 == 6 ? 2 : first >> 4 == 14 ? 3 : first >> 3 == 30 ? 4 : 0;
  if (n != bytes.size()) return {};
  uint32_t code = n == 1 ? first : first & (0x7Fu >> n);
  for (size_t i = 1; i < n; ++i) {
    const auto byte = static_cast<uint8_t>(bytes[i]);
    if (byte >> 6 != 2) return {};
    code = code << 6 | (byte & 0x3Fu);
  }
  const size_t shortest = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  if (shortest != n || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return {};
  return code;
}

bool naive_valid(std::string_view text) {
  while (!text.empty()) {
    size_t n = 1;
    while (n <= 4 && n <= text.size() && !decode_one(text.substr(0, n))) ++n;
    if (n > 4 || n > text.size()) return false;
    text.remove_prefix(n);
  }
  return true;
}

// Whether some continuation of `tail` is one code point.
bool naive_can_grow(std::string_view tail) {
  std::string grown(tail);
  for (size_t missing = 1; missing + tail.size() <= 4; ++missing) {
    for (const char second : {'\x80', '\x9F', '\x90', '\xA0', '\xBF', '\x8F'}) {
      grown.resize(tail.size());
      grown.push_back(second);
      while (grown.size() < tail.size() + missing) grown.push_back('\x80');
      if (decode_one(grown)) return true;
    }
  }
  return false;
}

void check(const std::string& bytes) {
  const size_t invalid = utf8_first_invalid(bytes);
  ASSERT_EQ(invalid == bytes.size(), naive_valid(bytes));
  ASSERT_TRUE(naive_valid(std::string_view(bytes).substr(0, invalid)));
  ASSERT_EQ(utf8_first_invalid(utf8_sanitize(bytes)), utf8_sanitize(bytes).size());
  const size_t whole = utf8_complete_prefix(bytes);
  if (whole < bytes.size()) {
    ASSERT_TRUE(naive_can_grow(std::string_view(bytes).substr(whole)));
  } else {
    for (size_t back = 1; back <= 3 && back <= bytes.size(); ++back) {
      ASSERT_FALSE(naive_can_grow(std::string_view(bytes).substr(bytes.size() - back)));
    }
  }
}

TEST(Utf8, EverySequenceOfOneToThreeBytes) {
  for (uint32_t v = 0; v < 1u << 24; ++v) {
    if ((v & 0xFF) < 0x7F && v > 0xFF && (v & 0xFF) != 'A') continue;  // one ASCII byte stands for the others
    const std::string bytes{static_cast<char>(v), static_cast<char>(v >> 8), static_cast<char>(v >> 16)};
    const size_t n = v < 1u << 8 ? 1 : v < 1u << 16 ? 2 : 3;
    check(bytes.substr(0, n));
    if (HasFatalFailure()) FAIL() << std::hex << v;
  }
}

// Byte values on both sides of every border in the table of valid sequences; all of 4 bytes would be 4 billion.
TEST(Utf8, EveryBorderSequenceOfFourBytes) {
  const std::vector<int> borders = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0,
                                    0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xF7, 0xF8, 0xFE, 0xFF};
  for (const int a : borders) {
    for (const int b : borders) {
      for (const int c : borders) {
        for (const int d : borders) {
          check({static_cast<char>(a), static_cast<char>(b), static_cast<char>(c), static_cast<char>(d)});
          if (HasFatalFailure()) FAIL() << std::hex << a << " " << b << " " << c << " " << d;
        }
      }
    }
  }
}

TEST(Utf8, EveryCodePoint) {
  for (uint32_t code = 0x10000; code <= 0x10FFFF; ++code) {
    const std::string bytes{static_cast<char>(0xF0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 0x3F)),
                            static_cast<char>(0x80 | (code >> 6 & 0x3F)), static_cast<char>(0x80 | (code & 0x3F))};
    ASSERT_EQ(utf8_first_invalid(bytes), 4u) << std::hex << code;
    ASSERT_EQ(utf8_sanitize(bytes), bytes);
    for (size_t cut = 1; cut < 4; ++cut) ASSERT_EQ(utf8_complete_prefix(bytes.substr(0, cut)), 0u) << std::hex << code;
  }
}

TEST(Utf8, SanitizeReplacesMaximalParts) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(utf8_sanitize(""), "");
  EXPECT_EQ(utf8_sanitize("a\xE2\x82z"), "a" + r + "z");  // one sequence cut short is one replacement
  EXPECT_EQ(utf8_sanitize("\xE2\x82\xE2\x82\xAC"), r + "\xE2\x82\xAC");
  EXPECT_EQ(utf8_sanitize("\xC0\xAF"), r + r);                  // overlong: no byte belongs to the next
  EXPECT_EQ(utf8_sanitize("\xED\xA0\x80"), r + r + r);          // surrogate
  EXPECT_EQ(utf8_sanitize("\xF4\x90\x80\x80"), r + r + r + r);  // beyond U+10FFFF
  EXPECT_EQ(utf8_sanitize(std::string("a\0b", 3)), std::string("a\0b", 3));
}

TEST(Utf8, PrintableIntoAnArrayCutsAtACodePoint) {
  const std::string text = "a\xE2\x82\xAC\xFF\xF0\x9F\x98\x80z\xE2\x82", whole = utf8_sanitize(text);
  const std::vector<size_t> ends = {0, 1, 4, 7, 11, 12, 15};
  ASSERT_EQ(whole.size(), ends.back());
  for (size_t room = 0; room <= whole.size() + 2; ++room) {
    std::string out(room + 1, '#');
    const size_t n = utf8_printable(text, out.data(), room);
    EXPECT_EQ(n, *std::prev(std::upper_bound(ends.begin(), ends.end(), room))) << room;
    EXPECT_EQ(out, whole.substr(0, n) + std::string(room + 1 - n, '#'));
  }
}

TEST(Utf8, PrintableEscapesControlBytes) {
  const std::string text("a\0b\x1B[1m\x7F\n\t\xC3\xA4z", 13);
  const std::string whole = "a\\x00b\\x1b[1m\\x7f\n\t\xC3\xA4z";
  for (size_t room = 0; room <= whole.size(); ++room) {
    std::string out(room, '#');
    const size_t n = utf8_printable(text, out.data(), room);
    const std::string written = out.substr(0, n);
    EXPECT_EQ(written, whole.substr(0, n));
    EXPECT_LE(room - n, 3u);
    const size_t escape = written.rfind('\\');
    EXPECT_TRUE(escape == std::string::npos || escape + 4 <= n) << room;
    EXPECT_EQ(utf8_first_invalid(written), n);
  }
}

}  // namespace
}  // namespace quire
