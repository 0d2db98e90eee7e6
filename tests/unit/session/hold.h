// Schedules made deterministic: the engine waits where a test wants it.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <condition_variable>
#include <mutex>

#include "tests/unit/session/session_fixture.h"

namespace quire::test {

// A place where one thread stops until another lets it go on.
class Pause {
 public:
  // Stops here, the first time.
  void here() {
    std::unique_lock lock(mutex_);
    arrived_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return released_; });
  }
  void wait_for_arrival() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrived_; });
  }
  void release() {
    std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool arrived_ = false, released_ = false;
};

// Holds the engine between the steps of other jobs.
class Hold : public Job {
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
