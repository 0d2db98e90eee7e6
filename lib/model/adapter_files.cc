#include "lib/model/adapter_files.h"

#include <algorithm>
#include <utility>

#include "lib/format/safetensors.h"
#include "lib/support/content_hash.h"
#include "lib/support/quantization.h"

namespace quire {
namespace {

constexpr int64_t kMaxConfigBytes = 4 << 20;
constexpr int64_t kPieceBytes = 1 << 20;  // read at once

Status explain_missing(const std::string& directory) {
  QUIRE_ASSIGN(const std::vector<std::string> names, list_directory(directory));
  if (std::find(names.begin(), names.end(), "adapter_model.bin") != names.end()) {
    return Status(Code::kUnsupported, directory +
                                          " has its weights in adapter_model.bin; only .safetensors files are "
                                          "supported: load and save the adapter once with peft to convert it");
  }
  return Status(Code::kNotFound, "no adapter_model.safetensors in " + directory);
}

}  // namespace

Result<std::shared_ptr<const AdapterFiles>> AdapterFiles::open(const std::string& directory, const ModelConfig& model,
                                                               TensorFiles::Access access) {
  QUIRE_ASSIGN(const bool exists, path_exists(directory));
  if (!exists) return Status(Code::kNotFound, "no such adapter directory: " + directory);
  QUIRE_ASSIGN(const bool is_directory, path_is_directory(directory));
  if (!is_directory) {
    return Status(Code::kUnsupported, directory + " is not a directory: a PEFT adapter directory is expected");
  }
  auto files = std::make_shared<AdapterFiles>();
  const std::string config_path = directory + "/adapter_config.json";
  QUIRE_ASSIGN(const bool has_config, path_exists(config_path));
  if (!has_config) return Status(Code::kNotFound, "no adapter_config.json in " + directory);
  QUIRE_ASSIGN(files->config_text_, read_text_file(config_path, kMaxConfigBytes));
  QUIRE_ASSIGN(files->config_, parse_adapter_config(files->config_text_, config_path));
  const std::string path = directory + "/adapter_model.safetensors";
  QUIRE_ASSIGN(const bool has_tensors, path_exists(path));
  if (!has_tensors) return explain_missing(directory);
  QUIRE_ASSIGN(auto tensors, open_safetensors_file(path, access));
  files->tensors_ = std::move(tensors);
  QUIRE_ASSIGN(files->changes_, AdapterChanges::resolve(files->config_, files->tensors_->tensors(), model, path));
  return std::shared_ptr<const AdapterFiles>(std::move(files));
}

Result<std::vector<float>> AdapterFiles::read(const std::string& tensor, std::span<const int64_t> shape,
                                              const CancelToken* cancel) const {
  QUIRE_ASSIGN(const auto view, tensors_->view(tensor, shape));
  const auto size = static_cast<int64_t>(element_bytes(view.type));  // adapters are never quantised
  std::vector<std::byte> piece(static_cast<size_t>(std::min(view.bytes, kPieceBytes)));
  std::vector<float> values(static_cast<size_t>(view.bytes / size));
  float* next = values.data();
  for (int64_t at = 0; at < view.bytes; at += kPieceBytes) {
    QUIRE_TRY(check_cancelled(cancel));
    const auto part = std::span(piece).first(static_cast<size_t>(std::min(kPieceBytes, view.bytes - at)));
    QUIRE_TRY(tensors_->read(tensor, at, part));
    const int64_t n = static_cast<int64_t>(part.size()) / size;
    dequantize(view.type, part.data(), n, next);
    next += n;
  }
  return values;
}

Result<std::string> AdapterFiles::identity(const CancelToken* cancel,
                                           const std::function<void(int64_t)>& progress) const {
  ContentHash hash;
  hash.add_text(config_text_);
  const ReadFile& file = *tensors_->files()[0];
  std::vector<std::byte> piece(static_cast<size_t>(std::min(file.size(), kPieceBytes)));
  for (int64_t at = 0; at < file.size(); at += kPieceBytes) {
    QUIRE_TRY(check_cancelled(cancel));
    const auto part = std::span(piece).first(static_cast<size_t>(std::min(kPieceBytes, file.size() - at)));
    QUIRE_TRY(file.read_at(at, part));
    hash.add(part);
    if (progress) progress(static_cast<int64_t>(part.size()));
  }
  return hash.hex();
}

}  // namespace quire
