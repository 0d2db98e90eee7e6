#include "lib/support/os_wait_event.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

namespace quire {
namespace {

using Clock = WaitEvent::Clock;
using std::chrono::milliseconds;

bool readable(const WaitEvent& event, int timeout_ms = 0) {
  pollfd fd{event.descriptor(), POLLIN, 0};
  return poll(&fd, 1, timeout_ms) == 1;
}

class WaitEventTest : public testing::Test {
 protected:
  void SetUp() override {
    auto created = WaitEvent::create();
    ASSERT_TRUE(created.ok()) << created.status().message();
    event_ = std::move(created.value());
  }
  std::unique_ptr<WaitEvent> event_;
};

TEST_F(WaitEventTest, StaysAsItWasSaid) {
  EXPECT_FALSE(readable(*event_, 5));
  EXPECT_FALSE(event_->comes());
  for (int i = 0; i < 3; ++i) {
    event_->set();
    event_->set();
    EXPECT_TRUE(event_->is_set());
    EXPECT_TRUE(readable(*event_, 10000));
    EXPECT_TRUE(readable(*event_));  // looking does not use it up
    event_->clear();
    event_->clear();
    EXPECT_FALSE(event_->comes());
    EXPECT_FALSE(readable(*event_));
  }
}

TEST_F(WaitEventTest, SetsItselfAtItsTimeAndNotBefore) {
  const auto time = Clock::now() + milliseconds(30);
  event_->set_at(time);
  EXPECT_TRUE(event_->comes());
  ASSERT_TRUE(readable(*event_, 10000));
  EXPECT_GE(Clock::now(), time);
  EXPECT_TRUE(event_->is_set());
  event_->set();  // it is
  EXPECT_TRUE(readable(*event_));
  event_->clear();
  EXPECT_FALSE(readable(*event_));
}

TEST_F(WaitEventTest, TheLastWordCounts) {
  event_->set_at(Clock::now() + std::chrono::hours(1));
  EXPECT_FALSE(event_->is_set());
  event_->set();
  EXPECT_TRUE(readable(*event_, 10000));
  event_->set_at(Clock::now() + std::chrono::hours(1));
  EXPECT_FALSE(readable(*event_));
  event_->set_at(Clock::now() - milliseconds(1));
  EXPECT_TRUE(readable(*event_, 10000));
  event_->set_at(Clock::time_point() - std::chrono::hours(1));  // before the system was started
  EXPECT_TRUE(readable(*event_, 10000));
  event_->set_at(Clock::now() + milliseconds(1));
  event_->clear();
  EXPECT_FALSE(readable(*event_, 5));
}

TEST_F(WaitEventTest, WakesAThreadThatWaits) {
  std::thread setter([&] {
    std::this_thread::sleep_for(milliseconds(5));
    event_->set();
  });
  EXPECT_TRUE(readable(*event_, 10000));
  setter.join();
}

}  // namespace
}  // namespace quire
