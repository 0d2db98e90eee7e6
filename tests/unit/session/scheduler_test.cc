// Who computes when, counted in steps.

#include "lib/session/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>

#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

class CountingJob : public HostJob {
 public:
  explicit CountingJob(std::function<bool()> step) : step_(std::move(step)) {}
  bool ready() override { return true; }
  bool step() override { return step_(); }

 private:
  std::function<bool()> step_;
};

using Steps = std::vector<std::string>;

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

// What goes while the runtime closes may wait for other threads that are in the host's callbacks: not on these.
TEST(Scheduler, DestroysWhatGoesAfterStopWhenItIsDrained) {
  struct Counted : Disposable {
    explicit Counted(std::function<void()> at_end) : at_end_(std::move(at_end)) {}
    ~Counted() override { at_end_(); }
    std::function<void()> at_end_;
  };
  int n_gone = 0;
  Scheduler scheduler;
  scheduler.stop();
  scheduler.dispose(std::make_unique<Counted>([&] {
    scheduler.dispose(std::make_unique<Counted>([&] { ++n_gone; }));
    ++n_gone;
  }));
  EXPECT_EQ(n_gone, 0);
  scheduler.drain();
  EXPECT_EQ(n_gone, 2);
  scheduler.dispose(std::make_unique<Counted>([&] { ++n_gone; }));
  EXPECT_EQ(n_gone, 3);
}

// A job that shares its steps: writes down with whom it takes them.
class Member : public Job {
 public:
  Member(char name, const void* pass, int n_steps, std::vector<std::string>& log)
      : name_(name), pass_(pass), left_(n_steps), log_(log) {}

  bool ready() override { return is_ready(); }
  const void* pass() override { return pass_; }
  bool shares_step() override { return shares; }
  void submit(std::span<Job* const> jobs) override {
    std::string names;
    for (Job* job : jobs) names += static_cast<Member*>(job)->name_;
    EXPECT_EQ(names[0], name_);
    std::sort(names.begin(), names.end());
    log_.push_back(names);
  }
  bool submitted_is_done() override { return true; }
  void collect(std::span<Job* const> jobs, std::span<bool> finished) override {
    for (size_t i = 0; i < jobs.size(); ++i) finished[i] = static_cast<Member*>(jobs[i])->finish();
  }

  bool shares = true;
  std::function<bool()> is_ready = [] { return true; };
  std::function<void()> on_finish = [] {};

 private:
  bool finish() {
    if (--left_ > 0) return false;
    on_finish();
    return true;
  }

  char name_;
  const void* pass_;
  int left_;
  std::vector<std::string>& log_;
};

// Runs members from a common start until all have finished.
class Groups : public testing::Test {
 protected:
  std::shared_ptr<Member> add(char name, const void* pass, int n_steps) {
    auto member = std::make_shared<Member>(name, pass, n_steps, log_);
    ++running_;
    member->on_finish = [this] {
      if (--running_ == 0) finished_.open();
    };
    members_.push_back(member);
    return member;
  }
  void run_all() {
    Gate all_added;
    ASSERT_TRUE(scheduler_.add(std::make_shared<CountingJob>([&] {
      all_added.wait();
      return true;
    })));
    for (const auto& member : members_) ASSERT_TRUE(scheduler_.add(member));
    all_added.open();
    finished_.wait();
    scheduler_.stop();
  }
  // Steps in which `name` took part.
  std::vector<std::string> steps_of(char name) const {
    std::vector<std::string> steps;
    for (const std::string& step : log_) {
      if (step.find(name) != std::string::npos) steps.push_back(step);
    }
    return steps;
  }
  const int one_ = 1, other_ = 2;  // their addresses name passes
  std::vector<std::string> log_;
  int running_ = 0;
  Gate finished_;
  std::vector<std::shared_ptr<Member>> members_;
  Scheduler scheduler_;
};

TEST_F(Groups, ReadyMembersTakeStepsTogether) {
  add('a', &one_, 2), add('x', &other_, 3), add('b', &one_, 4), add('n', nullptr, 3), add('m', nullptr, 2);
  add('c', &one_, 3), add('y', &other_, 3);
  run_all();
  EXPECT_EQ(steps_of('b'), (Steps{"abc", "abc", "bc", "b"}));  // who has finished is not asked again
  EXPECT_EQ(steps_of('a').size(), 2u);
  EXPECT_EQ(steps_of('c').size(), 3u);
  EXPECT_EQ(steps_of('x'), (Steps{"xy", "xy", "xy"}));
  EXPECT_EQ(steps_of('n'), (Steps{"n", "n", "n"}));
  EXPECT_EQ(steps_of('m'), (Steps{"m", "m"}));
}

TEST_F(Groups, AreNoLargerThanTheLimit) {
  for (char name = 'a'; name < 'a' + 20; ++name) add(name, &one_, 6);
  run_all();
  size_t steps = 0;
  for (const std::string& step : log_) {
    EXPECT_LE(step.size(), Job::kMostTogether);
    steps += step.size();
  }
  EXPECT_EQ(steps, 20u * 6);
  EXPECT_EQ(log_[0].size(), Job::kMostTogether);
}

// However many share a step: it is the turn of all of them.
TEST_F(Groups, TakeOneTurn) {
  for (const char name : {'a', 'b', 'c'}) add(name, &one_, 4);
  add('p', &one_, 4)->shares = false;
  add('n', nullptr, 4);
  run_all();
  Steps steps;
  for (int turn = 0; turn < 4; ++turn) steps.insert(steps.end(), {"abc", "p", "n"});
  EXPECT_EQ(log_, steps);
}

// A member of the last step that is not ready yet but says so soon is waited for; asking is done on the engine thread.
TEST_F(Groups, WaitForThoseOfTheLastStep) {
  add('a', &one_, 3);
  const auto b = add('b', &one_, 3);
  bool late = false;
  b->is_ready = [&] {
    if (log_.size() != 1 || late) return true;
    late = true;
    scheduler_.wake();
    return false;
  };
  run_all();
  EXPECT_TRUE(late);
  EXPECT_EQ(log_, (Steps{"ab", "ab", "ab"}));
}

TEST_F(Groups, DoNotWaitForOthers) {
  add('a', &one_, 3);
  const auto b = add('b', &one_, 1);
  b->is_ready = [&] { return log_.size() >= 2; };  // was never in a step
  run_all();
  EXPECT_EQ(steps_of('a'), (Steps{"a", "a", "ab"}));
}

TEST_F(Groups, DoNotWaitLong) {
  add('a', &one_, 4);
  const auto b = add('b', &one_, 2);
  b->is_ready = [&] { return log_.size() != 1 && log_.size() != 2; };  // leaves after the first step, and comes back
  run_all();
  EXPECT_EQ(log_, (Steps{"ab", "a", "a", "ab"}));
}

// A job whose steps are on a device until the test says that they are done.
class DeviceJob : public Job {
 public:
  DeviceJob(std::string name, const void* pass, int n_steps, std::vector<std::string>& log)
      : name_(std::move(name)), pass_(pass), left_(n_steps), log_(log) {}

  bool ready() override {
    EXPECT_FALSE(under_way_);
    return is_ready();
  }
  const void* pass() override { return pass_; }
  void submit(std::span<Job* const> jobs) override {
    EXPECT_EQ(jobs.size(), 1u);
    under_way_ = true;
    log_.push_back(name_ + " begins");
    on_submit();
  }
  bool submitted_is_done() override { return done; }
  void collect(std::span<Job* const>, std::span<bool> finished) override {
    under_way_ = false;
    log_.push_back(name_ + " ends");
    finished[0] = --left_ == 0;
    on_collect();
  }

  std::atomic<bool> done{false};
  std::function<bool()> is_ready = [] { return true; };
  std::function<void()> on_submit = [] {}, on_collect = [] {};

 private:
  std::string name_;
  const void* pass_;
  int left_;
  std::vector<std::string>& log_;
  bool under_way_ = false;
};

// While the device is busy with one step the engine gives steps to others; not on the same pass.
TEST(Scheduler, ServesOthersWhileAStepIsUnderWay) {
  Scheduler scheduler;
  Steps log;
  Gate all_added, finished;
  const int one = 1, two = 2;
  const auto slow = std::make_shared<DeviceJob>("slow", &one, 1, log);
  const auto same = std::make_shared<DeviceJob>("same pass", &one, 1, log);
  const auto other = std::make_shared<DeviceJob>("other pass", &two, 2, log);
  same->done = other->done = true;
  same->is_ready = other->is_ready = [&] { return !log.empty(); };  // slow is first
  same->on_collect = [&] { finished.open(); };
  ASSERT_TRUE(scheduler.add(std::make_shared<CountingJob>([&] {
    all_added.wait();
    return true;
  })));
  for (const auto& job : {slow, same, other}) ASSERT_TRUE(scheduler.add(job));
  ASSERT_TRUE(scheduler.add(std::make_shared<CountingJob>([&] {
    slow->done = log.size() == 5;
    return slow->done.load();
  })));
  all_added.open();
  finished.wait();
  scheduler.stop();
  EXPECT_EQ(log, (Steps{"slow begins", "other pass begins", "other pass ends", "other pass begins", "other pass ends",
                        "slow ends", "same pass begins", "same pass ends"}));
}

// Nobody calls wake() when a device is done: it is asked.
TEST(Scheduler, AsksADeviceWhetherItIsDone) {
  Scheduler scheduler;
  Steps log;
  Gate submitted, finished;
  const int pass = 1;
  const auto job = std::make_shared<DeviceJob>("a", &pass, 1, log);
  job->on_submit = [&] { submitted.open(); };
  job->on_collect = [&] { finished.open(); };
  ASSERT_TRUE(scheduler.add(job));
  submitted.wait();
  job->done = true;
  finished.wait();
  scheduler.stop();
  EXPECT_EQ(log, (Steps{"a begins", "a ends"}));
}

TEST(Scheduler, EndsStepsThatAreUnderWayBeforeItStops) {
  Steps log;
  const int passes[] = {1, 2};
  {
    Scheduler scheduler;
    Gate submitted;
    const auto a = std::make_shared<DeviceJob>("a", &passes[0], 2, log);
    const auto b = std::make_shared<DeviceJob>("b", &passes[1], 2, log);
    b->on_submit = [&] { submitted.open(); };
    ASSERT_TRUE(scheduler.add(a));
    ASSERT_TRUE(scheduler.add(b));
    submitted.wait();
    scheduler.stop();
    EXPECT_EQ(a.use_count(), 1);
    EXPECT_EQ(b.use_count(), 1);
  }
  std::sort(log.begin(), log.end());
  EXPECT_EQ(log, (Steps{"a begins", "a ends", "b begins", "b ends"}));
}

// More devices are busy than the engine keeps steps of: others wait for their turn, and the host's jobs do not.
TEST(Scheduler, KeepsSomeStepsUnderWayAtOnce) {
  Scheduler scheduler;
  Steps log;
  Gate all_added, finished;
  const int passes[12] = {};
  std::vector<std::shared_ptr<DeviceJob>> jobs;
  int left = 12, under_way = 0, most = 0;
  ASSERT_TRUE(scheduler.add(std::make_shared<CountingJob>([&] {
    all_added.wait();
    return true;
  })));
  for (const int& pass : passes) {
    jobs.push_back(std::make_shared<DeviceJob>("a", &pass, 1, log));
    jobs.back()->on_submit = [&] { most = std::max(most, ++under_way); };
    jobs.back()->on_collect = [&] {
      --under_way;
      if (--left == 0) finished.open();
    };
    ASSERT_TRUE(scheduler.add(jobs.back()));
  }
  int host_steps = 0;
  ASSERT_TRUE(scheduler.add(std::make_shared<CountingJob>([&] {
    if (++host_steps < 20) return false;
    EXPECT_EQ(left, 12);
    for (const auto& job : jobs) job->done = true;
    return true;
  })));
  all_added.open();
  finished.wait();
  EXPECT_GT(most, 1);
  EXPECT_LT(most, 12);
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
