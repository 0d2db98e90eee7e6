// Locks between processes, and between the threads of one: bytes of a file that need not exist.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lib/support/status.h"

namespace quire {

// A lock on one byte of a file. It is held until this goes, or its process ends, however that happens. Each lock has
// the file open for itself, so that two of one process exclude each other as those of two processes do. Any thread.
class FileLock {
 public:
  enum class Kind { kShared, kExclusive };

  // The file must be there. `byte`: at least 0. Null: someone holds a lock that excludes this one. Errors: kNotFound,
  // kIo (with errno): the file cannot be opened (for writing, where the lock is exclusive), or its file system has no
  // locks.
  static Result<std::unique_ptr<FileLock>> try_take(const std::string& path, int64_t byte, Kind kind);
  // Whether someone holds a lock on the byte, of either kind. It takes none meanwhile. Errors: as of a shared lock.
  static Result<bool> is_held(const std::string& path, int64_t byte);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  FileLock() = default;
  static Result<std::unique_ptr<FileLock>> open(const std::string& path, bool for_writing);
  int fd_ = -1;
};

}  // namespace quire
