#include "lib/support/os_output_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "lib/support/os_size_limit.h"

namespace quire {
namespace {

constexpr int kMaxAttempts = 10'000;
constexpr size_t kMostNameBytes = 200;  // of the file's name in the temporary one's: the system takes 255 in all

// The directory of a path, for the system's calls.
std::string directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Makes the directory's entries as lasting as the files that they name.
int sync_directory(const std::string& directory) {
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno;
  const int error = ::fsync(fd) == 0 || errno == EINVAL ? 0 : errno;  // EINVAL: this file system cannot
  ::close(fd);
  return error;
}

// A temporary file is locked from when it was made until it has its last name, so that one which nobody has locked was
// left by a process that was killed. Who removes it locks it, too.

// For the maker of the file: whether it has been taken for such a one, before it was locked.
bool is_taken(int fd) {
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) return errno == EWOULDBLOCK;  // else there are no locks here
  struct stat info {};
  return ::fstat(fd, &info) == 0 && info.st_nlink == 0;
}

void remove_leftovers(const std::string& directory, const std::string& name) {
  DIR* const list = ::opendir(directory.c_str());
  if (!list) return;
  while (const dirent* const entry = ::readdir(list)) {
    const std::string_view found = entry->d_name;
    if (!found.starts_with(name) || !is_temporary_end(found.substr(name.size()))) continue;
    const int fd = ::openat(::dirfd(list), entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) continue;
    struct stat locked {};
    struct stat named {};
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0 && ::fstat(fd, &locked) == 0 &&
        ::fstatat(::dirfd(list), entry->d_name, &named, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(named.st_mode) &&
        named.st_dev == locked.st_dev && named.st_ino == locked.st_ino) {
      ::unlinkat(::dirfd(list), entry->d_name, 0);
    }
    ::close(fd);
  }
  ::closedir(list);
}

}  // namespace

bool is_temporary_end(std::string_view end) {
  if (!end.starts_with('.') || !end.ends_with(".tmp")) return false;
  end = end.substr(1, end.size() - 5);
  return end.size() >= 3 && end.find_first_not_of("0123456789-") == end.npos && std::ranges::count(end, '-') == 1;
}

Result<std::unique_ptr<OutputFile>> OutputFile::create(const std::string& path, const Options& options) {
  if (path.find('\0') != std::string::npos) return Status(Code::kInvalidArgument, "path has a NUL byte");
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return Status(Code::kIo, path + " is there and is not a regular file");
  }
  const size_t name_begin = path.rfind('/') + 1;  // 0 where there is no slash
  const std::string name = path.substr(name_begin, kMostNameBytes), begin = path.substr(0, name_begin) + name;
  remove_leftovers(directory_of(path), name);
  // It is there before the file, so that whatever fails afterwards leaves none.
  std::unique_ptr<OutputFile> file(new OutputFile(path, options.lasting));
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {  // another process may write the same path
    file->temporary_ = begin + "." + std::to_string(::getpid()) + "-" + std::to_string(attempt) + ".tmp";
    const int fd =
        ::open(file->temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, options.owner_only ? 0600 : 0666);
    if (fd < 0 && errno == EEXIST) continue;
    if (fd >= 0 && is_taken(fd)) {
      ::close(fd);
      continue;
    }
    file->fd_ = fd;
    break;
  }
  if (file->fd_ < 0) {
    const int error = errno;
    return Status(error == ENOENT || error == ENOTDIR ? Code::kNotFound : Code::kIo,
                  "cannot make " + file->temporary_ + ": " + std::strerror(error), -1, error);
  }
  file->made_ = true;
  return file;
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (made_ && !committed_) ::unlink(temporary_.c_str());
}

Status OutputFile::failure(const char* what) const {
  const int error = errno;
  return Status(Code::kIo,
                std::string("cannot ") + what + " " + path_ + ": " + std::strerror(error) + size_limit_note(error), -1,
                error);
}

Status OutputFile::write(std::span<const std::byte> bytes) {
  SizeSignalHeld held;
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      held.note(errno);
      return failure("write");
    }
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

Status OutputFile::commit() {
  if (lasting_ && ::fsync(fd_) != 0) return failure("write");
  // Some file systems say when a file is closed that it could not be written. It stays locked until it has its name.
  if (const int same = ::dup(fd_); same >= 0 && ::close(same) != 0) return failure("write");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return failure("rename the temporary file to");
  committed_ = true;
  ::close(fd_);
  fd_ = -1;
  if (const int error = lasting_ ? sync_directory(directory_of(path_)) : 0; error != 0) {
    errno = error;
    return failure("sync the directory of");
  }
  return {};
}

}  // namespace quire
