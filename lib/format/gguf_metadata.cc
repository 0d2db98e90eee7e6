#include "lib/format/gguf_metadata.h"

#include "lib/format/json.h"

namespace quire {

std::string printed(const GgufValue& value) {
  if (const int64_t* integer = value.integer()) return std::to_string(*integer);
  if (const bool* boolean = value.boolean()) return *boolean ? "true" : "false";
  if (const std::string* text = value.string()) return json_excerpt(*text);
  if (value.number()) return json_excerpt(Json(*value.number()));
  return "an array";
}

const GgufValue* GgufMetadata::find(const std::string& key) const {
  const auto at = header_.metadata.find(key);
  return at == header_.metadata.end() ? nullptr : &at->second;
}

Status GgufMetadata::bad(const std::string& key, const std::string& expected) const {
  const GgufValue* value = find(key);
  return Status(Code::kBadFile, key + " is " + (value ? printed(*value) : "missing") + "; expected " + expected);
}

Result<int64_t> GgufMetadata::integer(const std::string& key, int64_t least, int64_t most,
                                      std::optional<int64_t> fallback) const {
  const GgufValue* value = find(key);
  if (!value && fallback) return *fallback;
  if (value && value->integer() && *value->integer() >= least && *value->integer() <= most) return *value->integer();
  return bad(key, "an integer from " + std::to_string(least) + " to " + std::to_string(most));
}

Result<double> GgufMetadata::number(const std::string& key, double least, double most,
                                    std::optional<double> fallback) const {
  const GgufValue* value = find(key);
  if (!value && fallback) return *fallback;
  const std::optional<double> found = value ? as_number(*value) : std::nullopt;
  if (found && *found >= least && *found <= most) return *found;
  return bad(key, "a number from " + json_excerpt(Json(least)) + " to " + json_excerpt(Json(most)));
}

Result<std::string> GgufMetadata::string(const std::string& key, const std::string& fallback) const {
  const GgufValue* value = find(key);
  if (!value) return fallback;
  if (value->string()) return *value->string();
  return bad(key, "a text");
}

std::optional<double> GgufMetadata::as_number(const GgufValue& value) {
  if (value.number()) return *value.number();
  if (value.integer()) return static_cast<double>(*value.integer());
  return {};
}

}  // namespace quire
