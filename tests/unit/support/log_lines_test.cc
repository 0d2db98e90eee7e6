#include "lib/support/log_lines.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "lib/support/log.h"

namespace quire {
namespace {

struct Taken {
  int32_t level = 0;  // 0: there was no line
  int64_t n_lost = 0;
  std::string text;
};

Taken take(LogLines& lines) {
  Taken taken;
  lines.take([&](int32_t level, int64_t n_lost, std::string_view text) {
    taken = {level, n_lost, std::string(text)};
    return true;
  });
  return taken;
}

TEST(LogLines, GivesLinesInOrderAndCountsThoseLostBetween) {
  LogLines lines(2);
  EXPECT_EQ(take(lines).level, 0);
  for (const char* text : {"one", "two", "lost", "lost too"}) lines.add(3, text);
  EXPECT_EQ(take(lines).text, "one");
  lines.add(1, "three");
  lines.add(1, "lost again");
  const Taken two = take(lines);
  EXPECT_EQ(two.text, "two");
  EXPECT_EQ(two.n_lost, 0);
  const Taken three = take(lines);
  EXPECT_EQ(three.level, 1);
  EXPECT_EQ(three.text, "three");
  EXPECT_EQ(three.n_lost, 2);
  EXPECT_EQ(take(lines).level, 0);
  lines.add(2, "four");
  EXPECT_EQ(take(lines).n_lost, 1);
}

TEST(LogLines, KeepTheLineThatWasNotAccepted) {
  LogLines lines(1);
  lines.add(2, "first");
  for (int i = 0; i < 3; ++i) {
    lines.add(2, "lost");
    EXPECT_TRUE(lines.take([](int32_t, int64_t, std::string_view text) {
      EXPECT_EQ(text, "first");
      return false;
    }));
  }
  EXPECT_EQ(take(lines).text, "first");
  EXPECT_EQ(take(lines).level, 0);
}

TEST(LogLines, NoLineIsTakenTwiceOrUncounted) {
  constexpr int kThreads = 4, kEach = 2000;
  LogLines lines(100);
  std::atomic<int> n_writing = kThreads;
  std::vector<std::thread> writers;
  for (int t = 0; t < kThreads; ++t) {
    writers.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) lines.add(1 + t % 4, std::to_string(t * kEach + i));
      --n_writing;
    });
  }
  std::vector<int> seen(kThreads * kEach);
  int64_t n = 0;
  const auto take_all = [&] {
    for (Taken taken = take(lines); taken.level; taken = take(lines)) {
      ++seen[static_cast<size_t>(std::stoi(taken.text))];
      n += 1 + taken.n_lost;
    }
  };
  while (n_writing > 0) take_all();
  for (std::thread& writer : writers) writer.join();
  take_all();
  lines.add(1, "after all the others");
  n += take(lines).n_lost;
  EXPECT_EQ(n, kThreads * kEach);
  for (const int count : seen) EXPECT_LE(count, 1);
}

// Names of files are any bytes.
TEST(Log, LinesAreValidUtf8) {
  std::string said;
  const Log log(
      [](void* to, int32_t, const char* line, size_t size) { static_cast<std::string*>(to)->assign(line, size); },
      &said, LogLevel::kInfo, 1);
  log.write(LogLevel::kInfo, "loaded m\xff");
  EXPECT_EQ(said, "loaded m\xEF\xBF\xBD");
  EXPECT_EQ(take(*log.kept()).text, said);
}

}  // namespace
}  // namespace quire
