// The golden beacon plug-in in a temporary folder, to be changed; and the golden model with beacons of its own.
#pragma once

#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/source_path.h"
#include "tests/unit/model/temporary_folder.h"

namespace quire::test {

class BeaconDirectory : public TemporaryFolder {
 public:
  static std::string golden(const std::string& name) { return source_path("tests/golden/" + name); }
  static std::string model() { return golden("models/text_256"); }
  static std::string plugin() { return golden("beacon/plugin"); }

  BeaconDirectory() { read(plugin()); }

  nlohmann::json config;

  void drop(const std::string& name) { tensors_.erase(name); }
  void drop_all() { tensors_.clear(); }
  // A vector whose elements are all `value`.
  void put(const std::string& name, size_t n, float value) {
    const std::vector<float> values(n, value);
    tensors_[name] = {{{"dtype", "F32"}, {"shape", {n}}},
                      std::string(reinterpret_cast<const char*>(values.data()), n * sizeof(float))};
  }
  // The same bytes in another shape.
  void reshape(const std::string& name, std::vector<int64_t> shape) { tensors_.at(name).info["shape"] = shape; }

  // Adds tensors and keys of another directory.
  void read(const std::string& directory) {
    const std::string bytes = content(directory + "/model.safetensors");
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    const auto header = nlohmann::json::parse(bytes.substr(sizeof length, length));
    for (const auto& [name, info] : header.items()) {
      if (name == "__metadata__") continue;
      const size_t begin = info["data_offsets"][0], end = info["data_offsets"][1];
      tensors_[name] = {info, bytes.substr(sizeof length + length + begin, end - begin)};
    }
    config.update(nlohmann::json::parse(content(directory + "/config.json")));
  }

  void write() const {
    nlohmann::json header = nlohmann::json::object();
    std::string data;
    for (const auto& [name, tensor] : tensors_) {
      header[name] = tensor.info;
      header[name]["data_offsets"] = {data.size(), data.size() + tensor.bytes.size()};
      data += tensor.bytes;
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const uint64_t length = text.size();
    std::string bytes(sizeof length, '\0');
    std::memcpy(bytes.data(), &length, sizeof length);
    std::ofstream(file("model.safetensors"), std::ios::binary) << bytes << text << data;
    std::ofstream(file("config.json")) << config.dump();
  }

 private:
  struct Tensor {
    nlohmann::json info;
    std::string bytes;
  };

  static std::string content(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) throw std::runtime_error("cannot read " + path);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  std::map<std::string, Tensor> tensors_;
};

}  // namespace quire::test
