// JSON (RFC 8259) to a value, in one pass. A value is counted before memory is spent on it, and the depth is limited,
// so recursion is too.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "lib/format/json.h"
#include "lib/support/utf8.h"

namespace quire {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Each function that reads something stands at its first byte, and after success behind its last. False: fail() was
// called.
class Parser {
 public:
  Parser(std::string_view text, const JsonLimits& limits) : text_(text), limits_(limits) {}

  bool document(Json& value) {
    if (const size_t invalid = utf8_first_invalid(text_); invalid != text_.size()) {
      return fail_at(invalid, "invalid UTF-8");
    }
    at_ = begin();
    skip_space();
    if (!read_value(value, 0)) return false;
    skip_space();
    return at_ == text_.size() || fail("expected the end of the text");
  }

  int64_t failure_offset() const { return static_cast<int64_t>(failed_at_); }

  std::string failure() const {
    const std::string_view before = text_.substr(0, failed_at_);
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const size_t line_end = before.rfind('\n');
    const std::string_view line_before = before.substr(line_end == std::string_view::npos ? begin() : line_end + 1);
    const auto column = 1 + std::count_if(line_before.begin(), line_before.end(), begins_character);
    return "line " + std::to_string(line) + ", column " + std::to_string(column) + ": " + failure_;
  }

 private:
  static bool begins_character(char c) { return (c & 0xC0) != 0x80; }

  // Behind a byte order mark.
  size_t begin() const { return text_.starts_with("\xEF\xBB\xBF") ? 3 : 0; }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool fail(std::string expected) {
    std::string found = "the end";
    if (at_ < text_.size()) {
      size_t end = at_ + 1;  // of a whole character
      while (end < text_.size() && !begins_character(text_[end])) ++end;
      found = json_excerpt(text_.substr(at_, end - at_));
    }
    return fail_at(at_, std::move(expected) + ", found " + found);
  }

  bool fail_at(size_t place, std::string failure) {
    failed_at_ = place;
    failure_ = std::move(failure);
    return false;
  }

  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\n\r").find(text_[at_]) != std::string_view::npos) ++at_;
  }

  bool take(char c) {
    if (peek() != c || at_ == text_.size()) return false;
    ++at_;
    return true;
  }

  bool read_value(Json& value, int depth) {
    if (++n_values_ > limits_.max_values) {
      return fail_at(at_, "more than " + std::to_string(limits_.max_values) + " values");
    }
    switch (peek()) {
      case '{':
      case '[':
        if (depth >= limits_.max_depth) {
          return fail_at(at_, "nested deeper than " + std::to_string(limits_.max_depth));
        }
        return peek() == '{' ? read_object(value, depth) : read_array(value, depth);
      case '"': {
        std::string text;
        if (!read_string(text)) return false;
        value = Json(std::move(text));
        return true;
      }
      case 't':
        return read_word("true", value, Json(true));
      case 'f':
        return read_word("false", value, Json(false));
      case 'n':
        return read_word("null", value, Json());
      default:
        if (peek() == '-' || is_digit(peek())) return read_number(value);
        return fail("expected a value");
    }
  }

  bool read_word(std::string_view word, Json& value, Json meaning) {
    if (!text_.substr(at_).starts_with(word)) return fail("expected " + std::string(word));
    at_ += word.size();
    value = std::move(meaning);
    return true;
  }

  bool read_array(Json& value, int depth) {
    ++at_;
    Json::Array elements;
    skip_space();
    if (!take(']')) {
      do {
        skip_space();
        if (!read_value(elements.emplace_back(), depth + 1)) return false;
        skip_space();
      } while (take(','));
      if (!take(']')) return fail("expected , or ]");
    }
    value = Json(std::move(elements));
    return true;
  }

  bool read_object(Json& value, int depth) {
    ++at_;
    Json::Object members;
    skip_space();
    if (!take('}')) {
      do {
        skip_space();
        if (!read_member(members, depth)) return false;
        skip_space();
      } while (take(','));
      if (!take('}')) return fail("expected , or }");
    }
    value = Json(std::move(members));
    return true;
  }

  bool read_member(Json::Object& members, int depth) {
    const size_t key_at = at_;
    if (peek() != '"') return fail("expected a key");
    std::string key;
    if (!read_string(key)) return false;
    const auto [member, is_new] = members.try_emplace(std::move(key));
    if (!is_new) return fail_at(key_at, "key " + json_excerpt(member->first) + " occurs twice");
    skip_space();
    if (!take(':')) return fail("expected :");
    skip_space();
    return read_value(member->second, depth + 1);
  }

  bool read_string(std::string& out) {
    ++at_;
    for (;;) {
      const size_t begin = at_;
      while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
             static_cast<unsigned char>(text_[at_]) >= 0x20) {
        ++at_;
      }
      out.append(text_, begin, at_ - begin);
      if (take('"')) return true;
      if (at_ == text_.size()) return fail("expected \" to end a string");
      if (!take('\\')) return fail("expected an escape for a control character");
      if (!read_escape(out)) return false;
    }
  }

  bool read_escape(std::string& out) {
    constexpr std::string_view kLetters = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    if (const size_t at = kLetters.find(peek()); at_ < text_.size() && at != std::string_view::npos) {
      ++at_;
      out += kMeanings[at];
      return true;
    }
    const size_t escape_at = at_ - 1;
    uint32_t code = 0;
    if (!read_code_unit(code)) return false;
    if (code >= 0xD800 && code < 0xDC00) {
      uint32_t low = 0;
      if (!text_.substr(at_).starts_with("\\u")) return fail("expected the second half of a surrogate pair");
      ++at_;
      if (!read_code_unit(low)) return false;
      if (low < 0xDC00 || low >= 0xE000) return fail_at(escape_at, "half of a surrogate pair stands alone");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code < 0xE000) {
      return fail_at(escape_at, "half of a surrogate pair stands alone");
    }
    append_utf8(code, out);
    return true;
  }

  // uXXXX, behind a backslash.
  bool read_code_unit(uint32_t& code) {
    if (!take('u')) return fail("expected one of \" \\ / b f n r t u");
    for (int i = 0; i < 4; ++i) {
      const char* const digit = text_.data() + at_;
      uint32_t value = 0;
      if (std::from_chars(digit, digit + (at_ < text_.size() ? 1 : 0), value, 16).ec != std::errc()) {
        return fail("expected a hex digit");
      }
      code = code << 4 | value;
      ++at_;
    }
    return true;
  }

  static void append_utf8(uint32_t code, std::string& out) {
    const auto byte = [&](uint32_t bits) { out += static_cast<char>(bits); };
    if (code < 0x80) return byte(code);
    if (code < 0x800) {
      byte(0xC0 | code >> 6);
    } else {
      if (code < 0x10000) {
        byte(0xE0 | code >> 12);
      } else {
        byte(0xF0 | code >> 18);
        byte(0x80 | (code >> 12 & 0x3F));
      }
      byte(0x80 | (code >> 6 & 0x3F));
    }
    byte(0x80 | (code & 0x3F));
  }

  bool read_digits() {
    if (!is_digit(peek())) return fail("expected a digit");
    while (is_digit(peek())) ++at_;
    return true;
  }

  bool read_number(Json& value) {
    const size_t begin = at_;
    take('-');
    if (!take('0') && !read_digits()) return false;
    bool whole = true;
    if (take('.')) {
      whole = false;
      if (!read_digits()) return false;
    }
    if (take('e') || take('E')) {
      whole = false;
      if (!take('+')) take('-');
      if (!read_digits()) return false;
    }
    const char *from = text_.data() + begin, *to = text_.data() + at_;
    int64_t integer = 0;
    uint64_t large = 0;
    if (whole && std::from_chars(from, to, integer).ec == std::errc()) {
      value = Json(integer);
    } else if (whole && std::from_chars(from, to, large).ec == std::errc()) {
      value = Json(large);
    } else {
      double real = 0;
      if (!read_real(from, to, real)) return fail_at(begin, "a number beyond the range of double");
      value = Json(real);
    }
    return true;
  }

  // The nearest double to a well-formed number; false if that is infinite.
  static bool read_real(const char* from, const char* to, double& real) {
    if (std::from_chars(from, to, real).ec == std::errc()) return std::isfinite(real);
    // Too large or too small, by the power of ten of the first digit that counts.
    const std::string_view text(from, static_cast<size_t>(to - from));
    const size_t mantissa_end = std::min(text.find_first_of("eE"), text.size());
    const size_t point = std::min(text.find('.'), mantissa_end);
    const size_t first = text.find_first_of("123456789");
    int64_t exponent = 0;
    if (mantissa_end < text.size()) {
      const size_t digits = mantissa_end + (text[mantissa_end + 1] == '+' ? 2 : 1);
      // More than a text has digits, and far from where the sum below would overflow.
      constexpr int64_t kMost = int64_t{1} << 60;
      if (std::from_chars(from + digits, to, exponent).ec != std::errc()) {
        exponent = text[digits] == '-' ? -kMost : kMost;
      }
      exponent = std::clamp(exponent, -kMost, kMost);
    }
    if (exponent + static_cast<int64_t>(point) - static_cast<int64_t>(first) > 0) return false;
    real = *from == '-' ? -0.0 : 0.0;
    return true;
  }

  std::string_view text_;
  JsonLimits limits_;
  size_t at_ = 0;
  int64_t n_values_ = 0;
  std::string failure_;
  size_t failed_at_ = 0;
};

}  // namespace

Result<Json> parse_json_object(std::string_view text, const std::string& what, const JsonLimits& limits) {
  Parser parser(text, limits);
  Json document;
  if (!parser.document(document)) {
    return Status(Code::kBadFile, what + ": " + parser.failure(), parser.failure_offset());
  }
  if (!document.object()) {
    return Status(Code::kBadFile, what + " must be a JSON object, but is " + json_excerpt(document), 0);
  }
  return document;
}

}  // namespace quire
