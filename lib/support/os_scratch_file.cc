#include "lib/support/os_scratch_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "lib/support/os_size_limit.h"

namespace quire {
namespace {

int open_nameless(const std::string& directory) {
#if defined(O_TMPFILE)
  const int fd = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, S_IRUSR | S_IWUSR);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
#endif
  std::string name = directory + "/quire-XXXXXX";
  const int named = ::mkostemp(name.data(), O_CLOEXEC);  // mode 0600
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

}  // namespace

Status ScratchFile::failure(const std::string& what, int error) const {
  return Status(
      Code::kIo,
      "cannot " + what + " a temporary file in " + directory_ + ": " + std::strerror(error) + size_limit_note(error),
      -1, error);
}

Result<std::unique_ptr<ScratchFile>> ScratchFile::create(const std::string& directory) {
  if (directory.find('\0') != std::string::npos) return Status(Code::kInvalidArgument, "path has a NUL byte");
  std::unique_ptr<ScratchFile> file(new ScratchFile(directory));
  file->fd_ = open_nameless(directory);
  if (file->fd_ < 0) {
    const int error = errno;
    return Status(error == ENOENT || error == ENOTDIR ? Code::kNotFound : Code::kIo,
                  "cannot make a temporary file in " + directory + ": " + std::strerror(error), -1, error);
  }
  // A hint: what is read ahead of one record is seldom the next one, and takes the disk's time (tests/bench/README.md).
  ::posix_fadvise(file->fd_, 0, 0, POSIX_FADV_RANDOM);
  return file;
}

ScratchFile::~ScratchFile() {
  if (fd_ >= 0) ::close(fd_);
}

Status ScratchFile::reserve(int64_t size) {
  if (size <= size_) return {};
  SizeSignalHeld held;
  int error = 0;
  do {
    error = ::posix_fallocate(fd_, size_, size - size_);
  } while (error == EINTR);
  held.note(error);
  if (error != 0) {
    // What it got before it failed goes back; the old bytes stay.
    if (::ftruncate(fd_, size_) != 0) return failure("shrink to " + std::to_string(size_) + " bytes", errno);
    return failure("get " + std::to_string(size - size_) + " bytes more than " + std::to_string(size_) + " for", error);
  }
  size_ = size;
  return {};
}

Status ScratchFile::write_at(int64_t offset, std::span<const std::byte> bytes) {
  SizeSignalHeld held;
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::pwrite(fd_, bytes.data() + done, bytes.size() - done, offset + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const int error = n < 0 ? errno : ENOSPC;
      held.note(error);
      return failure("write " + std::to_string(bytes.size()) + " bytes at " + std::to_string(offset) + " of", error);
    }
    done += static_cast<size_t>(n);
  }
  return {};
}

void ScratchFile::will_read(int64_t offset, int64_t n_bytes) const {
  ::posix_fadvise(fd_, offset, n_bytes, POSIX_FADV_WILLNEED);
}

Status ScratchFile::forget_cached() const {
  int failed = 0;
  do {
    failed = ::fdatasync(fd_);
  } while (failed != 0 && errno == EINTR);
  if (failed != 0) return failure("write to the disk", errno);
  ::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
  return {};
}

Status ScratchFile::read_at(int64_t offset, std::span<std::byte> bytes) const {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::pread(fd_, bytes.data() + done, bytes.size() - done, offset + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return failure("read " + std::to_string(bytes.size()) + " bytes at " + std::to_string(offset) + " of",
                     n < 0 ? errno : EIO);
    }
    done += static_cast<size_t>(n);
  }
  return {};
}

}  // namespace quire
