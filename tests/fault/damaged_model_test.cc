// Damaged and foreign model directories: the exact status, and a message that names the file, tensor or key.
#include <gtest/gtest.h>

#include <functional>

#include "tests/fault/damaged_model.h"

namespace quire::test {
namespace {

using nlohmann::json;
const std::string kWeights = "model.safetensors";

class DamagedDirectory : public DamagedModel {
 protected:
  void expect_weights(const std::function<void(Safetensors&)>& damage, quire_status status,
                      const std::vector<std::string>& parts) {
    const ModelCopy copy("short_128");
    Safetensors weights(copy.read(kWeights));
    damage(weights);
    copy.write(kWeights, weights.file());
    expect(copy, status, parts);
  }
};

TEST_F(DamagedDirectory, TruncatedWeights) {
  const ModelCopy original("short_128");
  const std::string whole = original.read(kWeights);
  const size_t header_end = Safetensors(whole).header_end();
  for (const size_t size : {size_t{0}, size_t{1}, size_t{7}, size_t{8}, size_t{9}, header_end / 2, header_end - 1,
                            header_end, header_end + 1, whole.size() / 2, whole.size() - 1}) {
    SCOPED_TRACE(size);
    original.write(kWeights, whole);
    original.truncate(kWeights, size);
    expect(original, QUIRE_ERROR_BAD_FILE, {kWeights});
  }
  original.write(kWeights, whole + "more");
  expect(original, QUIRE_ERROR_BAD_FILE, {kWeights, "after the last tensor"});
}

TEST_F(DamagedDirectory, Tensors) {
  const std::string up = "model.layers.1.mlp.up_proj.weight";
  expect_weights(
      [&](Safetensors& w) { w.header["model.layers.1.mlp.up_prok.weight"] = w.header[up], w.header.erase(up); },
      QUIRE_ERROR_BAD_FILE, {"missing tensor", up});
  expect_weights(
      [&](Safetensors& w) {
        w.header[up]["shape"] = {60, 80};
      },
      QUIRE_ERROR_BAD_FILE, {kWeights, up, "[60, 80]", "[80, 60]"});
  expect_weights([&](Safetensors& w) { w.header[up]["dtype"] = "I32"; }, QUIRE_ERROR_UNSUPPORTED,
                 {kWeights, up, "I32"});
  expect_weights([&](Safetensors& w) { w.header[up]["dtype"] = "F33"; }, QUIRE_ERROR_BAD_FILE, {kWeights, up, "F33"});
  expect_weights([&](Safetensors& w) { w.header[up]["data_offsets"][1] = int64_t{1} << 62; }, QUIRE_ERROR_BAD_FILE,
                 {kWeights, up, "data_offsets"});
  expect_weights(
      [&](Safetensors& w) {
        w.header[up]["shape"] = {int64_t{1} << 62, int64_t{1} << 62};
      },
      QUIRE_ERROR_BAD_FILE, {kWeights, up, "overflows"});
  expect_weights([&](Safetensors& w) { w.header[up]["data_offsets"] = w.header["model.norm.weight"]["data_offsets"]; },
                 QUIRE_ERROR_BAD_FILE, {kWeights, "model.layers.1.mlp.up_proj.weight"});
}

TEST_F(DamagedDirectory, OtherWeightFiles) {
  const ModelCopy copy("short_128");
  copy.rename(kWeights, "pytorch_model.bin");
  expect(copy, QUIRE_ERROR_UNSUPPORTED, {"pytorch_model.bin", ".safetensors"});
  copy.remove("pytorch_model.bin");
  expect(copy, QUIRE_ERROR_NOT_FOUND, {kWeights, copy.path()});
}

TEST_F(DamagedDirectory, Shards) {
  {
    const ModelCopy copy("mqa_yarn_sharded");
    copy.remove("model-00002-of-00003.safetensors");
    expect(copy, QUIRE_ERROR_NOT_FOUND, {"model-00002-of-00003.safetensors"});
  }
  const std::string index = "model.safetensors.index.json";
  const std::string name = "model.norm.weight";
  for (const char* file : {"../outside.safetensors", "/etc/passwd", "model.bin"}) {
    const ModelCopy copy("mqa_yarn_sharded");
    auto document = json::parse(copy.read(index));
    document["weight_map"][name] = file;
    copy.write(index, document.dump());
    expect(copy, QUIRE_ERROR_BAD_FILE, {index});
  }
  const ModelCopy copy("mqa_yarn_sharded");
  auto document = json::parse(copy.read(index));
  document["weight_map"]["model.layers.9.nothing"] = "model-00001-of-00003.safetensors";
  copy.write(index, document.dump());
  expect(copy, QUIRE_ERROR_BAD_FILE, {"model-00001-of-00003.safetensors", "model.layers.9.nothing"});
}

TEST_F(DamagedDirectory, Configuration) {
  const auto with = [&](const std::string& key, const json& value, quire_status status,
                        const std::vector<std::string>& parts) {
    SCOPED_TRACE(key);
    const ModelCopy copy("short_128");
    copy.configure(key, value);
    expect(copy, status, parts);
  };
  with("architectures", {"MixtralForCausalLM"}, QUIRE_ERROR_UNSUPPORTED, {"config.json", "MixtralForCausalLM"});
  with("model_type", "mamba", QUIRE_ERROR_UNSUPPORTED, {"config.json", "mamba"});
  with("num_hidden_layers", nullptr, QUIRE_ERROR_BAD_FILE, {"config.json", "num_hidden_layers"});
  with("num_hidden_layers", "two", QUIRE_ERROR_BAD_FILE, {"config.json", "num_hidden_layers", "two"});
  with("num_hidden_layers", 3, QUIRE_ERROR_BAD_FILE, {"missing tensor", "model.layers.2."});
  with("intermediate_size", 96, QUIRE_ERROR_BAD_FILE, {kWeights, "mlp.", "[80, 60]", "[96, 60]"});
  with("hidden_size", int64_t{1} << 40, QUIRE_ERROR_BAD_FILE, {"config.json", "hidden_size"});
  with("hidden_act", "gelu", QUIRE_ERROR_UNSUPPORTED, {"config.json", "gelu"});
  with("quantization_config", json::object({{"bits", 4}}), QUIRE_ERROR_UNSUPPORTED,
       {"config.json", "quantization_config"});
  with("rope_scaling", json::object({{"rope_type", "sideways"}, {"factor", 2}}), QUIRE_ERROR_UNSUPPORTED,
       {"config.json", "sideways"});
  const ModelCopy copy("short_128");
  copy.write("config.json", "{\"architectures\": [");
  expect(copy, QUIRE_ERROR_BAD_FILE, {"config.json"});
  copy.write("config.json", "");
  expect(copy, QUIRE_ERROR_BAD_FILE, {"config.json"});
  copy.remove("config.json");
  expect(copy, QUIRE_ERROR_NOT_FOUND, {"config.json"});
}

TEST_F(DamagedDirectory, Tokenizer) {
  const ModelCopy copy("short_128");
  const std::string whole = copy.read("tokenizer.model");
  copy.truncate("tokenizer.model", whole.size() / 2);
  expect(copy, QUIRE_ERROR_BAD_FILE, {copy.path(), "tokenizer.model"});
  copy.write("tokenizer.model", "no protocol buffer at all");
  expect(copy, QUIRE_ERROR_BAD_FILE, {copy.path(), "tokenizer.model"});
  copy.write("tokenizer.model", "");
  expect(copy, QUIRE_ERROR_BAD_FILE, {copy.path(), "tokenizer.model"});
  copy.remove("tokenizer.model");
  expect(copy, QUIRE_ERROR_NOT_FOUND, {"tokenizer.model", copy.path()});
  copy.write("tokenizer.json", "{}");
  expect(copy, QUIRE_ERROR_BAD_FILE, {copy.path(), "tokenizer.json", "model"});
  copy.write("tokenizer.json", R"({"model": {"type": "WordPiece"}})");
  expect(copy, QUIRE_ERROR_UNSUPPORTED, {copy.path(), "tokenizer.json", "WordPiece"});
  copy.remove("tokenizer_config.json");  // which names other tokens
  copy.write("tokenizer.json", R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
    "decoder": {"type": "ByteLevel"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "(a+)+[bc]"}, "behavior": "Isolated", "invert": false},
      {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]}})");
  expect(copy, QUIRE_ERROR_UNSUPPORTED, {copy.path(), "tokenizer.json", "(a+)+[bc]", "too much work"});
}

}  // namespace
}  // namespace quire::test
