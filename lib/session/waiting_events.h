// The events of a stream that wait for its reader.
#pragma once

#include <list>
#include <optional>

#include "lib/session/stream_event.h"
#include "lib/session/token_generator.h"
#include "lib/support/status.h"

namespace quire {

struct UndeliveredToken {
  StreamEvent event;
  TokenGenerator::State after;  // the generator's, when it had generated the token
};

// In the order of delivery. No locks.
struct WaitingEvents {
  std::list<SessionMessage> messages;
  std::optional<StreamEvent> progress;  // the latest
  std::list<UndeliveredToken> tokens;
  std::optional<StreamEvent> end;
  Status failure;  // instead of `end`

  bool has_end() const { return end || !failure.ok(); }
  bool empty() const { return messages.empty() && !progress && tokens.empty() && !has_end(); }
  // All but the end.
  void drop() {
    messages.clear();
    progress.reset();
    tokens.clear();
  }
};

}  // namespace quire
