// The system calls of the spill file and of files that are saved, made to fail. file_calls.cc defines them, and a
// program that it is linked into gives them to libquire.so, too.
#pragma once

#include <cstdint>

namespace quire::test {

enum class FileCall { kOpenNameless, kMakeNamed, kAllocate, kTruncate, kWrite, kRead, kAppend, kSync, kRename };
constexpr int kFileCalls = 9;

constexpr int kKilled = -1;

// What happens to the calls of one kind with the numbers first, first + stride, ... up to last, counted from 1.
struct FileFault {
  FileCall call;
  int64_t first = 1;
  int64_t last = INT64_MAX;
  int64_t stride = 1;
  int error = 0;  // errno; 0: half of the bytes are transferred; kKilled: the process ends as by kill -9
};

// Between its construction and its end, calls count, and those of the fault fail. One at a time.
class FailingFiles {
 public:
  FailingFiles();  // none fails
  explicit FailingFiles(const FileFault& fault);
  ~FailingFiles();
  FailingFiles(const FailingFiles&) = delete;
  FailingFiles& operator=(const FailingFiles&) = delete;

  // Space on the disk is refused where so many bytes or more are asked for at once. Those calls are not counted.
  void refuse_allocations_of(int64_t bytes);
  // The file system knows no files without a name.
  void refuse_nameless();
  int64_t n_calls(FileCall call) const;
  int64_t n_faults() const;
};

}  // namespace quire::test
