// For calls that return when they are done: Ctrl-C cancels them, and their progress is shown.
#pragma once

#include <atomic>
#include <chrono>
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
    watcher_ = std::thread([this] {
      while (!done_ && !interrupted()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      if (interrupted()) quire_cancel_trigger(cancel_.get());
    });
  }
  ~CancelOnInterrupt() {
    done_ = true;
    watcher_.join();
  }
  CancelOnInterrupt(const CancelOnInterrupt&) = delete;
  CancelOnInterrupt& operator=(const CancelOnInterrupt&) = delete;

  quire_cancel* get() const { return cancel_.get(); }

 private:
  Cancel cancel_;
  std::atomic<bool> done_{false};
  std::thread watcher_;
};

// A quire_progress_callback of bytes; the user data is a Progress of "MiB".
inline void show_mebibytes(void* progress, int64_t done, int64_t total) {
  constexpr int64_t kMebi = 1 << 20;
  static_cast<Progress*>(progress)->show((done + kMebi - 1) / kMebi, (total + kMebi - 1) / kMebi);
}

}  // namespace cli
