#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "lib/support/os_wait_event.h"

namespace quire {

Result<std::unique_ptr<WaitEvent>> WaitEvent::create() {
  const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) return Status(Code::kIo, std::string("cannot create an eventfd: ") + std::strerror(errno), -1, errno);
  return std::unique_ptr<WaitEvent>(new WaitEvent(fd));
}

WaitEvent::~WaitEvent() { ::close(fd_); }

void WaitEvent::set() {
  const uint64_t one = 1;
  // Fails only if the counter is full, and then the event is set already.
  [[maybe_unused]] const ssize_t written = ::write(fd_, &one, sizeof one);
}

void WaitEvent::clear() {
  uint64_t count;
  [[maybe_unused]] const ssize_t read = ::read(fd_, &count, sizeof count);
}

}  // namespace quire
