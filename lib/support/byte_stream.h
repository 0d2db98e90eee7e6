// Bytes that are read and written without knowing where they are: in files (os_file.h, os_output_file.h), or where the
// caller of the library keeps them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lib/support/status.h"

namespace quire {

// Bytes of a fixed number that do not change, unless somebody is still writing the last of them. Any thread, several at
// once.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual const std::string& name() const = 0;  // for messages
  virtual int64_t size() const = 0;
  // Reads exactly out.size() bytes; an end before that is an error.
  virtual Status read_at(int64_t offset, std::span<std::byte> out) const = 0;
  // How many of them are there now: fewer than size() where the writing of the last ones was given up meanwhile.
  virtual int64_t size_now() const { return size(); }
  // Whether somebody appends to them, or has since they were opened: their end may not be what it becomes.
  virtual bool is_being_appended() const { return false; }
  // A hint that these bytes will be read soon. Returns at once.
  virtual void will_read(int64_t /*offset*/, int64_t /*n_bytes*/) const {}
};

// Bytes that are written from the first to the last. They count if commit() succeeded; otherwise what was written is
// given up: by give_up(), or when this goes. One thread.
class ByteSink {
 public:
  virtual ~ByteSink() = default;
  // Appends.
  virtual Status write(std::span<const std::byte> bytes) = 0;
  // Of what was written before and what is written later, a crash of the system never leaves the later bytes alone.
  virtual Status barrier() = 0;
  // Once, after the last write.
  virtual Status commit() = 0;
  // Instead of a commit, or after one that failed: the last call. For sinks that must not wait until they go.
  virtual void give_up() {}
};

}  // namespace quire
