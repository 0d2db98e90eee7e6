// Schedules made deterministic: the engine waits where a test wants it.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include "tests/unit/pause.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {

// Holds the engine between the steps of other jobs.
class Hold : public HostJob {
 public:
  bool ready() override { return true; }
  bool step() override {
    pause_.here();
    return true;
  }
  void wait() { pause_.wait_for_arrival(); }
  void release() { pause_.release(); }

 private:
  Pause pause_;
};

inline std::shared_ptr<Hold> hold_engine(Model& model) {
  auto hold = std::make_shared<Hold>();
  EXPECT_TRUE(model.runtime->scheduler().add(hold));
  hold->wait();
  return hold;
}

// Whether an event is queued; does not take it.
inline bool has_event(GenerationStream& stream) {
  pollfd fd{take(stream.wait_descriptor()), POLLIN, 0};
  return poll(&fd, 1, 0) == 1;
}

// Waits until an event is queued, without taking it.
inline void wait_for_event(GenerationStream& stream) {
  pollfd fd{take(stream.wait_descriptor()), POLLIN, 0};
  ASSERT_EQ(poll(&fd, 1, 60000), 1);
}

}  // namespace quire::test
