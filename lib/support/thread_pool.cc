#include "lib/support/thread_pool.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "lib/support/os_processors.h"
#include "lib/support/os_timer_slack.h"

namespace quire {
namespace {

// A decode step hands out a job every few microseconds; waking a parked thread costs more than that. So a thread
// looks for the next job for a while before it parks, and gives the core away while it looks.
constexpr int kSpinRounds = 2000;

// A thread that was waited for this long, and computed for less than half of it, has lost its core.
constexpr int64_t kLateNs = 500'000;
// It rests for so many times as long. One that loses its core again soon after a rest rests twice as long as before, at
// most this long: whoever took the core may be gone by then.
constexpr int64_t kRestFactor = 8;
constexpr int64_t kMostRestNs = 500'000'000;

// The time that a thread has computed so far; negative: this system does not say.
int64_t cpu_time_ns(std::thread& thread) {
#if defined(__linux__)
  clockid_t clock;
  timespec time;
  if (pthread_getcpuclockid(thread.native_handle(), &clock) != 0 || clock_gettime(clock, &time) != 0) return -1;
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
#else
  (void)thread;
  return -1;
#endif
}

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

int thread_count(int wanted) { return wanted > 0 ? wanted : os_usable_processors(); }

void prepare_compute_thread(const char* name) {
#if defined(__linux__)
  pthread_setname_np(pthread_self(), name);
#endif
  end_naps_on_time();
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

int64_t ThreadPool::steady_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

ThreadPool::ThreadPool(int n_threads, Now now) : n_threads_(n_threads), now_(std::move(now)) {
  workers_.reserve(static_cast<size_t>(n_threads - 1));
  for (int t = 1; t < n_threads; ++t) workers_.push_back(std::make_unique<Worker>());
  try {
    for (int t = 1; t < n_threads; ++t)
      workers_[static_cast<size_t>(t - 1)]->thread = std::thread([this, t] { work(t); });
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
  for (auto& worker : workers_) {
    if (worker->thread.joinable()) worker->thread.join();
  }
  workers_.clear();
  n_resting_ = 0;
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
  if (n_resting_ > 0) end_rests();
  if (n_tasks == 1 || static_cast<size_t>(n_resting_) == workers_.size()) {
    take_tasks(job, 0);
  } else {
    job_.store(&job);
    generation_.fetch_add(1);
    if (parked_.load() > n_resting_) {  // threads that rest are parked, or will be in a moment
      { MutexLock lock(mutex_); }
      wake_.notify_all();
    }
    take_tasks(job, 0);
    job_.store(nullptr);
    wait_for_workers();
  }
  return !job.skipped.load();
}

// A worker that saw the job counts itself in `inside_` first; waits until none is left.
void ThreadPool::wait_for_workers() {
  for (int spin = 0; inside_.load() != 0 && spin < kSpinRounds; ++spin) relax();
  if (inside_.load() == 0) return;
  for (const auto& worker : workers_) worker->cpu_ns = worker->inside.load() ? cpu_time_ns(worker->thread) : -1;
  const int64_t begin = now_();
  while (inside_.load() != 0) std::this_thread::yield();
  const int64_t waited = now_() - begin;
  if (waited >= kLateNs) begin_rests(waited);
}

void ThreadPool::begin_rests(int64_t waited_ns) {
  for (const auto& worker : workers_) {
    if (worker->cpu_ns < 0 || cpu_time_ns(worker->thread) - worker->cpu_ns >= waited_ns / 2) continue;
    const int64_t now = now_();
    const bool again = now - worker->rests_until < worker->rest_ns;
    worker->rest_ns = std::min(kMostRestNs, std::max(kRestFactor * waited_ns, again ? 2 * worker->rest_ns : 0));
    worker->rests_until = now + worker->rest_ns;
    // A thread that looked just before its rest began may take part once more, and be late again.
    if (!worker->resting.exchange(true)) ++n_resting_;
  }
}

void ThreadPool::end_rests() {
  const int64_t now = now_();
  for (const auto& worker : workers_) {
    if (!worker->resting.load(std::memory_order_relaxed) || now < worker->rests_until) continue;
    worker->resting.store(false);
    --n_resting_;
  }
}

void ThreadPool::work(int thread) {
  prepare_compute_thread(("quire-" + std::to_string(thread)).c_str());
  Worker& self = *workers_[static_cast<size_t>(thread - 1)];
  uint64_t seen = 0;
  for (;;) {
    const int rounds = self.resting.load() ? 0 : kSpinRounds;
    for (int spin = 0; generation_.load() == seen && spin < rounds; ++spin) relax();
    if (generation_.load() == seen) {
      MutexLock lock(mutex_);
      parked_.fetch_add(1);
      while (generation_.load() == seen) wake_.wait(mutex_);
      parked_.fetch_sub(1);
    }
    seen = generation_.load();
    if (stop_.load()) return;  // after: stop() raises stop_ and then the generation
    if (self.resting.load()) continue;
    inside_.fetch_add(1);
    self.inside.store(true);
    if (Job* job = job_.load()) take_tasks(*job, thread);
    self.inside.store(false);
    inside_.fetch_sub(1);
  }
}

}  // namespace quire
