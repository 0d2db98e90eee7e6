#include "lib/tokenizer/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/tokenizer/bpe_definition.h"
#include "lib/tokenizer/gguf_pre_tokenizers.h"
#include "lib/tokenizer/pre_tokenizer.h"
#include "lib/tokenizer/regex_syntax.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Texts = std::vector<std::string>;

Texts cut(const std::vector<Cut>& cuts, const std::string& text) {
  auto made = PreTokenizer::make(cuts);
  EXPECT_TRUE(made.ok()) << made.status().message();
  Texts parts;
  PreTokenizer::Cutter cutter(*made);
  EXPECT_TRUE(cutter
                  .cut(text,
                       [&](std::string_view part) {
                         parts.emplace_back(part);
                         return Status();
                       })
                  .ok());
  return parts;
}

TEST(PreTokenizer, Behaviors) {
  const std::string text = "a--bc-";
  EXPECT_THAT(cut({{"-", CutBehavior::kIsolated}}, text), ElementsAre("a", "-", "-", "bc", "-"));
  EXPECT_THAT(cut({{"-", CutBehavior::kRemoved}}, text), ElementsAre("a", "bc"));
  EXPECT_THAT(cut({{"-", CutBehavior::kMergedWithPrevious}}, text), ElementsAre("a-", "-", "bc-"));
  EXPECT_THAT(cut({{"-", CutBehavior::kMergedWithNext}}, text), ElementsAre("a", "-", "-bc", "-"));
  EXPECT_THAT(cut({{"-", CutBehavior::kContiguous}}, text), ElementsAre("a", "--", "bc", "-"));
  EXPECT_THAT(cut({{"[a-c]", CutBehavior::kRemoved, true}}, text), ElementsAre("a", "b", "c"));
  EXPECT_THAT(cut({}, text), ElementsAre(text));
  EXPECT_THAT(cut({{"-"}}, ""), ElementsAre());
}

TEST(PreTokenizer, EachCutSeesOnePartOfTheOneBefore) {
  // Behind the digit the part ends, so that all spaces before it are one match.
  EXPECT_THAT(cut({{R"(\p{N})"}, {kGpt2Expression}}, "a  1b"), ElementsAre("a", "  ", "1", "b"));
  EXPECT_THAT(cut({{kGpt2Expression}}, "a  1b"), ElementsAre("a", " ", " 1", "b"));
}

// The matches of an expression that may match nothing are places to cut.
TEST(PreTokenizer, EmptyMatches) {
  EXPECT_THAT(cut({{"(?=b)"}}, "abab"), ElementsAre("a", "ba", "b"));
  EXPECT_THAT(cut({{"x*"}}, "\xC3\xA9xx\xC3\xA9"), ElementsAre("\xC3\xA9", "xx", "\xC3\xA9"));
}

// Characters that are newer than PCRE2 count as what they are, and U+180E as no space.
TEST(PreTokenizer, NewCharacters) {
  const std::string letter = "\xF0\x91\xBC\x84";  // U+11F04, of Unicode 15
  EXPECT_THAT(cut({{kGpt2Expression}}, "a" + letter + "."), ElementsAre("a" + letter, "."));
  EXPECT_THAT(cut({{kGpt2Expression}}, ".\xE1\xA0\x8E."), ElementsAre(".\xE1\xA0\x8E."));
}

TEST(RegexSyntax, Translated) {
  const auto translated = [](const char* text) { return regex_for_pcre2(text).value(); };
  for (const char* same :
       {R"((?i:'s|'t)|[^\r\n\p{L}]?\p{L}+|\s+(?!\S)|[\]\[a-z\-]{1,3}x?)", "(?<=a)b(?:c)++", "a{2,}?"}) {
    EXPECT_EQ(translated(same), same);
  }
  EXPECT_EQ(translated(R"(\u4e00\v{,3})"), R"(\x{4e00}\x{0B}{0,3})");
  EXPECT_EQ(regex_of_text("a.\xC3\xA9-"), "a\\.\xC3\xA9\\-");
}

TEST(RegexSyntax, RefusedByName) {
  for (const auto& [text, what] :
       std::vector<std::pair<const char*, const char*>>{{R"(\w+)", "\\w"},
                                                        {R"(a\b)", "\\b"},
                                                        {R"((a)\1)", "\\1"},
                                                        {R"(\h)", "\\h"},
                                                        {R"(\C)", "\\C"},
                                                        {R"(\Qa\E)", "\\Q"},
                                                        {"[a[b]]", "a class in a class"},
                                                        {"[[:alpha:]]", "a class in a class"},
                                                        {"[a&&b]", "&&"},
                                                        {"[]a]", "begins with ]"},
                                                        {"[a", "without an end"},
                                                        {"a{1,3}+", "} before +"},
                                                        {"a{3}?", "} before ?"},
                                                        {"a{b", "{"},
                                                        {"(*LIMIT_MATCH=1)a", "(*"},
                                                        {"(?m:a)", "(?m"},
                                                        {"(?<name>a)", "(?<"},
                                                        {"(?R)", "(?R"},
                                                        {R"(\pL)", "braces"},
                                                        {R"(\xFF)", "beyond ASCII"},
                                                        {"\\", "backslash"}}) {
    const Status status = regex_for_pcre2(text).status();
    EXPECT_EQ(status.code(), Code::kUnsupported) << text;
    EXPECT_THAT(status.message(), HasSubstr(what)) << text;
  }
}

Status compile(const std::string& expression) { return Regex::compile(expression).status(); }

TEST(Regex, WhatRunsAwayIsRefused) {
  for (const char* expression : {"(a+)+[bc]", "(?:a|aa)+[bc]", "(?:a*)*[bc]", "a*a*a*[bc]", "a+[bc]|a",
                                 R"((?:\s+\s+)+x|y)", R"((?:\p{L}+)*\d|.)", "(?=a*b)a"}) {
    const Status status = compile(expression);
    EXPECT_EQ(status.code(), Code::kUnsupported) << expression;
    EXPECT_THAT(status.message(), HasSubstr("too much work")) << expression;
  }
  EXPECT_EQ(compile("a(").code(), Code::kBadFile);
  EXPECT_EQ(compile(std::string(Regex::kMaxBytes + 1, 'a')).code(), Code::kUnsupported);
  EXPECT_FALSE(compile(std::string(1000, '(') + std::string(1000, ')')).ok());
  EXPECT_FALSE(compile("((((((a{1000}){1000}){1000}){1000}){1000}){1000})").ok());
}

// What is hard only where the check did not look ends in time, too.
TEST(Regex, WorkOnATextIsLimited) {
  const std::string expression = "(?:xyz|xyzxyz)+[bc]";
  for (const bool generate_code : {false, true}) {
    auto regex = Regex::compile(expression, generate_code);
    ASSERT_TRUE(regex.ok()) << regex.status().message();
    std::string text;
    for (int i = 0; i < 3000; ++i) text += "xyz";
    Regex::Search search(*regex);
    size_t work = Regex::work_for(text.size()), begin = 0, end = 0;
    search.start(text, &work);
    const Status status = search.next(&begin, &end).status();
    EXPECT_EQ(status.code(), Code::kUnsupported);
    EXPECT_THAT(status.message(), HasSubstr("too much work"));
  }
}

// Runs of one character are within the limits for every family, with generated code and without.
TEST(Regex, LongRunsOfEveryFamily) {
  for (const char* name : {"gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "tekken", "gpt-4o", "falcon",
                           "deepseek-v3", "deepseek-coder"}) {
    const auto family = find_gguf_pre_tokenizer(name);
    ASSERT_FALSE(family.names.empty()) << name;
    for (const std::string_view expression : family.expressions) {
      std::vector<size_t> n_matches;
      for (const bool generate_code : {false, true}) {
        auto regex = Regex::compile(std::string(expression), generate_code);
        ASSERT_TRUE(regex.ok()) << name << ": " << regex.status().message();
        n_matches.push_back(0);
        for (const std::string unit : {"a", "A", " ", "1", "\n", "\xCC\x81", "\xE6\x97\xA5", ".", " \n", "aA"}) {
          std::string text;
          for (size_t i = 0; i < 20'000; ++i) text += unit;
          Regex::Search search(*regex);
          size_t work = Regex::work_for(text.size()), begin = 0, end = 0;
          search.start(text, &work);
          auto found = search.next(&begin, &end);
          for (; found.ok() && *found; found = search.next(&begin, &end)) ++n_matches.back();
          EXPECT_TRUE(found.ok()) << name << " \"" << unit << "\": " << found.status().message();
        }
      }
      EXPECT_EQ(n_matches[0], n_matches[1]) << name;
    }
  }
}

}  // namespace
}  // namespace quire
