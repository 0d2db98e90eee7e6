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

// Lets the engine give every other job that is ready a step, many times over.
class Turns : public HostJob {
 public:
  bool ready() override { return true; }
  bool step() override {
    if (++n_ < 400) return false;
    done_.here();
    return true;
  }
  void wait() {
    done_.wait_for_arrival();
    done_.release();
  }

 private:
  int n_ = 0;
  Pause done_;
};

// Until the streams have generated as far ahead as they may.
inline void work_ahead(Model& model) {
  const auto turns = std::make_shared<Turns>();
  ASSERT_TRUE(model.runtime->scheduler().add(turns));
  turns->wait();
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
