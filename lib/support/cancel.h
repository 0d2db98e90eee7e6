// A sticky request to stop, set from any thread and polled between tasks.
#pragma once

#include <atomic>
#include <span>

#include "lib/support/status.h"

namespace quire {

class CancelToken {
 public:
  CancelToken() = default;
  // Also cancelled when one of `others` is. They are borrowed, and may be null.
  explicit CancelToken(std::span<const CancelToken* const> others) : others_(others) {}

  void cancel() { cancelled_.store(true, std::memory_order_release); }
  bool cancelled() const {
    if (cancelled_.load(std::memory_order_acquire)) return true;
    for (const CancelToken* other : others_) {
      if (other && other->cancelled()) return true;
    }
    return false;
  }

 private:
  std::atomic<bool> cancelled_{false};
  std::span<const CancelToken* const> others_;
};

// kCancelled if a load that was given this token, which may be null, is to stop.
inline Status check_cancelled(const CancelToken* cancel) {
  return cancel && cancel->cancelled() ? Status(Code::kCancelled, "loading was cancelled") : Status();
}

}  // namespace quire
