#include "lib/format/snapshot_check.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace quire {
namespace {

constexpr int64_t kWindow = int64_t{1} << 20;  // bytes that are compared with zeros at a time

int64_t end_of(const SnapshotBlock& part) { return part.offset + part.bytes; }

}  // namespace

SnapshotCheck::SnapshotCheck(const SnapshotFile& last, Step step) : last_(last), step_(std::move(step)) {}

Status SnapshotCheck::damaged(const std::string& what, int64_t byte) const {
  return Status(Code::kBadFile, last_.name() + ": " + what, byte);
}

Status SnapshotCheck::blocks() { return note(last_, true); }

Status SnapshotCheck::rest() {
  QUIRE_TRY(note(last_, false));
  if (last_.size() > last_.end() && !last_.is_being_appended()) {
    return damaged("the last whole snapshot ends at byte " + std::to_string(last_.end()) + " of " +
                       std::to_string(last_.size()) +
                       "; of another one behind it, the end is damaged or missing, or it was never written",
                   last_.end());
  }
  QUIRE_TRY(find_earlier());
  return check_zeros();
}

Status SnapshotCheck::note(const SnapshotFile& snapshot, bool read_blocks) {
  std::vector<std::byte> bytes;
  for (int64_t number = 0; number < snapshot.n_blocks(); ++number) {
    const SnapshotBlock& block = snapshot.blocks()[static_cast<size_t>(number)];
    QUIRE_ASSIGN(const bool is_new, note_part(block));
    if (!read_blocks || !is_new) continue;
    QUIRE_TRY(step_(done_));
    bytes.resize(static_cast<size_t>(block.bytes));
    QUIRE_TRY(snapshot.read(number, bytes));
    done_ += block.bytes;
  }
  const int64_t index = snapshot.index_begin(), footer = snapshot.mark().footer_at;
  QUIRE_TRY(note_part({.offset = 0, .bytes = SnapshotFile::kHeaderBytes}).status());
  QUIRE_TRY(note_part({.offset = index, .bytes = snapshot.index_end() - index}).status());
  return note_part({.offset = footer, .bytes = snapshot.end() - footer}).status();
}

// Several blocks may be the same part, but none may be some of another one.
Result<bool> SnapshotCheck::note_part(const SnapshotBlock& part) {
  if (part.bytes == 0) return false;
  const auto next = parts_.lower_bound(part.offset);
  if (next != parts_.end() && next->first == part.offset && next->second.bytes == part.bytes &&
      next->second.checksum == part.checksum) {
    return false;
  }
  const bool meets_next = next != parts_.end() && next->first < part.offset + part.bytes;
  if (meets_next || (next != parts_.begin() && end_of(std::prev(next)->second) > part.offset)) {
    return damaged("the " + std::to_string(part.bytes) + " bytes from byte " + std::to_string(part.offset) +
                       " on belong to two different blocks",
                   part.offset);
  }
  parts_.emplace_hint(next, part.offset, part);
  return true;
}

// From the end of the file back, in what no later snapshot has a part in.
Status SnapshotCheck::find_earlier() {
  for (int64_t end = last_.index_begin(); end > SnapshotFile::kHeaderBytes;) {
    const auto part = std::prev(parts_.lower_bound(end));
    QUIRE_TRY(step_(done_));
    auto earlier = last_.find_earlier(end_of(part->second), end);
    Status status = earlier.status();
    if (status.ok() && *earlier) status = note(**earlier, true);
    if (!status.ok()) return status.with_context("the last snapshot is whole, but not one before it");
    end = *earlier ? (*earlier)->mark().footer_at : part->first;
  }
  return {};
}

Status SnapshotCheck::check_zeros() const {
  int64_t begin = 0;
  for (const auto& [offset, part] : parts_) {
    QUIRE_TRY(check_zeros(begin, offset));
    begin = end_of(part);
  }
  return {};
}

Status SnapshotCheck::check_zeros(int64_t begin, int64_t end) const {
  std::vector<std::byte> bytes;
  for (; begin < end; begin += static_cast<int64_t>(bytes.size())) {
    QUIRE_TRY(step_(done_));
    bytes.resize(static_cast<size_t>(std::min(end - begin, kWindow)));
    QUIRE_TRY(last_.read_bytes(begin, bytes));
    const auto other = std::ranges::find_if(bytes, [](std::byte b) { return b != std::byte{0}; });
    if (other == bytes.end()) continue;
    const int64_t at = begin + (other - bytes.begin());
    return damaged("byte " + std::to_string(at) + " is " + std::to_string(std::to_integer<int>(*other)) +
                       "; expected 0, for it is in no block",
                   at);
  }
  return {};
}

}  // namespace quire
