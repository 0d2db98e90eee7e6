// A call of the host's on a thread of the host's, from its beginning at the C boundary to its end.
#pragma once

#include <utility>

namespace quire {

// What the library changes of such a thread for its own work is put back at the end: a GPU's driver keeps some things
// for each thread (lib/backend/cuda/cuda_device.h). In a callback of the host's they are still the library's.
class HostCall {
 public:
  HostCall() noexcept { ++depth_; }
  ~HostCall() {
    if (--depth_ == 0 && put_back_) std::exchange(put_back_, nullptr)();
  }
  HostCall(const HostCall&) = delete;
  HostCall& operator=(const HostCall&) = delete;

  // Whether the calling thread is in such a call, and nothing will be put back at its end yet.
  static bool is_untouched() noexcept { return depth_ > 0 && !put_back_; }
  // put_back() runs once on this thread, at the end of the call, or of the outermost one where a callback made others.
  static void at_end(void (*put_back)()) noexcept { put_back_ = put_back; }

 private:
  static inline thread_local int depth_ = 0;
  static inline thread_local void (*put_back_)() = nullptr;
};

}  // namespace quire
