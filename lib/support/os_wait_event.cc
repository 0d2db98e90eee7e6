// A timer of Linux: it is readable from its time on, until it is given another one.
#include "lib/support/os_wait_event.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace quire {
namespace {

void set_timer(int fd, itimerspec time) {
  // Fails only for a time that is none.
  [[maybe_unused]] const int failed = ::timerfd_settime(fd, TFD_TIMER_ABSTIME, &time, nullptr);
}

}  // namespace

Result<std::unique_ptr<WaitEvent>> WaitEvent::create() {
  const int fd = ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  if (fd < 0) return Status(Code::kIo, std::string("cannot create a timerfd: ") + std::strerror(errno), -1, errno);
  return std::unique_ptr<WaitEvent>(new WaitEvent(fd));
}

WaitEvent::~WaitEvent() { ::close(fd_); }

void WaitEvent::set() {
  if (is_set()) return;
  set_at(Clock::time_point() + std::chrono::nanoseconds(1));
}

// steady_clock is CLOCK_MONOTONIC, which began with the system. A timer at 0 is off, and one before it is refused.
void WaitEvent::set_at(Clock::time_point time) {
  at_ = time;
  const auto since_boot = std::max(std::chrono::nanoseconds(time.time_since_epoch()), std::chrono::nanoseconds(1));
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since_boot);
  set_timer(fd_, {{}, {seconds.count(), (since_boot - seconds).count()}});
}

void WaitEvent::clear() {
  if (!comes()) return;
  at_ = Clock::time_point::max();
  set_timer(fd_, {});
}

}  // namespace quire
