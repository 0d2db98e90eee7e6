#include "lib/session/scheduler.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "lib/support/mutex.h"
#include "lib/support/thread_pool.h"

namespace quire {
namespace {

constexpr std::chrono::milliseconds kMostPatience{2};

}  // namespace

struct Scheduler::State {
  // The engine thread.
  void run() QUIRE_EXCLUDES(mutex);
  bool step_next() QUIRE_REQUIRES(mutex);
  void step_group(const std::shared_ptr<Job>& first) QUIRE_EXCLUDES(mutex);
  size_t gather(const void* group, std::span<std::shared_ptr<Job>> members) QUIRE_EXCLUDES(mutex);

  Mutex mutex;
  CondVar changed;
  std::vector<std::shared_ptr<Job>> jobs QUIRE_GUARDED_BY(mutex);  // the engine thread alone removes them
  Disposable* trash QUIRE_GUARDED_BY(mutex) = nullptr;             // a list, last in first
  bool awake QUIRE_GUARDED_BY(mutex) = false;
  bool stop QUIRE_GUARDED_BY(mutex) = false;

  // The engine thread's alone.
  size_t next = 0;
  std::array<const Job*, Job::kMostTogether> company{};  // who took part in the last step
  std::chrono::steady_clock::duration last_step{};
};

void Job::step_together(std::span<Job* const> jobs, std::span<bool> finished) {
  for (size_t i = 0; i < jobs.size(); ++i) finished[i] = jobs[i]->step();
}

Scheduler::Scheduler() : state_(std::make_shared<State>()) {
  thread_ = std::thread([state = state_] { state->run(); });
}

Scheduler::~Scheduler() {
  if (!thread_.joinable()) return;
  if (std::this_thread::get_id() == thread_.get_id()) {
    // The last reference to the runtime went away inside a step: the thread ends by itself.
    {
      MutexLock lock(state_->mutex);
      state_->stop = true;
    }
    thread_.detach();
  } else {
    stop();
  }
}

bool Scheduler::add(std::shared_ptr<Job> job) {
  {
    MutexLock lock(state_->mutex);
    if (state_->stop) return false;
    state_->jobs.push_back(std::move(job));
    state_->awake = true;
  }
  state_->changed.notify_one();
  return true;
}

void Scheduler::wake() {
  {
    MutexLock lock(state_->mutex);
    state_->awake = true;
  }
  state_->changed.notify_one();
}

void Scheduler::dispose(std::unique_ptr<Disposable> object) noexcept {
  {
    MutexLock lock(state_->mutex);
    if (!state_->stop) {
      object->next_ = state_->trash;
      state_->trash = object.release();
      state_->awake = true;
    }
  }
  state_->changed.notify_one();
}

void Scheduler::stop() {
  {
    MutexLock lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Scheduler::destroy_all(Disposable* first) {
  while (first) delete std::exchange(first, first->next_);
}

// Gives the first job that is ready a step. The mutex is free while a job works or goes.
bool Scheduler::State::step_next() {
  // Others only append meanwhile: this thread alone removes jobs.
  const size_t n = jobs.size();
  const size_t start = n == 0 ? 0 : next++ % n;
  for (size_t i = 0; i < n; ++i) {
    std::shared_ptr<Job> job = jobs[(start + i) % n];
    mutex.unlock();
    const bool ready = job->ready();
    if (ready) step_group(job);
    job.reset();  // may have been the last reference to a job, a session, the runtime
    mutex.lock();
    if (ready) return true;
  }
  return false;
}

// Puts ready jobs of the group behind members[0] and returns how many there are then. Waits a little for those that
// were in the last step.
size_t Scheduler::State::gather(const void* group, std::span<std::shared_ptr<Job>> members) {
  size_t n = 1;
  // A fraction of a step is a good price for sharing one.
  const auto patience = CondVar::Clock::now() + std::min<CondVar::Clock::duration>(last_step / 4, kMostPatience);
  for (;;) {
    MutexLock lock(mutex);
    awake = false;
    bool waiting = false;
    const size_t n_jobs = jobs.size();
    for (size_t at = 0; at < n_jobs && n < members.size(); ++at) {
      std::shared_ptr<Job> job = jobs[at];
      mutex.unlock();
      const auto end = members.begin() + static_cast<std::ptrdiff_t>(n);
      if (std::find(members.begin(), end, job) == end && job->group() == group) {
        if (job->ready()) {
          members[n++] = std::move(job);
        } else {
          waiting = waiting || std::find(company.begin(), company.end(), job.get()) != company.end();
        }
      }
      job.reset();
      mutex.lock();
    }
    if (!waiting || n == members.size()) return n;
    while (!awake && !stop) {
      if (!changed.wait_until(mutex, patience)) return n;
    }
    if (stop) return n;
  }
}

// The step of `first`, together with the others of its group that are ready.
void Scheduler::State::step_group(const std::shared_ptr<Job>& first) {
  std::array<std::shared_ptr<Job>, Job::kMostTogether> members{first};
  const void* group = first->group();
  const size_t n = group ? gather(group, members) : 1;
  const auto work = CondVar::Clock::now();
  std::array<bool, Job::kMostTogether> finished{};
  if (n == 1) {
    finished[0] = first->step();
  } else {
    std::array<Job*, Job::kMostTogether> borrowed{};
    for (size_t i = 0; i < n; ++i) borrowed[i] = members[i].get();
    first->step_together(std::span(borrowed).first(n), std::span(finished).first(n));
  }
  last_step = CondVar::Clock::now() - work;
  company = {};
  MutexLock lock(mutex);
  for (size_t i = 0; i < n; ++i) {
    if (finished[i]) {
      std::erase(jobs, members[i]);
    } else {
      company[i] = members[i].get();
    }
  }
}

void Scheduler::State::run() {
  prepare_compute_thread("quire-0");
  std::vector<std::shared_ptr<Job>> dropped;
  Disposable* left = nullptr;
  {
    MutexLock lock(mutex);
    while (!stop) {
      if (trash) {
        Disposable* gone = std::exchange(trash, nullptr);
        mutex.unlock();
        destroy_all(gone);
        mutex.lock();
        continue;
      }
      awake = false;
      if (step_next()) continue;
      while (!awake && !stop) changed.wait(mutex);
    }
    dropped = std::exchange(jobs, {});
    left = std::exchange(trash, nullptr);
  }
  dropped.clear();
  destroy_all(left);
}

}  // namespace quire
