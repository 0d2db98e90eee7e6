// A private temporary file: what does not fit in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "lib/support/status.h"

namespace quire {

// Mode 0600 and without a name from the start where the system can (else its name is removed at once), so that it goes
// with the process, however that ends. A file size limit of the process (RLIMIT_FSIZE) is an error like others, EFBIG:
// its signal is kept from the caller. One thread at a time calls reserve(), and others may read and write meanwhile
// what was reserved before.
class ScratchFile {
 public:
  // Errors: kNotFound, kIo (with errno): no such directory, no right to write there.
  static Result<std::unique_ptr<ScratchFile>> create(const std::string& directory);
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  // Makes the file `size` bytes long, with space on the disk for all of them. A full disk is noticed here and not when
  // writing. kIo: the file is as it was. A smaller size does nothing.
  Status reserve(int64_t size);
  int64_t size() const { return size_; }
  // Exactly all bytes, inside what was reserved.
  Status write_at(int64_t offset, std::span<const std::byte> bytes);
  Status read_at(int64_t offset, std::span<std::byte> bytes) const;
  // A hint that these bytes will be read soon. Returns at once.
  void will_read(int64_t offset, int64_t n_bytes) const;
  // For measuring: all bytes are on the disk, and what the system keeps of them in memory is given up. kIo.
  Status forget_cached() const;

 private:
  explicit ScratchFile(const std::string& directory) : directory_(directory) {}
  Status failure(const std::string& what, int error) const;
  const std::string directory_;
  int fd_ = -1;
  int64_t size_ = 0;
};

}  // namespace quire
