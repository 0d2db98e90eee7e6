// What is kept of a stream's computation, with tokens forgotten and computed again.

#include "lib/session/kept_results.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

using Floats = std::vector<float>;

// Of tokens [first, first + n) over a vocabulary of 2: logits and scores that name their token.
BlockResults block(int64_t first, int64_t n, std::vector<int64_t> choices = {}) {
  BlockResults results;
  for (int64_t t = first; t < first + n; ++t) {
    const auto f = static_cast<float>(t);
    results.logits.push_back(f);
    results.logits.push_back(-f);
    results.hidden.insert(results.hidden.end(), {f, f + 1, f + 2});
    results.scores.push_back(f / 2);
    results.last.on_host = {f, -f};
  }
  if (!choices.empty()) results.choices = {std::move(choices)};
  return results;
}

Floats values(const Result<std::span<const float>>& found) {
  if (!found.ok()) return {};
  return {found.value().begin(), found.value().end()};
}

TEST(KeptResults, RowsOfTheStreamAndTheLastOne) {
  KeptResults kept(2, 3);
  EXPECT_EQ(kept.logits(-1, 1).status().code(), Code::kNotFound);
  kept.begin(5, 0);
  kept.add(block(5, 2), 5, 2, false);
  kept.add(block(7, 1), 7, 1, false);
  EXPECT_EQ(values(kept.logits(5, 3)), (Floats{5, -5, 6, -6, 7, -7}));
  EXPECT_EQ(values(kept.logits(-1, 1)), (Floats{7, -7}));
  EXPECT_EQ(kept.logits(-1, 2).status().message(),
            "no logits are kept for 2 rows from token -1; kept: the last, and 3 from 5");
  EXPECT_EQ(values(kept.scores(6, 2)), (Floats{3, 3.5f}));
  EXPECT_EQ(values(kept.hidden_states(6, 2)), (Floats{6, 7, 8, 7, 8, 9}));
  EXPECT_EQ(kept.hidden_states(-1, 1).status().code(), Code::kNotFound);
  for (const auto& [first, n] : {std::pair<int64_t, int64_t>{4, 1}, {6, 3}, {8, 1}}) {
    EXPECT_EQ(kept.logits(first, n).status().code(), Code::kNotFound) << first;
    EXPECT_EQ(kept.scores(first, n).status().code(), Code::kNotFound) << first;
  }
  kept.begin(8, 0);
  EXPECT_EQ(values(kept.logits(7, 1)), (Floats{7, -7}));  // still the last
  EXPECT_EQ(kept.scores(7, 1).status().code(), Code::kNotFound);
}

TEST(KeptResults, TokensComputedAgainKeepWhatIsKnown) {
  KeptResults kept(2, 3);
  kept.begin(5, 0);
  for (int64_t t = 5; t < 10; ++t) kept.add(block(t, 1), t, 1, false);
  kept.cut(8, 6);
  EXPECT_EQ(values(kept.scores(5, 3)), (Floats{2.5f, 3, 3.5f}));
  EXPECT_EQ(kept.scores(5, 4).status().code(), Code::kNotFound);
  EXPECT_FALSE(kept.last().known());
  BlockResults again = block(6, 3);
  again.scores[0] = -1;  // not known this time: the logits before were forgotten
  kept.add(std::move(again), 6, 3, false);
  EXPECT_EQ(values(kept.scores(5, 4)), (Floats{2.5f, 3, 3.5f, 4}));
  EXPECT_EQ(values(kept.logits(5, 4)), (Floats{5, -5, 6, -6, 7, -7, 8, -8}));
  EXPECT_EQ(values(kept.hidden_states(7, 2)), (Floats{7, 8, 9, 8, 9, 10}));
  EXPECT_EQ(kept.hidden_states(9, 1).status().code(), Code::kNotFound);
  // From before the stream's first token.
  kept.cut(7, 2);
  kept.add(block(2, 6), 2, 6, false);
  EXPECT_EQ(values(kept.scores(5, 3)), (Floats{2.5f, 3, 3.5f}));
}

TEST(KeptResults, ChoicesOfForgottenTokensDoNotCount) {
  using Choices = std::vector<int64_t>;
  const auto choices = [](const KeptResults& kept) { return Choices(kept.choices().begin(), kept.choices().end()); };
  KeptResults kept(2, 3);
  kept.begin(0, 3);
  kept.add(block(0, 4, {1, 0}), 0, 4, false);
  kept.add(block(4, 1, {1, 1}), 4, 1, true);
  kept.add(block(5, 1, {0, 2, 1}), 5, 1, true);
  kept.add(block(6, 1, {4, 0, 0}), 6, 1, true);
  EXPECT_EQ(choices(kept), (Choices{6, 3, 1}));
  kept.confirm(5);
  kept.cut(5, 2);
  EXPECT_EQ(choices(kept), (Choices{2, 1, 0}));
  EXPECT_EQ(kept.choices_from(), 5);  // those of the tokens before are counted already
}

// Of a block that went on behind tokens that are forgotten: of three tokens two stay, and later one.
TEST(KeptResults, TokensOfABlockAreForgottenOneByOne) {
  using Choices = std::vector<int64_t>;
  KeptResults kept(2, 3);
  kept.begin(4, 4);
  BlockResults results = block(4, 3);
  results.choices = {{1, 1}, {}, {0, 0, 5}};
  results.peaks = {1, 2, 3, 4};  // of the last two tokens
  results.cut(2, 3, 2);
  EXPECT_EQ(results.logits, (Floats{4, -4, 5, -5}));
  EXPECT_EQ(results.hidden, (Floats{4, 5, 6, 5, 6, 7}));
  EXPECT_EQ(results.scores, (Floats{2, 2.5f}));
  EXPECT_EQ(results.choices, (std::vector<Choices>{{1, 1}, {}}));
  EXPECT_EQ(results.peaks, (Floats{1, 2}));
  results.choices[1] = {0, 2, 1};
  kept.add(std::move(results), 4, 2, true);
  EXPECT_EQ(Choices(kept.choices().begin(), kept.choices().end()), (Choices{1, 3, 1}));
  kept.cut(5, 5);
  EXPECT_EQ(Choices(kept.choices().begin(), kept.choices().end()), (Choices{1, 1, 0}));
  EXPECT_EQ(values(kept.scores(4, 1)), (Floats{2}));
}

}  // namespace
}  // namespace quire
