// Who computes when, counted in steps.

#include "lib/session/scheduler.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

class CountingJob : public Job {
 public:
  explicit CountingJob(std::function<bool()> step) : step_(std::move(step)) {}
  bool ready() override { return true; }
  bool step() override { return step_(); }

 private:
  std::function<bool()> step_;
};

// Lets a test wait until the engine thread has come to some point.
class Gate {
 public:
  void open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

TEST(Scheduler, GivesReadyJobsStepsInTurn) {
  Scheduler scheduler;
  Gate all_added, finished;
  std::string order;
  int left = 3;
  ASSERT_TRUE(scheduler.add(std::make_shared<CountingJob>([&] {
    all_added.wait();
    return true;
  })));
  for (const char name : {'a', 'b', 'c'}) {
    ASSERT_TRUE(scheduler.add(std::make_shared<CountingJob>([&order, &left, &finished, name, n = 0]() mutable {
      order += name;
      if (++n < 20) return false;
      if (--left == 0) finished.open();
      return true;
    })));
  }
  all_added.open();
  finished.wait();
  ASSERT_EQ(order.size(), 60u);
  for (const char name : {'a', 'b', 'c'}) {  // never more than two steps of others each in between
    size_t before = order.find(name);
    for (size_t at = before; at != std::string::npos; at = order.find(name, at + 1)) {
      EXPECT_LE(at - before, 5u) << order;
      before = at;
    }
  }
}

TEST(Scheduler, RefusesJobsAfterStop) {
  Scheduler scheduler;
  scheduler.stop();
  EXPECT_FALSE(scheduler.add(std::make_shared<CountingJob>([] { return true; })));
}

// One session reads a long text while another generates. The reader of the second is a job of its own, so that both
// are counted in the engine's steps and the machine's load has no say.
TEST(Scheduler, ADecodingSessionIsNotStarvedByAPrefillingOne) {
  const auto model = load("short_128");
  SessionOptions options = with_strategy("streaming_llm(sinks=4, recent=60)");
  options.prefill_block = 16;
  const auto reading = make_session(model, options), talking = make_session(model, options);
  ASSERT_TRUE(reading->feed_tokens(random_tokens(*model, 16 * 400)).ok());
  ASSERT_TRUE(talking->feed_tokens(random_tokens(*model, 10)).ok());
  Gate finished;
  std::vector<int64_t> blocks_at_token;
  std::shared_ptr<GenerationStream> prefill, decode;
  Gate opened;
  ASSERT_TRUE(model->runtime->scheduler().add(std::make_shared<CountingJob>([&] {
    opened.wait();
    const StreamEvent* event = nullptr;
    const auto next = decode->next(0, &event);
    if (!next.ok() || next.value() == NextResult::kEnd) {
      finished.open();
      return true;
    }
    if (next.value() == NextResult::kEvent && event->type == StreamEvent::Type::kToken) {
      blocks_at_token.push_back(stats(*reading).n_prefilled / 16);
    }
    return false;
  })));
  prefill = take(GenerationStream::open(reading, {}));
  decode = take(GenerationStream::open(talking, generating(60)));
  opened.open();
  finished.wait();
  ASSERT_EQ(blocks_at_token.size(), 60u);
  for (size_t t = 1; t < blocks_at_token.size(); ++t) {
    EXPECT_LE(blocks_at_token[t] - blocks_at_token[t - 1], 4) << "token " << t;
  }
  EXPECT_LT(blocks_at_token.back(), 400);  // the other was reading all the time
  EXPECT_GT(blocks_at_token.back(), 40);   // and was not starved either
  prefill->close();
}

}  // namespace
}  // namespace quire::test
