// The runtime's compute threads. One caller at a time hands out numbered tasks; the threads and the caller take them.
//
// A thread whose core another program takes in the middle of a task keeps all others waiting for it until it gets the
// core back, some milliseconds later. Such a thread rests: for several times as long as it was waited for the others
// compute without it, and for longer each time that it happens again, so that what is lost stays a small part of the
// time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "lib/support/cancel.h"
#include "lib/support/mutex.h"
#include "lib/support/status.h"

namespace quire {

class ThreadPool {
 public:
  using Now = std::function<int64_t()>;

  // Threads that compute, the caller of run() among them: n_threads - 1 are started here. now: nanoseconds of a clock
  // that never goes back; tests have their own.
  explicit ThreadPool(int n_threads, Now now = steady_now_ns);
  ~ThreadPool();  // stops
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Ends the threads and waits until they are gone. No run() may be active; later ones compute on their caller alone.
  void stop();

  int n_threads() const { return n_threads_; }

  // Calls task(index, thread) for every index in [0, n_tasks), each once, on any thread (thread in
  // [0, n_threads)); returns when all are done. If `cancel` is set, no task is started afterwards and the result is
  // false: some tasks were left out. Tasks must not throw. Memory written by tasks is visible after the return.
  bool run(int64_t n_tasks, const CancelToken* cancel, const std::function<void(int64_t, int)>& task);

  // Threads that rest. Where run() is called.
  int n_resting() const { return n_resting_; }

  // Tasks started since creation. Any thread.
  int64_t tasks_started() const { return tasks_started_.load(std::memory_order_relaxed); }

 private:
  struct Job;
  struct Worker {
    std::thread thread;
    std::atomic<bool> inside{false};   // may touch the current job; raised after, and lowered before, inside_ counts it
    std::atomic<bool> resting{false};  // takes no tasks; written by the caller of run()
    // The caller's of run():
    int64_t rest_ns = 0;  // how long its last rest was
    int64_t rests_until = 0;
    int64_t cpu_ns = -1;  // its CPU time when the caller began to wait for it; negative: it is not waited for
  };

  static int64_t steady_now_ns();
  void work(int thread);
  void take_tasks(Job& job, int thread);
  void end_rests();
  void wait_for_workers();
  void begin_rests(int64_t waited_ns);

  const int n_threads_;
  const Now now_;
  std::vector<std::unique_ptr<Worker>> workers_;
  int n_resting_ = 0;  // the caller's of run()
  std::atomic<int64_t> tasks_started_{0};
  std::atomic<uint64_t> generation_{0};  // one more per job; threads wait for it to change
  std::atomic<Job*> job_{nullptr};
  std::atomic<int> inside_{0};  // workers that may touch the current job
  std::atomic<int> parked_{0};
  std::atomic<bool> stop_{false};
  Mutex mutex_;  // between looking at generation_ and parking; guards no member
  CondVar wake_;
};

// `wanted` threads, or (0) one for each processor that this process may use.
int thread_count(int wanted);

// Calls start(), which starts threads. kOutOfMemory: the system has no more of them.
template <typename Start>
Status start_threads(const Start& start) {
  try {
    start();
    return {};
  } catch (const std::system_error& e) {
    return Status(Code::kOutOfMemory, std::string("cannot start threads: ") + e.what(), -1, e.code().value());
  }
}

// Names the calling thread, blocks all signals in it, and lets its naps end when they are due.
void prepare_compute_thread(const char* name);

}  // namespace quire
