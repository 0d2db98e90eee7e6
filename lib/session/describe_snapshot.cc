#include "lib/session/describe_snapshot.h"

#include <utility>

#include "lib/format/snapshot_check.h"
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
  SnapshotCheck check(*file, [&, reported = int64_t{0}](int64_t done) mutable {
    if (control.cancel && control.cancel->cancelled()) return Status(Code::kCancelled, "verifying was cancelled");
    if (control.progress && done > reported) control.progress(reported = done, file->size());
    return Status();
  });
  QUIRE_TRY(check.blocks());
  QUIRE_TRY(check.rest());
  if (control.progress) control.progress(file->size(), file->size());
  return {};
}

Status verify_snapshot(const std::string& path, const SaveControl& control) {
  QUIRE_ASSIGN(auto file, ReadFile::open(path));
  return verify_snapshot(std::shared_ptr<const ByteSource>(std::move(file)), control);
}

}  // namespace quire
