// The text of a session as a value: what each change leaves, and that a refused one leaves everything.

#include "lib/session/text_state.h"

#include <gtest/gtest.h>

#include <array>

namespace quire {
namespace {

using Tokens = std::vector<int32_t>;

Tokens tokens(const TextState& text) { return {text.tokens().begin(), text.tokens().end()}; }

struct Counts {
  int64_t settled, pending, computed, unread;
  bool operator==(const Counts&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Counts& c) {
  return out << c.settled << " settled, " << c.pending << " pending, " << c.computed << " computed, " << c.unread
             << " unread";
}
Counts counts(const TextState& text) {
  return {text.n_settled(), text.n_pending(), text.n_computed(), text.n_unread()};
}

// Ten tokens that were fed and read, and three that were generated, the last of them not computed.
TextState read_text() {
  TextState text;
  text.feed(Tokens{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  text.computed(10);
  for (const int32_t token : {20, 21, 22}) {
    text.reserve_generated();
    text.add_generated(token);
    if (token < 22) text.computed(1);
  }
  return text;
}

TEST(TextState, TokensGoFromPendingToSettledToComputed) {
  TextState text;
  text.feed(Tokens{5, 6, 7});
  text.feed(Tokens{8});
  EXPECT_EQ(counts(text), (Counts{0, 4, 0, 4}));
  EXPECT_EQ(text.computed(3), 3);
  EXPECT_EQ(counts(text), (Counts{3, 1, 3, 1}));
  EXPECT_EQ(text.computed(1), 1);
  text.add_generated(9);
  EXPECT_EQ(counts(text), (Counts{5, 0, 4, 0}));
  text.feed(Tokens{10});
  EXPECT_EQ(counts(text), (Counts{5, 1, 4, 1}));
  EXPECT_EQ(text.computed(2), 1);  // one was the model's own
  EXPECT_EQ(counts(text), (Counts{6, 0, 6, 0}));
  EXPECT_EQ(tokens(text), (Tokens{5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(text.settled().size(), 6u);
}

std::vector<std::array<int64_t, 3>> fed(const TextState& text) {
  std::vector<std::array<int64_t, 3>> all;
  for (const FedTokens& f : text.fed()) all.push_back({f.begin, f.end, f.feed});
  return all;
}

TEST(TextState, KnowsWhatWasFedTogether) {
  using Feeds = std::vector<std::array<int64_t, 3>>;
  TextState text = read_text();
  text.feed(Tokens{});  // no feed: it has no tokens
  const TextMark marks[] = {{1, 0, 5}, {2, 0, 9}};
  text.feed(Tokens{1, 2}, {}, marks);  // the last one is behind its end
  text.feed(Tokens{3});
  EXPECT_EQ(fed(text), (Feeds{{0, 10, 0}, {13, 15, 1}, {15, 16, 2}}));  // between them generated ones
  ASSERT_TRUE(TextState::make(text.parts()).ok());
  EXPECT_EQ(fed(*TextState::make(text.parts())), fed(text));
  EXPECT_EQ(text.marks().size(), 5u);
  text.cut_pending(15);
  EXPECT_EQ(fed(text), (Feeds{{0, 10, 0}, {13, 15, 1}}));
  EXPECT_EQ(text.marks().size(), 4u);  // where the second one ends is known still
  text.feed(Tokens{7});
  EXPECT_EQ(fed(text), (Feeds{{0, 10, 0}, {13, 15, 1}, {15, 16, 2}}));
  text.cut_pending(14);
  EXPECT_EQ(fed(text), (Feeds{{0, 10, 0}, {13, 14, 1}}));
  text.cut(4, 4);
  EXPECT_EQ(fed(text), (Feeds{{0, 4, 0}}));
  text.cut(0, 0);
  EXPECT_EQ(fed(text), Feeds{});
}

TEST(TextState, KnowsWhereItIsLikelyToBeCut) {
  TextState text = read_text();  // 10 tokens fed, three generated
  const TextMark marks[] = {{1, 0, 5}, {3, 0, 9}};
  text.feed(Tokens{1, 2, 3, 4}, {}, marks);  // from 13 on; the marks are none of feeds
  text.feed(Tokens{5});                      // 17
  const auto places = [&](int64_t end, int64_t apart, size_t most = 9) {
    std::vector<int64_t> out(most);
    out.resize(text.last_places(end, apart, out));
    return out;
  };
  EXPECT_EQ(places(18, 0), (std::vector<int64_t>{17, 13, 10, 0}));
  EXPECT_EQ(places(17, 0), (std::vector<int64_t>{13, 10, 0}));
  EXPECT_EQ(places(18, 3), (std::vector<int64_t>{17, 13, 0}));
  EXPECT_EQ(places(18, 4), (std::vector<int64_t>{17, 10, 0}));
  EXPECT_EQ(places(18, 0, 2), (std::vector<int64_t>{17, 13}));
  EXPECT_EQ(places(0, 0), std::vector<int64_t>{});
  EXPECT_EQ(TextState().last_places(5, 0, {}), 0u);
}

TEST(TextState, RefusesMarksThatContradictTheText) {
  const auto refused = [](std::vector<TextMark> marks) {
    TextState::Parts parts = read_text().parts();
    parts.marks = std::move(marks);
    return TextState::make(std::move(parts)).status().code() == Code::kBadFile;
  };
  EXPECT_FALSE(refused({}));
  EXPECT_FALSE(refused({{0, 0, 0}, {5, 0, 9}, {5, 1, 0}, {13, 1, 44}}));
  EXPECT_TRUE(refused({{0, 1, 0}}));                         // no first feed
  EXPECT_TRUE(refused({{0, 0, 3}}));                         // which begins behind its beginning
  EXPECT_TRUE(refused({{5, 0, 0}, {4, 1, 0}}));              // not ascending
  EXPECT_TRUE(refused({{0, 0, 0}, {5, 0, 9}, {5, 0, 10}}));  // one token in two places
  EXPECT_TRUE(refused({{0, 0, 0}, {5, 0, -9}}));
  EXPECT_TRUE(refused({{0, 0, 0}, {5, 0, INT64_MAX}}));
  EXPECT_TRUE(refused({{0, 0, 0}, {5, 2, 0}}));
  EXPECT_TRUE(refused({{0, 0, 0}, {13, 1, 0}}));  // a feed without tokens
  EXPECT_TRUE(refused({{0, 0, 0}, {14, 0, 20}}));
}

TEST(TextState, RemembersWhatTheModelGenerated) {
  TextState text = read_text();
  text.feed(Tokens{1, 2});
  text.computed(3);
  text.add_generated(30);
  const auto generated = [&] {
    std::string marks;
    for (int64_t t = 0; t < text.n_tokens(); ++t) marks += text.is_generated(t) ? 'g' : '.';
    return marks;
  };
  EXPECT_EQ(generated(), "..........ggg..g");
  text.cut(14, 14);
  EXPECT_EQ(generated(), "..........ggg.");
  text.cut(11, 11);
  EXPECT_EQ(generated(), "..........g");
  text.add_generated(31);
  EXPECT_EQ(generated(), "..........gg");
  text.cut(10, 10);
  EXPECT_EQ(generated(), "..........");
}

TEST(TextState, WhatIsReadAgainCountsAsPrompt) {
  TextState text = read_text();
  text.cut(12, 8);
  EXPECT_EQ(counts(text), (Counts{12, 0, 8, 0}));
  text.read_again();
  EXPECT_EQ(counts(text), (Counts{12, 0, 8, 4}));
  text.feed(Tokens{1});
  EXPECT_EQ(text.n_unread(), 5);
  EXPECT_EQ(text.computed(3), 3);
  EXPECT_EQ(text.computed(2), 2);
  EXPECT_EQ(counts(text), (Counts{13, 0, 13, 0}));
  text.cut(13, 7);  // as a stream goes back: each token counts once
  EXPECT_EQ(text.n_unread(), 0);
}

TEST(TextState, ACutForgetsPendingTokensAndEndsLabels) {
  TextState text;
  const std::vector<TokenLabel> labels = {{7, 0, 4}, {8, 2, 3}, {9, 5, 1}};
  text.feed(Tokens{0, 1, 2, 3, 4, 5}, labels);
  text.feed(Tokens{6, 7}, std::vector<TokenLabel>{{10, 1, 1}});
  EXPECT_EQ(text.labels().back().first_token, 7);
  text.computed(6);
  text.cut_pending(6);
  EXPECT_EQ(counts(text), (Counts{6, 0, 6, 0}));
  EXPECT_EQ(text.labels().size(), 3u);
  text.cut(3, 2);
  EXPECT_EQ(counts(text), (Counts{3, 0, 2, 0}));
  ASSERT_EQ(text.labels().size(), 2u);
  EXPECT_EQ(text.labels()[0].n_tokens, 3);
  EXPECT_EQ(text.labels()[1].n_tokens, 1);
}

// They are none of what was generated, nor do they need a token that begins in them.
TEST(TextState, LabelsStayWhereTheFedTextStays) {
  TextState text;
  text.feed(Tokens{0, 1, 2, 3}, std::vector<TokenLabel>{{7, 3, 0}, {8, 4, 0}, {9, 0, 4}});
  text.computed(4);
  for (const int32_t token : {20, 21}) text.add_generated(token);
  const auto ids = [&] {
    std::vector<int64_t> all;
    for (const TokenLabel& label : text.labels()) all.push_back(label.id);
    return all;
  };
  text.cut(5, 4);
  EXPECT_EQ(ids(), (std::vector<int64_t>{7, 8, 9}));
  text.cut(4, 3);
  EXPECT_EQ(ids(), (std::vector<int64_t>{7, 8, 9}));
  text.cut(4, 3);  // nothing
  text.cut_pending(4);
  EXPECT_EQ(ids(), (std::vector<int64_t>{7, 8, 9}));
  text.add_generated(22);
  text.feed({}, std::vector<TokenLabel>{{10, 0, 0}});
  text.cut(4, 3);
  EXPECT_EQ(ids(), (std::vector<int64_t>{7, 8, 9}));
  text.feed(Tokens{5}, std::vector<TokenLabel>{{11, 0, 1}});
  text.cut_pending(4);
  EXPECT_EQ(ids(), (std::vector<int64_t>{7, 9}));
  EXPECT_TRUE(TextState::make(text.parts()).ok());
  text.cut(3, 3);
  EXPECT_EQ(ids(), (std::vector<int64_t>{9}));
}

TEST(TextState, ARefusedPositionLeavesTheText) {
  TextState text;
  text.feed(Tokens{1, 2});
  EXPECT_EQ(text.feed_at(Tokens{3, 4}, std::vector<int64_t>{5, 5}).offset(), 1);
  EXPECT_EQ(text.feed_at(Tokens{3}, std::vector<int64_t>{1}).code(), Code::kInvalidArgument);
  EXPECT_EQ(tokens(text), (Tokens{1, 2}));
  EXPECT_TRUE(text.positions().consecutive());
  EXPECT_TRUE(text.feed_at(Tokens{3, 4}, std::vector<int64_t>{2, 9}).ok());
  EXPECT_EQ(text.positions().position(3), 9);
  EXPECT_EQ(text.positions().position(4), 10);
  text.computed(4);
  text.cut(3, 3);
  EXPECT_TRUE(text.positions().consecutive());
}

TEST(TextState, ACopyIsAnotherText) {
  const TextState text = read_text();
  TextState copy = text;
  copy.feed(Tokens{1});
  copy.computed(2);
  copy.cut(3, 3);
  EXPECT_EQ(counts(text), (Counts{13, 0, 12, 0}));
  EXPECT_TRUE(text.is_generated(12));
  EXPECT_EQ(counts(copy), (Counts{3, 0, 3, 0}));
}

// Messages without tokens stand where they were fed; those with tokens may be cut in two.
TEST(TextState, CutsKeepTheMessagesThatStandBeforeThem) {
  TextState text;
  const auto feed = [&](const Tokens& ids, int64_t n_turns) {
    FedMessages messages;
    messages.state.n_turns = n_turns;
    text.feed_messages(ids, std::move(messages));
  };
  const auto expect_last = [&](int64_t n_turns, bool cut) {
    ASSERT_TRUE(text.last_messages());
    EXPECT_EQ(text.last_messages()->state.n_turns, n_turns);
    EXPECT_EQ(text.last_messages()->cut, cut);
  };
  EXPECT_FALSE(text.last_messages());
  feed({}, 1);
  expect_last(1, false);
  feed({5, 6, 7}, 2);
  EXPECT_EQ(text.last_messages()->begin, 0);
  EXPECT_EQ(text.last_messages()->end, 3);
  text.feed(Tokens{8, 9});
  feed({10, 11}, 3);
  feed({}, 4);
  text.cut_pending(7);  // nothing
  expect_last(4, false);
  text.cut_pending(6);
  expect_last(3, true);
  const TextState copy = text;
  text.cut_pending(5);
  expect_last(2, false);
  text.feed(Tokens{12, 13});
  text.cut_pending(4);
  expect_last(2, false);
  text.cut_pending(2);
  expect_last(2, true);
  text.feed(Tokens{12, 13});
  expect_last(2, true);
  text.cut_pending(0);
  EXPECT_FALSE(text.last_messages());
  EXPECT_EQ(copy.last_messages()->state.n_turns, 3);
}

TEST(TextState, FilledItLacksOnlyTheLastKey) {
  TextState text;
  text.fill({4, 5, 6});
  EXPECT_EQ(counts(text), (Counts{3, 0, 2, 0}));
  EXPECT_EQ(text.n_exact(), 0);
  EXPECT_TRUE(TextState::make(text.parts()).ok());
  text.cut(0, 0);
  EXPECT_EQ(text.n_exact(), kNoLimit);
  text.fill({4});  // no keys: nothing is inexact
  EXPECT_EQ(text.n_exact(), kNoLimit);
  EXPECT_TRUE(TextState::make(text.parts()).ok());
}

}  // namespace
}  // namespace quire
