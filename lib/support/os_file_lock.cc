#include "lib/support/os_file_lock.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace quire {
namespace {

struct flock lock_of(int64_t byte, FileLock::Kind kind) {
  struct flock lock {};
  lock.l_type = kind == FileLock::Kind::kExclusive ? F_WRLCK : F_RDLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

// command: one of the locks of an open file, which are not the process's. Returns errno.
int call_system(int fd, int command, struct flock& lock) {
  int result = 0;
  do {
    result = ::fcntl(fd, command, &lock);
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

Status cannot_lock(const std::string& path, int error) {
  return Status(Code::kIo, "cannot lock " + path + ": " + std::strerror(error), -1, error);
}

}  // namespace

// Without a lock.
Result<std::unique_ptr<FileLock>> FileLock::open(const std::string& path, bool for_writing) {
  std::unique_ptr<FileLock> opened(new FileLock);
  opened->fd_ = ::open(path.c_str(), (for_writing ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (opened->fd_ >= 0) return opened;
  const int error = errno;
  return Status(error == ENOENT || error == ENOTDIR ? Code::kNotFound : Code::kIo,
                "cannot open " + path + ": " + std::strerror(error), -1, error);
}

Result<std::unique_ptr<FileLock>> FileLock::try_take(const std::string& path, int64_t byte, Kind kind) {
  QUIRE_ASSIGN(auto taken, open(path, kind == Kind::kExclusive));
  struct flock lock = lock_of(byte, kind);
  const int error = call_system(taken->fd_, F_OFD_SETLK, lock);
  if (error == 0) return taken;
  if (error == EAGAIN || error == EACCES) return std::unique_ptr<FileLock>();
  return cannot_lock(path, error);
}

Result<bool> FileLock::is_held(const std::string& path, int64_t byte) {
  QUIRE_ASSIGN(const auto opened, open(path, false));
  struct flock lock = lock_of(byte, Kind::kExclusive);
  const int error = call_system(opened->fd_, F_OFD_GETLK, lock);
  if (error != 0) return cannot_lock(path, error);
  return lock.l_type != F_UNLCK;
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace quire
