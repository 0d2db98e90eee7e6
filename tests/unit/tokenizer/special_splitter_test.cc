#include "lib/tokenizer/special_splitter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/unit/tokenizer/naive_split.h"
#include "tests/unit/tokenizer/tokenizer_data.h"

namespace quire {
namespace {

using testing::HasSubstr;
using Token = SpecialSplitter::Token;

SpecialSplitter splitter_of(const std::vector<Token>& tokens) {
  auto splitter = SpecialSplitter::make(tokens);
  EXPECT_TRUE(splitter.ok()) << splitter.status().message();
  return std::move(*splitter);
}

// Tokens and texts over few letters, so that tokens begin, end and contain each other, and white space is frequent.
TEST(SpecialSplitter, AgreesWithTheNaiveScan) {
  std::mt19937 random(3);
  const auto random_text = [&](size_t max_bytes) {
    std::string text(random() % (max_bytes + 1), ' ');
    for (char& c : text) c = "abbc \n\xC3"[random() % 7];
    return text;
  };
  size_t n_found = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::string> texts;
    for (size_t n = random() % 8; n > 0; --n) texts.push_back("b" + random_text(random() % 6));
    if (round % 2 == 0) {
      for (std::string& text : texts) text.erase(0, text.size() > 1 ? 1 : 0);  // any first byte, white space too
    }
    std::vector<Token> tokens;
    for (const std::string& text : texts) {
      tokens.push_back({text, static_cast<int32_t>(tokens.size()), random() % 2 == 0, random() % 2 == 0});
    }
    const std::string text = random_text(60);
    const SplitParts expected = naive_split(tokens, text);
    ASSERT_EQ(split(splitter_of(tokens), text), expected) << text;
    for (const auto& part : expected) n_found += part.second >= 0;
  }
  EXPECT_GT(n_found, 100'000u);
}

// Tokens that begin before and end behind the edges of the blocks in which a text is searched.
TEST(SpecialSplitter, LongTexts) {
  const std::string longest = std::string(4095, 'x') + "y";
  const std::vector<Token> tokens = {{longest, 1}, {"xy", 2}, {"y ", 3, true, true}};
  const SpecialSplitter splitter = splitter_of(tokens);
  for (const size_t lead : {(1 << 16) - 4096, (1 << 16) - 4095, (1 << 16) - 4000, (1 << 16) - 1, 1 << 16}) {
    const std::string text = std::string(lead, '.') + longest + "y   ." + std::string(70'000, '.') + "xy";
    const SplitParts expected = {{std::string_view(text).substr(0, lead), -1},
                                 {longest, 1},
                                 {"y ", 3},
                                 {std::string_view(text).substr(lead + 4100, 70'001), -1},
                                 {"xy", 2}};
    EXPECT_EQ(split(splitter, text), expected) << lead;
  }
}

// The work for a text is bounded by its length, whatever tokens there are and however nearly they occur.
TEST(SpecialSplitter, WorkIsProportionalToTheText) {
  std::vector<std::string> texts[3];
  for (size_t n = 1; n <= 1000; ++n) {
    texts[0].push_back(std::string(n, 'a'));        // prefixes of each other
    texts[1].push_back(std::string(n, 'a') + "b");  // one another's ends, which nearly occur
    texts[2].push_back(std::string(n - 1, 'a') + "b" + std::string(4096 - n, 'a'));  // long, with a letter apart
  }
  for (const auto& set : texts) {
    std::vector<Token> tokens;
    for (const std::string& text : set) tokens.push_back({text, 1});
    const SpecialSplitter splitter = splitter_of(tokens);
    for (const char* unit : {"a", "ab", "aaaaaaaaaaaaaaac", "b"}) {
      std::string text;
      while (text.size() < 200'000) text += unit;
      int64_t n_steps = 0;
      ASSERT_FALSE(split(splitter, text, &n_steps).empty());
      EXPECT_GE(n_steps, static_cast<int64_t>(text.size()));
      EXPECT_LT(n_steps, 3 * static_cast<int64_t>(text.size())) << set[1] << unit;
    }
  }
}

TEST(SpecialSplitter, TheFirstOfTwoTokensWithOneTextCounts) {
  EXPECT_EQ(split(splitter_of({{"<x>", 7}, {"<x>", 8}}), "<x>"), (SplitParts{{"<x>", 7}}));
  EXPECT_EQ(split(splitter_of({}), "<x>"), (SplitParts{{"<x>", -1}}));
  EXPECT_TRUE(split(splitter_of({{"<x>", 7}}), "").empty());
}

TEST(SpecialSplitter, AnErrorOfTheVisitorEndsTheScan) {
  int n_visits = 0;
  const Status status = splitter_of({{"<x>", 7}}).split("a<x>b", [&](const SpecialSplitter::Part&) {
    return ++n_visits < 2 ? Status() : Status(Code::kInternal, "enough");
  });
  EXPECT_EQ(status.message(), "enough");
  EXPECT_EQ(n_visits, 2);
}

TEST(SpecialSplitter, TooManyBytesAreRefused) {
  std::vector<std::string> texts(SpecialSplitter::kMaxBytes / 4096, std::string(4096, 'x'));
  for (size_t i = 0; i < texts.size(); ++i) texts[i].replace(0, 4, std::to_string(1000 + i));
  std::vector<Token> tokens;
  for (const std::string& text : texts) tokens.push_back({text, 1});
  EXPECT_TRUE(SpecialSplitter::make(tokens).ok());
  tokens.push_back({texts[0], 1});  // again, which takes nothing
  EXPECT_TRUE(SpecialSplitter::make(tokens).ok());
  tokens.push_back({"y", 1});
  const Status status = SpecialSplitter::make(tokens).status();
  EXPECT_EQ(status.code(), Code::kBadFile);
  EXPECT_THAT(status.message(), HasSubstr("8388609 bytes together; expected at most 8388608"));
}

// Through the files: tokens that are prefixes of each other, as the tokenizer's JSON names them.
TEST(SpecialSplitter, TokensOfTheFilesAreFoundLongestFirst) {
  nlohmann::json added = nlohmann::json::object();
  for (int n = 1; n <= 1000; ++n) added[std::string(static_cast<size_t>(n), '~')] = 1000 + n;
  const auto tokenizer = test_tokenizer("bpe_bytes", "", added.dump(), 3000);
  const auto ids = tokenizer->encode(std::string(32 << 10, '~'), {.first_segment = false, .parse_special = true});
  std::vector<int32_t> expected(32, 2000);
  expected.push_back(1768);  // 32768 = 32 * 1000 + 768
  EXPECT_EQ(ids.value(), expected);
}

}  // namespace
}  // namespace quire
