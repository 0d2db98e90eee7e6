#include "lib/tokenizer/regex_syntax.h"

namespace quire {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

class Translator {
 public:
  explicit Translator(std::string_view expression) : in_(expression) {}

  Result<std::string> run() {
    while (at_ < in_.size()) {
      switch (in_[at_]) {
        case '\\':
          QUIRE_TRY(escape());
          break;
        case '[':
          QUIRE_TRY(character_class());
          break;
        case '(':
          QUIRE_TRY(group());
          break;
        case '{':
          QUIRE_TRY(interval());
          break;
        default:
          out_ += in_[at_++];
      }
    }
    return std::move(out_);
  }

 private:
  Status refuse(const std::string& what) const {
    return Status(Code::kUnsupported, what + " at byte " + std::to_string(at_) + " is not supported",
                  static_cast<int64_t>(at_));
  }

  char peek(size_t ahead) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }

  void copy(size_t n) {
    out_ += in_.substr(at_, n);
    at_ += n;
  }

  // \ and what follows; within a class and outside.
  Status escape() {
    const char c = peek(1);
    if (at_ + 1 >= in_.size()) return refuse("a backslash at the end");
    if (c == 'p' || c == 'P') {
      const size_t end = in_.find('}', at_);
      if (peek(2) != '{' || end == std::string_view::npos) return refuse("a property without braces");
      copy(end + 1 - at_);
      return {};
    }
    if (c == 'x') return hexadecimal();
    if (c == 'u') {  // \uHHHH
      for (size_t i = 2; i < 6; ++i) {
        if (!is_hex(peek(i))) return refuse("\\u without four hexadecimal digits");
      }
      out_ += "\\x{" + std::string(in_.substr(at_ + 2, 4)) + "}";
      at_ += 6;
      return {};
    }
    if (c == 'v') {  // a vertical tab; to PCRE2 a class
      out_ += "\\x{0B}";
      at_ += 2;
      return {};
    }
    // \w and \b, because the two libraries count other characters as parts of words; references to groups, because
    // they cost time without bound.
    if ((is_letter(c) || is_digit(c)) && std::string_view("dDsSrntfaeAzZ").find(c) == std::string_view::npos) {
      return refuse(std::string("\\") + c);
    }
    if (static_cast<uint8_t>(c) >= 0x80) {
      ++at_;  // an escaped character beyond ASCII is the character
      return {};
    }
    copy(2);
    return {};
  }

  Status hexadecimal() {
    if (peek(2) == '{') {
      const size_t end = in_.find('}', at_);
      if (end == std::string_view::npos) return refuse("\\x{ without an end");
      copy(end + 1 - at_);
      return {};
    }
    if (!is_hex(peek(2)) || !is_hex(peek(3)) || peek(2) >= '8') return refuse("\\x of a byte beyond ASCII");
    copy(4);
    return {};
  }

  // Unions and intersections of classes and POSIX names are Oniguruma's only, or mean something else there.
  Status character_class() {
    copy(1);
    if (peek(0) == '^') copy(1);
    if (peek(0) == ']') return refuse("a class that begins with ]");
    while (at_ < in_.size() && in_[at_] != ']') {
      if (in_[at_] == '[') return refuse("a class in a class");
      if (in_[at_] == '&' && peek(1) == '&') return refuse("an intersection of classes (&&)");
      if (in_[at_] == '\\') {
        QUIRE_TRY(escape());
      } else {
        copy(1);
      }
    }
    if (at_ == in_.size()) return refuse("a class without an end");
    copy(1);
    return {};
  }

  Status group() {
    if (peek(1) == '*') return refuse("(*");
    if (peek(1) != '?') {
      copy(1);
      return {};
    }
    for (const std::string_view known :
         {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:", "(?i)", "(?-i)"}) {
      if (in_.substr(at_).starts_with(known)) {
        copy(known.size());
        return {};
      }
    }
    return refuse("a group of the kind " + std::string(in_.substr(at_, 3)));
  }

  // {n}, {n,}, {n,m}, {,m}. Behind one, ? and + mean something else to Oniguruma, but for {n,m}?.
  Status interval() {
    size_t end = at_ + 1;
    const size_t low = end;
    while (end < in_.size() && is_digit(in_[end])) ++end;
    const bool has_low = end > low;
    bool has_comma = false, has_high = false;
    if (end < in_.size() && in_[end] == ',') {
      has_comma = true;
      const size_t high = ++end;
      while (end < in_.size() && is_digit(in_[end])) ++end;
      has_high = end > high;
    }
    if (end == in_.size() || in_[end] != '}' || !(has_low || has_high)) return refuse("{ that begins no interval");
    const char after = end + 1 < in_.size() ? in_[end + 1] : '\0';
    if (after == '+' || (after == '?' && !has_comma)) return refuse(std::string("} before ") + after);
    out_ += '{';
    ++at_;
    if (!has_low) out_ += '0';
    copy(end + 1 - at_);
    return {};
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

Result<std::string> regex_for_pcre2(std::string_view expression) { return Translator(expression).run(); }

std::string regex_of_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (static_cast<uint8_t>(c) < 0x80 && !is_letter(c) && !is_digit(c)) out += '\\';
    out += c;
  }
  return out;
}

}  // namespace quire
