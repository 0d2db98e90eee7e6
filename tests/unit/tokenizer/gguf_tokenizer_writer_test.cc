// Tokenizers written as the metadata of a GGUF file, and read again: they give the same ids.
#include "lib/tokenizer/gguf_tokenizer_writer.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "lib/format/gguf_token_ids.h"
#include "lib/tokenizer/sentencepiece_model.h"
#include "tests/unit/model/temporary_folder.h"
#include "tests/unit/tokenizer/bpe_data.h"

namespace quire {
namespace {

class GgufTokenizerWriter : public testing::Test {
 protected:
  void put(const std::string& name, const std::string& text) {
    std::ofstream(folder_.file(name), std::ios::binary) << text;
  }

  Result<GgufHeader> write(int32_t vocab_size, const std::vector<int32_t>& eos = {}) {
    GgufWriter writer;
    QUIRE_TRY(add_gguf_tokenizer(folder_.path(), vocab_size, eos, writer));
    const std::string bytes = writer.header();
    const ReadAt read = [&](int64_t offset, std::span<std::byte> out) {
      std::memcpy(out.data(), bytes.data() + offset, out.size());
      return Status();
    };
    return read_gguf_header(read, static_cast<int64_t>(bytes.size()));
  }

  // Without control tokens: ids of texts in which they are parsed are not compared.
  void expect_same_ids(int32_t vocab_size, bool with_control_tokens = true) {
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
        if (parse_special && !with_control_tokens) continue;
        EncodeOptions options;
        options.parse_special = parse_special;
        const auto a = (*original)->encode(text, options), b = (*written)->encode(text, options);
        ASSERT_TRUE(a.ok() && b.ok());
        EXPECT_EQ(a.value(), b.value()) << text << (parse_special ? ", control tokens" : "");
      }
    }
    for (int32_t id = with_control_tokens ? 0 : 1; id < (*original)->size(); ++id) {  // SentencePiece's 0: no text
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

// tokenizer.json of a SentencePiece BPE, as the conversion tools of transformers make it: all pairs of pieces that
// spell a piece, in the order of its score.
nlohmann::json character_bpe(const SentencePieceModel& model) {
  nlohmann::json file = bpe_configuration("mistral");
  nlohmann::json vocabulary = nlohmann::json::object(), added = nlohmann::json::array();
  std::map<std::string, size_t> ids;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    vocabulary[model.pieces[id].text] = id;
    ids[model.pieces[id].text] = id;
    if (id < 3) added.push_back({{"id", id}, {"content", model.pieces[id].text}, {"special", true}});
  }
  std::vector<size_t> order;
  for (size_t id = 3; id < model.pieces.size(); ++id) {
    if (model.pieces[id].type == PieceType::kNormal) order.push_back(id);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return model.pieces[a].score > model.pieces[b].score; });
  nlohmann::json merges = nlohmann::json::array();
  for (const size_t id : order) {
    const std::string& text = model.pieces[id].text;
    for (size_t at = 1; at < text.size(); ++at) {
      const std::string left = text.substr(0, at), right = text.substr(at);
      if (ids.contains(left) && ids.contains(right)) merges.push_back({left, right});
    }
  }
  file["added_tokens"] = added;
  file["model"]["vocab"] = vocabulary;
  file["model"]["merges"] = merges;
  return file;
}

TEST_F(GgufTokenizerWriter, KeepsBpeOfCharactersThatWasSentencePieces) {
  const SentencePieceModel model = parse_sentencepiece_model(tokenizer_file("bpe_bytes.model")).value();
  const auto n = static_cast<int32_t>(model.pieces.size());
  const nlohmann::json file = character_bpe(model);
  ASSERT_GT(file["model"]["merges"].size(), 100u);
  put("tokenizer.json", file.dump());
  expect_same_ids(n + 6, false);  // tokenizer.json puts a space behind control tokens, too

  nlohmann::json newer = file;
  newer["normalizer"] = nullptr;
  newer["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}, {"split", false}};
  put("tokenizer.json", newer.dump());
  EXPECT_EQ(*write(n).value().metadata.at("tokenizer.ggml.model").string(), "llama");

  // Gemma's: nothing is put before a text, and its cuts are at spaces, of which none is left.
  nlohmann::json gemma = file;
  gemma["normalizer"] = file["normalizer"]["normalizers"][1];
  ASSERT_EQ(gemma["normalizer"]["type"], "Replace");
  gemma["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "MergedWithPrevious"}, {"invert", false}};
  auto& decoders = gemma["decoder"]["decoders"];
  ASSERT_EQ(decoders.back()["type"], "Strip");
  decoders.erase(decoders.size() - 1);
  put("tokenizer.json", gemma.dump());
  expect_same_ids(n + 6, false);  // "<unk>" in a text is found in tokenizer.json alone
  EXPECT_FALSE(*write(n).value().metadata.at("tokenizer.ggml.add_space_prefix").boolean());

  const auto refused = [&](const nlohmann::json& changed, const char* what) {
    put("tokenizer.json", changed.dump());
    const Status status = write(n + 6).status();
    EXPECT_EQ(status.code(), Code::kUnsupported);
    EXPECT_THAT(status.message(), testing::HasSubstr(what));
  };
  nlohmann::json changed = file;  // a pair that SentencePiece would join
  changed["model"]["merges"].erase(changed["model"]["merges"].begin() + 7);
  refused(changed, "no merge joins");
  changed = file;  // a piece's pairs before and behind those of others
  changed["model"]["merges"].push_back(changed["model"]["merges"][0]);
  refused(changed, "are not listed together");
  changed = file;
  changed["model"]["ignore_merges"] = true;
  refused(changed, "whole words");
  changed = file;
  changed["normalizer"]["normalizers"].push_back({{"type", "NFC"}});
  refused(changed, "NFC");
  changed = newer;
  changed["pre_tokenizer"]["split"] = true;
  refused(changed, "cuts texts");
  changed = gemma;
  changed["pre_tokenizer"]["pattern"]["String"] = "e";
  refused(changed, "cuts texts");
  changed = file;
  changed["model"]["unk_token"] = nullptr;
  refused(changed, "unknown token");
}

TEST_F(GgufTokenizerWriter, NamesTheIdsThatEndAText) {
  put("tokenizer.json", bpe_configuration("gpt2").dump());
  const auto id = [](const GgufHeader& header) {
    const auto at = header.metadata.find("tokenizer.ggml.eos_token_id");
    return at == header.metadata.end() ? -1 : *at->second.integer();
  };
  const auto all = [](const GgufHeader& header) {
    const auto at = header.metadata.find(kGgufEosTokenIds);
    return at == header.metadata.end() ? GgufValue::Integers{} : *at->second.integers();
  };
  GgufHeader header = write(490).value();
  EXPECT_EQ(id(header), -1);
  EXPECT_THAT(all(header), testing::IsEmpty());
  header = write(490, {7}).value();
  EXPECT_EQ(id(header), 7);
  EXPECT_THAT(all(header), testing::IsEmpty());
  put("tokenizer_config.json", R"({"eos_token": "<|end|>"})");
  EXPECT_EQ(id(write(490).value()), 481);
  header = write(490, {7, 481, 9}).value();
  EXPECT_EQ(id(header), 481);
  EXPECT_THAT(all(header), testing::ElementsAre(7, 481, 9));
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
  refused("a BPE of characters unlike those made of SentencePiece's");
  nlohmann::json file = bpe_configuration("gpt2");
  file["model"]["ignore_merges"] = true;  // no family cuts so and ignores merges
  put("tokenizer.json", file.dump());
  refused("no name for");
  refused("whole words before merges");
  put("tokenizer.model", tokenizer_file("unigram.model"));
  refused("unigram");
}

}  // namespace
}  // namespace quire
