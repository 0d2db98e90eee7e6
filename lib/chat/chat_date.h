// Dates that chat templates write.
#pragma once

#include <string>
#include <string_view>

#include "lib/support/status.h"

namespace quire {

struct ChatDate {
  int year = 1970;
  int month = 1;  // 1 to 12
  int day = 1;

  std::string iso() const;          // "2025-06-30"
  std::string short_month() const;  // "30 Jun 2025"
  std::string long_month() const;   // "30 June 2025"
  std::string month_first() const;  // "June 30, 2025"
};

// "YYYY-MM-DD", a day of the calendar. Error: kInvalidArgument.
Result<ChatDate> parse_chat_date(std::string_view text);
// Of this moment, in the local time zone.
ChatDate today();

}  // namespace quire
