// Drafts looked up in a text, against a search that tries every place.
#include "lib/session/prompt_lookup.h"

#include <gtest/gtest.h>

#include <random>

namespace quire {
namespace {

using Tokens = std::vector<int32_t>;

TEST(PromptLookup, TheLongestMatchThenTheLatest) {
  EXPECT_EQ(find_draft(Tokens{1, 2, 3, 4, 9, 2, 3, 5, 8, 2, 3}, 8, 2), (Tokens{5, 8}));
  EXPECT_EQ(find_draft(Tokens{1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3}, 8, 2), (Tokens{4, 9, 2}));
  EXPECT_EQ(find_draft(Tokens{1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3}, 2, 2),
            (Tokens{5, 1}));  // two suffice for a draft of two
  EXPECT_EQ(find_draft(Tokens{1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3}, 2, 3), (Tokens{4, 9}));
  EXPECT_EQ(find_draft(Tokens{1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3}, 2, 4), Tokens());
}

TEST(PromptLookup, AnEndThatRepeatsItselfGoesOn) {
  EXPECT_EQ(find_draft(Tokens{7, 7, 7, 7}, 8, 1), (Tokens{7, 7, 7}));
  EXPECT_EQ(find_draft(Tokens{5, 1, 2, 3, 1, 2, 3, 1, 2, 3}, 6, 2), (Tokens{1, 2, 3, 1, 2, 3}));
}

TEST(PromptLookup, NothingWhereThereIsNothing) {
  EXPECT_EQ(find_draft({}, 8, 1), Tokens());
  EXPECT_EQ(find_draft(Tokens{1}, 8, 1), Tokens());
  EXPECT_EQ(find_draft(Tokens{1, 2, 3}, 8, 1), Tokens());
  EXPECT_EQ(find_draft(Tokens{1, 1}, 0, 1), Tokens());
  EXPECT_EQ(find_draft(Tokens{1, 1}, -3, 1), Tokens());
}

// The length of what the text before `end` and the whole text end with in common, at most `most`.
size_t common(const Tokens& text, size_t end, size_t most) {
  size_t n = 0;
  while (n < most && n < end && text[end - 1 - n] == text[text.size() - 1 - n]) ++n;
  return n;
}

TEST(PromptLookup, AgreesWithTryingEveryPlace) {
  std::mt19937 random(20261124);
  for (int round = 0; round < 2000; ++round) {
    Tokens text(random() % (round % 4 == 0 ? 300 : 40));
    const size_t n_ids = round % 8 == 0 ? 30 : 3;
    for (int32_t& id : text) id = static_cast<int32_t>(random() % n_ids);
    const size_t most = 1 + random() % 6, least = 1 + random() % 5;
    size_t longest = 0, place = 0;
    for (size_t end = 1; end < text.size(); ++end) {
      const size_t match = common(text, end, std::max(most, least));
      if (match < least || match < longest) continue;
      longest = match;
      place = end;
    }
    Tokens whole = text, expected;
    for (size_t i = 0; i < std::min(most, longest); ++i) {
      expected.push_back(whole[place + i]);
      whole.push_back(expected.back());
    }
    ASSERT_EQ(find_draft(text, static_cast<int64_t>(most), static_cast<int64_t>(least)), expected) << round;
  }
}

}  // namespace
}  // namespace quire
