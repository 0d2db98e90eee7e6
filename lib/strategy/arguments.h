// The arguments of one term, read by name, type and range; and the writer of a term's canonical form.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lib/strategy/expression.h"
#include "lib/support/status.h"

namespace quire {

using Words = std::span<const std::string_view>;

// Borrows the term. A getter without fallback refuses a missing argument; a fallback is not checked against the range.
class Arguments {
 public:
  explicit Arguments(const Term& term) : term_(&term) {}

  // Refuses arguments that are not in `known`, and repeated ones.
  Status check_names(Words known) const;

  bool has(std::string_view name) const { return find(name) != nullptr; }
  Result<int64_t> integer(std::string_view name, int64_t min, int64_t max, std::optional<int64_t> fallback = {}) const;
  Result<double> real(std::string_view name, double min, double max, std::optional<double> fallback = {}) const;
  // One of `choices`; its index. The first is the default.
  Result<size_t> choice(std::string_view name, Words choices) const;

  Result<std::string> word(std::string_view name, std::string fallback) const;

  std::string name() const { return std::string(term_->name); }
  // kBadStrategy at the value of argument `name`, or at the term where that is not given.
  Status refuse(std::string_view name, const std::string& message) const;
  // kUnsupported at the term.
  Status unsupported(const std::string& message) const;

 private:
  const Argument* find(std::string_view name) const;
  Status missing(std::string_view name) const;

  const Term* term_;
};

// The shortest text that reads back as the same double; never with an exponent.
std::string number_text(double value);

// "a, b, c"
std::string joined(Words words);

// Writes "name(key=value, ...)".
class CanonicalTerm {
 public:
  explicit CanonicalTerm(std::string_view name) : text_(name) {}
  CanonicalTerm& add(std::string_view key, std::string_view value);
  CanonicalTerm& add_integer(std::string_view key, int64_t value) { return add(key, std::to_string(value)); }
  CanonicalTerm& add_real(std::string_view key, double value) { return add(key, number_text(value)); }
  std::string text() const { return has_arguments_ ? text_ + ")" : text_; }

 private:
  std::string text_;
  bool has_arguments_ = false;
};

}  // namespace quire
