// Runs of tokens in two texts.

#include "lib/session/common_runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

namespace quire::test {
namespace {

using Tokens = std::vector<int32_t>;

Tokens random_text(int64_t n, uint32_t seed, int32_t n_different = 50'000) {
  std::mt19937 random(seed);
  Tokens text(static_cast<size_t>(n));
  for (int32_t& token : text) token = static_cast<int32_t>(random() % static_cast<uint32_t>(n_different));
  return text;
}

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Tokens part(const Tokens& text, int64_t begin, int64_t end) { return {text.begin() + begin, text.begin() + end}; }

std::vector<CommonRun> runs_of(const Tokens& old_text, const Tokens& new_text, int64_t least) {
  return find_common_runs(old_text, new_text, least);
}

using Runs = std::vector<CommonRun>;

TEST(CommonRuns, AreFoundBehindAnInsertionADeletionAndAReplacement) {
  const Tokens old_text = random_text(1000, 1), other = random_text(77, 2);
  for (const int64_t least : {7, 15, 16, 64}) {
    SCOPED_TRACE(least);
    EXPECT_EQ(runs_of(old_text, other + old_text, least), (Runs{{0, 77, 1000}}));
    EXPECT_EQ(runs_of(old_text, part(old_text, 0, 300) + other + part(old_text, 300, 1000), least),
              (Runs{{0, 0, 300}, {300, 377, 700}}));
    EXPECT_EQ(runs_of(old_text, part(old_text, 0, 300) + part(old_text, 421, 1000), least),
              (Runs{{0, 0, 300}, {421, 300, 579}}));
    EXPECT_EQ(runs_of(old_text, part(old_text, 0, 300) + other + part(old_text, 421, 1000), least),
              (Runs{{0, 0, 300}, {421, 377, 579}}));
  }
}

TEST(CommonRuns, AreFoundWhereChaptersChangedPlaces) {
  const Tokens old_text = random_text(1000, 1);
  EXPECT_EQ(runs_of(old_text, part(old_text, 600, 1000) + part(old_text, 0, 600), 32),
            (Runs{{600, 0, 400}, {0, 400, 600}}));
}

TEST(CommonRuns, UseAnOldTokenOnce) {
  const Tokens old_text = random_text(200, 1);
  EXPECT_EQ(runs_of(old_text, old_text + old_text, 32), (Runs{{0, 0, 200}}));
}

// Of repeated runs, those that come next.
TEST(CommonRuns, KeepTheOrderOfRepetitions) {
  const Tokens header = random_text(64, 1), a = random_text(100, 2), b = random_text(100, 3), c = random_text(50, 4);
  const Tokens old_text = header + a + header + b;
  EXPECT_EQ(runs_of(old_text, header + c + header + b, 64), (Runs{{0, 0, 64}, {164, 114, 164}}));
}

TEST(CommonRuns, OfLessThanTheLeastAreNone) {
  const Tokens old_text = random_text(100, 1), other = random_text(50, 2);
  EXPECT_EQ(runs_of(old_text, other + part(old_text, 40, 71), 32), Runs());
  EXPECT_EQ(runs_of(old_text, other + part(old_text, 40, 72), 32), (Runs{{40, 50, 32}}));
  EXPECT_EQ(runs_of({}, old_text, 1), Runs());
  EXPECT_EQ(runs_of(old_text, {}, 1), Runs());
}

// Texts of few different tokens, random edits: what is found is right, and is all that a run of the least length holds
// where the text does not repeat itself.
TEST(CommonRuns, AreRightWhateverTheTexts) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint32_t>(n)); };
    const int32_t n_different = seed % 3 == 0 ? 2 : seed % 3 == 1 ? 5 : 40'000;
    const int64_t least = 1 + below(20);
    const Tokens old_text = random_text(200 + below(200), seed, n_different);
    Tokens new_text;
    int64_t n_copied = 0;  // by runs of at least `least` tokens, in order
    for (int64_t at = 0; at < static_cast<int64_t>(old_text.size());) {
      new_text = new_text + random_text(1 + below(9), seed + 1000, n_different);
      const int64_t end = std::min(at + 1 + below(60), static_cast<int64_t>(old_text.size()));
      new_text = new_text + part(old_text, at, end);
      if (end - at >= least) n_copied += end - at;
      at = end + 1 + below(9);
    }
    std::set<int64_t> used;
    int64_t end = 0, n_found = 0;
    for (const CommonRun& run : runs_of(old_text, new_text, least)) {
      ASSERT_GE(run.to, end);
      ASSERT_GE(run.n, least);
      end = run.to + run.n;
      ASSERT_LE(end, static_cast<int64_t>(new_text.size()));
      ASSERT_EQ(part(old_text, run.from, run.from + run.n), part(new_text, run.to, end));
      for (int64_t i = run.from; i < run.from + run.n; ++i) ASSERT_TRUE(used.insert(i).second);
      n_found += run.n;
    }
    if (n_different < 40'000) continue;
    ASSERT_EQ(n_found, n_copied);
  }
}

// Counted, not timed: texts that repeat themselves cost no more than others.
TEST(CommonRuns, TakeLinearWork) {
  constexpr int64_t kTokens = 200'000, kLeast = 256;
  const Tokens same(kTokens, 7), other = random_text(1000, 1);
  Tokens period, changed;
  for (int64_t i = 0; i < kTokens; ++i) period.push_back(static_cast<int32_t>(i % 3));
  for (int64_t i = 0; i < kTokens; ++i) changed.push_back(i % 200 == 199 ? static_cast<int32_t>(i) : 7);
  const auto work = [&](const Tokens& old_text, const Tokens& new_text) {
    int64_t n_compared = -1;
    find_common_runs(old_text, new_text, kLeast, &n_compared);
    return n_compared;
  };
  const auto most = [](const Tokens& a, const Tokens& b) { return 2 * static_cast<int64_t>(a.size() + b.size()); };
  EXPECT_LE(work(same, other + same), most(same, other + same));
  EXPECT_LE(work(same, same + other + same), most(same, same + other + same));
  EXPECT_LE(work(period, other + period), most(period, other + period));
  EXPECT_LE(work(same, changed), most(same, changed));
  EXPECT_LE(work(changed, same), most(changed, same));
  EXPECT_LE(work(changed, other + changed), most(changed, other + changed));
  EXPECT_LE(work(period, same), most(period, same));
}

}  // namespace
}  // namespace quire::test
