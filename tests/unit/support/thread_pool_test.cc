#include "lib/support/thread_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace quire {
namespace {

TEST(ThreadPool, EveryIndexOnce) {
  for (const int n_threads : {1, 2, 3, 8}) {
    ThreadPool pool(n_threads);
    EXPECT_EQ(pool.n_threads(), n_threads);
    int64_t expected_started = 0;
    for (const int64_t n_tasks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> counts(static_cast<size_t>(n_tasks));
      std::atomic<int> wrong_thread{0};
      EXPECT_TRUE(pool.run(n_tasks, nullptr, [&](int64_t index, int thread) {
        counts[static_cast<size_t>(index)].fetch_add(1);
        if (thread < 0 || thread >= n_threads) wrong_thread.fetch_add(1);
      }));
      for (const auto& count : counts) ASSERT_EQ(count.load(), 1);
      EXPECT_EQ(wrong_thread.load(), 0);
      expected_started += n_tasks;
      EXPECT_EQ(pool.tasks_started(), expected_started);
    }
  }
}

// Plain memory on purpose: a race or a missing barrier shows under ThreadSanitizer, or as a wrong sum.
TEST(ThreadPool, WritesAreVisibleAfterReturnOverManyShortJobs) {
  ThreadPool pool(4);
  std::vector<int64_t> values(16);
  for (int64_t round = 0; round < 5000; ++round) {
    pool.run(16, nullptr, [&](int64_t index, int) { values[static_cast<size_t>(index)] = round * index; });
    for (int64_t i = 0; i < 16; ++i) ASSERT_EQ(values[static_cast<size_t>(i)], round * i);
  }
}

TEST(ThreadPool, AThreadNumberIsNeverUsedTwiceAtOnce) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> busy(4);
  std::atomic<int> clashes{0};
  pool.run(2000, nullptr, [&](int64_t, int thread) {
    if (busy[static_cast<size_t>(thread)].fetch_add(1) != 0) clashes.fetch_add(1);
    busy[static_cast<size_t>(thread)].fetch_sub(1);
  });
  EXPECT_EQ(clashes.load(), 0);
}

TEST(ThreadPool, AfterCancelEachThreadStartsAtMostOneMoreTask) {
  for (const int n_threads : {1, 2, 4}) {
    ThreadPool pool(n_threads);
    CancelToken cancel;
    std::atomic<bool> flag_is_set{false};
    std::vector<std::atomic<int>> started_after(static_cast<size_t>(n_threads));
    const bool complete = pool.run(100'000, &cancel, [&](int64_t index, int thread) {
      // A thread that polled the token just before it was set may be anywhere up to here: one task, no more.
      if (flag_is_set.load()) started_after[static_cast<size_t>(thread)].fetch_add(1);
      if (index == 50) {
        cancel.cancel();
        flag_is_set.store(true);
      }
    });
    EXPECT_FALSE(complete);
    EXPECT_LT(pool.tasks_started(), 100'000);
    for (const auto& count : started_after) EXPECT_LE(count.load(), 1);
  }
}

TEST(ThreadPool, ACancelledTokenStartsNothingAndThePoolGoesOn) {
  ThreadPool pool(3);
  CancelToken cancel;
  cancel.cancel();
  EXPECT_FALSE(pool.run(10, &cancel, [](int64_t, int) { FAIL(); }));
  EXPECT_FALSE(pool.run(1, &cancel, [](int64_t, int) { FAIL(); }));
  EXPECT_EQ(pool.tasks_started(), 0);
  EXPECT_TRUE(pool.run(0, &cancel, [](int64_t, int) { FAIL(); }));  // nothing was left out
  std::atomic<int> n{0};
  EXPECT_TRUE(pool.run(10, nullptr, [&](int64_t, int) { n.fetch_add(1); }));
  EXPECT_EQ(n.load(), 10);
}

TEST(ThreadPool, ACancelDuringTheLastTaskLeavesNothingOut) {
  ThreadPool pool(1);
  CancelToken cancel;
  EXPECT_TRUE(pool.run(3, &cancel, [&](int64_t index, int) {
    if (index == 2) cancel.cancel();
  }));
}

// Threads of this process that neither run nor want to: state S in /proc.
int count_sleeping_threads() {
  int n = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream in(task.path() / "stat");
    std::string stat((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    n += stat.substr(stat.rfind(')') + 1, 2) == " S";
  }
  return n;
}

TEST(ThreadPool, IdleThreadsPark) {
  const int before = count_sleeping_threads();
  ThreadPool pool(4);
  std::atomic<int> n{0};
  pool.run(100, nullptr, [&](int64_t, int) { n.fetch_add(1); });
  // They look for work for a while, and then all three wait. A thread that spins is never found asleep.
  while (count_sleeping_threads() < before + 3) std::this_thread::yield();
  pool.run(100, nullptr, [&](int64_t, int) { n.fetch_add(1); });  // and parked threads wake
  EXPECT_EQ(n.load(), 200);
}

// The clock is the test's, and counts how often the pool looked at it: the caller does when it begins to wait.
class Rests : public testing::Test {
 protected:
  static constexpr int64_t kMs = 1'000'000;

  // Runs a task on each of the two threads; thread 1's calls `late` before it ends.
  void run_late(const std::function<void()>& late) {
    std::atomic<int> arrived{0};
    pool_.run(2, nullptr, [&](int64_t, int thread) {
      arrived.fetch_add(1);
      while (arrived.load() < 2) std::this_thread::yield();
      if (thread == 1) late();
    });
  }
  void lose_core_for(int64_t ns);
  std::set<int> threads_of_a_job() {
    std::set<int> threads;
    std::mutex mutex;
    pool_.run(200, nullptr, [&](int64_t, int thread) {
      std::lock_guard lock(mutex);
      threads.insert(thread);
    });
    return threads;
  }

  std::atomic<int64_t> time_{0};
  std::atomic<int> looks_{0};
  ThreadPool pool_{2, [this] {
                     const int64_t now = time_.load();  // before anyone who waits for the look moves it on
                     looks_.fetch_add(1);
                     looks_.notify_all();
                     return now;
                   }};
};

// Thread 1 does not compute until the caller, which has begun to wait for it, has waited for so long.
void Rests::lose_core_for(int64_t ns) {
  const int before = looks_.load();
  run_late([&] {
    looks_.wait(before);
    time_ += ns;
  });
}

TEST_F(Rests, AThreadThatLostItsCoreRestsForAWhile) {
  lose_core_for(5 * kMs);
  EXPECT_EQ(pool_.n_resting(), 1);
  for (int job = 0; job < 100; ++job) EXPECT_EQ(threads_of_a_job(), std::set<int>{0});
  time_ += 39 * kMs;
  EXPECT_EQ(threads_of_a_job(), std::set<int>{0});
  time_ += 1 * kMs;  // 8 times 5 ms
  run_late([] {});   // which needs both threads
  EXPECT_EQ(pool_.n_resting(), 0);
}

TEST_F(Rests, TheNextRestIsTwiceAsLongIfItComesSoon) {
  const auto expect_rest = [&](int64_t ms) {
    ASSERT_EQ(pool_.n_resting(), 1);
    time_ += (ms - 1) * kMs;
    EXPECT_EQ(threads_of_a_job(), std::set<int>{0}) << ms;
    time_ += kMs;
    run_late([] {});
    EXPECT_EQ(pool_.n_resting(), 0) << ms;
  };
  for (const int64_t ms : {40, 80, 160, 320, 500, 500}) {
    lose_core_for(5 * kMs);
    expect_rest(ms);
  }
  time_ += 500 * kMs;  // as long as the last rest nothing happened
  lose_core_for(5 * kMs);
  expect_rest(40);
  lose_core_for(50 * kMs);
  expect_rest(400);
}

TEST_F(Rests, AThreadThatIsLittleLateDoesNot) {
  lose_core_for(kMs / 2 - 1);
  EXPECT_EQ(pool_.n_resting(), 0);
}

// A long task is no reason: its thread computes while it is waited for.
TEST_F(Rests, AThreadThatComputesDoesNot) {
  run_late([&] {
    looks_.wait(0);
    timespec begin, now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    do {
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    } while ((now.tv_sec - begin.tv_sec) * 1000 * kMs + now.tv_nsec - begin.tv_nsec < 20 * kMs);
    time_ += 5 * kMs;
  });
  EXPECT_EQ(pool_.n_resting(), 0);
}

TEST_F(Rests, ThePoolEndsWhileAThreadRests) {
  lose_core_for(5 * kMs);
  pool_.stop();
  EXPECT_EQ(threads_of_a_job(), std::set<int>{0});
}

TEST(ThreadPool, WorkersAreNamedAndBlockSignals) {
  ThreadPool pool(2);
  std::mutex mutex;
  std::set<std::string> names;
  bool blocked = true;
  // Two tasks that wait for each other run on two threads.
  std::atomic<int> arrived{0};
  pool.run(2, nullptr, [&](int64_t, int thread) {
    arrived.fetch_add(1);
    while (arrived.load() < 2) std::this_thread::yield();
    if (thread == 0) return;
    char name[16] = {};
    pthread_getname_np(pthread_self(), name, sizeof name);
    sigset_t set;
    pthread_sigmask(SIG_BLOCK, nullptr, &set);
    std::lock_guard lock(mutex);
    names.insert(name);
    blocked = blocked && sigismember(&set, SIGINT) == 1 && sigismember(&set, SIGTERM) == 1;
  });
  EXPECT_EQ(names, std::set<std::string>{"quire-1"});
  EXPECT_TRUE(blocked);
}

}  // namespace
}  // namespace quire
