#include "interrupt.h"

#include <atomic>
#include <csignal>
#include <ctime>

namespace cli {
namespace {

std::atomic<int> signal_seen = 0;
static_assert(std::atomic<int>::is_always_lock_free);  // as a signal handler needs it

volatile std::sig_atomic_t seen_at = 0;  // seconds of a clock that begins anywhere

std::sig_atomic_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::sig_atomic_t>(time.tv_sec & 0x7fffffff);
}

// The second signal ends the program, unless it comes at once: `timeout` sends two, to the program and to its group.
// That the program is to end is not forgotten with a Ctrl-C just before.
void remember(int signal) {
  if (signal_seen == 0) {
    seen_at = now();
    signal_seen = signal;
  } else if (now() - seen_at > 1) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  } else if (signal != SIGINT) {
    signal_seen = signal;
  }
}

// What the parent said to ignore stays ignored, as a shell says it of Ctrl-C to what runs in the background.
void handle(int signal) {
  struct sigaction action = {};
  if (sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) return;
  action = {};
  action.sa_handler = remember;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

}  // namespace

void install_interrupt_handler() {
  handle(SIGINT);
  handle(SIGTERM);
}

bool interrupted() { return signal_seen != 0; }

bool forget_interrupt() {
  int seen = SIGINT;
  if (!signal_seen.compare_exchange_strong(seen, 0)) return false;
  install_interrupt_handler();
  return true;
}

}  // namespace cli
