#include "lib/chat/chat_date.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(ChatDate, IsWrittenInThreeWays) {
  const ChatDate date = parse_chat_date("2025-03-09").value();
  EXPECT_EQ(date.iso(), "2025-03-09");
  EXPECT_EQ(date.short_month(), "09 Mar 2025");
  EXPECT_EQ(date.long_month(), "09 March 2025");
  EXPECT_EQ(date.month_first(), "March 09, 2025");
  EXPECT_EQ(parse_chat_date("2024-02-29").value().long_month(), "29 February 2024");
  EXPECT_EQ(parse_chat_date("0999-12-31").value().short_month(), "31 Dec 0999");
}

TEST(ChatDate, OthersAreRefused) {
  for (const char* text : {"", "2025", "2025-3-9", "2025-02-29", "2025-13-01", "2025-00-01", "2025-01-00", "2025/01/01",
                           "20250-1-01", "-025-01-01", "2025-01-0x", "2025-+1-01", "09 Mar 2025", "\xFF"}) {
    const auto date = parse_chat_date(text);
    EXPECT_EQ(date.status().code(), Code::kInvalidArgument) << text;
    EXPECT_THAT(date.status().message(), testing::HasSubstr("2025-06-30")) << text;
  }
}

TEST(ChatDate, TodayIsADayOfTheCalendar) { EXPECT_EQ(parse_chat_date(today().iso()).value().iso(), today().iso()); }

}  // namespace
}  // namespace quire
