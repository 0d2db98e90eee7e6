#include "lib/model/describe_files.h"

#include <cmath>
#include <span>
#include <utility>

#include "lib/format/gguf_files.h"
#include "lib/format/json.h"
#include "lib/format/safetensors.h"
#include "lib/support/os_file.h"
#include "lib/support/utf8.h"

namespace quire {
namespace {

constexpr size_t kLongArray = 16;  // elements: longer ones are told by their length

Json shape_json(std::span<const int64_t> shape) {
  Json::Array array;
  for (const int64_t n : shape) array.emplace_back(n);
  return Json(std::move(array));
}

Json tensor_json(const std::string& name, const std::string& type, std::span<const int64_t> shape, int64_t bytes,
                 size_t file) {
  Json::Object tensor;
  tensor.emplace("name", Json(name));
  tensor.emplace("type", Json(type));
  tensor.emplace("shape", shape_json(shape));
  tensor.emplace("bytes", Json(bytes));
  tensor.emplace("file", Json(static_cast<int64_t>(file)));
  return Json(std::move(tensor));
}

// Paths and GGUF's texts may be any bytes, and its numbers such as JSON does not have.
Json scalar_json(int64_t value) { return Json(value); }
Json scalar_json(double value) { return std::isfinite(value) ? Json(value) : Json(); }
Json scalar_json(const std::string& value) { return Json(utf8_sanitize(value)); }

template <typename T>
Json array_json(const std::vector<T>& values) {
  if (values.size() > kLongArray) {
    Json::Object length;
    length.emplace("length", Json(static_cast<int64_t>(values.size())));
    return Json(std::move(length));
  }
  Json::Array array;
  for (const T& value : values) array.push_back(scalar_json(value));
  return Json(std::move(array));
}

Json value_json(const GgufValue& value) {
  if (const bool* b = value.boolean()) return Json(*b);
  if (const int64_t* i = value.integer()) return Json(*i);
  if (const double* x = value.number()) return scalar_json(*x);
  if (const std::string* text = value.string()) return scalar_json(*text);
  if (const auto* integers = value.integers()) return array_json(*integers);
  if (const auto* numbers = value.numbers()) return array_json(*numbers);
  if (const auto* strings = value.strings()) return array_json(*strings);
  return Json();
}

Json files_json(const std::vector<std::unique_ptr<ReadFile>>& files) {
  Json::Array paths;
  for (const auto& file : files) paths.push_back(scalar_json(file->path()));
  return Json(std::move(paths));
}

std::string text_of(Json::Object object) {
  std::string text;
  Json(std::move(object)).print(text, std::string::npos);
  return text;
}

Result<std::string> describe_gguf(const std::string& path) {
  QUIRE_ASSIGN(const GgufModel model, open_gguf(path));
  Json::Object metadata;
  for (const auto& [key, value] : model.header.metadata) metadata.emplace(key, value_json(value));
  Json::Array tensors;
  for (const auto& [name, tensor] : model.header.tensors) {
    tensors.push_back(tensor_json(name, tensor.type->name, tensor.shape, tensor.end - tensor.begin, tensor.file));
  }
  Json::Object description;
  description.emplace("format", Json(std::string("gguf")));
  description.emplace("files", files_json(model.files));
  description.emplace("metadata", Json(std::move(metadata)));
  description.emplace("tensors", Json(std::move(tensors)));
  return text_of(std::move(description));
}

Result<std::string> describe_safetensors(const std::string& directory) {
  QUIRE_ASSIGN(const auto files, open_safetensors(directory, TensorFiles::Access::kRead));
  Json::Array tensors;
  for (const auto& [name, info] : files->tensors()) {
    tensors.push_back(tensor_json(name, info.dtype, info.shape, info.end - info.begin, info.file));
  }
  Json::Object description;
  description.emplace("format", Json(std::string("safetensors")));
  description.emplace("files", files_json(files->files()));
  description.emplace("tensors", Json(std::move(tensors)));
  return text_of(std::move(description));
}

}  // namespace

Result<std::string> describe_files(const std::string& path) {
  QUIRE_ASSIGN(const bool is_directory, path_is_directory(path));
  return is_directory ? describe_safetensors(path) : describe_gguf(path);
}

}  // namespace quire
