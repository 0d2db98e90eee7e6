#include "tests/fault/file_calls.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdlib>

namespace {

using quire::test::FileCall;
using quire::test::FileFault;

std::atomic<bool> armed{false};
FileFault fault{FileCall::kRead};  // written while not armed
std::atomic<int64_t> refused_bytes{INT64_MAX};
std::atomic<bool> nameless_refused{false};
std::array<std::atomic<int64_t>, quire::test::kFileCalls> counts{};
std::atomic<int64_t> faults{0};

// True: this call is one of the fault's.
bool fails(FileCall call) {
  if (!armed) return false;
  const int64_t number = ++counts[static_cast<size_t>(call)];
  if (call != fault.call || number < fault.first || number > fault.last) return false;
  if ((number - fault.first) % fault.stride != 0) return false;
  ++faults;
  if (fault.error == quire::test::kKilled) std::raise(SIGKILL);
  return true;
}

// The system's own function of that name.
template <typename Function>
Function* real(const char* name) {
  void* const found = dlsym(RTLD_NEXT, name);
  if (!found) std::abort();
  return reinterpret_cast<Function*>(found);
}

int fail(int error) {
  errno = error;
  return -1;
}

// A transfer of `size` bytes: whole, half, or none.
template <typename Transfer>
ssize_t transfer(FileCall call, size_t size, const Transfer& transfer) {
  if (!fails(call)) return transfer(size);
  if (fault.error != 0) return fail(fault.error);
  return transfer((size + 1) / 2);
}

int open_file(const char* name, const char* path, int flags, mode_t mode) {
  if ((flags & O_TMPFILE) == O_TMPFILE) {
    if (armed && nameless_refused) return fail(EOPNOTSUPP);
    if (fails(FileCall::kOpenNameless)) return fail(fault.error);
  }
  return real<int(const char*, int, ...)>(name)(path, flags, mode);
}

int make_named(const char* name, char* pattern, int flags) {
  if (fails(FileCall::kMakeNamed)) return fail(fault.error);
  return real<int(char*, int)>(name)(pattern, flags);
}

template <typename Offset>
int allocate(const char* name, int fd, Offset offset, Offset size) {
  if (armed && size >= refused_bytes) return ENOSPC;
  if (fails(FileCall::kAllocate)) return fault.error;
  return real<int(int, Offset, Offset)>(name)(fd, offset, size);
}

template <typename Offset>
int shorten(const char* name, int fd, Offset size) {
  if (fails(FileCall::kTruncate)) return fail(fault.error);
  return real<int(int, Offset)>(name)(fd, size);
}

template <typename Offset>
ssize_t write_at(const char* name, int fd, const void* data, size_t size, Offset offset) {
  return transfer(FileCall::kWrite, size,
                  [&](size_t n) { return real<ssize_t(int, const void*, size_t, Offset)>(name)(fd, data, n, offset); });
}

template <typename Offset>
ssize_t read_at(const char* name, int fd, void* data, size_t size, Offset offset) {
  return transfer(FileCall::kRead, size,
                  [&](size_t n) { return real<ssize_t(int, void*, size_t, Offset)>(name)(fd, data, n, offset); });
}

mode_t mode_of(int flags, va_list arguments) {
  const bool creates = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  return creates ? static_cast<mode_t>(va_arg(arguments, unsigned)) : 0;
}

}  // namespace

// Each under both of its names: which one a caller uses depends on its compiler's settings.
extern "C" {

#define EXPORTED __attribute__((visibility("default")))

EXPORTED int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_file("open", path, flags, mode);
}
EXPORTED int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_file("open64", path, flags, mode);
}
EXPORTED int mkostemp(char* pattern, int flags) { return make_named("mkostemp", pattern, flags); }
EXPORTED int mkostemp64(char* pattern, int flags) { return make_named("mkostemp64", pattern, flags); }
EXPORTED int posix_fallocate(int fd, off_t offset, off_t size) { return allocate("posix_fallocate", fd, offset, size); }
EXPORTED int posix_fallocate64(int fd, off64_t offset, off64_t size) {
  return allocate("posix_fallocate64", fd, offset, size);
}
EXPORTED int ftruncate(int fd, off_t size) noexcept { return shorten("ftruncate", fd, size); }
EXPORTED int ftruncate64(int fd, off64_t size) noexcept { return shorten("ftruncate64", fd, size); }
EXPORTED ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  return write_at("pwrite", fd, data, size, offset);
}
EXPORTED ssize_t pwrite64(int fd, const void* data, size_t size, off64_t offset) {
  return write_at("pwrite64", fd, data, size, offset);
}
EXPORTED ssize_t write(int fd, const void* data, size_t size) {
  return transfer(FileCall::kAppend, size,
                  [&](size_t n) { return real<ssize_t(int, const void*, size_t)>("write")(fd, data, n); });
}
EXPORTED int fsync(int fd) { return fails(FileCall::kSync) ? fail(fault.error) : real<int(int)>("fsync")(fd); }
EXPORTED int rename(const char* from, const char* to) noexcept {
  return fails(FileCall::kRename) ? fail(fault.error) : real<int(const char*, const char*)>("rename")(from, to);
}
EXPORTED ssize_t pread(int fd, void* data, size_t size, off_t offset) {
  return read_at("pread", fd, data, size, offset);
}
EXPORTED ssize_t pread64(int fd, void* data, size_t size, off64_t offset) {
  return read_at("pread64", fd, data, size, offset);
}

}  // extern "C"

namespace quire::test {

FailingFiles::FailingFiles() : FailingFiles({FileCall::kRead, 1, 0}) {}

FailingFiles::FailingFiles(const FileFault& wanted) {
  for (auto& count : counts) count = 0;
  faults = 0;
  refused_bytes = INT64_MAX;
  nameless_refused = false;
  fault = wanted;
  armed = true;
}

FailingFiles::~FailingFiles() { armed = false; }

void FailingFiles::refuse_allocations_of(int64_t bytes) { refused_bytes = bytes; }

void FailingFiles::refuse_nameless() { nameless_refused = true; }

int64_t FailingFiles::n_calls(FileCall call) const { return counts[static_cast<size_t>(call)]; }

int64_t FailingFiles::n_faults() const { return faults; }

}  // namespace quire::test
