#include "validators.h"

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <sstream>

namespace cli {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

std::string text_of(double value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

// A validator of values that `takes(text)` takes; `range` stands in the help text.
template <typename Takes>
CLI::Validator validator(const std::string& range, const std::string& expected, const Takes& takes) {
  return CLI::Validator(
      [expected, takes](std::string& text) {
        return takes(text) ? std::string() : "\"" + text + "\" is no " + expected;
      },
      range);
}

// Whether all of the text is a number as `parse` reads it, which CLI11 reads in the same way, but for what is too
// large.
template <typename Number, typename Parse>
bool read(const std::string& text, const Parse& parse, Number* number) {
  char* end = nullptr;
  errno = 0;
  *number = parse(text.c_str(), &end);
  return !text.empty() && end == text.c_str() + text.size() && errno == 0;
}

bool read_number(const std::string& text, double* number) {
  // A number too small for a double is as good as 0.
  char* end = nullptr;
  *number = std::strtod(text.c_str(), &end);
  return !text.empty() && end == text.c_str() + text.size() && std::isfinite(*number);
}

}  // namespace

CLI::Validator whole_number(int64_t least, int64_t most) {
  const std::string low = std::to_string(least), high = std::to_string(most);
  std::string range = "INT in [" + low + " - " + high + "]", expected = "whole number from " + low + " to " + high;
  if (most == kMost) {
    range = least == 0 ? "NONNEGATIVE" : "POSITIVE";
    expected = "whole number of 64 bits, " + low + " or more";
  }
  return validator(range, expected, [least, most](const std::string& text) {
    int64_t value = 0;
    const auto parse = [](const char* from, char** end) { return std::strtoll(from, end, 0); };
    return read(text, parse, &value) && value >= least && value <= most;
  });
}

CLI::Validator whole_number_of_64_bits() {
  return validator("", "whole number of 64 bits, 0 or more", [](const std::string& text) {
    uint64_t value = 0;
    const auto parse = [](const char* from, char** end) { return std::strtoull(from, end, 0); };
    return !text.starts_with('-') && read(text, parse, &value);
  });
}

CLI::Validator number(double least, double most) {
  return validator("FLOAT in [" + text_of(least) + " - " + text_of(most) + "]",
                   "number from " + text_of(least) + " to " + text_of(most), [least, most](const std::string& text) {
                     double value = 0;
                     return read_number(text, &value) && value >= least && value <= most;
                   });
}

CLI::Validator positive_number(double most) {
  return validator("POSITIVE", "number more than 0 and at most " + text_of(most), [most](const std::string& text) {
    double value = 0;
    return read_number(text, &value) && static_cast<float>(value) > 0 && value <= most;
  });
}

CLI::Validator text_of_at_most(size_t most) {
  return validator("", "text of 1 to " + std::to_string(most) + " bytes",
                   [most](const std::string& text) { return !text.empty() && text.size() <= most; });
}

CLI::Validator byte_count() {
  const CLI::AsSizeValue with_unit(false);
  return CLI::Validator(
      [with_unit](std::string& text) {
        const std::string given = text;
        try {
          // A sign would be part of a number without one.
          if (!given.starts_with('-') && with_unit(text).empty() && whole_number(0)(text).empty()) return std::string();
        } catch (const CLI::ValidationError&) {  // it would not name the option
        }
        return "\"" + given + "\" is no number of bytes, such as 500MB";
      },
      with_unit.get_description());
}

}  // namespace cli
