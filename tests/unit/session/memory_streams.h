// Snapshots that go to memory and come from there.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "lib/support/byte_stream.h"

namespace quire::test {

class MemorySink : public ByteSink {
 public:
  Status write(std::span<const std::byte> more) override {
    bytes.append(reinterpret_cast<const char*>(more.data()), more.size());
    return {};
  }
  Status barrier() override { return {}; }
  Status commit() override { return {}; }
  std::string bytes;
};

class MemorySource : public ByteSource {
 public:
  explicit MemorySource(std::string bytes) : bytes_(std::move(bytes)) {}
  const std::string& name() const override { return name_; }
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }
  Status read_at(int64_t offset, std::span<std::byte> out) const override {
    if (offset < 0 || offset + static_cast<int64_t>(out.size()) > size()) return Status(Code::kIo, "behind the end");
    std::memcpy(out.data(), bytes_.data() + offset, out.size());
    return {};
  }

 private:
  const std::string bytes_, name_ = "memory";
};

}  // namespace quire::test
