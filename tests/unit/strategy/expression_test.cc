#include "lib/strategy/expression.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire {
namespace {

using testing::HasSubstr;

TEST(Expression, IsTakenApartIntoTermsAndArguments) {
  const std::string text = " dca ( chunk = 3072,\tlogit_scale=yarn_0.1 ,x=-1.5e+1)+pi(factor=4)\n+none()";
  auto terms = parse_expression(text);
  ASSERT_TRUE(terms.ok()) << terms.status().message();
  ASSERT_EQ(terms->size(), 3u);
  const Term& dca = (*terms)[0];
  EXPECT_EQ(dca.name, "dca");
  EXPECT_EQ(dca.at, 1);
  ASSERT_EQ(dca.arguments.size(), 3u);
  EXPECT_EQ(dca.arguments[0].name, "chunk");
  EXPECT_EQ(dca.arguments[0].at, 7);
  EXPECT_EQ(dca.arguments[0].value_at, 15);
  EXPECT_EQ(dca.arguments[0].integer, 3072);
  EXPECT_EQ(dca.arguments[0].number, 3072.0);
  EXPECT_EQ(dca.arguments[1].value, "yarn_0.1");
  EXPECT_FALSE(dca.arguments[1].number.has_value());
  EXPECT_EQ(dca.arguments[2].number, -15.0);
  EXPECT_FALSE(dca.arguments[2].integer.has_value());
  EXPECT_EQ((*terms)[1].name, "pi");
  EXPECT_EQ((*terms)[2].name, "none");
  EXPECT_EQ((*terms)[2].at, static_cast<int64_t>(text.size()) - 6);
  EXPECT_TRUE((*terms)[2].arguments.empty());
}

TEST(Expression, ReadsIntegersOfAnySize) {
  auto terms = parse_expression("f(a=9223372036854775807, b=9223372036854775808, c=-0)");
  ASSERT_TRUE(terms.ok());
  const std::vector<Argument>& arguments = terms->front().arguments;
  EXPECT_EQ(arguments[0].integer, INT64_MAX);
  EXPECT_FALSE(arguments[1].integer.has_value());
  EXPECT_EQ(arguments[1].number, 9223372036854775808.0);
  EXPECT_EQ(arguments[2].integer, 0);
}

TEST(Expression, ErrorsNameTheByteAndWhatWasExpected) {
  struct Case {
    std::string text;
    int64_t column;
    const char* message;
  };
  const Case cases[] = {
      {"", 0, "byte 0: expected the name of a method, found the end of the expression"},
      {"  \t ", 4, "expected the name of a method, found the end"},
      {"+", 0, "expected the name of a method, found '+'"},
      {"full +", 6, "expected the name of a method, found the end"},
      {"full + + pi", 7, "expected the name of a method, found '+'"},
      {"full pi", 5, "expected '(', '+' or the end, found 'p'"},
      {"full()()", 6, "expected '+' or the end, found '('"},
      {"full(", 5, "expected the name of an argument, found the end"},
      {"full(a", 6, "expected '='"},
      {"full(a=", 7, "expected a number or a word, found the end"},
      {"full(a=)", 7, "expected a number or a word, found ')'"},
      {"full(a=1", 8, "expected ',' or ')', found the end"},
      {"full(a=1,)", 9, "expected the name of an argument, found ')'"},
      {"full(a=1 b=2)", 9, "expected ',' or ')', found 'b'"},
      {"full(a=12k)", 9, "expected ',' or ')', found 'k'"},
      {"full(a=1.)", 9, "expected a digit after the point"},
      {"full(a=.5)", 7, "expected a number or a word, found '.'"},
      {"full(a=-)", 8, "expected a number or a word, found ')'"},
      {"full(a=--1)", 8, "expected a number or a word, found '-'"},
      {"full(a=+1)", 7, "expected a number or a word, found '+'"},
      {"full(a=1e)", 9, "expected the digits of an exponent"},
      {"full(a=1e+)", 10, "expected the digits of an exponent"},
      {"full(a=1e400)", 7, "too large or too small"},
      {"full(1=a)", 5, "expected the name of an argument, found '1'"},
      {"full(a(b=1))", 6, "expected '=', found '('"},
      {"f\xC3\xBCll", 1, "found byte 0xC3"},
      {std::string("full\0", 5), 4, "found byte 0x00"},
      {"full(a=\xE2\x88\x9E)", 7, "found byte 0xE2"},
      {"full\x7F", 4, "found byte 0x7F"},
  };
  for (const Case& c : cases) {
    const auto terms = parse_expression(c.text);
    ASSERT_FALSE(terms.ok()) << c.text;
    EXPECT_EQ(terms.status().code(), Code::kBadStrategy) << c.text;
    EXPECT_EQ(terms.status().offset(), c.column) << c.text << ": " << terms.status().message();
    EXPECT_THAT(terms.status().message(), HasSubstr(c.message)) << c.text;
  }
}

TEST(Expression, IsLimitedInLength) {
  const std::string longest = "full" + std::string(kMaxExpressionBytes - 4, ' ');
  EXPECT_TRUE(parse_expression(longest).ok());
  const auto longer = parse_expression(longest + " ");
  EXPECT_EQ(longer.status().code(), Code::kBadStrategy);
  EXPECT_THAT(longer.status().message(), HasSubstr("4097 bytes; at most 4096"));
}

TEST(Expression, QuotesLongTextInPart) {
  EXPECT_EQ(in_quotes("abc"), "'abc'");
  EXPECT_EQ(in_quotes(std::string(1000, 'x')).size(), 45u);
}

}  // namespace
}  // namespace quire
