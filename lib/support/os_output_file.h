// A file that appears whole or not at all.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lib/support/byte_stream.h"
#include "lib/support/status.h"

namespace quire {

// Whether a file's name may end so behind the path that it is a temporary file for: ".PID-N.tmp".
bool is_temporary_end(std::string_view end);

// Bytes are written to a temporary file beside `path`, which commit() gives that name: whoever opens the path sees the
// old file or the whole new one. Without a commit the temporary file goes with this object; one of a process that was
// killed goes when the next file for this path is made. One thread.
class OutputFile : public ByteSink {
 public:
  struct Options {
    bool owner_only = false;  // nobody else may read it (mode 0600)
    // Whether a crash of the system leaves the old file or the whole new one, too. If not, committing does not wait for
    // the disk, and a crash may leave a file with other bytes, which its reader must notice.
    bool lasting = true;
  };
  // Errors: kNotFound (the directory), kIo (with errno).
  static Result<std::unique_ptr<OutputFile>> create(const std::string& path, const Options& options);
  static Result<std::unique_ptr<OutputFile>> create(const std::string& path) { return create(path, Options()); }
  ~OutputFile() override;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Error: kIo (a full disk, a file size limit).
  Status write(std::span<const std::byte> bytes) override;
  Status barrier() override { return {}; }  // nobody sees a part of the file
  Status commit() override;                 // error: kIo

 private:
  OutputFile(std::string path, bool lasting) : path_(std::move(path)), lasting_(lasting) {}
  Status failure(const char* what) const;
  const std::string path_;
  const bool lasting_;
  std::string temporary_;
  int fd_ = -1;
  bool made_ = false;  // the temporary file
  bool committed_ = false;
};

}  // namespace quire
