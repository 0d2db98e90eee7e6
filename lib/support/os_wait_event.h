// A level-triggered flag that poll loops can wait for. It can be told to set itself at a time.
#pragma once

#include <chrono>
#include <memory>

#include "lib/support/status.h"

namespace quire {

class WaitEvent {
 public:
  using Clock = std::chrono::steady_clock;

  static Result<std::unique_ptr<WaitEvent>> create();  // kUnsupported where there is no such thing
  ~WaitEvent();
  WaitEvent(const WaitEvent&) = delete;
  WaitEvent& operator=(const WaitEvent&) = delete;

  // One thread at a time.
  void set();
  void set_at(Clock::time_point time);
  void clear();
  // Whether it is set, or will set itself.
  bool comes() const { return at_ != Clock::time_point::max(); }
  bool is_set() const { return at_ <= Clock::now(); }

  // Any thread.
  int descriptor() const { return fd_; }

 private:
  explicit WaitEvent(int fd) : fd_(fd) {}

  const int fd_;
  Clock::time_point at_ = Clock::time_point::max();  // since when it is set, or will be; max: cleared
};

}  // namespace quire
