// The container of a snapshot (lib/kv/FORMAT.md): numbered blocks of bytes, each with a checksum, and a JSON index.
// What the blocks hold is the index's business.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/format/json.h"
#include "lib/support/os_file.h"
#include "lib/support/os_output_file.h"
#include "lib/support/status.h"

namespace quire {

struct SnapshotBlock {
  int64_t offset = 0;
  int64_t bytes = 0;
  std::array<std::byte, 16> checksum{};  // XXH3-128 of the bytes, canonical
};

// The file appears whole or not at all. One thread.
class SnapshotWriter {
 public:
  // Errors: those of OutputFile.
  static Result<std::unique_ptr<SnapshotWriter>> create(const std::string& path);

  // Returns the block's number. Error: kIo.
  Result<int64_t> add(std::span<const std::byte> block);
  // Once, after the last block. Error: kIo.
  Status finish(const Json& index);
  int64_t bytes() const { return offset_; }

 private:
  explicit SnapshotWriter(std::unique_ptr<OutputFile> file) : file_(std::move(file)) {}
  Status write(std::span<const std::byte> bytes);
  Status pad();

  std::unique_ptr<OutputFile> file_;
  int64_t offset_ = 0;
  std::vector<SnapshotBlock> blocks_;
};

// Opening reads the index and no block. Any thread.
class SnapshotFile {
 public:
  static constexpr int64_t kVersion = 1;
  // kNotFound, kIo; kBadFile that says what is damaged, or which version is not known.
  static Result<std::unique_ptr<SnapshotFile>> open(const std::string& path);

  const std::string& path() const { return file_->path(); }
  int64_t size() const { return file_->size(); }
  const Json& index() const { return index_; }
  int64_t n_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  // -1: there is no such block.
  int64_t block_bytes(int64_t block) const;
  // Reads a block of exactly out.size() bytes and compares its checksum. kIo; kBadFile that names the block and its
  // place.
  Status read(int64_t block, std::span<std::byte> out) const;

 private:
  explicit SnapshotFile(std::unique_ptr<ReadFile> file) : file_(std::move(file)) {}
  Status read_index();
  Status damaged(const std::string& what) const;

  std::unique_ptr<ReadFile> file_;
  Json index_;
  std::vector<SnapshotBlock> blocks_;
};

}  // namespace quire
