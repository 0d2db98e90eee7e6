// Schedules made deterministic: a thread waits where a test wants it.
#pragma once

#include <condition_variable>
#include <mutex>

namespace quire::test {

// A place where one thread stops until another lets it go on.
class Pause {
 public:
  // Stops here, the first time.
  void here() {
    std::unique_lock lock(mutex_);
    arrived_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return released_; });
  }
  void wait_for_arrival() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrived_; });
  }
  void release() {
    std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool arrived_ = false, released_ = false;
};

}  // namespace quire::test
