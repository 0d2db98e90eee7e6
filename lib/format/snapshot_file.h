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
#include "lib/support/byte_stream.h"
#include "lib/support/status.h"

namespace quire {

struct SnapshotBlock {
  int64_t offset = 0;
  int64_t bytes = 0;
  std::array<std::byte, 16> checksum{};  // XXH3-128 of the bytes, canonical
};

// Errors are those of the sink, which must outlive this. One thread.
class SnapshotWriter {
 public:
  static Result<std::unique_ptr<SnapshotWriter>> create(ByteSink& sink);

  // Returns the block's number.
  Result<int64_t> add(std::span<const std::byte> block);
  // Once, after the last block: commits the sink. kUnsupported: the index would be larger than a reader takes.
  Status finish(const Json& index);
  int64_t bytes() const { return offset_; }

 private:
  explicit SnapshotWriter(ByteSink& sink) : sink_(sink) {}
  Status write(std::span<const std::byte> bytes);
  Status pad();

  ByteSink& sink_;
  int64_t offset_ = 0;
  std::vector<SnapshotBlock> blocks_;
};

// Opening reads the index and no block. Any thread.
class SnapshotFile {
 public:
  static constexpr int64_t kVersion = 1;
  // Errors of the source; kBadFile that says what is damaged, or which version is not known.
  static Result<std::unique_ptr<SnapshotFile>> open(std::shared_ptr<const ByteSource> source);

  const std::string& name() const { return source_->name(); }
  int64_t size() const { return source_->size(); }
  const Json& index() const { return index_; }
  int64_t n_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  // -1: there is no such block.
  int64_t block_bytes(int64_t block) const;
  // Reads a block of exactly out.size() bytes and compares its checksum. Errors of the source; kBadFile that names the
  // block and its place.
  Status read(int64_t block, std::span<std::byte> out) const;

 private:
  explicit SnapshotFile(std::shared_ptr<const ByteSource> source) : source_(std::move(source)) {}
  Status read_index();
  Status damaged(const std::string& what) const;

  std::shared_ptr<const ByteSource> source_;
  Json index_;
  std::vector<SnapshotBlock> blocks_;
};

}  // namespace quire
