// Snapshots that go to and come from callbacks of the host.
#pragma once

#include <string>

#include "include/quire/quire.h"
#include "lib/support/byte_stream.h"

namespace quire::abi {

// The caller's quire_snapshot_writer.
class CallbackSink : public ByteSink {
 public:
  // Before anything else. kInvalidArgument.
  Status set(const quire_snapshot_writer* writer);
  Status write(std::span<const std::byte> bytes) override;
  Status barrier() override { return {}; }  // the caller commits all at once
  Status commit() override;
  void give_up() override;  // calls `abort`, if anything else was called

 private:
  quire_snapshot_writer writer_{};
  std::string name_;
  bool called_ = false;
};

// The caller's quire_snapshot_reader.
class CallbackSource : public ByteSource {
 public:
  // Before anything else. kInvalidArgument.
  Status set(const quire_snapshot_reader* reader);
  ~CallbackSource() override;
  // user_data is this object's from here on, and is destroyed with it.
  void own() { owns_ = true; }
  const std::string& name() const override { return name_; }
  int64_t size() const override { return reader_.n_bytes; }
  Status read_at(int64_t offset, std::span<std::byte> out) const override;

 private:
  quire_snapshot_reader reader_{};
  std::string name_;
  bool owns_ = false;
};

}  // namespace quire::abi
