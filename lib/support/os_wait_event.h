// A level-triggered flag that poll loops can wait for.
#pragma once

#include <memory>

#include "lib/support/status.h"

namespace quire {

class WaitEvent {
 public:
  static Result<std::unique_ptr<WaitEvent>> create();  // kUnsupported where there is no such thing
  ~WaitEvent();
  WaitEvent(const WaitEvent&) = delete;
  WaitEvent& operator=(const WaitEvent&) = delete;

  // Any thread, but not both at once.
  void set();
  void clear();
  int descriptor() const { return fd_; }

 private:
  explicit WaitEvent(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace quire
