// A sticky request to stop, set from any thread and polled between tasks.
#pragma once

#include <atomic>

namespace quire {

class CancelToken {
 public:
  void cancel() { cancelled_.store(true, std::memory_order_release); }
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool> cancelled_{false};
};

}  // namespace quire
