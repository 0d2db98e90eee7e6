#include "tests/fault/model_copy.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "tests/abi/harness.h"

namespace quire::test {
namespace fs = std::filesystem;

ModelCopy::ModelCopy(const std::string& name) {
  std::string pattern = (fs::temp_directory_path() / "quire-fault-XXXXXX").string();
  if (!mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder: " + pattern);
  path_ = pattern;
  fs::copy(model_directory(name), path_);
}

ModelCopy::~ModelCopy() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string ModelCopy::read(const std::string& file) const {
  std::ifstream in(path_ + "/" + file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void ModelCopy::write(const std::string& file, const std::string& bytes) const {
  std::ofstream out(path_ + "/" + file, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

void ModelCopy::truncate(const std::string& file, uint64_t bytes) const { fs::resize_file(path_ + "/" + file, bytes); }

void ModelCopy::rename(const std::string& file, const std::string& to) const {
  fs::rename(path_ + "/" + file, path_ + "/" + to);
}

void ModelCopy::remove(const std::string& file) const { fs::remove(path_ + "/" + file); }

void ModelCopy::configure(const std::string& key, const nlohmann::json& value) const {
  auto config = nlohmann::json::parse(read("config.json"));
  if (value.is_null()) {
    config.erase(key);
  } else {
    config[key] = value;
  }
  write("config.json", config.dump());
}

Safetensors::Safetensors(const std::string& file) {
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  header = nlohmann::ordered_json::parse(file.substr(sizeof length, length));
  data = file.substr(sizeof length + length);
}

std::string Safetensors::file() const {
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string out(sizeof length, '\0');
  std::memcpy(out.data(), &length, sizeof length);
  return out + text + data;
}

void Safetensors::fill(const std::string& tensor, size_t first, size_t count, float value) {
  const size_t begin = header.at(tensor).at("data_offsets").at(0).get<size_t>();
  for (size_t i = first; i < first + count; ++i) std::memcpy(&data.at(begin + 4 * i), &value, sizeof value);
}

}  // namespace quire::test
