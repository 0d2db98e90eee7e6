// A small model in a GGUF file, as plain data that a test may damage before it makes the bytes of the file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire::test {

// The numbers of value types in files.
enum GgufKind : uint32_t { kGgufU32 = 4, kGgufI32 = 5, kGgufF32 = 6, kGgufBool = 7, kGgufString = 8, kGgufArray = 9 };

struct GgufTensorData {
  std::string name;
  std::vector<uint64_t> dims;  // as in the file: the row's length first
  uint32_t type = 0;           // as in the file
  std::string data;
  std::optional<uint64_t> offset;  // what the file says; none: where the data lie
};

struct GgufModel {
  uint32_t version = 3;
  uint64_t alignment = 32;
  std::vector<std::pair<std::string, std::string>> metadata;  // keys, and type and value as they lie in the file
  std::vector<GgufTensorData> tensors;
  std::optional<uint64_t> n_keys, n_tensors;  // what the file says; none: so many as there are

  // Null: there is none.
  std::string* find(std::string_view key);
  GgufTensorData* tensor(std::string_view name);

  // Each takes the place of what the key had.
  void set(std::string_view key, uint32_t value);
  void set(std::string_view key, float value);
  void set(std::string_view key, bool value);
  void set(std::string_view key, std::string_view value);
  void set(std::string_view key, const char* value) { set(key, std::string_view(value)); }
  void set(std::string_view key, const std::vector<std::string>& values);
  void set(std::string_view key, const std::vector<int32_t>& values);
  void set(std::string_view key, const std::vector<float>& values);
  void remove(std::string_view key);
  void remove_tensor(std::string_view name);
  // Random values of the type; quantised blocks have small scales.
  void add_tensor(std::string name, std::vector<uint64_t> dims, uint32_t type);

  std::string file() const;
  // The files of the model in n parts: metadata in the first one, and each tensor in one of them.
  std::vector<GgufModel> split(uint32_t n) const;

 private:
  void put(std::string_view key, std::string type_and_value);
};

// The types of matrices in files that the library opens.
constexpr uint32_t kGgufMatrixTypes[] = {0, 1, 30, 8, 2, 3, 6, 7, 20, 12, 13, 14, 10, 11, 23};

struct GgufShape {
  std::string architecture = "llama";
  bool is_bpe = true;  // otherwise SentencePiece
  bool is_tied = false;
  bool has_biases = false;
  std::vector<uint32_t> types = {0};  // of the matrices, in turn; what does not fit the row is F32
};

constexpr uint32_t kGgufHidden = 32, kGgufBetween = 256, kGgufLayers = 2, kGgufHeads = 4, kGgufKvHeads = 2;
constexpr char kGgufBpeControl[] = "<|im_end|>";

GgufModel make_gguf_model(const GgufShape& shape);

}  // namespace quire::test
