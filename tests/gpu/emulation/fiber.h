// A function on a stack of its own, which can stop in the middle and go on later (a coroutine with a stack).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace quire::emulation {

// One OS thread at a time, the one that calls resume(). A fiber that has not ended when it is destroyed or started
// again leaves what it has on its stack as it is: destructors there never run.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next resume() begins with `body`, which must live until it has returned.
  void start(const std::function<void()>& body);
  // Runs the fiber until it calls yield() or its body returns. Not after the body has returned.
  void resume();
  // Of the fiber that runs: back to who called resume().
  void yield();
  bool ended() const { return ended_; }
  bool has_on_stack(const void* p) const;

 private:
  static void enter();
  void leave(bool for_good);

  std::unique_ptr<char[]> stack_;
  const std::function<void()>* body_ = nullptr;
  bool ended_ = true;
#if defined(__x86_64__)
  void* own_ = nullptr;     // stack pointer while it does not run
  void* caller_ = nullptr;  // that of resume() while it runs
#else
  ucontext_t own_{};
  ucontext_t caller_{};
#endif
  // AddressSanitizer's: the stack of resume()'s caller, and its list of frames that outlive their functions.
  [[maybe_unused]] const void* caller_stack_ = nullptr;
  [[maybe_unused]] size_t caller_stack_bytes_ = 0;
  [[maybe_unused]] void* caller_frames_ = nullptr;
};

}  // namespace quire::emulation
