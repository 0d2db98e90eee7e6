// The runtime's compute threads. One caller at a time hands out numbered tasks; the threads and the caller take them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "lib/support/cancel.h"
#include "lib/support/mutex.h"

namespace quire {

class ThreadPool {
 public:
  // Threads that compute, the caller of run() among them: n_threads - 1 are started here.
  explicit ThreadPool(int n_threads);
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

  // Tasks started since creation. Any thread.
  int64_t tasks_started() const { return tasks_started_.load(std::memory_order_relaxed); }

 private:
  struct Job;
  void work(int thread);
  void take_tasks(Job& job, int thread);

  const int n_threads_;
  std::vector<std::thread> workers_;
  std::atomic<int64_t> tasks_started_{0};
  std::atomic<uint64_t> generation_{0};  // one more per job; threads wait for it to change
  std::atomic<Job*> job_{nullptr};
  std::atomic<int> inside_{0};  // workers that may touch the current job
  std::atomic<int> parked_{0};
  std::atomic<bool> stop_{false};
  Mutex mutex_;  // between looking at generation_ and parking; guards no member
  CondVar wake_;
};

// `wanted` threads, or (0) one for each core.
int thread_count(int wanted);

// Names the calling thread and blocks all signals in it.
void prepare_compute_thread(const char* name);

}  // namespace quire
