#include "interrupt.h"

#include <csignal>

namespace cli {
namespace {

volatile std::sig_atomic_t signal_seen = 0;

void remember(int signal) { signal_seen = signal; }

}  // namespace

void install_interrupt_handler() {
  struct sigaction action = {};
  action.sa_handler = remember;
  sigemptyset(&action.sa_mask);
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() { return signal_seen != 0; }

bool forget_interrupt() {
  if (signal_seen != SIGINT) return false;
  signal_seen = 0;
  install_interrupt_handler();
  return true;
}

}  // namespace cli
