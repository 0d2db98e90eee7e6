// JSON from files that nobody vouches for: parsed with limits, read with type and range checks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lib/support/status.h"

namespace quire {

// One value. Nothing is allocated while it is moved or destroyed, so std::bad_alloc can pass it at any time; it is as
// deep as the parser let it become, so destroying it does not exhaust the stack.
class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::map<std::string, Json, std::less<>>;

  Json() = default;  // null
  explicit Json(bool value) : value_(value) {}
  explicit Json(int64_t value) : value_(value) {}
  explicit Json(uint64_t value) : value_(value) {}
  explicit Json(double value) : value_(value) {}
  explicit Json(std::string value) : value_(std::move(value)) {}
  explicit Json(Array value) : value_(std::move(value)) {}
  explicit Json(Object value) : value_(std::move(value)) {}
  Json(Json&&) noexcept;
  Json& operator=(Json&&) noexcept;
  ~Json();

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  // nullptr, or nothing, where the value is of another type.
  const std::string* string() const { return std::get_if<std::string>(&value_); }
  const Array* array() const { return std::get_if<Array>(&value_); }
  const Object* object() const { return std::get_if<Object>(&value_); }
  std::optional<bool> boolean() const;
  // A number in [least, most] that was written without fraction or exponent.
  std::optional<int64_t> integer(int64_t least = INT64_MIN, int64_t most = INT64_MAX) const;
  std::optional<double> number() const;  // any number

  // The member of that name, null or not; nullptr if there is none or this is no object.
  const Json* find(std::string_view key) const;
  // The elements of an array; of anything else, it alone.
  std::span<const Json> as_list() const;

  // Appends the value as JSON to `out`, and stops where that has more than `most` bytes.
  void print(std::string& out, size_t most) const;

 private:
  std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string, Array, Object> value_;
};

struct JsonLimits {
  int max_depth = 32;
  int64_t max_values = 1'000'000;  // numbers, strings, arrays, ... together: bounds the memory a small text can claim
};

// Parses a text whose outermost value is an object; a byte order mark before it is skipped. Refused: invalid UTF-8,
// NaN, infinities and numbers beyond double, a key that occurs twice in one object, anything beyond the limits. `what`
// names the text in messages, which say line and column in characters; the offset of a failure is a byte of the text.
// Error: kBadFile.
Result<Json> parse_json_object(std::string_view text, const std::string& what, const JsonLimits& limits = {});

// Reads members of one object. A missing member and null both count as absent.
class JsonReader {
 public:
  // Both must outlive the reader; `what` names the object in messages.
  JsonReader(const Json& object, std::string what) : object_(object), what_(std::move(what)) {}

  const Json* find(const char* key) const;  // nullptr if absent
  const std::string& what() const { return what_; }

  // A JSON integer in [least, most]; absent: `fallback`, and an error where there is none. Error: kBadFile naming key.
  Result<int64_t> integer(const char* key, int64_t least, int64_t most, std::optional<int64_t> fallback = {}) const;
  // Any JSON number in [least, most].
  Result<double> number(const char* key, double least, double most, std::optional<double> fallback = {}) const;
  Result<bool> boolean(const char* key, bool fallback) const;
  Result<std::string> string(const char* key, std::string fallback) const;

  Status bad(const char* key, const std::string& expected) const;

 private:
  const Json& object_;
  std::string what_;
};

// The value, or a text as a JSON string, cut short where it is long: for messages.
std::string json_excerpt(const Json& value);
std::string json_excerpt(std::string_view text);

}  // namespace quire
