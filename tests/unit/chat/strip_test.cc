#include "lib/chat/strip.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(Strip, WhiteSpaceOfAllKinds) {
  EXPECT_EQ(strip(" \t\n\v\f\r\x1c\x1f a b \n"), "a b");
  EXPECT_EQ(
      strip("\xC2\xA0\xC2\x85\xE1\x9A\x80\xE2\x80\x80\xE2\x80\x8A\xE2\x80\xA8\xE2\x80\xAF\xE2\x81\x9F\xE3\x80\x80x"),
      "x");
  EXPECT_EQ(strip_end(" x\xE3\x80\x80\xC2\xA0 "), " x");
  EXPECT_EQ(strip_front("\xE3\x80\x80 \n x "), "x ");
  EXPECT_EQ(strip(" \xE2\x80\x83 "), "");
  EXPECT_EQ(strip(""), "");
}

// U+200B, U+FEFF and characters that end in the same bytes as white space are none.
TEST(Strip, WhatOnlyLooksLikeIt) {
  for (const char* text : {"\xE2\x80\x8B", "\xEF\xBB\xBF", "\xC4\x85", "\xE2\x82\xAC", "\x1b", "\xE3\x81\x80"}) {
    EXPECT_EQ(strip(text), text);
    EXPECT_EQ(strip_end(text), text);
  }
}

TEST(Strip, NewlinesAlone) {
  EXPECT_EQ(strip_newlines("\n\n a \n\n"), " a ");
  EXPECT_EQ(strip_newlines_front("\n\na\n"), "a\n");
  EXPECT_EQ(strip_newlines_end("\na\n\n"), "\na");
  EXPECT_EQ(strip_newlines("\n\n"), "");
}

TEST(Strip, WithoutAPart) {
  EXPECT_EQ(without("a/think/think b", "/think"), "a b");
  EXPECT_EQ(without("//thinkthink", "/think"), "/think");
  EXPECT_EQ(without("abc", "/think"), "abc");
}

}  // namespace
}  // namespace quire
