#include "lib/session/token_pace.h"

#include <gtest/gtest.h>

namespace quire::test {
namespace {

using std::chrono::microseconds;
using Clock = TokenPace::Clock;

constexpr Clock::duration kNone{};

// After tokens that came so many microseconds apart.
TokenPace after(std::initializer_list<int64_t> gaps, int64_t n_at_once = 1) {
  TokenPace pace;
  Clock::time_point now(std::chrono::hours(1));
  pace.shown(now, n_at_once);
  for (const int64_t gap : gaps) pace.shown(now += microseconds(gap), n_at_once);
  return pace;
}

TEST(TokenPace, NobodySleepsBeforeTheSecondToken) {
  EXPECT_EQ(TokenPace().nap(8), kNone);
  EXPECT_EQ(after({}).nap(8), kNone);
}

TEST(TokenPace, AReaderSleepsForHalfOfWhatMayWait) {
  EXPECT_EQ(after({100}).nap(8), microseconds(400));
  EXPECT_EQ(after({100}).nap(5), microseconds(200));
  EXPECT_EQ(after({100}).nap(4), microseconds(200));
  EXPECT_EQ(after({400}, 4).nap(8), microseconds(400));  // four at once
}

TEST(TokenPace, NobodySleepsWhereTheEngineWouldWait) {
  for (const int64_t room : {0, 1, 2, 3}) EXPECT_EQ(after({100}).nap(room), kNone) << room;
}

TEST(TokenPace, ANapIsShort) {
  EXPECT_EQ(after({100}).nap(4096), TokenPace::kLongestNap);
  EXPECT_EQ(after({500}).nap(4), TokenPace::kLongestNap);
  EXPECT_EQ(after({501}).nap(4), kNone);  // such a token is worth waking for
}

TEST(TokenPace, TheLastGapDecides) {
  EXPECT_EQ(after({100, 5000}).nap(8), kNone);
  EXPECT_EQ(after({5000, 100}).nap(8), microseconds(400));
  EXPECT_EQ(after({100, 0}).nap(8), kNone);  // a clock that stood still says nothing
}

}  // namespace
}  // namespace quire::test
