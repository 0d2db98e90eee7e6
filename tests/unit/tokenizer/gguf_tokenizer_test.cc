#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/tokenizer/chat_template_text.h"
#include "lib/tokenizer/sentencepiece_model.h"
#include "tests/unit/tokenizer/bpe_data.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

GgufHeader byte_level(const std::string& pre = "gpt-2") { return gguf_of(bpe_file("byte_level"), pre); }

void set(GgufHeader& header, const std::string& key, GgufValue value) {
  header.metadata["tokenizer.ggml." + key] = std::move(value);
}

Status failure(const GgufHeader& header, int32_t vocab_size = 500) {
  return make_gguf_tokenizer(header, vocab_size).status();
}

class GgufFamily : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(GgufFamily, SameIdsAsTokenizerJson) {
  const auto& [pre, configuration] = GetParam();
  const auto tokenizer = make_gguf_tokenizer(byte_level(pre), 484);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  nlohmann::json file = bpe_configuration(configuration);
  file["normalizer"] = nullptr;
  const auto expected = make_json(file);
  for (const auto& value : bpe_golden()["texts"]) {
    const auto text = value.get<std::string>();
    if (text.find("'\xC5\xBF") != std::string::npos) continue;  // U+017F is an s to (?i:'s) only
    const EncodeOptions options{.add_bos = false, .parse_special = true};
    EXPECT_EQ(tokenizer.value()->encode(text, options).value(), expected.value()->encode(text, options).value())
        << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GgufFamily,
                         testing::Values(std::pair("gpt-2", "gpt2"), std::pair("smollm", "smollm"),
                                         std::pair("llama-bpe", "llama3"), std::pair("qwen2", "qwen2"),
                                         std::pair("tekken", "tekken")),
                         [](const auto& info) { return std::string(info.param.second); });

// Like qwen2, but a newline is in no part with what stands before it.
TEST(GgufTokenizer, SeedCoder) {
  nlohmann::json file = bpe_configuration("qwen2");
  file["normalizer"] = nullptr;
  file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const auto expected = make_json(file);
  const auto tokenizer = make_gguf_tokenizer(byte_level("seed-coder"), 484);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  for (const auto& value : bpe_golden()["texts"]) {
    const auto text = value.get<std::string>();
    if (text.find("'\xC5\xBF") != std::string::npos) continue;  // U+017F is an s to (?i:'s) only
    EXPECT_EQ(tokenizer.value()->encode(text, {.add_bos = false}).value(),
              expected.value()->encode(text, {.add_bos = false}).value())
        << text;
  }
}

TEST(GgufTokenizer, NamedTokens) {
  auto header = byte_level();
  auto tokenizer = std::move(*make_gguf_tokenizer(header, kAnyVocabSize));
  EXPECT_EQ(tokenizer->bos(), 480);
  EXPECT_FALSE(tokenizer->adds_bos());
  EXPECT_THAT(tokenizer->eos(), ElementsAre(0, 481));
  EXPECT_EQ(tokenizer->find_control("<|end|>"), 481);
  EXPECT_TRUE(tokenizer->is_control(481));
  EXPECT_FALSE(tokenizer->is_control(482));
  EXPECT_TRUE(std::move(*make_gguf_tokenizer(byte_level("llama-bpe"), 500))->adds_bos());
  set(header, "add_bos_token", GgufValue(true));
  tokenizer = std::move(*make_gguf_tokenizer(header, 500));
  EXPECT_EQ(tokenizer->encode("", {}).value(), Ids{480});
}

TEST(GgufTokenizer, TheUsualEndOfATurnIsFound) {
  auto header = byte_level();
  header.metadata.erase("tokenizer.ggml.eot_token_id");
  EXPECT_THAT(std::move(*make_gguf_tokenizer(header, 500))->eos(), ElementsAre(0, 481));  // <|end|>
  auto tokens = *header.metadata["tokenizer.ggml.tokens"].strings();
  tokens[481] = "<|another|>";
  set(header, "tokens", GgufValue(tokens));
  EXPECT_THAT(std::move(*make_gguf_tokenizer(header, 500))->eos(), ElementsAre(0));
}

TEST(GgufTokenizer, ControlTokensOfNormalTypeAreKnownByTheirTexts) {
  auto header = byte_level();
  header.metadata.erase("tokenizer.ggml.eot_token_id");
  auto tokens = *header.metadata["tokenizer.ggml.tokens"].strings();
  auto types = *header.metadata["tokenizer.ggml.token_type"].integers();
  tokens[480] = "<start_of_turn>", tokens[481] = "<|im_end|>", tokens[482] = "<｜User｜>", tokens[483] = "<|>";
  std::fill(types.begin() + 480, types.end(), 1);
  set(header, "tokens", GgufValue(tokens));
  set(header, "token_type", GgufValue(types));
  const auto tokenizer = std::move(*make_gguf_tokenizer(header, 500));
  for (const int32_t id : {480, 481, 482, 483}) EXPECT_EQ(tokenizer->is_control(id), id != 483);
  EXPECT_THAT(tokenizer->eos(), ElementsAre(0, 481));
  EXPECT_THAT(tokenizer->encode("<start_of_turn><｜User｜>", {.parse_special = true}).value(), ElementsAre(480, 482));
}

TEST(GgufTokenizer, Refused) {
  EXPECT_THAT(failure(byte_level("a-new-one")).message(), HasSubstr("a-new-one"));
  EXPECT_EQ(failure(byte_level("a-new-one")).code(), Code::kUnsupported);
  auto header = byte_level();
  set(header, "model", GgufValue(std::string("t5")));
  EXPECT_EQ(failure(header).code(), Code::kUnsupported);
  EXPECT_THAT(failure(header).message(), HasSubstr("t5"));
  EXPECT_EQ(failure(byte_level(), 483).code(), Code::kBadFile);
  EXPECT_THAT(failure(byte_level(), 483).message(), HasSubstr("vocab_size is 483"));
  for (const char* key : {"model", "pre", "tokens", "merges"}) {
    header = byte_level();
    header.metadata.erase(std::string("tokenizer.ggml.") + key);
    EXPECT_EQ(failure(header).code(), Code::kBadFile) << key;
    EXPECT_THAT(failure(header).message(), HasSubstr(key));
    set(header, key, GgufValue(1.5));
    EXPECT_EQ(failure(header).code(), Code::kBadFile) << key;
  }
  const std::vector<std::pair<const char*, GgufValue>> wrong{{"token_type", GgufValue(GgufValue::Integers(483, 1))},
                                                             {"token_type", GgufValue(GgufValue::Integers(484, 7))},
                                                             {"bos_token_id", GgufValue(int64_t{484})},
                                                             {"eos_token_id", GgufValue(int64_t{-1})},
                                                             {"eot_token_id", GgufValue(std::string("x"))},
                                                             {"add_bos_token", GgufValue(int64_t{1})},
                                                             {"merges", GgufValue(GgufValue::Strings{"zz z"})},
                                                             {"merges", GgufValue(GgufValue::Strings{"zz"})}};
  for (const auto& [key, value] : wrong) {
    header = byte_level();
    set(header, key, value);
    EXPECT_EQ(failure(header).code(), Code::kBadFile) << key;
    EXPECT_FALSE(failure(header).message().empty());
  }
}

// The metadata that llama.cpp's converter writes for a SentencePiece model.
GgufHeader sentencepiece(const SentencePieceModel& model) {
  GgufValue::Strings tokens;
  GgufValue::Numbers scores;
  GgufValue::Integers types;
  for (const auto& piece : model.pieces) {
    tokens.push_back(piece.text);
    scores.push_back(piece.score);
    types.push_back(static_cast<int64_t>(piece.type));
  }
  GgufHeader header;
  set(header, "model", GgufValue(std::string("llama")));
  set(header, "tokens", GgufValue(tokens));
  set(header, "scores", GgufValue(scores));
  set(header, "token_type", GgufValue(types));
  set(header, "bos_token_id", GgufValue(int64_t{1}));
  set(header, "eos_token_id", GgufValue(int64_t{2}));
  return header;
}

TEST(GgufTokenizer, SentencePieceVocabulary) {
  const auto model = parse_sentencepiece_model(tokenizer_file("bpe_bytes.model")).value();
  auto header = sentencepiece(model);
  const auto tokenizer = make_gguf_tokenizer(header, 500);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(tokenizer.value()->kind(), "sentencepiece-bpe");
  const auto expected = test_tokenizer("bpe_bytes");
  EXPECT_EQ(tokenizer.value()->eos(), expected->eos());
  for (const auto& c : golden()["bpe_bytes"]["cases"]) {
    const auto text = c["text"].get<std::string>();
    EXPECT_EQ(tokenizer.value()->encode(text, {}).value(), expected->encode(text, {}).value()) << text;
  }
  EXPECT_EQ(tokenizer.value()->find_control("</s>"), 2);
  set(header, "add_space_prefix", GgufValue(false));
  EXPECT_FALSE(std::move(*make_gguf_tokenizer(header, 500))->has_dummy_prefix());
  set(header, "scores", GgufValue(GgufValue::Numbers(3)));
  EXPECT_EQ(failure(header).code(), Code::kBadFile);
}

TEST(ChatTemplate, OfAGgufFile) {
  GgufHeader header;
  EXPECT_EQ(read_chat_template(header).status().code(), Code::kNotFound);
  header.metadata["tokenizer.chat_template"] = GgufValue(std::string("{{ messages }}"));
  EXPECT_EQ(read_chat_template(header).value(), "{{ messages }}");
  header.metadata["tokenizer.chat_template"] = GgufValue(std::string("\xFF"));
  EXPECT_EQ(read_chat_template(header).status().code(), Code::kBadFile);
  header.metadata["tokenizer.chat_template"] = GgufValue(int64_t{3});
  EXPECT_EQ(read_chat_template(header).status().code(), Code::kBadFile);
}

}  // namespace
}  // namespace quire
