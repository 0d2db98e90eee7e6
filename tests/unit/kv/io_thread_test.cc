// The threads that read and write files.

#include "lib/kv/io_thread.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <string>
#include <vector>

#include "tests/unit/pause.h"

namespace quire::test {
namespace {

// Notes in `order` each of its parts, the first of which waits.
class Parts : public IoWork {
 public:
  Parts(char name, int n, std::string* order, Pause* pause = nullptr)
      : name_(name), left_(n), order_(order), pause_(pause) {}
  bool run_one() override {
    if (pause_) pause_->here();
    order_->push_back(name_);
    if (--left_ > 0) return true;
    done_.here();
    return false;
  }
  void wait() {
    done_.wait_for_arrival();
    let_finish();
  }
  void let_finish() { done_.release(); }

 private:
  char name_;
  int left_;
  std::string* order_;
  Pause* pause_;
  Pause done_;
};

TEST(IoThreads, WorksTakeTurns) {
  IoThreads io(1);
  io.start();
  io.start();
  std::string order;
  Pause pause;
  Parts a('a', 3, &order, &pause), b('b', 2, &order), c('c', 1, &order);
  EXPECT_TRUE(io.add(a));
  pause.wait_for_arrival();
  EXPECT_TRUE(io.add(b));
  EXPECT_TRUE(io.add(c));
  pause.release();
  for (Parts* work : {&c, &b, &a}) work->wait();
  io.stop();
  EXPECT_EQ(order, "abcaba");
}

TEST(IoThreads, StoppingFinishesWhatWaits) {
  IoThreads io(2);
  std::string order;
  Parts early('e', 1, &order);
  EXPECT_FALSE(io.add(early));  // not started
  io.start();
  Pause pause;
  Parts a('a', 2, &order, &pause);
  EXPECT_TRUE(io.add(a));
  pause.wait_for_arrival();
  a.let_finish();
  pause.release();
  io.stop();
  io.stop();
  EXPECT_EQ(order, "aa");
  EXPECT_FALSE(io.add(early));
  io.start();  // for good
  EXPECT_FALSE(io.add(early));
}

TEST(IoThreads, HaveTheirNameAndNoSignals) {
  class Look : public IoWork {
   public:
    bool run_one() override {
      pthread_getname_np(pthread_self(), name, sizeof name);
      sigset_t mask;
      pthread_sigmask(SIG_BLOCK, nullptr, &mask);
      for (const int signal : {SIGTERM, SIGINT, SIGXFSZ, SIGUSR1}) blocked += sigismember(&mask, signal);
      return false;
    }
    char name[16] = {};
    int blocked = 0;
  } look;
  IoThreads io(1);
  io.start();
  EXPECT_TRUE(io.add(look));
  io.stop();
  EXPECT_STREQ(look.name, "quire-io");
  EXPECT_EQ(look.blocked, 4);
}

}  // namespace
}  // namespace quire::test
