// A row of logits in the memory of a device, from which it is copied when somebody asks for it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lib/backend/backend.h"

namespace quire {

// A pass fills it, and waits until it has. From then on it does not change while several hold it, whose threads may
// read it at once. The backend must outlive it.
class LogitsRow {
 public:
  static Result<std::shared_ptr<LogitsRow>> make(Backend& backend, int64_t n);
  Buffer& buffer() { return *buffer_; }
  // Copies it to the host and waits. An error leaves it as it is.
  Result<std::vector<float>> read() const;

 private:
  LogitsRow(Backend& backend, std::unique_ptr<Buffer> buffer) : backend_(backend), buffer_(std::move(buffer)) {}

  Backend& backend_;
  const std::unique_ptr<Buffer> buffer_;
};

}  // namespace quire
