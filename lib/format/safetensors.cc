#include "lib/format/safetensors.h"

#include <algorithm>
#include <cstring>

#include "lib/format/json.h"

namespace quire {
namespace {

constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit for one file; here of all together
constexpr int64_t kMaxIndexBytes = 64 << 20;
constexpr size_t kMaxShards = 4096;

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

// `others`: bytes of the headers that were read before; this one's are added.
Result<TensorMap> read_header(const ReadFile& file, int64_t& others) {
  std::byte prefix[8];
  if (file.size() < static_cast<int64_t>(sizeof prefix)) {
    return Status(Code::kBadFile,
                  file.path() + " has " + std::to_string(file.size()) + " bytes: too short for a safetensors file",
                  file.size());
  }
  QUIRE_TRY(file.read_at(0, prefix));
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | std::to_integer<uint64_t>(prefix[i]);
  const int64_t most = std::min(kMaxHeaderBytes, file.size() - static_cast<int64_t>(sizeof prefix));
  if (length > static_cast<uint64_t>(most)) {
    return Status(Code::kBadFile,
                  file.path() + " says its header has " + std::to_string(length) + " bytes; at most " +
                      std::to_string(most) + " are possible in this file",
                  0);
  }
  others += static_cast<int64_t>(length);
  if (others > kMaxHeaderBytes) {
    return Status(Code::kBadFile,
                  file.path() + ": its header and those of the files before it have " + std::to_string(others) +
                      " bytes together; at most " + std::to_string(kMaxHeaderBytes) + " are expected",
                  0);
  }
  std::string header(static_cast<size_t>(length), '\0');
  const auto data_begin = static_cast<int64_t>(sizeof prefix + length);
  QUIRE_TRY(file.read_at(sizeof prefix, std::as_writable_bytes(std::span(header.data(), header.size()))));
  auto tensors = parse_safetensors_header(header, data_begin, file.size());
  if (!tensors.ok()) return tensors.status().with_context(file.path());
  return tensors;
}

// Why a directory has no weights for us.
Status explain_missing(const std::string& directory) {
  QUIRE_ASSIGN(const std::vector<std::string> names, list_directory(directory));
  for (const std::string& name : names) {
    const bool pickle = name.starts_with("pytorch_model") && name.ends_with(".bin");
    if (pickle || name.ends_with(".gguf")) {
      return Status(Code::kUnsupported,
                    directory + " has its weights in " + name + "; only .safetensors files are supported");
    }
  }
  return Status(Code::kNotFound, "neither model.safetensors nor model.safetensors.index.json in " + directory);
}

}  // namespace

Result<ShardMap> parse_shard_index(std::string_view text, const std::string& what) {
  QUIRE_ASSIGN(const Json index, parse_json_object(text, what));
  const JsonReader reader(index, what);
  const Json* weights = reader.find("weight_map");
  if (!weights || !weights->object()) return reader.bad("weight_map", "an object of tensor name: file name");
  ShardMap shards;
  for (const auto& [tensor, file] : *weights->object()) {
    if (!file.string()) {
      return Status(Code::kBadFile, what + ": the file of tensor " + tensor + " is " + json_excerpt(file));
    }
    const std::string& name = *file.string();
    // A model directory may be anybody's: its index must not make us open files elsewhere.
    if (name.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos || !name.ends_with(".safetensors")) {
      return Status(Code::kBadFile, what + ": " + json_excerpt(file) + " is no .safetensors file of this directory");
    }
    shards[name].push_back(tensor);
  }
  if (shards.size() > kMaxShards) {
    return Status(Code::kBadFile, what + " names " + std::to_string(shards.size()) + " files; at most " +
                                      std::to_string(kMaxShards) + " are expected");
  }
  return shards;
}

Result<ElementType> check_tensor(const std::string& path, std::string_view name, const TensorInfo& info,
                                 std::span<const int64_t> shape) {
  if (!std::equal(info.shape.begin(), info.shape.end(), shape.begin(), shape.end())) {
    return Status(Code::kBadFile,
                  path + ": tensor " + std::string(name) + " has shape " + shape_text(info.shape) +
                      "; the configuration asks for " + shape_text(shape),
                  info.begin);
  }
  if (info.dtype == "F32") return ElementType::kF32;
  if (info.dtype == "F16") return ElementType::kF16;
  if (info.dtype == "BF16") return ElementType::kBF16;
  return Status(Code::kUnsupported,
                path + ": tensor " + std::string(name) + " has dtype " + info.dtype + "; expected F32, F16 or BF16",
                info.begin);
}

Result<std::unique_ptr<TensorFiles>> TensorFiles::open(const std::string& directory, Access access,
                                                       const CancelToken* cancel) {
  auto files = std::make_unique<TensorFiles>();
  files->access_ = access;
  const std::string single = directory + "/model.safetensors";
  const std::string index = directory + "/model.safetensors.index.json";
  if (path_exists(single)) {
    QUIRE_TRY(files->add_file(single, nullptr));
  } else if (path_exists(index)) {
    QUIRE_ASSIGN(const std::string text, read_text_file(index, kMaxIndexBytes));
    QUIRE_ASSIGN(const ShardMap shards, parse_shard_index(text, index));
    for (const auto& [name, tensors] : shards) {
      QUIRE_TRY(check_cancelled(cancel));
      QUIRE_TRY(files->add_file(directory + "/" + name, &tensors));
    }
  } else {
    return explain_missing(directory);
  }
  return files;
}

Result<std::unique_ptr<TensorFiles>> TensorFiles::open_file(const std::string& path, Access access) {
  auto files = std::make_unique<TensorFiles>();
  files->access_ = access;
  QUIRE_TRY(files->add_file(path, nullptr));
  return files;
}

Status TensorFiles::add_file(const std::string& path, const std::vector<std::string>* wanted) {
  QUIRE_ASSIGN(auto file, ReadFile::open(path));
  QUIRE_ASSIGN(TensorMap found, read_header(*file, header_bytes_));
  for (auto& [name, info] : found) info.file = files_.size();
  if (!wanted) {
    tensors_.merge(found);
  } else {
    for (const std::string& name : *wanted) {
      const auto at = found.find(name);
      if (at == found.end()) {
        return Status(Code::kBadFile, path + " has no tensor " + name + ", which the index places there");
      }
      tensors_.emplace(name, std::move(at->second));
    }
  }
  std::span<const std::byte> map;
  if (access_ == Access::kMap) {
    QUIRE_ASSIGN(map, file->map());
  }
  files_.push_back(std::move(file));
  maps_.push_back(map);
  return {};
}

std::vector<std::string> TensorFiles::names() const {
  std::vector<std::string> names;
  for (const auto& [name, info] : tensors_) names.push_back(name);
  return names;
}

const TensorInfo* TensorFiles::find(std::string_view name) const {
  const auto at = tensors_.find(name);
  return at == tensors_.end() ? nullptr : &at->second;
}

Result<TensorFiles::View> TensorFiles::view(std::string_view name, std::span<const int64_t> shape) const {
  const TensorInfo* info = find(name);
  if (!info) return Status(Code::kBadFile, "missing tensor " + std::string(name));
  QUIRE_ASSIGN(const ElementType type, check_tensor(files_[info->file]->path(), name, *info, shape));
  View view{type, info->shape, info->end - info->begin, nullptr};
  // The format promises no alignment; a misaligned tensor is left to read(), which copies it.
  const bool aligned = info->begin % static_cast<int64_t>(element_bytes(type)) == 0;
  if (access_ == Access::kMap && aligned) view.mapped = maps_[info->file].data() + info->begin;
  return view;
}

Status TensorFiles::read(std::string_view name, int64_t offset, std::span<std::byte> out) const {
  const TensorInfo* info = find(name);
  if (!info) return Status(Code::kBadFile, "missing tensor " + std::string(name));
  const int64_t bytes = info->end - info->begin;
  if (offset < 0 || offset > bytes || out.size() > static_cast<size_t>(bytes - offset)) {
    return Status(Code::kInvalidArgument, "bytes [" + std::to_string(offset) + ", +" + std::to_string(out.size()) +
                                              ") of tensor " + std::string(name) + ", which has " +
                                              std::to_string(bytes));
  }
  if (access_ == Access::kRead) return files_[info->file]->read_at(info->begin + offset, out);
  if (!out.empty()) std::memcpy(out.data(), maps_[info->file].data() + info->begin + offset, out.size());
  return {};
}

Result<ContentHash> TensorFiles::start_hash(std::string_view name) const {
  const TensorInfo* info = find(name);
  if (!info) return Status(Code::kBadFile, "missing tensor " + std::string(name));
  ContentHash hash;
  hash.add_text(info->dtype).add_text(shape_text(info->shape));
  return hash;
}

Result<std::string> TensorFiles::content_hash(std::string_view name, const CancelToken* cancel) const {
  constexpr int64_t kPiece = 1 << 20;
  QUIRE_ASSIGN(ContentHash hash, start_hash(name));
  const TensorInfo* info = find(name);
  const int64_t bytes = info->end - info->begin;
  std::vector<std::byte> piece(static_cast<size_t>(std::min(bytes, kPiece)));
  for (int64_t at = 0; at < bytes; at += kPiece) {
    QUIRE_TRY(check_cancelled(cancel));
    const auto part = std::span(piece).first(static_cast<size_t>(std::min(kPiece, bytes - at)));
    QUIRE_TRY(read(name, at, part));
    hash.add(part);
  }
  return hash.hex();
}

void TensorFiles::drop(std::string_view name) const {
  const TensorInfo* info = find(name);
  if (access_ != Access::kMap || !info) return;
  files_[info->file]->drop_mapped(info->begin, info->end - info->begin);
}

}  // namespace quire
