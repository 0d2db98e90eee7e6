// A sticky request to stop, set from any thread and polled between tasks.
#pragma once

#include <atomic>
#include <span>

namespace quire {

class CancelToken {
 public:
  CancelToken() = default;
  // Also cancelled when one of `others` is. They are borrowed.
  explicit CancelToken(std::span<const CancelToken* const> others) : others_(others) {}

  void cancel() { cancelled_.store(true, std::memory_order_release); }
  bool cancelled() const {
    if (cancelled_.load(std::memory_order_acquire)) return true;
    for (const CancelToken* other : others_) {
      if (other->cancelled()) return true;
    }
    return false;
  }

 private:
  std::atomic<bool> cancelled_{false};
  std::span<const CancelToken* const> others_;
};

}  // namespace quire
