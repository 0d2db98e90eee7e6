// For calls that return when they are done: Ctrl-C cancels them, and their progress is shown.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "interrupt.h"
#include "progress.h"
#include "quire_handles.h"

namespace cli {

// Triggers a cancel handle after Ctrl-C. The work is one call, and neither a signal handler nor a progress callback
// may call the library, so a thread watches the flag.
class CancelOnInterrupt {
 public:
  CancelOnInterrupt() {
    Error error;
    quire_cancel* cancel = nullptr;
    error.check(quire_cancel_create(&cancel, error.get()), "creating a cancel handle");
    cancel_.reset(cancel);
    watcher_ = std::thread([this] { watch(); });
  }
  ~CancelOnInterrupt() {
    {
      std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_one();
    watcher_.join();
  }
  CancelOnInterrupt(const CancelOnInterrupt&) = delete;
  CancelOnInterrupt& operator=(const CancelOnInterrupt&) = delete;

  quire_cancel* get() const { return cancel_.get(); }

 private:
  // A signal handler cannot notify, so the flag is looked at now and then.
  void watch() {
    std::unique_lock lock(mutex_);
    while (!interrupted()) {
      if (changed_.wait_for(lock, std::chrono::milliseconds(50), [this] { return done_; })) return;
    }
    quire_cancel_trigger(cancel_.get());
  }

  Cancel cancel_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;  // guarded by mutex_
  std::thread watcher_;
};

// A quire_progress_callback of bytes; the user data is a Progress of "MiB".
inline void show_mebibytes(void* progress, int64_t done, int64_t total) {
  constexpr int64_t kMebi = 1 << 20;
  static_cast<Progress*>(progress)->show((done + kMebi - 1) / kMebi, (total + kMebi - 1) / kMebi);
}

}  // namespace cli
