#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

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

TEST_F(LoadTokenizer, OtherTokenizersAreRefusedByName) {
  EXPECT_EQ(failure().code(), Code::kNotFound);
  EXPECT_THAT(failure().message(), HasSubstr("tokenizer.model"));
  write("tokenizer.json", "{}");
  EXPECT_EQ(failure().code(), Code::kUnsupported);
  EXPECT_THAT(failure().message(), HasSubstr(directory_ + "/tokenizer.json"));
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
