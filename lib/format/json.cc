#include "lib/format/json.h"

#include <charconv>
#include <cmath>

#include "lib/support/utf8.h"

namespace quire {
namespace {

// The shortest digits that give the number back; with a point or an exponent, so that it looks like no integer.
std::string number_text(double value) {
  char digits[32];
  const double magnitude = std::fabs(value);
  const bool plain = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e15);
  const auto end = std::to_chars(digits, digits + sizeof digits, value,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(digits, end.ptr);
  if (plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

void print_string(std::string_view text, std::string& out, size_t most) {
  constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  out += '"';
  for (const char c : text) {
    if (out.size() > most) return;
    if (const size_t at = kEscaped.find(c); at != std::string_view::npos) {
      out += '\\';
      out += kLetters[at];
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += "\\u00";
      out += "0123456789abcdef"[c >> 4];
      out += "0123456789abcdef"[c & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

std::string shortened(std::string text) {
  constexpr size_t kLongest = 60;
  text = utf8_sanitize(text);
  if (text.size() <= kLongest) return text;
  text.resize(kLongest);
  text.resize(utf8_complete_prefix(text));
  return text + "...";
}

// More than an excerpt shows, so that its end is never in the middle of something.
constexpr size_t kPrinted = 200;

}  // namespace

// Here, because GCC 12 warns where it sees through a variant's move.
Json::Json(Json&&) noexcept = default;
Json& Json::operator=(Json&&) noexcept = default;
Json::~Json() = default;

std::optional<bool> Json::boolean() const {
  const bool* value = std::get_if<bool>(&value_);
  return value ? std::optional(*value) : std::nullopt;
}

std::optional<int64_t> Json::integer(int64_t least, int64_t most) const {
  const int64_t* value = std::get_if<int64_t>(&value_);
  return value && *value >= least && *value <= most ? std::optional(*value) : std::nullopt;
}

std::optional<double> Json::number() const {
  if (const auto* value = std::get_if<int64_t>(&value_)) return static_cast<double>(*value);
  if (const auto* value = std::get_if<uint64_t>(&value_)) return static_cast<double>(*value);
  if (const auto* value = std::get_if<double>(&value_)) return *value;
  return {};
}

const Json* Json::find(std::string_view key) const {
  const Object* members = object();
  if (!members) return nullptr;
  const auto at = members->find(key);
  return at == members->end() ? nullptr : &at->second;
}

std::span<const Json> Json::as_list() const {
  const Array* elements = array();
  return elements ? std::span<const Json>(*elements) : std::span<const Json>(this, 1);
}

void Json::print(std::string& out, size_t most) const {
  if (out.size() > most) return;
  if (const auto* text = string()) return print_string(*text, out, most);
  if (const auto* truth = std::get_if<bool>(&value_)) {
    out += *truth ? "true" : "false";
  } else if (const auto* whole = std::get_if<int64_t>(&value_)) {
    out += std::to_string(*whole);
  } else if (const auto* large = std::get_if<uint64_t>(&value_)) {
    out += std::to_string(*large);
  } else if (const auto* real = std::get_if<double>(&value_)) {
    out += number_text(*real);
  } else if (const Array* elements = array()) {
    out += '[';
    for (const Json& element : *elements) {
      if (&element != &elements->front()) out += ',';
      element.print(out, most);
    }
    out += ']';
  } else if (const Object* members = object()) {
    out += '{';
    for (const auto& [key, value] : *members) {
      if (&value != &members->begin()->second) out += ',';
      print_string(key, out, most);
      out += ':';
      value.print(out, most);
    }
    out += '}';
  } else {
    out += "null";
  }
}

const Json* JsonReader::find(const char* key) const {
  const Json* value = object_.find(key);
  return value && !value->is_null() ? value : nullptr;
}

Status JsonReader::bad(const char* key, const std::string& expected) const {
  const Json* value = find(key);
  const std::string found = value ? "is " + json_excerpt(*value) : "is missing";
  return Status(Code::kBadFile, what_ + ": " + key + " " + found + "; expected " + expected);
}

Result<int64_t> JsonReader::integer(const char* key, int64_t least, int64_t most,
                                    std::optional<int64_t> fallback) const {
  const Json* value = find(key);
  if (!value && fallback) return *fallback;
  const auto number = value ? value->integer(least, most) : std::nullopt;
  if (!number) {
    return bad(key, "an integer from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return *number;
}

Result<double> JsonReader::number(const char* key, double least, double most, std::optional<double> fallback) const {
  const Json* value = find(key);
  if (!value && fallback) return *fallback;
  const auto number = value ? value->number() : std::nullopt;
  if (!number || !(*number >= least && *number <= most)) {
    return bad(key, "a number from " + number_text(least) + " to " + number_text(most));
  }
  return *number;
}

Result<bool> JsonReader::boolean(const char* key, bool fallback) const {
  const Json* value = find(key);
  if (!value) return fallback;
  const auto truth = value->boolean();
  if (!truth) return bad(key, "true or false");
  return *truth;
}

Result<std::string> JsonReader::string(const char* key, std::string fallback) const {
  const Json* value = find(key);
  if (!value) return fallback;
  if (!value->string()) return bad(key, "a string");
  return *value->string();
}

std::string json_excerpt(const Json& value) {
  if (value.array() && value.array()->size() > 8) return "an array of " + std::to_string(value.array()->size());
  if (value.object() && value.object()->size() > 8) return "an object of " + std::to_string(value.object()->size());
  std::string text;
  value.print(text, kPrinted);
  return shortened(std::move(text));
}

std::string json_excerpt(std::string_view text) {
  std::string out;
  print_string(text, out, kPrinted);
  return shortened(std::move(out));
}

}  // namespace quire
