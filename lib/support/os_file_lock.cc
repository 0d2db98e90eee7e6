#include "lib/support/os_file_lock.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace quire {

Result<std::unique_ptr<FileLock>> FileLock::try_take(const std::string& path, int64_t byte, Kind kind) {
  const bool exclusive = kind == Kind::kExclusive;
  std::unique_ptr<FileLock> taken(new FileLock);
  taken->fd_ = ::open(path.c_str(), (exclusive ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (taken->fd_ < 0) {
    const int error = errno;
    return Status(error == ENOENT || error == ENOTDIR ? Code::kNotFound : Code::kIo,
                  "cannot open " + path + ": " + std::strerror(error), -1, error);
  }
  struct flock lock {};
  lock.l_type = exclusive ? F_WRLCK : F_RDLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  int result = 0;
  do {
    result = ::fcntl(taken->fd_, F_OFD_SETLK, &lock);  // of this open file, not of the process
  } while (result != 0 && errno == EINTR);
  if (result == 0) return taken;
  const int error = errno;
  if (error == EAGAIN || error == EACCES) return std::unique_ptr<FileLock>();
  return Status(Code::kIo, "cannot lock " + path + ": " + std::strerror(error), -1, error);
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace quire
