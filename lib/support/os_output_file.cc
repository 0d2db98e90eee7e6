#include "lib/support/os_output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

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

}  // namespace

Result<std::unique_ptr<OutputFile>> OutputFile::create(const std::string& path, const Options& options) {
  if (path.find('\0') != std::string::npos) return Status(Code::kInvalidArgument, "path has a NUL byte");
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return Status(Code::kIo, path + " is there and is not a regular file");
  }
  const size_t name_begin = path.rfind('/') + 1;  // 0 where there is no slash
  const std::string begin = path.substr(0, name_begin) + path.substr(name_begin, kMostNameBytes);
  // It is there before the file, so that whatever fails afterwards leaves none.
  std::unique_ptr<OutputFile> file(new OutputFile(path, options.lasting));
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {  // another process may write the same path
    file->temporary_ = begin + "." + std::to_string(::getpid()) + "-" + std::to_string(attempt) + ".tmp";
    file->fd_ =
        ::open(file->temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, options.owner_only ? 0600 : 0666);
    if (file->fd_ >= 0 || errno != EEXIST) break;
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
  const int closed = ::close(fd_);
  fd_ = -1;
  if (closed != 0) return failure("write");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return failure("rename the temporary file to");
  committed_ = true;
  if (const int error = lasting_ ? sync_directory(directory_of(path_)) : 0; error != 0) {
    errno = error;
    return failure("sync the directory of");
  }
  return {};
}

}  // namespace quire
