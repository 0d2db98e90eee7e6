// A backend that is as unlike the CPU as the contract allows: a device for tests, without one.
//
// Device memory has no host address. An operation is queued and runs on another thread, at the last moment: when
// somebody waits for a fence behind it, asks whether one is done, or destroys the queue. So the source of an upload is
// read late, and whatever must live until an operation is done had better be there. Memory that is freed is overwritten
// at once with bytes that are NaN as numbers and far out of range as indexes, and is given back only when nothing is
// queued any more; under AddressSanitizer an access to it is reported.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "lib/backend/backend.h"

namespace quire::test {

// For a backend whose fences, when they are asked, do not wait until the work is done. Any thread.
class SlowQueues {
 public:
  // Until let_go(), fences of the queues that there are say that they are not done. Waiting for them takes no longer.
  void hold() { held_ = n_queues_.load(); }
  void let_go() { held_ = 0; }
  // How often a held fence was asked, and waited for.
  int64_t n_asked() const { return n_asked_; }
  int64_t n_waited() const { return n_waited_; }

 private:
  friend class DeferredFence;
  friend class DeferredQueue;
  std::atomic<int64_t> n_queues_{0};  // numbered in the order of their creation
  std::atomic<int64_t> held_{0};      // so many of the first ones
  std::atomic<int64_t> n_asked_{0}, n_waited_{0};
};

// Computes with `real`, whose device memory the host can touch. A fence that is asked says that it is done when that
// has become true, so that a schedule of steps is that of the CPU.
std::unique_ptr<Backend> create_deferred_backend(std::unique_ptr<Backend> real);
// One whose steps stay under way while the engine goes on.
std::unique_ptr<Backend> create_slow_backend(std::unique_ptr<Backend> real, std::shared_ptr<SlowQueues> slow);

}  // namespace quire::test
