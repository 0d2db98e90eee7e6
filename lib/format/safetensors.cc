#include "lib/format/safetensors.h"

#include <algorithm>
#include <span>
#include <utility>

#include "lib/format/json.h"

namespace quire {
namespace {

constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit for one file; here of all together
constexpr int64_t kMaxIndexBytes = 64 << 20;
constexpr size_t kMaxShards = 4096;

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
    if (name.ends_with(".gguf")) {
      return Status(Code::kUnsupported,
                    directory + " has its weights in " + name + "; give the path of that file, not of its directory");
    }
    if (name.starts_with("pytorch_model") && name.ends_with(".bin")) {
      return Status(Code::kUnsupported,
                    directory + " has its weights in " + name + "; only .safetensors and .gguf files are supported");
    }
  }
  return Status(Code::kNotFound, "neither model.safetensors nor model.safetensors.index.json in " + directory);
}

// Takes the prefix off the names that have it. Error: kBadFile (two tensors of one name).
Status drop_prefix(std::string_view prefix, const std::string& path, TensorMap& tensors) {
  if (prefix.empty()) return {};
  std::vector<std::pair<std::string, std::string>> renamed;
  for (const auto& [name, info] : tensors) {
    std::string rest = without_model_prefix(name, prefix);
    if (rest != name) renamed.emplace_back(name, std::move(rest));
  }
  for (auto& [name, rest] : renamed) {
    auto node = tensors.extract(name);
    node.key() = std::move(rest);
    if (const auto inserted = tensors.insert(std::move(node)); !inserted.inserted) {
      return Status(Code::kBadFile, path + ": tensor " + inserted.position->first + " is there as " + name + " too");
    }
  }
  return {};
}

// All tensors of the file, or those in `wanted`, without the prefix. header_bytes: as `others` of read_header.
Status add_file(TensorFiles& files, const std::string& path, const std::vector<std::string>* wanted,
                std::string_view prefix, int64_t& header_bytes) {
  QUIRE_ASSIGN(auto file, ReadFile::open(path));
  QUIRE_ASSIGN(TensorMap found, read_header(*file, header_bytes));
  if (!wanted) {
    QUIRE_TRY(drop_prefix(prefix, path, found));
    return files.add(std::move(file), std::move(found));
  }
  TensorMap chosen;
  for (const std::string& name : *wanted) {
    auto node = found.extract(name);
    if (!node) return Status(Code::kBadFile, path + " has no tensor " + name + ", which the index places there");
    chosen.insert(std::move(node));
  }
  QUIRE_TRY(drop_prefix(prefix, path, chosen));
  return files.add(std::move(file), std::move(chosen));
}

}  // namespace

std::string without_model_prefix(std::string_view name, std::string_view prefix) {
  constexpr std::string_view kModel = "model.";
  std::string rest(name);
  for (const std::string_view before : {std::string_view(), kModel}) {
    if (name.starts_with(before) && name.substr(before.size()).starts_with(prefix)) {
      return rest.erase(before.size(), prefix.size());
    }
  }
  return rest;
}

Result<ShardMap> parse_shard_index(std::string_view text, const std::string& what) {
  QUIRE_ASSIGN(const Json index, parse_json_object(text, what));
  const JsonReader reader(index, what);
  const Json* weights = reader.find("weight_map");
  if (!weights || !weights->object() || weights->object()->empty()) {
    return reader.bad("weight_map", "an object of tensor name: file name");
  }
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

Result<std::unique_ptr<TensorFiles>> open_safetensors(const std::string& directory, TensorFiles::Access access,
                                                      const CancelToken* cancel, std::string_view prefix) {
  auto files = std::make_unique<TensorFiles>(access);
  const std::string single = directory + "/model.safetensors";
  const std::string index = directory + "/model.safetensors.index.json";
  int64_t header_bytes = 0;
  QUIRE_ASSIGN(const bool is_single, path_exists(single));
  QUIRE_ASSIGN(const bool has_index, path_exists(index));
  if (is_single) {
    QUIRE_TRY(add_file(*files, single, nullptr, prefix, header_bytes));
  } else if (has_index) {
    QUIRE_ASSIGN(const std::string text, read_text_file(index, kMaxIndexBytes));
    QUIRE_ASSIGN(const ShardMap shards, parse_shard_index(text, index));
    for (const auto& [name, tensors] : shards) {
      QUIRE_TRY(check_cancelled(cancel));
      QUIRE_TRY(add_file(*files, directory + "/" + name, &tensors, prefix, header_bytes));
    }
  } else {
    return explain_missing(directory);
  }
  return files;
}

Result<std::unique_ptr<TensorFiles>> open_safetensors_file(const std::string& path, TensorFiles::Access access) {
  auto files = std::make_unique<TensorFiles>(access);
  int64_t header_bytes = 0;
  QUIRE_TRY(add_file(*files, path, nullptr, {}, header_bytes));
  return files;
}

}  // namespace quire
