// Tokenizers written as the metadata of a GGUF file, and read again: they give the same ids.
#include "lib/tokenizer/gguf_tokenizer_writer.h"

#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/unit/model/temporary_folder.h"
#include "tests/unit/tokenizer/bpe_data.h"

namespace quire {
namespace {

class GgufTokenizerWriter : public testing::Test {
 protected:
  void put(const std::string& name, const std::string& text) {
    std::ofstream(folder_.file(name), std::ios::binary) << text;
  }

  Result<GgufHeader> write(int32_t vocab_size) {
    GgufWriter writer;
    QUIRE_TRY(add_gguf_tokenizer(folder_.path(), vocab_size, writer));
    const std::string bytes = writer.header();
    const ReadAt read = [&](int64_t offset, std::span<std::byte> out) {
      std::memcpy(out.data(), bytes.data() + offset, out.size());
      return Status();
    };
    return read_gguf_header(read, static_cast<int64_t>(bytes.size()));
  }

  void expect_same_ids(int32_t vocab_size) {
    auto original = load_tokenizer(folder_.path(), vocab_size);
    ASSERT_TRUE(original.ok()) << original.status().message();
    auto header = write(vocab_size);
    ASSERT_TRUE(header.ok()) << header.status().message();
    auto written = make_gguf_tokenizer(*header, vocab_size);
    ASSERT_TRUE(written.ok()) << written.status().message();
    EXPECT_EQ((*written)->bos(), (*original)->bos());
    EXPECT_EQ((*written)->adds_bos(), (*original)->adds_bos());
    for (const auto& golden : bpe_golden()["texts"]) {
      const std::string text = golden;
      for (const bool parse_special : {false, true}) {
        EncodeOptions options;
        options.parse_special = parse_special;
        const auto a = (*original)->encode(text, options), b = (*written)->encode(text, options);
        ASSERT_TRUE(a.ok() && b.ok());
        EXPECT_EQ(a.value(), b.value()) << text << (parse_special ? ", control tokens" : "");
      }
    }
    for (int32_t id = 0; id < (*original)->size(); ++id) {
      std::string a, b;
      ASSERT_TRUE((*original)->append_bytes(id, ControlText::kPiece, a).ok());
      ASSERT_TRUE((*written)->append_bytes(id, ControlText::kPiece, b).ok());
      EXPECT_EQ(a, b) << id;
    }
  }

  const test::TemporaryFolder folder_;
};

TEST_F(GgufTokenizerWriter, KeepsByteLevelBpe) {
  for (const char* name : {"gpt2", "prefix", "smollm", "llama3", "qwen2", "tekken"}) {
    SCOPED_TRACE(name);
    nlohmann::json file = bpe_configuration(name);
    file["normalizer"] = nullptr;  // NFC is lost: who reads GGUF files does not normalise
    put("tokenizer.json", file.dump());
    expect_same_ids(490);  // a model's vocabulary is rounded up
  }
}

TEST_F(GgufTokenizerWriter, KeepsSentencePieceBpe) {
  put("tokenizer.model", tokenizer_file("bpe_bytes.model"));
  auto tokenizer = load_tokenizer(folder_.path(), kAnyVocabSize);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  expect_same_ids((*tokenizer)->size() + 6);
}

TEST_F(GgufTokenizerWriter, KeepsTheChatTemplate) {
  put("tokenizer.json", bpe_configuration("gpt2").dump());
  put("chat_template.jinja", "{{ messages }}");
  auto header = write(490);
  ASSERT_TRUE(header.ok()) << header.status().message();
  EXPECT_EQ(*header->metadata.at("tokenizer.chat_template").string(), "{{ messages }}");
}

TEST_F(GgufTokenizerWriter, RefusesWhatGgufCannotSay) {
  const auto refused = [&](const char* what) {
    const Status status = write(1000).status();
    EXPECT_EQ(status.code(), Code::kUnsupported);
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
  };
  put("tokenizer.json", bpe_configuration("mistral").dump());
  refused("a BPE of characters");
  nlohmann::json file = bpe_configuration("gpt2");
  file["model"]["ignore_merges"] = true;  // no family cuts so and ignores merges
  put("tokenizer.json", file.dump());
  refused("no name for");
  put("tokenizer.model", tokenizer_file("unigram.model"));
  refused("unigram");
}

}  // namespace
}  // namespace quire
