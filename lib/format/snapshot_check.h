// Whether every byte of a file of snapshots is the one that was written there.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "lib/format/snapshot_file.h"

namespace quire {

// Each byte is part of a snapshot of the file, which a checksum knows, or of the zeros between such parts: nothing is
// left that could be damaged unseen. One thread.
class SnapshotCheck {
 public:
  // Told how many bytes of blocks were looked at before each that is read, from 0 on; what it returns ends the check.
  using Step = std::function<Status(int64_t done)>;
  // `last`, the last snapshot of its file, must outlive this.
  explicit SnapshotCheck(
      const SnapshotFile& last, Step step = [](int64_t) { return Status(); });

  // Reads the last snapshot's blocks.
  Status blocks();
  // Reads all else: that nothing lies behind the last snapshot, unless it is being written, the snapshots before it,
  // and the zeros. What blocks() would read is taken for whole. Errors of both: those of the source and of `step`;
  // kBadFile that says what is wrong at which byte.
  Status rest();

 private:
  // The parts of the file that a snapshot knows.
  Status note(const SnapshotFile& snapshot, bool read_blocks);
  // True: it was not known.
  Result<bool> note_part(const SnapshotBlock& part);
  Status find_earlier();
  Status check_zeros() const;
  Status check_zeros(int64_t begin, int64_t end) const;
  Status damaged(const std::string& what, int64_t byte) const;

  const SnapshotFile& last_;
  const Step step_;
  int64_t done_ = 0;
  std::map<int64_t, SnapshotBlock> parts_;  // by where they begin; they do not overlap
};

}  // namespace quire
