#include "lib/support/os_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

namespace quire {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;

Status failure(const char* what, const std::string& path, int error) {
  const Code code = error == ENOENT || error == ENOTDIR ? Code::kNotFound : Code::kIo;
  return Status(code, std::string("cannot ") + what + " " + path + ": " + std::strerror(error), -1, error);
}

}  // namespace

Status make_directory(const std::string& path) {
  if (path.find('\0') != std::string::npos) return Status(Code::kInvalidArgument, "path has a NUL byte");
  if (::mkdir(path.c_str(), 0700) == 0) return {};
  const int error = errno;
  struct stat info {};
  if (error == EEXIST && ::stat(path.c_str(), &info) == 0) {
    return S_ISDIR(info.st_mode) ? Status() : failure("use", path, ENOTDIR);
  }
  return failure("make the directory", path, error);
}

Status make_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return errno == EEXIST ? Status() : failure("make", path, errno);
  ::close(fd);
  return {};
}

std::string canonical_path(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> found(::realpath(path.c_str(), nullptr), std::free);
  return found ? found.get() : path;
}

std::string absolute_path(const std::string& path) {
  if (path.starts_with('/')) return path;
  const std::unique_ptr<char, void (*)(void*)> own(::getcwd(nullptr, 0), std::free);
  return own && *own == '/' ? own.get() + ("/" + path) : path;
}

FileFacts file_facts(const std::string& path) {
  FileFacts facts;
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return facts;
  facts.exists = true;
  facts.is_file = S_ISREG(info.st_mode);
  facts.bytes = info.st_size;
  facts.modified_ns = info.st_mtim.tv_sec * kNsPerSecond + info.st_mtim.tv_nsec;
  facts.changed_ns = info.st_ctim.tv_sec * kNsPerSecond + info.st_ctim.tv_nsec;
  facts.number = info.st_ino;
  return facts;
}

Status set_modified(const std::string& path, int64_t modified_ns) {
  timespec times[2] = {};
  times[0].tv_nsec = UTIME_OMIT;
  times[1].tv_sec = modified_ns / kNsPerSecond;
  times[1].tv_nsec = modified_ns % kNsPerSecond;
  if (::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW) == 0) return {};
  return failure("set the time of", path, errno);
}

Status remove_file(const std::string& path) {
  if (::unlink(path.c_str()) == 0 || errno == ENOENT) return {};
  return failure("remove", path, errno);
}

int64_t wall_clock_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

void wait_milliseconds(int64_t n) { std::this_thread::sleep_for(std::chrono::milliseconds(n)); }

}  // namespace quire
