#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/unit/tokenizer/tokenizer_data.h"

namespace quire {
namespace {

using Ids = std::vector<int32_t>;

class TokenizerGolden : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerGolden, SameIdsAndTextAsPythonSentencePiece) {
  const auto tokenizer = test_tokenizer(GetParam());
  const auto& expected = golden()[GetParam()];
  EXPECT_EQ(tokenizer->size(), expected["size"].get<int32_t>());
  EXPECT_EQ(tokenizer->bos(), expected["bos"].get<int32_t>());
  EXPECT_THAT(tokenizer->eos(), testing::ElementsAre(expected["eos"].get<int32_t>()));
  ASSERT_GT(expected["cases"].size(), 20u);
  for (const auto& c : expected["cases"]) {
    const auto text = c["text"].get<std::string>();
    const auto first = c["first"].get<Ids>();
    EXPECT_EQ(tokenizer->encode(text, {.add_bos = false}).value(), first) << text;
    EXPECT_EQ(tokenizer->encode(text, {.first_segment = false}).value(), c["later"].get<Ids>()) << text;
    Ids with_bos{tokenizer->bos()};
    with_bos.insert(with_bos.end(), first.begin(), first.end());
    EXPECT_EQ(tokenizer->encode(text, {}).value(), with_bos) << text;
    EXPECT_EQ(decode(*tokenizer, first, ControlText::kNone).value(), c["decoded"].get<std::string>()) << text;
    EXPECT_EQ(decode(*tokenizer, with_bos, ControlText::kNone).value(), c["decoded"].get<std::string>()) << text;
  }
}

TEST_P(TokenizerGolden, ControlPiecesNeverComeFromText) {
  const auto tokenizer = test_tokenizer(GetParam());
  for (const auto& c : golden()[GetParam()]["cases"]) {
    for (const int32_t id : c["first"].get<Ids>()) EXPECT_FALSE(tokenizer->is_control(id));
  }
  const Ids ids = tokenizer->encode("<s></s> <s> </s>", {.add_bos = false}).value();
  for (const int32_t id : ids) EXPECT_FALSE(tokenizer->is_control(id));
}

TEST_P(TokenizerGolden, AnyThread) {
  const auto tokenizer = test_tokenizer(GetParam());
  const std::string text = "The binder sews the quires together.";
  const Ids expected = tokenizer->encode(text, {}).value();
  std::vector<std::thread> threads;
  std::atomic<int> n_wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) n_wrong += tokenizer->encode(text, {}).value() != expected;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(n_wrong.load(), 0);
}

INSTANTIATE_TEST_SUITE_P(Models, TokenizerGolden,
                         testing::Values("bpe_bytes", "bpe_no_prefix", "unigram", "unigram_bytes_no_prefix"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Tokenizer, SameIdsAsTransformersWithSpecialTokens) {
  const auto& expected = golden()["special"];
  const auto tokenizer = test_tokenizer("bpe_bytes", expected["tokenizer_config"].dump(), "", 490);
  EXPECT_EQ(tokenizer->size(), 483);
  ASSERT_GT(expected["cases"].size(), 20u);
  for (const auto& c : expected["cases"]) {
    const auto text = c["text"].get<std::string>();
    EXPECT_EQ(tokenizer->encode(text, {.parse_special = true}).value(), c["ids"].get<Ids>()) << text;
  }
}

TEST(Tokenizer, ByteFallbackKeepsEveryText) {
  for (const char* name : {"bpe_bytes", "bpe_no_prefix", "unigram_bytes_no_prefix"}) {
    const auto tokenizer = test_tokenizer(name);
    for (const std::string& text : {std::string("a\0b", 3), std::string("\x01\x7F"), std::string("\xF4\x8F\xBF\xBF"),
                                    std::string(100'000, 'x'), std::string(1000, ' ')}) {
      EXPECT_EQ(decode(*tokenizer, tokenizer->encode(text, {}).value(), ControlText::kNone).value(), text) << name;
    }
  }
}

TEST(Tokenizer, InvalidTextIsRefusedWithItsByte) {
  const auto tokenizer = test_tokenizer("bpe_bytes");
  for (const bool parse_special : {false, true}) {
    const Status status = tokenizer->encode("abc\xE2\x82", {.parse_special = parse_special}).status();
    EXPECT_EQ(status.code(), Code::kInvalidText);
    EXPECT_EQ(status.offset(), 3);
  }
  EXPECT_EQ(tokenizer->encode("\xED\xA0\x80", {}).status().offset(), 0);
}

TEST(Tokenizer, KindAndDummyPrefix) {
  EXPECT_EQ(test_tokenizer("bpe_bytes")->kind(), "sentencepiece-bpe");
  EXPECT_EQ(test_tokenizer("unigram")->kind(), "sentencepiece-unigram");
  EXPECT_TRUE(test_tokenizer("bpe_bytes")->has_dummy_prefix());
  EXPECT_FALSE(test_tokenizer("bpe_no_prefix")->has_dummy_prefix());
  const auto told = test_tokenizer("bpe_bytes", R"({"add_prefix_space": false})");
  EXPECT_FALSE(told->has_dummy_prefix());
  EXPECT_EQ(told->encode("the book", {}).value(), (Ids{1, 397, 260, 305}));
}

TEST(Tokenizer, IdsBeyondTheTokenizerButInTheVocabularyStandForNothing) {
  const auto tokenizer = test_tokenizer("bpe_bytes", "", "", 500);
  std::string bytes = "x";
  EXPECT_TRUE(tokenizer->append_bytes(499, ControlText::kPiece, bytes).ok());
  EXPECT_EQ(bytes, "x");
  EXPECT_FALSE(tokenizer->is_control(499));
  for (const int32_t id : {500, -1, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(tokenizer->append_bytes(id, ControlText::kNone, bytes).code(), Code::kInvalidToken) << id;
    EXPECT_FALSE(tokenizer->is_control(id));
  }
  EXPECT_EQ(bytes, "x");
  const Status status = decode(*tokenizer, {262, 305, 500}, ControlText::kNone).status();
  EXPECT_EQ(status.code(), Code::kInvalidToken);
  EXPECT_EQ(status.offset(), 2);
}

}  // namespace
}  // namespace quire
