#include "lib/support/os_append_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lib/support/os_size_limit.h"

namespace quire {
namespace {

bool lock(int fd) {
  int result = 0;
  do {
    result = ::flock(fd, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

}  // namespace

std::shared_ptr<AppendFile> AppendFile::open(const std::string& path) {
  if (path.find('\0') != std::string::npos) return nullptr;
  std::shared_ptr<AppendFile> file(new AppendFile(path));
  // O_NONBLOCK: a FIFO without a reader is refused, not waited for. Regular files do not know it.
  file->fd_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (file->fd_ < 0 || !lock(file->fd_)) return nullptr;
  struct stat info {};
  if (::fstat(file->fd_, &info) != 0 || !S_ISREG(info.st_mode) || info.st_nlink != 1 || !file->is_at_path())
    return nullptr;
  file->size_ = info.st_size;
  return file;
}

AppendFile::~AppendFile() {
  if (end_ > cut_ && !keeps_) [[maybe_unused]]
    const int failed = ::ftruncate(fd_, cut_);
  if (fd_ >= 0) ::close(fd_);  // the lock goes with it
}

bool AppendFile::is_at_path() const {
  struct stat own {
  }, other{};
  return ::fstat(fd_, &own) == 0 && ::stat(path_.c_str(), &other) == 0 && own.st_dev == other.st_dev &&
         own.st_ino == other.st_ino;
}

Status AppendFile::failure(const char* what) const {
  const int error = errno;
  return Status(Code::kIo,
                std::string("cannot ") + what + " " + path_ + ": " + std::strerror(error) + size_limit_note(error), -1,
                error);
}

Status AppendFile::read_at(int64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t n = ::pread(fd_, out.data(), out.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failure("read");
    if (n == 0) return Status(Code::kIo, path_ + " ends at byte " + std::to_string(offset), offset);
    out = out.subspan(static_cast<size_t>(n));
    offset += n;
  }
  return {};
}

Status AppendFile::cut(int64_t end) {
  if (end < size_ && ::ftruncate(fd_, end) != 0) return failure("shorten");
  cut_ = end_ = end;
  return {};
}

Status AppendFile::write(std::span<const std::byte> bytes) {
  SizeSignalHeld held;
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), end_);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      held.note(errno);
      return failure("append to");
    }
    bytes = bytes.subspan(static_cast<size_t>(n));
    end_ += n;
  }
  return {};
}

Status AppendFile::barrier() { return ::fsync(fd_) == 0 ? Status() : failure("append to"); }

Status AppendFile::commit() {
  keeps_ = true;
  QUIRE_TRY(barrier());
  if (is_at_path()) return {};
  return Status(Code::kBusy, path_ + " was replaced while it was appended to");
}

}  // namespace quire
