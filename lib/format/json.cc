#include "lib/format/json.h"

#include <vector>

#include "lib/support/utf8.h"

namespace quire {
namespace {

// Builds the document from the parser's events, so that every limit is checked before memory is spent on a value.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  Json take() { return std::move(root_); }
  const std::string& failure() const { return failure_; }
  int64_t failure_offset() const { return failure_offset_; }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t&) override { return put(value); }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t&) override { return fail("binary value"); }

  bool start_object(std::size_t) override { return open(Json::object()); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    Json& object = *open_.back();
    if (object.contains(name)) return fail("key \"" + name + "\" occurs twice");
    member_ = &object[name];
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const Json::exception& error) override {
    // The library's text begins with its own error number in brackets; what follows speaks of line, column and cause.
    const std::string text = error.what();
    const size_t bracket = text.find("] ");
    failure_ = bracket == std::string::npos ? text : text.substr(bracket + 2);
    failure_offset_ = position > 0 ? static_cast<int64_t>(position) - 1 : 0;
    return false;
  }

 private:
  bool fail(std::string message) {
    failure_ = std::move(message);
    return false;
  }

  // Where the next value goes. Elements of vectors and maps stay put while they are open: only the innermost open
  // array grows.
  Json* place(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      open_.back()->push_back(std::move(value));
      return &open_.back()->back();
    }
    *member_ = std::move(value);
    return member_;
  }

  bool put(Json value) {
    if (++n_values_ > limits_.max_values) {
      return fail("more than " + std::to_string(limits_.max_values) + " values");
    }
    place(std::move(value));
    return true;
  }

  bool open(Json value) {
    if (static_cast<int>(open_.size()) >= limits_.max_depth) {
      return fail("nested deeper than " + std::to_string(limits_.max_depth));
    }
    if (++n_values_ > limits_.max_values) {
      return fail("more than " + std::to_string(limits_.max_values) + " values");
    }
    open_.push_back(place(std::move(value)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  JsonLimits limits_;
  Json root_;
  Json* member_ = nullptr;
  std::vector<Json*> open_;
  int64_t n_values_ = 0;
  std::string failure_;
  int64_t failure_offset_ = -1;
};

}  // namespace

Result<Json> parse_json_object(std::string_view text, const std::string& what, const JsonLimits& limits) {
  const size_t invalid = utf8_first_invalid(text);
  if (invalid != text.size()) {
    return Status(Code::kBadFile, what + " is not valid UTF-8", static_cast<int64_t>(invalid));
  }
  Builder builder(limits);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    return Status(Code::kBadFile, what + ": " + builder.failure(), builder.failure_offset());
  }
  Json document = builder.take();
  if (!document.is_object()) {
    return Status(Code::kBadFile, what + " must be a JSON object, but is " + json_excerpt(document), 0);
  }
  return document;
}

const Json* JsonReader::find(const char* key) const {
  const auto at = object_.find(key);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
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
  const bool fits = value && value->is_number_integer() &&
                    !(value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
  if (!fits || value->get<int64_t>() < least || value->get<int64_t>() > most) {
    return bad(key, "an integer from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return value->get<int64_t>();
}

Result<double> JsonReader::number(const char* key, double least, double most, std::optional<double> fallback) const {
  const Json* value = find(key);
  if (!value && fallback) return *fallback;
  if (!value || !value->is_number() || !(value->get<double>() >= least && value->get<double>() <= most)) {
    return bad(key, "a number from " + Json(least).dump() + " to " + Json(most).dump());
  }
  return value->get<double>();
}

Result<bool> JsonReader::boolean(const char* key, bool fallback) const {
  const Json* value = find(key);
  if (!value) return fallback;
  if (!value->is_boolean()) return bad(key, "true or false");
  return value->get<bool>();
}

Result<std::string> JsonReader::string(const char* key, std::string fallback) const {
  const Json* value = find(key);
  if (!value) return fallback;
  if (!value->is_string()) return bad(key, "a string");
  return value->get<std::string>();
}

std::string json_excerpt(const Json& value) {
  constexpr size_t kLongest = 60;
  if (value.is_structured() && value.size() > 8) {
    return (value.is_array() ? "an array of " : "an object of ") + std::to_string(value.size());
  }
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() <= kLongest) return text;
  text.resize(kLongest);
  text.resize(utf8_complete_prefix(text));
  return text + "...";
}

}  // namespace quire
