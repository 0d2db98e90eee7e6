// The arguments of one term, read by name, type and range; and the writer of a term's canonical form.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/strategy/expression.h"
#include "lib/support/status.h"

namespace quire {

using Words = std::span<const std::string_view>;

// What is said of an argument for people. Its type, range and default are where it is read.
struct ArgumentDoc {
  std::string_view name;
  std::string_view text;
  std::string_view with = {};  // arguments that it is read beside, such as "preset=vllm"; empty: it always is
};
using ArgumentDocs = std::span<const ArgumentDoc>;
std::vector<std::string_view> names_of(ArgumentDocs arguments);

// An argument as its reader asked for it.
struct ArgumentUse {
  enum class Type { kInteger, kNumber, kChoice, kWord };
  std::string term;
  std::string name;
  Type type;
  std::string least, most;              // of numbers; `most` need not be a multiple of `step`
  int64_t step = 1;                     // of integers
  std::vector<std::string> choices;     // of a choice
  std::optional<std::string> fallback;  // empty: the argument is required, or given
};
using ArgumentLog = std::vector<ArgumentUse>;

// Borrows the term. A getter without fallback refuses a missing argument; a fallback is not checked against the range.
// With a log (borrowed) each getter adds what it was asked for, and takes the least value for a missing argument.
class Arguments {
 public:
  explicit Arguments(const Term& term, ArgumentLog* log = nullptr) : term_(&term), log_(log) {}

  // Refuses arguments that are not in `known`, and repeated ones.
  Status check_names(Words known) const;

  bool has(std::string_view name) const { return find(name) != nullptr; }
  // A multiple of `step`.
  Result<int64_t> integer(std::string_view name, int64_t min, int64_t max, std::optional<int64_t> fallback = {},
                          int64_t step = 1) const;
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

  void log(ArgumentUse use) const;

  const Term* term_;
  ArgumentLog* log_;
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
