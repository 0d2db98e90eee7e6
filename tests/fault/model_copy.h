// A copy of a tiny model that a test may damage.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace quire::test {

class ModelCopy {
 public:
  explicit ModelCopy(const std::string& name);  // into a temporary folder
  ~ModelCopy();                                 // removes it
  ModelCopy(const ModelCopy&) = delete;
  ModelCopy& operator=(const ModelCopy&) = delete;

  const std::string& path() const { return path_; }
  std::string read(const std::string& file) const;
  void write(const std::string& file, const std::string& bytes) const;
  void truncate(const std::string& file, uint64_t bytes) const;
  void rename(const std::string& file, const std::string& to) const;
  void remove(const std::string& file) const;
  // Sets config.json's key; null removes it.
  void configure(const std::string& key, const nlohmann::json& value) const;

 private:
  std::string path_;
};

// A safetensors file taken apart.
struct Safetensors {
  explicit Safetensors(const std::string& file);
  std::string file() const;  // with data that are aligned, as writers align them: others are not mapped
  size_t header_end() const { return file().size() - data.size(); }
  // Overwrites `count` float32 values of a tensor, from element `first` on.
  void fill(const std::string& tensor, size_t first, size_t count, float value);

  nlohmann::ordered_json header;
  std::string data;
};

}  // namespace quire::test
