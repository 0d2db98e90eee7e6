// JSON from files that nobody vouches for: parsed with limits, read with type and range checks.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "lib/support/status.h"

namespace quire {

using Json = nlohmann::json;

struct JsonLimits {
  int max_depth = 32;
  int64_t max_values = 1'000'000;  // numbers, strings, arrays, ... together: bounds the memory a small text can claim
};

// Parses a text whose outermost value is an object. Refused: invalid UTF-8, NaN, infinities and numbers beyond double,
// a key that occurs twice in one object, anything beyond the limits. `what` names the text in messages; the offset of a
// failure is a byte of the text. Error: kBadFile.
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

// The value as JSON, cut short where it is long: for messages.
std::string json_excerpt(const Json& value);

}  // namespace quire
