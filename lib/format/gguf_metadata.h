// Reads values of a GGUF file's metadata by their keys, with checks of kind and range.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lib/format/gguf.h"
#include "lib/support/status.h"

namespace quire {

// A value as messages show it.
std::string printed(const GgufValue& value);

// Messages name the key, what it is, and what was expected. Error of all: kBadFile. The header must outlive it.
class GgufMetadata {
 public:
  explicit GgufMetadata(const GgufHeader& header) : header_(header) {}

  const GgufValue* find(const std::string& key) const;  // null: there is none
  Status bad(const std::string& key, const std::string& expected) const;
  // Without a fallback the key must be there.
  Result<int64_t> integer(const std::string& key, int64_t least, int64_t most,
                          std::optional<int64_t> fallback = {}) const;
  Result<double> number(const std::string& key, double least, double most, std::optional<double> fallback = {}) const;
  Result<std::string> string(const std::string& key, const std::string& fallback) const;
  static std::optional<double> as_number(const GgufValue& value);

 private:
  const GgufHeader& header_;
};

}  // namespace quire
