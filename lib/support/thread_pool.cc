#include "lib/support/thread_pool.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <string>

namespace quire {
namespace {

// A decode step hands out a job every few microseconds; waking a parked thread costs more than that. So a thread
// looks for the next job for a while before it parks, and gives the core away while it looks.
constexpr int kSpinRounds = 2000;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

struct ThreadPool::Job {
  const std::function<void(int64_t, int)>* task;
  const CancelToken* cancel;
  int64_t n_tasks;
  std::atomic<int64_t> next{0};
  std::atomic<bool> skipped{false};
};

int thread_count(int wanted) {
  return wanted > 0 ? wanted : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void prepare_compute_thread(const char* name) {
#if defined(__linux__)
  pthread_setname_np(pthread_self(), name);
#endif
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

ThreadPool::ThreadPool(int n_threads) : n_threads_(n_threads) {
  workers_.reserve(static_cast<size_t>(n_threads - 1));
  try {
    for (int t = 1; t < n_threads; ++t) workers_.emplace_back([this, t] { work(t); });
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stop_ = true;
  generation_.fetch_add(1);
  { MutexLock lock(mutex_); }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
  workers_.clear();
}

void ThreadPool::take_tasks(Job& job, int thread) {
  for (;;) {
    if (job.next.load(std::memory_order_relaxed) >= job.n_tasks) return;
    if (job.cancel && job.cancel->cancelled()) {
      job.skipped.store(true, std::memory_order_relaxed);
      return;
    }
    const int64_t index = job.next.fetch_add(1, std::memory_order_relaxed);
    if (index >= job.n_tasks) return;
    tasks_started_.fetch_add(1, std::memory_order_relaxed);
    (*job.task)(index, thread);
  }
}

bool ThreadPool::run(int64_t n_tasks, const CancelToken* cancel, const std::function<void(int64_t, int)>& task) {
  if (n_tasks <= 0) return true;
  Job job{&task, cancel, n_tasks};
  if (n_tasks == 1 || workers_.empty()) {
    take_tasks(job, 0);
  } else {
    job_.store(&job);
    generation_.fetch_add(1);
    if (parked_.load() > 0) {
      { MutexLock lock(mutex_); }
      wake_.notify_all();
    }
    take_tasks(job, 0);
    job_.store(nullptr);
    // A worker that saw the job counts itself in `inside_` first; wait until none is left.
    for (int spin = 0; inside_.load() != 0; ++spin) {
      if (spin < kSpinRounds) {
        relax();
      } else {
        std::this_thread::yield();
      }
    }
  }
  return !job.skipped.load();
}

void ThreadPool::work(int thread) {
  prepare_compute_thread(("quire-" + std::to_string(thread)).c_str());
  uint64_t seen = 0;
  for (;;) {
    for (int spin = 0; generation_.load() == seen && spin < kSpinRounds; ++spin) relax();
    if (generation_.load() == seen) {
      MutexLock lock(mutex_);
      parked_.fetch_add(1);
      while (generation_.load() == seen) wake_.wait(mutex_);
      parked_.fetch_sub(1);
    }
    seen = generation_.load();
    if (stop_.load()) return;  // after: stop() raises stop_ and then the generation
    inside_.fetch_add(1);
    if (Job* job = job_.load()) take_tasks(*job, thread);
    inside_.fetch_sub(1);
  }
}

}  // namespace quire
