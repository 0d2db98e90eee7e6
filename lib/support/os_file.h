// Files: the only place that opens, reads or maps one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/support/byte_stream.h"
#include "lib/support/status.h"

namespace quire {

// An open file for reading at offsets. Any thread.
class ReadFile : public ByteSource {
 public:
  // follow_link: whether the path may be a symbolic link. Errors: kNotFound, kIo (with errno). Refuses anything but a
  // regular file.
  static Result<std::unique_ptr<ReadFile>> open(const std::string& path, bool follow_link = true);
  ~ReadFile() override;
  ReadFile(const ReadFile&) = delete;
  ReadFile& operator=(const ReadFile&) = delete;

  const std::string& path() const { return path_; }
  const std::string& name() const override { return path_; }
  int64_t size() const override { return size_; }
  int64_t modified_ns() const { return modified_ns_; }  // since 1970, when it was opened
  Status read_at(int64_t offset, std::span<std::byte> out) const override;
  int64_t size_now() const override;
  bool is_being_appended() const override;  // by an AppendFile
  void will_read(int64_t offset, int64_t n_bytes) const override;
  // Maps the whole file read-only; the bytes live as long as this object. Second call: the same bytes.
  Result<std::span<const std::byte>> map();
  // Tells the system that the pages of this part of the map will not be needed soon.
  void drop_mapped(int64_t offset, int64_t size) const;

 private:
  explicit ReadFile(const std::string& path) : path_(path) {}
  const std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
  int64_t modified_ns_ = 0;
  void* map_ = nullptr;
};

// The whole file as text. Refuses files over max_bytes.
Result<std::string> read_text_file(const std::string& path, int64_t max_bytes);

// Names of the directory's entries, sorted. Errors: kNotFound, kIo.
Result<std::vector<std::string>> list_directory(const std::string& path);

// What cannot be looked at (no permission, a loop of links, too long a name) is kIo with errno, and not absent.
Result<bool> path_is_directory(const std::string& path);
Result<bool> path_exists(const std::string& path);

}  // namespace quire
