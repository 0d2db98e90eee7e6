// The container of a snapshot (lib/kv/FORMAT.md): numbered blocks of bytes, each with a checksum, and a JSON index.
// What the blocks hold is the index's business: stores of documents and packed weights (lib/model) use it as well.
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

// Names one snapshot by its footer, which has the checksum of its index, which has those of its blocks: whatever file
// has the same bytes at the same place holds that snapshot.
struct SnapshotMark {
  int64_t footer_at = -1;
  std::array<std::byte, 64> footer{};
  bool operator==(const SnapshotMark&) const = default;
};

class SnapshotFile;

// Errors are those of the sink, which must outlive this. One thread.
class SnapshotWriter {
 public:
  // A file of its own.
  static Result<std::unique_ptr<SnapshotWriter>> create(ByteSink& sink, int64_t version);
  // Behind the snapshots of a file that has n_bytes; `base`, one of them, must outlive this. Blocks that it has are not
  // written again.
  static std::unique_ptr<SnapshotWriter> append(ByteSink& sink, const SnapshotFile& base, int64_t n_bytes);

  // The base's block, as it is, becomes the next one. Returns its number.
  int64_t keep(int64_t base_block);
  // Returns the block's number.
  Result<int64_t> add(std::span<const std::byte> block);
  // Once, after the last block: commits the sink, unless the base is the last of its file and nothing is new.
  // kUnsupported: the index would be larger than a reader takes.
  Status finish(const Json& index);
  // Of what was finished.
  const SnapshotMark& mark() const { return mark_; }
  int64_t block_bytes(int64_t block) const { return blocks_[static_cast<size_t>(block)].bytes; }

 private:
  SnapshotWriter(ByteSink& sink, const SnapshotFile* base, int64_t offset)
      : sink_(sink), base_(base), offset_(offset) {}
  Status write(std::span<const std::byte> bytes);
  Status pad();
  int64_t find_in_base(const SnapshotBlock& wanted) const;

  ByteSink& sink_;
  const SnapshotFile* const base_;  // may be null
  int64_t offset_;
  std::vector<SnapshotBlock> blocks_;
  std::vector<const SnapshotBlock*> by_checksum_;  // the base's
  SnapshotMark mark_;
};

// One snapshot of a file: the last one, or an earlier one, which later ones leave as it is. Opening reads the index and
// no block. Any thread.
class SnapshotFile {
 public:
  static constexpr int64_t kVersion = 1;  // what a file has that needs no later one
  // What a reader of an earlier version would misread: narrow records, and records of layers with a window, beside
  // which there may be narrow ones.
  static constexpr int64_t kNarrowVersion = 2, kWindowVersion = 3;
  static constexpr int64_t kNewestVersion = kWindowVersion;
  static constexpr int64_t kHeaderBytes = 64;
  // Errors of the source; kBadFile that says what is damaged, or which version is not known, and at which byte.
  static Result<std::unique_ptr<SnapshotFile>> open(std::shared_ptr<const ByteSource> source);
  // The snapshot of that mark. kNotFound: the source does not have it.
  static Result<std::unique_ptr<SnapshotFile>> open(std::shared_ptr<const ByteSource> source, const SnapshotMark& mark);

  // The last snapshot of the same file whose footer is in bytes [begin, end). Null: there is none.
  Result<std::unique_ptr<SnapshotFile>> find_earlier(int64_t begin, int64_t end) const;

  const std::string& name() const { return source_->name(); }
  int64_t version() const { return version_; }
  int64_t size() const { return source_->size(); }
  const SnapshotMark& mark() const { return mark_; }
  // Where its index begins, and where that ends.
  int64_t index_begin() const;
  int64_t index_end() const;
  bool is_being_appended() const { return source_->is_being_appended(); }
  // Where the snapshot's footer ends; what follows is of no snapshot, if this is the last one.
  int64_t end() const;
  const Json& index() const { return index_; }
  int64_t n_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  // -1: there is no such block.
  int64_t block_bytes(int64_t block) const;
  std::span<const SnapshotBlock> blocks() const { return blocks_; }
  // Of the file's bytes, how many belong to this snapshot.
  int64_t used_bytes() const;
  // Reads a block of exactly out.size() bytes and compares its checksum. Errors of the source; kBadFile that names the
  // block and its place.
  Status read(int64_t block, std::span<std::byte> out) const;
  // Reads bytes of the file, whatever they are.
  Status read_bytes(int64_t offset, std::span<std::byte> out) const { return source_->read_at(offset, out); }
  // A hint that the block will be read soon.
  void will_read(int64_t block) const;

 private:
  explicit SnapshotFile(std::shared_ptr<const ByteSource> source) : source_(std::move(source)) {}
  Status read_header();
  Status read_index();
  // byte: of the file, where it is known.
  Status damaged(const std::string& what, int64_t byte = -1) const;

  std::shared_ptr<const ByteSource> source_;
  int64_t version_ = 0;
  SnapshotMark mark_;
  Json index_;
  std::vector<SnapshotBlock> blocks_;
};

}  // namespace quire
