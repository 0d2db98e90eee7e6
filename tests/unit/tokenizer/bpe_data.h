// The BPE tokenizers of tests/data/tokenizers, their golden ids, and changes to them.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "lib/format/gguf.h"
#include "lib/tokenizer/tokenizer_json.h"
#include "tests/unit/tokenizer/tokenizer_data.h"

namespace quire {

inline const nlohmann::json& bpe_golden() {
  static const auto kGolden = nlohmann::json::parse(tokenizer_file("bpe_golden.json"));
  return kGolden;
}

inline nlohmann::json bpe_file(const std::string& name) {
  return nlohmann::json::parse(tokenizer_file(name + ".json"));
}

// The file of a configuration of the golden ids.
inline nlohmann::json bpe_configuration(const std::string& name) {
  const auto& c = bpe_golden()["configurations"][name];
  nlohmann::json file = bpe_file(c["file"]);
  for (const auto& [key, value] : c["changes"].items()) {
    if (key == "model") {
      file["model"].update(value);
    } else {
      file[key] = value;
    }
  }
  return file;
}

inline Result<std::unique_ptr<const Tokenizer>> make_json(const nlohmann::json& file, const std::string& config = "",
                                                          int32_t vocab_size = kAnyVocabSize) {
  return make_json_tokenizer(file.dump(), config, vocab_size);
}

// The metadata of a GGUF file with the vocabulary of byte_level.json.
inline GgufHeader gguf_of(const nlohmann::json& file, const std::string& pre) {
  const auto& vocab = file["model"]["vocab"];
  GgufValue::Strings tokens(484), merges;
  GgufValue::Integers types(484, 1);
  for (const auto& [text, id] : vocab.items()) tokens[id.get<size_t>()] = text;
  for (const auto& added : file["added_tokens"]) {
    const size_t id = added["id"];
    tokens[id] = added["content"];
    types[id] = added["special"].get<bool>() ? 3 : 4;
  }
  for (const auto& merge : file["model"]["merges"]) {
    merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  GgufHeader header;
  const auto set = [&](const std::string& key, auto value) {
    header.metadata["tokenizer.ggml." + key] = GgufValue(std::move(value));
  };
  set("model", std::string("gpt2"));
  set("pre", pre);
  set("tokens", std::move(tokens));
  set("merges", std::move(merges));
  set("token_type", std::move(types));
  set("bos_token_id", int64_t{480});
  set("eos_token_id", int64_t{0});
  set("eot_token_id", int64_t{481});
  return header;
}

}  // namespace quire
