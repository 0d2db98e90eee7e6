#include "lib/strategy/arguments.h"

#include <algorithm>
#include <charconv>

namespace quire {

std::string number_text(double value) {
  char buffer[512];  // the longest double in fixed notation has some 330 characters
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed).ptr;
  return std::string(buffer, end);
}

std::string joined(Words words) {
  std::string text;
  for (std::string_view word : words) text += (text.empty() ? "" : ", ") + std::string(word);
  return text;
}

std::vector<std::string_view> names_of(ArgumentDocs arguments) {
  std::vector<std::string_view> names;
  for (const ArgumentDoc& argument : arguments) names.push_back(argument.name);
  return names;
}

const Argument* Arguments::find(std::string_view name) const {
  for (const Argument& argument : term_->arguments) {
    if (argument.name == name) return &argument;
  }
  return nullptr;
}

Status Arguments::check_names(Words known) const {
  for (const Argument& argument : term_->arguments) {
    if (std::find(known.begin(), known.end(), argument.name) == known.end()) {
      return expression_error(
          argument.at,
          name() + (known.empty() ? " takes no arguments, found " + in_quotes(argument.name)
                                  : " has no argument " + in_quotes(argument.name) + "; it takes " + joined(known)));
    }
    // Known names are few, so the first repetition comes early.
    if (find(argument.name) != &argument) {
      return expression_error(argument.at, name() + ": argument " + in_quotes(argument.name) + " is given twice");
    }
  }
  return {};
}

Status Arguments::refuse(std::string_view argument_name, const std::string& message) const {
  const Argument* argument = find(argument_name);
  return expression_error(argument ? argument->value_at : term_->at, name() + ": " + message);
}

Status Arguments::unsupported(const std::string& message) const {
  return expression_error(term_->at, name() + ": " + message, Code::kUnsupported);
}

Status Arguments::missing(std::string_view argument_name) const {
  return expression_error(term_->at, name() + " needs the argument " + std::string(argument_name) + "=");
}

void Arguments::log(ArgumentUse use) const {
  use.term = name();
  log_->push_back(std::move(use));
}

Result<int64_t> Arguments::integer(std::string_view argument_name, int64_t min, int64_t max,
                                   std::optional<int64_t> fallback, int64_t step) const {
  if (log_) {
    log({{},
         std::string(argument_name),
         ArgumentUse::Type::kInteger,
         std::to_string(min),
         std::to_string(max),
         step,
         {},
         fallback ? std::optional(std::to_string(*fallback)) : std::nullopt});
  }
  const Argument* argument = find(argument_name);
  if (!argument) {
    if (fallback || log_) return fallback.value_or(min);
    return missing(argument_name);
  }
  if (argument->integer && *argument->integer >= min && *argument->integer <= max) {
    if (*argument->integer % step == 0) return *argument->integer;
    return refuse(argument_name, std::string(argument_name) + " is " + std::to_string(*argument->integer) +
                                     "; expected a multiple of " + std::to_string(step));
  }
  return refuse(argument_name, std::string(argument_name) + " is " + in_quotes(argument->value) +
                                   "; expected an integer from " + std::to_string(min) + " to " + std::to_string(max));
}

Result<double> Arguments::real(std::string_view argument_name, double min, double max,
                               std::optional<double> fallback) const {
  if (log_) {
    log({{},
         std::string(argument_name),
         ArgumentUse::Type::kNumber,
         number_text(min),
         number_text(max),
         1,
         {},
         fallback ? std::optional(number_text(*fallback)) : std::nullopt});
  }
  const Argument* argument = find(argument_name);
  if (!argument) {
    if (fallback || log_) return fallback.value_or(min);
    return missing(argument_name);
  }
  if (argument->number && *argument->number >= min && *argument->number <= max) return *argument->number;
  return refuse(argument_name, std::string(argument_name) + " is " + in_quotes(argument->value) +
                                   "; expected a number from " + number_text(min) + " to " + number_text(max));
}

Result<size_t> Arguments::choice(std::string_view argument_name, Words choices) const {
  if (log_) {
    log({{},
         std::string(argument_name),
         ArgumentUse::Type::kChoice,
         {},
         {},
         1,
         std::vector<std::string>(choices.begin(), choices.end()),
         std::string(choices.front())});
  }
  const Argument* argument = find(argument_name);
  if (!argument) return size_t{0};
  const auto found = std::find(choices.begin(), choices.end(), argument->value);
  if (found != choices.end()) return static_cast<size_t>(found - choices.begin());
  return refuse(argument_name, std::string(argument_name) + " is " + in_quotes(argument->value) + "; expected one of " +
                                   joined(choices));
}

Result<std::string> Arguments::word(std::string_view argument_name, std::string fallback) const {
  if (log_) {
    log({{},
         std::string(argument_name),
         ArgumentUse::Type::kWord,
         {},
         {},
         1,
         {},
         fallback.empty() ? std::nullopt : std::optional(fallback)});
  }
  const Argument* argument = find(argument_name);
  if (!argument) return fallback;
  if (!argument->number) return std::string(argument->value);
  return refuse(argument_name, std::string(argument_name) + " is " + in_quotes(argument->value) + "; expected a word");
}

CanonicalTerm& CanonicalTerm::add(std::string_view key, std::string_view value) {
  text_ += has_arguments_ ? ", " : "(";
  has_arguments_ = true;
  text_.append(key).append("=").append(value);
  return *this;
}

}  // namespace quire
