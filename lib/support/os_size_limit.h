// A process's limit for the size of a file (RLIMIT_FSIZE), which must be an error of the write like others.
#pragma once

#include <signal.h>

#include <string>

namespace quire {

// While one lives, SIGXFSZ does not reach the calling thread. The system sends it to the thread whose call goes beyond
// the process's file size limit (RLIMIT_FSIZE), beside EFBIG, and its default action ends the process. The signal that
// a call raised is taken back; one that was waiting before stays, and so do the thread's mask and the process's action.
class SizeSignalHeld {
 public:
  SizeSignalHeld();
  ~SizeSignalHeld();
  SizeSignalHeld(const SizeSignalHeld&) = delete;
  SizeSignalHeld& operator=(const SizeSignalHeld&) = delete;

  // The errno of each call that failed.
  void note(int error);

 private:
  sigset_t signal_, mask_;
  bool was_waiting_ = false;
  bool raised_ = false;
};

// What the limit is, if `error` says that a file would exceed it: the end of a message.
std::string size_limit_note(int error);

}  // namespace quire
