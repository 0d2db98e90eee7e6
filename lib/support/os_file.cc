#include "lib/support/os_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace quire {
namespace {

Status os_failure(const std::string& what, const std::string& path, int error) {
  const Code code = error == ENOENT || error == ENOTDIR ? Code::kNotFound : Code::kIo;
  return Status(code, "cannot " + what + " " + path + ": " + std::strerror(error), -1, error);
}

// Whether the path is there, and what it is.
Result<bool> look_at(const std::string& path, struct stat* info) {
  if (path.find('\0') != std::string::npos) return Status(Code::kInvalidArgument, "path has a NUL byte");
  if (::stat(path.c_str(), info) == 0) return true;
  Status status = os_failure("access", path, errno);
  if (status.code() == Code::kNotFound) return false;
  return status;
}

}  // namespace

Result<std::unique_ptr<ReadFile>> ReadFile::open(const std::string& path, bool follow_link) {
  if (path.find('\0') != std::string::npos) return Status(Code::kInvalidArgument, "path has a NUL byte");
  // O_NONBLOCK: a FIFO without a writer must be refused below, not waited for. Regular files do not know it.
  std::unique_ptr<ReadFile> file(new ReadFile(path));
  file->fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | (follow_link ? 0 : O_NOFOLLOW));
  if (file->fd_ < 0) return os_failure("open", path, errno);
  struct stat info {};
  if (::fstat(file->fd_, &info) != 0) return os_failure("stat", path, errno);
  if (!S_ISREG(info.st_mode)) return Status(Code::kIo, path + " is not a regular file");
  file->size_ = info.st_size;
  file->modified_ns_ = info.st_mtim.tv_sec * int64_t{1'000'000'000} + info.st_mtim.tv_nsec;
  return file;
}

ReadFile::~ReadFile() {
  if (map_) ::munmap(map_, static_cast<size_t>(size_));
  if (fd_ >= 0) ::close(fd_);
}

Status ReadFile::read_at(int64_t offset, std::span<std::byte> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = ::pread(fd_, out.data() + done, out.size() - done, offset + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return os_failure("read", path_, errno);
    if (n == 0) {
      return Status(Code::kIo,
                    path_ + " ends early: wanted " + std::to_string(out.size()) + " bytes at " + std::to_string(offset),
                    offset + static_cast<int64_t>(done));
    }
    done += static_cast<size_t>(n);
  }
  return {};
}

int64_t ReadFile::size_now() const {
  struct stat info {};
  return ::fstat(fd_, &info) == 0 ? info.st_size : size_;
}

bool ReadFile::is_being_appended() const {
  if (::flock(fd_, LOCK_SH | LOCK_NB) != 0) return errno == EWOULDBLOCK;
  const bool changed = size_now() != size_;
  ::flock(fd_, LOCK_UN);
  return changed;
}

void ReadFile::will_read(int64_t offset, int64_t n_bytes) const {
  ::posix_fadvise(fd_, offset, n_bytes, POSIX_FADV_WILLNEED);
}

Result<std::span<const std::byte>> ReadFile::map() {
  const auto size = static_cast<size_t>(size_);
  if (!map_ && size > 0) {
    void* map = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd_, 0);
    if (map == MAP_FAILED) return os_failure("map", path_, errno);
    map_ = map;
  }
  return std::span<const std::byte>(static_cast<const std::byte*>(map_), map_ ? size : 0);
}

void ReadFile::drop_mapped(int64_t offset, int64_t size) const {
  if (!map_) return;
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  const int64_t begin = (offset + page - 1) / page * page;
  const int64_t end = std::min(offset + size, size_) / page * page;
  if (begin < end) ::madvise(static_cast<char*>(map_) + begin, static_cast<size_t>(end - begin), MADV_DONTNEED);
}

Result<std::string> read_text_file(const std::string& path, int64_t max_bytes) {
  QUIRE_ASSIGN(auto file, ReadFile::open(path));
  if (file->size() > max_bytes) {
    return Status(Code::kBadFile, path + " has " + std::to_string(file->size()) + " bytes; at most " +
                                      std::to_string(max_bytes) + " are expected");
  }
  std::string text(static_cast<size_t>(file->size()), '\0');
  QUIRE_TRY(file->read_at(0, std::as_writable_bytes(std::span(text.data(), text.size()))));
  return text;
}

Result<std::vector<std::string>> list_directory(const std::string& path) {
  struct Close {
    void operator()(DIR* directory) const { ::closedir(directory); }
  };
  const std::unique_ptr<DIR, Close> directory(::opendir(path.c_str()));
  if (!directory) return os_failure("list", path, errno);
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(directory.get());
    const int error = errno;
    if (!entry && error != 0) return os_failure("list", path, error);
    if (!entry) break;
    names.emplace_back(entry->d_name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

Result<bool> path_is_directory(const std::string& path) {
  struct stat info {};
  QUIRE_ASSIGN(const bool exists, look_at(path, &info));
  return exists && S_ISDIR(info.st_mode);
}

Result<bool> path_exists(const std::string& path) {
  struct stat info {};
  return look_at(path, &info);
}

}  // namespace quire
