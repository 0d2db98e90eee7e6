// The right to work on a session.
#pragma once

#include <cassert>
#include <thread>

#include "lib/support/mutex.h"

namespace quire {

// One holder at a time reads and changes what a session computes on: a call of the application's, or the engine during
// a step of the session's stream. The turn is taken and given back under the session's mutex, and held without it, so
// that its holder can compute for long and can call the host (its allocator may release handles, which takes mutexes).
class QUIRE_CAPABILITY("turn") Turn {
 public:
  // These three under the session's mutex.
  bool taken() const { return holder_ != std::thread::id(); }
  void take() {
    assert(!taken());
    holder_ = std::this_thread::get_id();
  }
  void give_back() {
    assert_held();
    holder_ = {};
  }

  // Tells clang, and checks in builds with assertions, that the calling thread is the holder.
  void assert_held() const QUIRE_ASSERT_HELD(this) { assert(holder_ == std::this_thread::get_id()); }

 private:
  std::thread::id holder_;  // none: free
};

}  // namespace quire
