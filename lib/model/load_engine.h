// Where a loader's operations on the backend run. Files are read on the thread that loads; what was read is packed
// where the backend computes, on the engine thread, in pieces so small that sessions go on in between.
#pragma once

#include <functional>
#include <utility>

#include "lib/support/status.h"

namespace quire {

// Used by one thread at a time, the one that loads.
class LoadEngine {
 public:
  virtual ~LoadEngine() = default;
  // Waits for the work before and, if that went well, starts this one. What it uses must stay until the next start() or
  // finish() returns. Returns the status of the work before, or kClosed.
  virtual Status start(std::function<Status()> work) = 0;
  // Waits for the work that was started last and returns its status, once. None runs afterwards.
  virtual Status finish() = 0;
};

// The engine of a loader that has the backend to itself: work is done at once.
class InlineLoadEngine final : public LoadEngine {
 public:
  Status start(std::function<Status()> work) override {
    QUIRE_TRY(finish());
    status_ = work();
    return {};
  }
  Status finish() override { return std::exchange(status_, {}); }

 private:
  Status status_;
};

}  // namespace quire
