// Where tokens stand in what was fed, and shares of the parts of a text, each against a slow definition.
#include "lib/session/provenance.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/unit/session/hooked_tokenizer.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

std::string random_text(std::mt19937& random, int n) {
  static const char* const kParts[] = {"the ",         "word",       "  ",     " ",       "\n",      "caf\u00e9 ",
                                       "\u4e2d\u6587", "\U0001f600", "12,5 ",  "\u2126 ", "\ufb01x", "a\u0301 ",
                                       "<s>",          "\t",         "Zebra ", "\u3000"};
  std::string text;
  for (int i = 0; i < n; ++i) text += kParts[random() % std::size(kParts)];
  return text;
}

bool begins_character(const std::string& text, int64_t at) {
  return at == static_cast<int64_t>(text.size()) ||
         (static_cast<unsigned char>(text[static_cast<size_t>(at)]) & 0xC0) != 0x80;
}

// Passages of one token each begin where the tokenizer says that the token begins, or at the next character.
TEST(Provenance, TokensAreFoundInWhatWasFed) {
  std::mt19937 random(11);
  for (const char* name : {"text_256", "short_128", "qwen3", "smollm3_yarn"}) {
    SCOPED_TRACE(name);
    const auto model = load(name, 1);
    const Tokenizer& tokenizer = model->tokenizer->tokenizer();
    for (int round = 0; round < 25; ++round) {
      TextState text;
      std::vector<std::string> fed;
      std::vector<std::vector<int64_t>> starts;
      for (int feed = 0; feed < 3; ++feed) {
        fed.push_back(random_text(random, 1 + static_cast<int>(random() % 30)));
        const auto ids = take(tokenizer.encode(fed.back(), {feed == 0, true, round % 2 == 0}, &starts.emplace_back()));
        std::vector<TextMark> marks;
        expect_ok(find_marks(tokenizer, fed.back(), ids, starts.back(), marks));
        text.feed(ids, {}, marks);
      }
      std::vector<Passage> passages;
      for (const FedTokens& feed : text.fed()) {
        for (int64_t t = feed.begin; t < feed.end; ++t)
          passages.push_back({.first_token = t, .n_tokens = 1, .feed = feed.feed});
      }
      std::shuffle(passages.begin(), passages.end(), random);
      expect_ok(find_bytes(tokenizer, text, passages));
      const auto parts = text.fed();
      for (const Passage& p : passages) {
        const auto feed = static_cast<size_t>(p.feed);
        const std::string& whole = fed[feed];
        const int64_t start = starts[feed][static_cast<size_t>(p.first_token - parts[feed].begin)];
        ASSERT_LE(p.begin, p.end) << whole;
        ASSERT_LE(p.end, static_cast<int64_t>(whole.size())) << whole;
        ASSERT_TRUE(begins_character(whole, p.begin) && begins_character(whole, p.end)) << whole;
        const int64_t off = p.begin - start;  // a token inside a character begins at the next one
        ASSERT_TRUE(p.first_token == parts[feed].begin || (off >= 0 && off <= 4)) << off << ": " << whole;
        if (p.first_token + 1 == parts[feed].end) {
          ASSERT_EQ(p.end, static_cast<int64_t>(whole.size())) << whole;
        }
      }
    }
  }
}

// However many tokens without bytes follow each other.
TEST(Provenance, EachTokenIsLookedAtOnce) {
  const auto model = load("text_256", 1);
  int64_t n_asked = 0;
  HookedTokenizer::put_into(
      *model, [&] { ++n_asked; }, nullptr);
  const Tokenizer& tokenizer = model->tokenizer->tokenizer();
  std::string fed;
  for (int i = 0; i < 2000; ++i) fed += "</s>";
  std::vector<int64_t> starts;
  const auto ids = take(tokenizer.encode(fed, {.add_bos = false, .parse_special = true}, &starts));
  const auto n = static_cast<int64_t>(ids.size());
  std::vector<TextMark> marks;
  expect_ok(find_marks(tokenizer, fed, ids, starts, marks));
  EXPECT_LE(n_asked, 2 * n);
  TextState text;
  text.feed(ids);  // without marks
  std::vector<Passage> passages;
  for (int64_t t = 0; t < n; ++t) passages.push_back({.first_token = t, .n_tokens = 1});
  n_asked = 0;
  expect_ok(find_bytes(tokenizer, text, passages));
  EXPECT_LE(n_asked, 3 * n);
  for (const Passage& p : passages) ASSERT_EQ(p.end, 0);
}

CitedRows one_row(CiteRange range, const std::vector<float>& peaks) {
  CitedRows rows;
  rows.begin(range, 99);
  rows.reserve(peaks.size());
  rows.add(peaks, 100);
  return rows;
}

// Of the parts of a feed, from its first citable token or a multiple of 16 on, of up to 64 tokens, that nothing was
// taken of.
template <typename Sum>
double greatest_share(const std::vector<FedTokens>& fed, int64_t first, const std::vector<bool>& taken,
                      const Sum& sum) {
  double most = 0;
  for (const FedTokens& feed : fed) {
    for (int64_t begin = std::max(feed.begin, first); begin < feed.end; begin = (begin / 16 + 1) * 16) {
      int64_t end = begin;
      while (end < std::min(begin + 64, feed.end) && !taken[static_cast<size_t>(end)]) ++end;
      if (end > begin) most = std::max(most, sum(begin, end));
    }
  }
  return most;
}

TEST(Provenance, SharesOfPartsAreTheSumsOfTheirTokens) {
  std::mt19937 random(5);
  std::uniform_real_distribution<float> peak(0, 1);
  for (int round = 0; round < 100; ++round) {
    const int64_t end = 40 + static_cast<int64_t>(random() % 200), first = static_cast<int64_t>(random() % 20);
    const CiteRange range{first, end};
    std::vector<float> peaks(static_cast<size_t>(range.n_cells()));
    for (float& p : peaks) p = peak(random);
    std::vector<FedTokens> fed;  // with gaps of generated tokens between them
    for (int64_t at = 0; at < end + 30; at = fed.back().end + static_cast<int64_t>(random() % 20)) {
      fed.push_back({at, at + 1 + static_cast<int64_t>(random() % 90), static_cast<int64_t>(fed.size())});
    }
    std::vector<double> tokens(static_cast<size_t>(end));
    double all = 0;
    for (const FedTokens& feed : fed) {
      for (int64_t t = std::max(feed.begin, first); t < std::min(feed.end, end); ++t) {
        const int64_t counted = std::min(end, (t / 16 + 1) * 16) - std::max(first, t / 16 * 16);
        const double p = peaks[static_cast<size_t>(t / 16)];
        all += tokens[static_cast<size_t>(t)] = p * p / static_cast<double>(counted);
      }
    }
    const auto sum = [&](int64_t begin, int64_t stop) {
      double share = 0;
      for (int64_t t = begin; t < std::min(stop, end); ++t) share += tokens[static_cast<size_t>(t)] / all;
      return share;
    };
    const CitedShares shares = take(CitedShares::make(one_row(range, peaks), fed, 100, 1));
    EXPECT_NEAR(shares.of(0, end + 100), all > 0 ? 1 : 0, 1e-9);
    for (int i = 0; i < 20; ++i) {
      const auto begin = static_cast<int64_t>(random() % static_cast<uint64_t>(end)),
                 n = static_cast<int64_t>(random() % 100);
      ASSERT_NEAR(shares.of(begin, begin + n), sum(begin, begin + n), 1e-9) << begin << ", " << n;
    }
    std::vector<bool> taken(static_cast<size_t>(end + 200));
    for (const Passage& p : shares.passages(1024)) {
      const int64_t stop = p.first_token + p.n_tokens;
      ASSERT_NEAR(p.share, sum(p.first_token, stop), 1e-9);
      const FedTokens& feed = fed[static_cast<size_t>(p.feed)];
      ASSERT_TRUE(p.n_tokens > 0 && p.n_tokens <= 64 && p.first_token >= feed.begin && stop <= feed.end);
      ASSERT_NEAR(p.share, greatest_share(fed, first, taken, sum), 1e-9);
      std::fill_n(taken.begin() + p.first_token, p.n_tokens, true);
    }
    EXPECT_NEAR(greatest_share(fed, first, taken, sum), 0, 1e-9);
  }
}

TEST(Provenance, TheLabelOfAPassageHasMostOfItAndIsShort) {
  const TokenLabel labels[] = {{7, 0, 100}, {8, 10, 30}, {9, 30, 40}, {10, 10, 20}, {11, 64, 2}};
  std::vector<Passage> passages = {{.first_token = 10, .n_tokens = 20},
                                   {.first_token = 20, .n_tokens = 30},
                                   {.first_token = 64, .n_tokens = 2},
                                   {.first_token = 100, .n_tokens = 9}};
  find_labels(labels, passages);
  EXPECT_EQ(passages[0].label, 3);  // as much as 0 and 1
  EXPECT_EQ(passages[1].label, 0);
  EXPECT_EQ(passages[2].label, 4);
  EXPECT_EQ(passages[3].label, -1);
}

// Rows of tokens that are computed again are known already; of a cut text they go.
TEST(Provenance, RowsFollowTheText) {
  CitedRows rows;
  rows.begin({0, 20}, 10);
  const auto add = [&](int64_t end, std::vector<float> values) {
    rows.reserve(values.size());
    rows.add(values, end);
  };
  add(12, {1, 2, 3, 4});
  add(13, {9, 9, 5, 6});
  EXPECT_EQ(rows.next(), 13);
  const auto row = [&](int64_t token) { return std::vector<float>(rows.row(token).begin(), rows.row(token).end()); };
  EXPECT_EQ(row(9), std::vector<float>());
  EXPECT_EQ(row(11), (std::vector<float>{3, 4}));
  EXPECT_EQ(row(12), (std::vector<float>{5, 6}));
  rows.cut(12);
  EXPECT_EQ(row(12), std::vector<float>());
  EXPECT_EQ(rows.next(), 12);
  add(13, {7, 8});
  EXPECT_EQ(row(12), (std::vector<float>{7, 8}));
  rows.begin({0, 20}, 10);
  add(12, {1, 2});  // token 10 was computed before the stream
  EXPECT_EQ(rows.first(), 11);
  EXPECT_EQ(row(11), (std::vector<float>{1, 2}));
}

}  // namespace
}  // namespace quire::test
