// A file that is there already, and grows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "lib/support/byte_stream.h"
#include "lib/support/status.h"

namespace quire {

// What is appended counts if commit() succeeded; the bytes before it stay as they are, for whoever reads them
// meanwhile. Without a commit the file ends again where it was cut, or what was appended stays behind that if the
// system does not take it back. While one lives it has the file's lock: no other one, of any process, opens that file.
// One thread.
class AppendFile : public ByteSource, public ByteSink {
 public:
  // Null: nothing can be appended there. There is no such file, or it is not a regular one, has another name beside
  // this one (a hard link, whose reader expects the old contents), may not be written, is locked by another appender,
  // or lies in a file system without locks. A new file can be put in its place all the same (OutputFile).
  static std::shared_ptr<AppendFile> open(const std::string& path);
  ~AppendFile() override;
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  const std::string& name() const override { return path_; }
  int64_t size() const override { return size_; }  // when it was opened
  Status read_at(int64_t offset, std::span<std::byte> out) const override;

  // What lies from `end` on is given up. Once, before the first write, which appends there. Error: kIo.
  Status cut(int64_t end);
  Status write(std::span<const std::byte> bytes) override;  // error: kIo (a full disk, a file size limit)
  Status barrier() override;                                // error: kIo
  // Errors: kIo: the file may have what was appended, or not. kBusy: meanwhile another file was put in its place.
  Status commit() override;

 private:
  explicit AppendFile(std::string path) : path_(std::move(path)) {}
  Status failure(const char* what) const;
  bool is_at_path() const;

  const std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
  int64_t cut_ = 0;     // where the former contents end
  int64_t end_ = 0;     // where the next bytes go
  bool keeps_ = false;  // others may read what was appended
};

}  // namespace quire
