#include "lib/support/os_size_limit.h"

#include <pthread.h>
#include <sys/resource.h>

#include <cerrno>
#include <ctime>

namespace quire {

SizeSignalHeld::SizeSignalHeld() {
  sigemptyset(&signal_);
  sigaddset(&signal_, SIGXFSZ);
  sigset_t waiting;
  sigemptyset(&waiting);
  sigpending(&waiting);
  was_waiting_ = sigismember(&waiting, SIGXFSZ) == 1;
  pthread_sigmask(SIG_BLOCK, &signal_, &mask_);
}

SizeSignalHeld::~SizeSignalHeld() {
  const int error = errno;
  constexpr timespec kNoTime{};
  if (raised_ && !was_waiting_) {
    while (sigtimedwait(&signal_, nullptr, &kNoTime) < 0 && errno == EINTR) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  errno = error;
}

void SizeSignalHeld::note(int error) { raised_ = raised_ || error == EFBIG; }

std::string size_limit_note(int error) {
  rlimit limit{};
  if (error != EFBIG || ::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  return "; the process's limit for the size of a file (RLIMIT_FSIZE) is " + std::to_string(limit.rlim_cur) + " bytes";
}

}  // namespace quire
