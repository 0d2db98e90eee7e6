#include "lib/model/packed_weights.h"

#include <algorithm>
#include <utility>

#include "lib/format/snapshot_check.h"
#include "lib/support/cancel.h"
#include "lib/support/content_hash.h"
#include "lib/support/os_directory.h"
#include "lib/support/os_output_file.h"

namespace quire {
namespace {

constexpr const char* kContents = "packed weights";
constexpr size_t kMostNameBytes = 100;  // of the model's own name, in the file's

// What the matrices are made from: a model whose files are others, or were written since, has another text here.
std::string name_sources(const CheckpointFiles& files, const std::string& order) {
  ContentHash hash;
  hash.add_text(order);
  for (const TensorFiles* checkpoint : {files.own.get(), files.beacon.get()}) {  // which may be the same
    for (const auto& file : checkpoint->files()) {
      hash.add_text(std::to_string(file->size())).add_text(std::to_string(file->modified_ns()));
    }
    for (const auto& [name, info] : checkpoint->tensors()) {
      hash.add_text(name).add_text(info.dtype);
      for (const int64_t n : info.shape) hash.add_text(std::to_string(n));
      for (const int64_t n : {info.begin, info.end, static_cast<int64_t>(info.file), info.interleaved_rows}) {
        hash.add_text(std::to_string(n));
      }
    }
  }
  return hash.hex();
}

// The last name of a path, with nothing in it that a file's name may not have everywhere.
std::string readable_name(const std::string& path) {
  std::string name = path.substr(path.rfind('/') + 1);
  name.resize(std::min(name.size(), kMostNameBytes));
  const auto is_plain = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '.' || c == '-';
  };
  for (char& c : name) c = is_plain(c) ? c : '_';
  return name;
}

Json describe_matrix(std::span<const MatrixPart> parts, int64_t k) {
  Json::Array list;
  list.emplace_back(k);
  for (const MatrixPart& part : parts) {
    list.emplace_back(std::string(element_name(part.type)));
    list.emplace_back(part.rows);
  }
  return Json(std::move(list));
}

std::string printed(const Json& value) {
  std::string text;
  value.print(text, SIZE_MAX);
  return text;
}

}  // namespace

PackedWeights::PackedWeights(Backend& backend, const std::string& directory, const Origin& origin,
                             const CheckpointFiles& files)
    : backend_(backend),
      files_(files),
      directory_(directory),
      order_(std::to_string(origin.rotary_dim) + " of " + std::to_string(origin.head_dim)) {
  const std::string model_path = canonical_path(origin.model_path);
  ContentHash hash;
  hash.add_text(model_path).add_text(std::to_string(origin.weight_type));
  hash.add_text(origin.beacon_directory.empty() ? "" : canonical_path(origin.beacon_directory));
  path_ = directory + "/" + readable_name(model_path) + "-" + hash.hex().substr(0, 16) + ".packed";
}

Status PackedWeights::open() {
  QUIRE_ASSIGN(std::shared_ptr<ReadFile> file, ReadFile::open(path_));
  QUIRE_TRY(file->map().status());
  file_ = std::move(file);
  QUIRE_ASSIGN(blocks_, SnapshotFile::open(file_));
  Status status = read_index();
  if (status.ok()) status = SnapshotCheck(*blocks_).rest();
  if (!status.ok()) blocks_ = nullptr;
  return status;
}

Status PackedWeights::read_index() {
  const JsonReader index(blocks_->index(), path_);
  const std::pair<const char*, std::string> wanted[] = {
      {"contents", kContents}, {"layout", backend_.matrix_layout()}, {"sources", name_sources(files_, order_)}};
  for (const auto& [key, value] : wanted) {
    QUIRE_ASSIGN(const std::string found, index.string(key, ""));
    if (found != value) return index.bad(key, "\"" + value + "\"");
  }
  const Json* const hashes = index.find("tensors");
  const Json* const matrices = index.find("matrices");
  if (!hashes || !hashes->object()) return index.bad("tensors", "an object");
  if (!matrices || !matrices->array() || static_cast<int64_t>(matrices->array()->size()) != blocks_->n_blocks()) {
    return index.bad("matrices", "a list of " + std::to_string(blocks_->n_blocks()));
  }
  std::map<std::string, std::string> found;
  for (const auto& [name, hash] : *hashes->object()) {
    if (!hash.string()) return index.bad("tensors", "names and hashes");
    found.emplace(name, *hash.string());
  }
  tensor_hashes_ = std::move(found);
  next_ = 0;
  return {};
}

std::unique_ptr<Matrix> PackedWeights::next(std::span<const MatrixPart> parts, int64_t k) {
  if (!blocks_ || next_ == blocks_->n_blocks()) return nullptr;
  const auto at = static_cast<size_t>(next_++);
  const Json& described = (*blocks_->index().find("matrices")->array())[at];
  if (printed(described) != printed(describe_matrix(parts, k))) return nullptr;
  const SnapshotBlock& block = blocks_->blocks()[at];
  // The whole file was mapped when it was opened: this does not fail.
  const auto mapped = file_->map();
  if (!mapped.ok()) return nullptr;
  const auto memory = mapped.value().subspan(static_cast<size_t>(block.offset), static_cast<size_t>(block.bytes));
  if (content_checksum(memory) != block.checksum) return nullptr;
  auto matrix = backend_.map_matrix(parts, k, memory, file_);
  return matrix.ok() ? std::move(*matrix) : nullptr;
}

Status PackedWeights::write(std::span<const LoadedMatrix> matrices,
                            const std::map<std::string, std::string>& tensor_hashes, const CancelToken* cancel) const {
  QUIRE_ASSIGN(const bool is_there, path_is_directory(directory_));
  if (!is_there) QUIRE_TRY(make_directory(directory_));
  // Not synced: what a crash of the system leaves of it has other checksums, and is written anew.
  QUIRE_ASSIGN(const auto file, OutputFile::create(path_, {.lasting = false}));
  QUIRE_ASSIGN(const auto writer, SnapshotWriter::create(*file, SnapshotFile::kVersion));
  Json::Array described;
  for (const LoadedMatrix& loaded : matrices) {
    QUIRE_TRY(check_cancelled(cancel));
    QUIRE_TRY(writer->add(backend_.matrix_memory(**loaded.matrix)).status());
    described.push_back(describe_matrix(loaded.parts, (*loaded.matrix)->k));
  }
  Json::Object hashes;
  for (const auto& [name, hash] : tensor_hashes) hashes.emplace(name, Json(hash));
  Json::Object index;
  index.emplace("contents", Json(std::string(kContents)));
  index.emplace("layout", Json(backend_.matrix_layout()));
  index.emplace("sources", Json(name_sources(files_, order_)));
  index.emplace("tensors", Json(std::move(hashes)));
  index.emplace("matrices", Json(std::move(described)));
  return writer->finish(Json(std::move(index)));
}

}  // namespace quire
