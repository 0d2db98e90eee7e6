#include "lib/session/describe_snapshot.h"

#include <utility>
#include <vector>

#include "lib/support/os_file.h"

namespace quire {

Result<std::string> describe_snapshot(std::shared_ptr<const ByteSource> source) {
  QUIRE_ASSIGN(const auto file, SnapshotFile::open(std::move(source)));
  QUIRE_ASSIGN(const Json description, describe(*file));
  constexpr size_t kMost = size_t{1} << 26;
  std::string text;
  description.print(text, kMost);
  return text;
}

Result<std::string> describe_snapshot(const std::string& path) {
  QUIRE_ASSIGN(auto file, ReadFile::open(path));
  return describe_snapshot(std::shared_ptr<const ByteSource>(std::move(file)));
}

Status verify_snapshot(std::shared_ptr<const ByteSource> source, const SaveControl& control) {
  QUIRE_ASSIGN(const auto file, SnapshotFile::open(std::move(source)));
  QUIRE_TRY(read_index(*file).status());
  int64_t total = 0, done = 0;
  for (int64_t block = 0; block < file->n_blocks(); ++block) total += file->block_bytes(block);
  std::vector<std::byte> bytes;
  for (int64_t block = 0; block < file->n_blocks(); ++block) {
    if (control.cancel && control.cancel->cancelled()) return Status(Code::kCancelled, "verifying was cancelled");
    bytes.resize(static_cast<size_t>(file->block_bytes(block)));
    QUIRE_TRY(file->read(block, bytes));
    done += file->block_bytes(block);
    if (control.progress) control.progress(done, total);
  }
  return {};
}

Status verify_snapshot(const std::string& path, const SaveControl& control) {
  QUIRE_ASSIGN(auto file, ReadFile::open(path));
  return verify_snapshot(std::shared_ptr<const ByteSource>(std::move(file)), control);
}

}  // namespace quire
