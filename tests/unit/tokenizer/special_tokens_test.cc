#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/tokenizer/sentencepiece_encoder.h"
#include "tests/unit/tokenizer/tokenizer_data.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

Status failure(const std::string& config, const std::string& added, int32_t vocab_size = 500) {
  return make_sentencepiece_tokenizer(tokenizer_file("bpe_bytes.model"), config, added, vocab_size).status();
}

TEST(SpecialTokens, AddedTokensOfTheOlderFile) {
  // <|x|> is special because the configuration names it; <table> is not; 481 and 482 do not exist.
  const auto tokenizer =
      test_tokenizer("bpe_bytes", R"({"additional_special_tokens": ["<|x|>"]})", R"({"<table>": 483, "<|x|>": 480})");
  EXPECT_EQ(tokenizer->size(), 484);
  EXPECT_TRUE(tokenizer->is_control(480));
  EXPECT_FALSE(tokenizer->is_control(483));
  const EncodeOptions parse{.first_segment = false, .parse_special = true};
  EXPECT_THAT(tokenizer->encode("<table><|x|><table", parse).value(), testing::Contains(483).Times(1));
  EXPECT_THAT(tokenizer->encode("<table><|x|>", parse).value(), ElementsAre(483, 480));
  EXPECT_THAT(tokenizer->encode("<table><|x|>", {}).value(), testing::Each(testing::Lt(480)));
  EXPECT_EQ(decode(*tokenizer, {480, 483, 481}, ControlText::kNone).value(), "<table>");
  EXPECT_EQ(decode(*tokenizer, {480, 483, 481}, ControlText::kPiece).value(), "<|x|><table>");
}

TEST(SpecialTokens, TheLongestTokenAtTheFirstPlaceCounts) {
  const auto tokenizer = test_tokenizer("bpe_bytes", "", R"({"<a": 480, "<a>": 481, "<a><": 482, "a>": 483})");
  const EncodeOptions parse{.first_segment = false, .parse_special = true};
  EXPECT_THAT(tokenizer->encode("<a><a>", parse).value(), ElementsAre(482, 483));
  EXPECT_THAT(tokenizer->encode("<a><", parse).value(), ElementsAre(482));
  EXPECT_THAT(tokenizer->encode("<a>", parse).value(), ElementsAre(481));
  EXPECT_THAT(tokenizer->encode("<a", parse).value(), ElementsAre(480));
}

TEST(SpecialTokens, WhiteSpaceThatATokenClaims) {
  const auto tokenizer = test_tokenizer("bpe_bytes", R"({"added_tokens_decoder": {
      "480": {"content": "<l>", "lstrip": true}, "481": {"content": "<r>", "rstrip": true}}})");
  const EncodeOptions parse{.first_segment = false, .parse_special = true};
  auto ids = [&](const char* text) { return tokenizer->encode(text, parse).value(); };
  EXPECT_EQ(ids("a \n<l> a"), ids("a<l> a"));
  EXPECT_NE(ids("a<l> a"), ids("a<l>a"));
  EXPECT_EQ(ids("a <r> \n a"), ids("a <r>a"));
  EXPECT_NE(ids("a <r>a"), ids("a<r>a"));
  EXPECT_THAT(ids("  <l>"), ElementsAre(480));
  EXPECT_THAT(ids("<r>  "), ElementsAre(481));
  for (const char* space : {"\v", "\u0085", "\u00A0", "\u1680", "\u2003", "\u2028", "\u202F", "\u205F", "\u3000"}) {
    EXPECT_EQ(ids((std::string("a") + space + "<l>a<r>" + space + " a").c_str()), ids("a<l>a<r>a"));
  }
  EXPECT_NE(ids("a\u200B<l>"), ids("a<l>"));  // no width, and no white space
  EXPECT_NE(ids("<r>\x1C"), ids("<r>"));
}

TEST(SpecialTokens, TheDummyPrefixBelongsToTheVeryBeginning) {
  const auto tokenizer = test_tokenizer("bpe_bytes");
  EXPECT_THAT(tokenizer->encode("the book", {.parse_special = true}).value(), ElementsAre(1, 262, 305));
  EXPECT_THAT(tokenizer->encode("<s>the book", {.add_bos = false, .parse_special = true}).value(),
              ElementsAre(1, 397, 260, 305));
}

// A user-defined piece is found in any text; once the configuration calls it special it must not be.
TEST(SpecialTokens, ASpecialPieceIsTakenFromTheTextAlphabet) {
  const Ids plain = test_tokenizer("bpe_no_prefix")->encode("<|user|>", {.add_bos = false}).value();
  ASSERT_EQ(plain.size(), 1u);
  const std::string config =
      R"({"added_tokens_decoder": {")" + std::to_string(plain[0]) + R"(": {"content": "<|user|>", "special": true}}})";
  const auto tokenizer = test_tokenizer("bpe_no_prefix", config);
  EXPECT_TRUE(tokenizer->is_control(plain[0]));
  EXPECT_THAT(tokenizer->encode("a <|user|> b", {}).value(), testing::Not(testing::Contains(plain[0])));
  EXPECT_EQ(tokenizer->encode("<|user|>", {.add_bos = false, .parse_special = true}).value(), plain);
}

TEST(SpecialTokens, BeginningAndEndAsConfigured) {
  EXPECT_TRUE(test_tokenizer("bpe_bytes")->adds_bos());
  const auto without = test_tokenizer("bpe_bytes", R"({"add_bos_token": false})");
  EXPECT_FALSE(without->adds_bos());
  EXPECT_EQ(without->bos(), 1);
  EXPECT_THAT(without->encode("the book", {}).value(), ElementsAre(262, 305));
  const auto none =
      test_tokenizer("bpe_bytes", R"({"bos_token": null, "eos_token": {"content": "<|x|>"}})", R"({"<|x|>": 480})");
  EXPECT_EQ(none->bos(), -1);
  EXPECT_FALSE(none->adds_bos());
  EXPECT_THAT(none->eos(), ElementsAre(480));
  EXPECT_TRUE(none->is_control(480));
  EXPECT_THAT(failure(R"({"bos_token": "<nowhere>"})", "").message(), HasSubstr("<nowhere>"));
  EXPECT_THAT(failure(R"({"eos_token": 2})", "").message(), HasSubstr("eos_token"));
}

TEST(SpecialTokens, FilesThatDoNotBelongTogether) {
  const std::pair<std::string, std::string> cases[] = {
      {"", R"({"<x>": 500})"},  // beyond the vocabulary
      {"", R"({"<x>": -1})"},
      {"", R"({"<x>": 99999999999})"},
      {"", R"({"<x>": "480"})"},
      {"", R"({"": 480})"},
      {"", R"({"<x>": 300})"},  // a piece with another text
      {"", R"({"<x>": 480, "<y>": 480})"},
      {"", "[]"},
      {"", "{"},
      {R"({"added_tokens_decoder": {"480": {"content": "<x>"}}})", R"({"<y>": 480})"},
      {R"({"added_tokens_decoder": {"480": {}}})", ""},
      {R"({"added_tokens_decoder": {"x": {"content": "<x>"}}})", ""},
      {R"({"added_tokens_decoder": {"4294967776": {"content": "<x>"}}})", ""},
      {R"({"added_tokens_decoder": {"480": {"content": "<x>"}, "0480": {"content": "<x>"}}})", ""},
      {R"({"added_tokens_decoder": []})", ""},
      {R"({"added_tokens_decoder": {"480": "<x>"}})", ""},
      {R"({"added_tokens_decoder": {"480x": {"content": "<x>"}}})", ""},
      {R"({"eos_token": "<no such token>"})", ""},
      {R"({"bos_token": "<no such token>"})", ""},
      {R"({"pad_token": ["<s>"]})", ""},
      {"", "{\"" + std::string(4097, 'x') + "\": 480}"},
      {R"({"add_bos_token": 1})", ""},
      {"{", ""},
  };
  for (const auto& [config, added] : cases) {
    const Status status = failure(config, added);
    EXPECT_EQ(status.code(), Code::kBadFile) << config << added;
    EXPECT_FALSE(status.message().empty());
  }
  EXPECT_THAT(failure("", R"({"<x>": 500})").message(), HasSubstr("vocab_size is 500"));
}

TEST(CancelledEncoding, OfSentencePiece) {
  const auto tokenizer = test_tokenizer("bpe_bytes");
  CancelToken cancel;
  const EncodeOptions options{.cancel = &cancel};
  EXPECT_EQ(tokenizer->encode("the grass", options).value(), tokenizer->encode("the grass", {}).value());
  cancel.cancel();
  EXPECT_EQ(tokenizer->encode("the grass", options).status().code(), Code::kCancelled);
}

// A text that has no place to cut it is encoded at once, and may be long.
TEST(CancelledEncoding, InsideAPartOfSentencePiece) {
  for (const char* file : {"bpe_bytes.model", "unigram.model"}) {
    auto model = parse_sentencepiece_model(tokenizer_file(file));
    ASSERT_TRUE(model.ok());
    auto encoder = SentencePieceEncoder::make(*model);
    ASSERT_TRUE(encoder.ok());
    CancelToken cancel;
    const std::string text(1 << 17, 'a');
    std::vector<int32_t> ids;
    EXPECT_TRUE((*encoder)->encode(text, false, 0, &cancel, ids, nullptr).ok());
    EXPECT_FALSE(ids.empty());
    cancel.cancel();
    EXPECT_EQ((*encoder)->encode(text, false, 0, &cancel, ids, nullptr).code(), Code::kCancelled) << file;
  }
}

}  // namespace
}  // namespace quire
