#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "lib/format/gguf_writer.h"
#include "lib/tokenizer/chat_template_text.h"
#include "tests/unit/tokenizer/tokenizer_data.h"

namespace quire {
namespace {

using testing::HasSubstr;

class LoadTokenizer : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/load_tokenizer_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  void write(const std::string& name, const std::string& bytes) {
    std::ofstream(directory_ + "/" + name, std::ios::binary) << bytes;
  }
  Status failure(int32_t vocab_size = 500) { return load_tokenizer(directory_, vocab_size).status(); }
  std::string directory_;
};

TEST_F(LoadTokenizer, AllThreeFiles) {
  write("tokenizer.model", tokenizer_file("bpe_bytes.model"));
  ASSERT_TRUE(failure().ok()) << failure().message();
  write("tokenizer_config.json", R"({"add_bos_token": false})");
  write("added_tokens.json", R"({"<x>": 490})");
  auto tokenizer = load_tokenizer(directory_, 500);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_FALSE((*tokenizer)->adds_bos());
  EXPECT_EQ((*tokenizer)->size(), 491);
}

TEST_F(LoadTokenizer, TokenizerJsonWhereThereIsNoModelFile) {
  EXPECT_EQ(failure().code(), Code::kNotFound);
  EXPECT_THAT(failure().message(), HasSubstr("tokenizer.model"));
  EXPECT_THAT(failure().message(), HasSubstr("tokenizer.json"));
  EXPECT_THAT(failure().message(), testing::Not(HasSubstr("tekken.json")));
  write("tekken.json", "{}");
  EXPECT_THAT(failure().message(), HasSubstr("tekken.json, which is there, is not read"));
  write("tokenizer.json", "{}");
  EXPECT_EQ(failure().code(), Code::kBadFile);
  EXPECT_THAT(failure().message(), HasSubstr(directory_ + ": tokenizer.json"));
  write("tokenizer.json", R"({"model": {"type": "WordPiece"}})");
  EXPECT_EQ(failure().code(), Code::kUnsupported);
  EXPECT_THAT(failure().message(), HasSubstr("WordPiece"));
  write("tokenizer.json", tokenizer_file("byte_level.json"));
  write("tokenizer_config.json", R"({"eos_token": "<|end|>", "added_tokens_decoder": {"490": {"content": "<|x|>"}}})");
  auto tokenizer = load_tokenizer(directory_, 500);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ((*tokenizer)->kind(), "byte-level-bpe");
  EXPECT_EQ((*tokenizer)->eos(), std::vector<int32_t>{481});
  EXPECT_EQ((*tokenizer)->find_control("<|x|>"), 490);
  EXPECT_THAT(failure(490).message(), HasSubstr("vocab_size is 490"));
  write("tokenizer.model", tokenizer_file("bpe_bytes.model"));
  write("tokenizer_config.json", "{}");
  EXPECT_EQ((*load_tokenizer(directory_, 500))->kind(), "sentencepiece-bpe");
}

TEST_F(LoadTokenizer, OneFile) {
  const auto kind = [&](const std::string& name) {
    auto tokenizer = load_tokenizer_file(directory_ + "/" + name, kAnyVocabSize);
    return tokenizer.ok() ? (*tokenizer)->kind() : tokenizer.status().message();
  };
  write("a.json", tokenizer_file("byte_level.json"));
  write("a.model", tokenizer_file("bpe_bytes.model"));
  GgufWriter writer;
  write("empty.gguf", writer.header());
  const std::vector<std::string> tokens{"a", "b", "ab"}, merges{"a b"};
  writer.add("tokenizer.ggml.model", "gpt2");
  writer.add("tokenizer.ggml.pre", "gpt-2");
  writer.add("tokenizer.ggml.tokens", std::span<const std::string>(tokens));
  writer.add("tokenizer.ggml.merges", std::span<const std::string>(merges));
  write("a.gguf", writer.header());
  EXPECT_EQ(kind("a.json"), "byte-level-bpe");
  EXPECT_EQ(kind("a.model"), "sentencepiece-bpe");
  EXPECT_EQ(kind("a.gguf"), "byte-level-bpe");
  EXPECT_EQ(kind("empty.gguf"), directory_ + "/empty.gguf: tokenizer.ggml.model is missing");
}

// Ids of a file alone are not bounded by a model; memory for them is.
TEST_F(LoadTokenizer, HugeIds) {
  write("tokenizer.model", tokenizer_file("bpe_bytes.model"));
  write("added_tokens.json", R"({"<x>": 2147483646})");
  EXPECT_EQ(failure(kAnyVocabSize).code(), Code::kBadFile);
  EXPECT_THAT(failure(kAnyVocabSize).message(), HasSubstr("2147483646"));
}

TEST_F(LoadTokenizer, ChatTemplate) {
  EXPECT_EQ(read_chat_template(directory_).status().code(), Code::kNotFound);
  write("tokenizer_config.json", R"({"chat_template": "one"})");
  EXPECT_EQ(read_chat_template(directory_).value(), "one");
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "tool", "template": "two"}, {"name": "default", "template": "three"}]})");
  EXPECT_EQ(read_chat_template(directory_).value(), "three");
  write("chat_template.json", R"({"chat_template": null})");
  EXPECT_EQ(read_chat_template(directory_).value(), "three");
  write("chat_template.json", R"({"chat_template": 4})");
  EXPECT_EQ(read_chat_template(directory_).status().code(), Code::kBadFile);
  EXPECT_THAT(read_chat_template(directory_).status().message(), HasSubstr("/chat_template.json: chat_template"));
  write("chat_template.json", R"({"chat_template": "four"})");
  EXPECT_EQ(read_chat_template(directory_).value(), "four");
  write("chat_template.jinja", "five");
  EXPECT_EQ(read_chat_template(directory_).value(), "five");
  write("chat_template.jinja", "\xFF");
  EXPECT_EQ(read_chat_template(directory_).status().code(), Code::kBadFile);
}

TEST_F(LoadTokenizer, EmptyDamagedOrMismatched) {
  write("tokenizer.model", "");
  EXPECT_EQ(failure().code(), Code::kBadFile);
  EXPECT_THAT(failure().message(), HasSubstr("tokenizer.model: the file is empty"));
  write("tokenizer.model", "this is no protobuf");
  EXPECT_EQ(failure().code(), Code::kBadFile);
  write("tokenizer.model", tokenizer_file("bpe_bytes.model").substr(0, 3000));
  EXPECT_EQ(failure().code(), Code::kBadFile);
  write("tokenizer.model", tokenizer_file("bpe_bytes.model"));
  EXPECT_TRUE(failure(480).ok());
  EXPECT_EQ(failure(479).code(), Code::kBadFile);
  EXPECT_THAT(failure(479).message(), HasSubstr("480 pieces, but the model's vocab_size is 479"));
  EXPECT_EQ(failure(0).code(), Code::kBadFile);
  EXPECT_EQ(failure(-1).code(), Code::kBadFile);
  write("tokenizer_config.json", "{");
  EXPECT_EQ(failure().code(), Code::kBadFile);
  EXPECT_THAT(failure().message(), HasSubstr("tokenizer_config.json"));
}

}  // namespace
}  // namespace quire
