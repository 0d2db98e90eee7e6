// What a session asks of the stream that is open on it.
#pragma once

#include "lib/session/scheduler.h"

namespace quire {

// Any thread; never called with the session's mutex held.
class StreamControl : public Job {
 public:
  // Cancels without waiting.
  virtual void request_stop() = 0;
  // The engine was stopped and will never finish this stream.
  virtual void engine_stopped() = 0;
  // The session is being closed: cancels and waits until the engine has let go.
  virtual void session_closes() = 0;
};

}  // namespace quire
