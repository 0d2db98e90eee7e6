#include "lib/chat/chat_date.h"

#include <array>
#include <charconv>
#include <chrono>

#include "lib/format/json.h"
#include "lib/support/os_local_time.h"
#include "lib/support/utf8.h"

namespace quire {
namespace {

constexpr std::array<std::string_view, 12> kMonths = {"January",   "February", "March",    "April",
                                                      "May",       "June",     "July",     "August",
                                                      "September", "October",  "November", "December"};

std::string digits(int value, size_t width) {
  const std::string text = std::to_string(value);
  return text.size() < width ? std::string(width - text.size(), '0') + text : text;
}

std::string_view month_name(int month) { return kMonths[static_cast<size_t>(month - 1)]; }

// Digits only; -1: others.
int number(std::string_view text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && text.front() != '-' ? value : -1;
}

}  // namespace

std::string ChatDate::iso() const { return digits(year, 4) + "-" + digits(month, 2) + "-" + digits(day, 2); }

std::string ChatDate::short_month() const {
  return digits(day, 2) + " " + std::string(month_name(month).substr(0, 3)) + " " + digits(year, 4);
}

std::string ChatDate::long_month() const {
  return digits(day, 2) + " " + std::string(month_name(month)) + " " + digits(year, 4);
}

std::string ChatDate::month_first() const {
  return std::string(month_name(month)) + " " + digits(day, 2) + ", " + digits(year, 4);
}

Result<ChatDate> parse_chat_date(std::string_view text) {
  if (text.size() == 10 && text[4] == '-' && text[7] == '-') {
    const ChatDate date{number(text.substr(0, 4)), number(text.substr(5, 2)), number(text.substr(8, 2))};
    if (date.year >= 0 && date.month >= 0 && date.day >= 0 &&
        std::chrono::year_month_day(std::chrono::year(date.year), std::chrono::month(static_cast<unsigned>(date.month)),
                                    std::chrono::day(static_cast<unsigned>(date.day)))
            .ok()) {
      return date;
    }
  }
  return Status(Code::kInvalidArgument,
                "date is " + json_excerpt(utf8_sanitize(text)) + "; expected a day as \"2025-06-30\"");
}

ChatDate today() {
  const LocalDay day = local_day();
  return {day.year, day.month, day.day};
}

}  // namespace quire
