#include "lib/strategy/expression.h"

#include <charconv>
#include <cstdio>

namespace quire {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool starts_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool continues_name(char c) { return starts_name(c) || is_digit(c); }

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<std::vector<Term>> parse() {
    std::vector<Term> terms;
    do {
      QUIRE_ASSIGN(Term term, parse_term());
      const bool has_arguments = text_[at_ - 1] == ')';
      terms.push_back(std::move(term));
      skip_blanks();
      if (at_ < text_.size() && text_[at_] != '+') {
        return unexpected(has_arguments ? "'+' or the end" : "'(', '+' or the end");
      }
    } while (accept('+'));
    return terms;
  }

 private:
  Result<Term> parse_term() {
    Term term;
    QUIRE_ASSIGN(term.name, parse_name("the name of a method"));
    term.at = term.name.data() - text_.data();
    const size_t end_of_name = at_;
    if (!accept('(')) {
      at_ = end_of_name;
      return term;
    }
    if (accept(')')) return term;
    do {
      QUIRE_ASSIGN(Argument argument, parse_argument());
      term.arguments.push_back(argument);
    } while (accept(','));
    if (!accept(')')) return unexpected("',' or ')'");
    return term;
  }

  Result<Argument> parse_argument() {
    Argument argument;
    QUIRE_ASSIGN(argument.name, parse_name("the name of an argument"));
    argument.at = argument.name.data() - text_.data();
    if (!accept('=')) return unexpected("'='");
    skip_blanks();
    argument.value_at = static_cast<int64_t>(at_);
    if (at_ < text_.size() && starts_name(text_[at_])) {
      while (at_ < text_.size() && (continues_name(text_[at_]) || text_[at_] == '.')) ++at_;
      argument.value = since(argument.value_at);
      return argument;
    }
    QUIRE_TRY(parse_number(argument));
    return argument;
  }

  Status parse_number(Argument& argument) {
    if (at_ < text_.size() && text_[at_] == '-') ++at_;
    bool whole = true;
    if (!skip_digits()) return unexpected("a number or a word");
    if (at_ < text_.size() && text_[at_] == '.') {
      whole = false;
      ++at_;
      if (!skip_digits()) return unexpected("a digit after the point");
    }
    if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      whole = false;
      ++at_;
      if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
      if (!skip_digits()) return unexpected("the digits of an exponent");
    }
    argument.value = since(argument.value_at);
    const char* begin = argument.value.data();
    const char* end = begin + argument.value.size();
    double number = 0;
    if (std::from_chars(begin, end, number).ec != std::errc()) {
      return expression_error(argument.value_at, in_quotes(argument.value) + " is too large or too small for a number");
    }
    argument.number = number;
    int64_t integer = 0;
    if (whole && std::from_chars(begin, end, integer).ec == std::errc()) argument.integer = integer;
    return {};
  }

  Result<std::string_view> parse_name(const char* what) {
    skip_blanks();
    if (at_ == text_.size() || !starts_name(text_[at_])) return unexpected(what);
    const auto begin = static_cast<int64_t>(at_);
    while (at_ < text_.size() && continues_name(text_[at_])) ++at_;
    return since(begin);
  }

  std::string_view since(int64_t begin) const {
    return text_.substr(static_cast<size_t>(begin), at_ - static_cast<size_t>(begin));
  }

  bool skip_digits() {
    const size_t begin = at_;
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    return at_ > begin;
  }

  void skip_blanks() {
    while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
  }

  bool accept(char c) {
    skip_blanks();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  Status unexpected(const std::string& expected) const {
    std::string found = "the end of the expression";
    if (at_ < text_.size()) {
      const char c = text_[at_];
      char hex[16];
      std::snprintf(hex, sizeof hex, "byte 0x%02X", static_cast<unsigned>(static_cast<unsigned char>(c)));
      found = c >= ' ' && c <= '~' ? std::string("'") + c + "'" : hex;
    }
    return expression_error(static_cast<int64_t>(at_), "expected " + expected + ", found " + found);
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

Result<std::vector<Term>> parse_expression(std::string_view text) {
  if (text.size() > kMaxExpressionBytes) {
    return expression_error(static_cast<int64_t>(kMaxExpressionBytes),
                            "the expression has " + std::to_string(text.size()) + " bytes; at most " +
                                std::to_string(kMaxExpressionBytes) + " are allowed");
  }
  return Parser(text).parse();
}

Status expression_error(int64_t at, const std::string& message, Code code) {
  return Status(code, "byte " + std::to_string(at) + ": " + message, at);
}

std::string in_quotes(std::string_view text) {
  constexpr size_t kShown = 40;
  std::string quote = "'";
  quote.append(text.substr(0, kShown));
  quote += text.size() > kShown ? "...'" : "'";
  return quote;
}

}  // namespace quire
