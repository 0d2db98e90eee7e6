#include "tests/fault/bpe_models.h"

#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

#include "tests/gguf_model.h"

namespace quire::test {
namespace {

// A vocabulary of letters; the expression of its pre-tokenizer is compiled and tried while it is loaded.
nlohmann::json tokenizer_json() {
  nlohmann::json vocabulary;
  for (char c = 'a'; c <= 'z'; ++c) vocabulary[std::string(1, c)] = c - 'a';
  vocabulary["\xC4\xA0"] = 26, vocabulary["th"] = 27, vocabulary["the"] = 28, vocabulary["<|end|>"] = 29;
  const nlohmann::json split = {{"type", "Split"},
                                {"pattern", {{"Regex", " ?\\p{L}+|\\s+(?!\\S)|\\s+"}}},
                                {"behavior", "Isolated"},
                                {"invert", false}};
  const nlohmann::json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return {{"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::json::array({"t h", "th e"})}}},
          {"added_tokens", nlohmann::json::array({{{"id", 29}, {"content", "<|end|>"}, {"special", true}}})},
          {"normalizer", {{"type", "NFC"}}},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}}},
          {"decoder", {{"type", "ByteLevel"}}}};
}

// Other dimensions for a copy of short_128: rows of whole blocks of 32, which can be quantised.
void make_rows_whole_blocks(const ModelCopy& copy) {
  copy.configure("hidden_size", 64);
  copy.configure("intermediate_size", 96);
  copy.configure("head_dim", 32);
  const std::map<uint64_t, uint64_t> dimensions = {{60, 64}, {80, 96}, {48, 32}, {3 * 48, 3 * 32}};
  Safetensors weights(copy.read("model.safetensors"));
  uint64_t end = 0;
  for (auto& [name, tensor] : weights.header.items()) {
    if (name == "__metadata__") continue;
    uint64_t bytes = sizeof(float);
    for (auto& n : tensor.at("shape")) {
      const auto other = dimensions.find(n.get<uint64_t>());
      if (other != dimensions.end()) n = other->second;
      bytes *= n.get<uint64_t>();
    }
    tensor["data_offsets"] = {end, end + bytes};
    end += bytes;
  }
  weights.data.resize(end);
  copy.write("model.safetensors", weights.file());
}

}  // namespace

BpeModels::BpeModels() {
  make_rows_whole_blocks(copy_);
  copy_.remove("tokenizer.model");
  copy_.write("tokenizer.json", tokenizer_json().dump());
  copy_.write("tokenizer_config.json", R"({"eos_token": "<|end|>", "chat_template": "{{ messages }}"})");
  GgufShape shape;
  shape.types.assign(std::begin(kGgufMatrixTypes), std::end(kGgufMatrixTypes));
  const GgufModel model = make_gguf_model(shape);
  copy_.write("model.gguf", model.file());
  const std::vector<GgufModel> parts = model.split(2);
  copy_.write("part-00001-of-00002.gguf", parts[0].file());
  copy_.write("part-00002-of-00002.gguf", parts[1].file());
}

}  // namespace quire::test
