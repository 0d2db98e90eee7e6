// A PEFT LoRA directory in a temporary folder, for tests that need one of a certain kind or a damaged one.
#pragma once

#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/unit/model/temporary_folder.h"

namespace quire::test {

class AdapterDirectory : public TemporaryFolder {
 public:
  nlohmann::json config = {{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 4}, {"target_modules", "all-linear"}};

  // Adds or replaces a float32 tensor; the name comes after PEFT's "base_model.model.".
  void put(const std::string& name, std::vector<int64_t> shape, std::vector<float> values) {
    tensors_["base_model.model." + name] = {std::move(shape), std::move(values)};
  }
  // The same with small numbers that depend on name and index.
  void fill(const std::string& name, std::vector<int64_t> shape) {
    size_t n = 1;
    for (const int64_t extent : shape) n *= static_cast<size_t>(extent);
    std::vector<float> values(n);
    uint32_t state = static_cast<uint32_t>(std::hash<std::string>()(name));
    for (float& value : values) {
      state = state * 1664525u + 1013904223u;
      value = (static_cast<float>(state >> 8) / (1 << 24) - 0.5f) * 0.5f;
    }
    put(name, std::move(shape), std::move(values));
  }
  void drop(const std::string& name) { tensors_.erase("base_model.model." + name); }
  void rename(const std::string& from, const std::string& to) {
    auto node = tensors_.extract("base_model.model." + from);
    node.key() = to;
    tensors_.insert(std::move(node));
  }

  void write() const {
    nlohmann::json header;
    std::string data;
    for (const auto& [name, tensor] : tensors_) {
      const size_t begin = data.size();
      data.append(reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size() * sizeof(float));
      header[name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
    }
    std::string text = tensors_.empty() ? "{}" : header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const uint64_t length = text.size();
    std::string bytes(sizeof length, '\0');
    std::memcpy(bytes.data(), &length, sizeof length);
    std::ofstream(file("adapter_model.safetensors"), std::ios::binary) << bytes << text << data;
    std::ofstream(file("adapter_config.json")) << config.dump();
  }

 private:
  struct Tensor {
    std::vector<int64_t> shape;
    std::vector<float> values;
  };
  std::map<std::string, Tensor> tensors_;
};

}  // namespace quire::test
