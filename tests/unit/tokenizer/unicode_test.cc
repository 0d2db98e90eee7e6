#include "lib/tokenizer/unicode.h"

#include <gtest/gtest.h>

#include <random>

#include "lib/support/utf8.h"
#include "tests/seed.h"

namespace quire {
namespace {

std::string text_of(const std::u32string& code_points) {
  std::string text;
  for (const char32_t c : code_points) append_code_point(c, text);
  return text;
}

std::string nfc(const std::u32string& code_points) { return to_nfc(text_of(code_points), nullptr); }

TEST(Unicode, CodePointsBothWays) {
  for (const uint32_t c : {0u, 0x7Fu, 0x80u, 0x7FFu, 0x800u, 0xFFFFu, 0x10000u, 0x10FFFFu}) {
    std::string text;
    append_code_point(c, text);
    EXPECT_EQ(utf8_first_invalid(text), text.size());
    size_t at = 0;
    EXPECT_EQ(take_code_point(text, at), c);
    EXPECT_EQ(at, text.size());
  }
}

TEST(Unicode, Nfc) {
  EXPECT_EQ(nfc(U"e\u0301"), text_of(U"\u00E9"));
  EXPECT_EQ(nfc(U"q\u0323\u0307"), text_of(U"q\u0323\u0307"));
  EXPECT_EQ(nfc(U"q\u0307\u0323"), text_of(U"q\u0323\u0307"));  // ordered
  EXPECT_EQ(nfc(U"s\u0307\u0323"), text_of(U"\u1E69"));         // over two steps
  EXPECT_EQ(nfc(U"\u1E9B\u0323"), text_of(U"\u1E9B\u0323"));
  EXPECT_EQ(nfc(U"a\u0305\u0301"), text_of(U"a\u0305\u0301"));            // blocked
  EXPECT_EQ(nfc(U"\u212B\u2126"), text_of(U"\u00C5\u03A9"));              // one for one
  EXPECT_EQ(nfc(U"\u0958\u0344"), text_of(U"\u0915\u093C\u0308\u0301"));  // never composed
  EXPECT_EQ(nfc(U"\u1100\u1161\u11A8 \uAC00\u11A8"), text_of(U"\uAC01 \uAC01"));
  EXPECT_EQ(nfc(U"\u1100\u11A8"), text_of(U"\u1100\u11A8"));
  EXPECT_EQ(nfc(U"\u0301a"), text_of(U"\u0301a"));
  EXPECT_EQ(nfc(U"\U0001D15E"), text_of(U"\U0001D157\U0001D165"));
  EXPECT_EQ(nfc(U""), "");
}

// Not by name, but by what the form is: making it twice changes nothing, and parts that do not touch do not matter.
TEST(Unicode, NfcOfRandomTexts) {
  std::mt19937_64 random(test::seed());
  const std::u32string interesting =
      U"aAeoq\u00E9\u0301\u0307\u0323\u0327\u0345\u0915\u093C\u1100\u1161\u11A8\uAC00\u212B\u3042\u3099";
  for (int i = 0; i < 20'000; ++i) {
    std::u32string code_points;
    for (size_t n = random() % 12; n > 0; --n) code_points += interesting[random() % interesting.size()];
    const std::string text = text_of(code_points);
    Origins origins;
    const std::string normal = to_nfc(text, &origins);
    EXPECT_EQ(to_nfc(normal, nullptr), normal);
    if (is_surely_nfc(text)) {
      EXPECT_EQ(normal, text);
    }
    EXPECT_EQ(to_nfc(text + "\n" + text, nullptr), normal + "\n" + normal);
    size_t before = 0;
    for (size_t at = 0; at <= normal.size(); ++at) {
      EXPECT_GE(origins.of(at), before);
      EXPECT_LE(origins.of(at), text.size());
      before = origins.of(at);
    }
  }
}

// A long run of marks is ordered in n log n.
TEST(Unicode, ManyMarks) {
  std::u32string code_points = U"a";
  for (int i = 0; i < 100'000; ++i) code_points += U"\u0301\u0323";
  const std::string normal = nfc(code_points);
  EXPECT_TRUE(normal.starts_with(text_of(U"\u1EA1\u0323")));
  EXPECT_TRUE(normal.ends_with(text_of(U"\u0301\u0301")));
}

TEST(Unicode, Origins) {
  Origins origins;
  EXPECT_EQ(to_nfc(text_of(U"ab e\u0301 x"), &origins), text_of(U"ab \u00E9 x"));
  const std::vector<size_t> expected{0, 1, 2, 3, 3, 6, 7};
  for (size_t at = 0; at < expected.size(); ++at) EXPECT_EQ(origins.of(at), expected[at]) << at;
}

TEST(Unicode, StandInsKeepLengths) {
  EXPECT_EQ(with_stand_ins(text_of(U"abc \u00E9\u65E5\U0001F600")), "");
  const std::string text = text_of(U"a\u1C89\U00011F04b\u180E");
  const std::string replaced = with_stand_ins(text);
  ASSERT_EQ(replaced.size(), text.size());
  EXPECT_EQ(utf8_first_invalid(replaced), replaced.size());
  EXPECT_EQ(replaced.substr(0, 1) + replaced.substr(8, 1), "ab");
  EXPECT_EQ(replaced.find(text_of(U"\u180E")), std::string::npos);
}

}  // namespace
}  // namespace quire
