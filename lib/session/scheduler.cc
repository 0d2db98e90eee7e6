#include "lib/session/scheduler.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "lib/support/thread_pool.h"

namespace quire {
namespace {

constexpr std::chrono::milliseconds kMostPatience{2};

}  // namespace

struct Scheduler::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::shared_ptr<Job>> jobs;
  Disposable* trash = nullptr;  // a list, last in first
  size_t next = 0;
  std::array<const Job*, Job::kMostTogether> company{};  // who took part in the last step
  std::chrono::steady_clock::duration last_step{};
  bool awake = false;
  bool stop = false;
};

void Job::step_together(std::span<Job* const> jobs, std::span<bool> finished) {
  for (size_t i = 0; i < jobs.size(); ++i) finished[i] = jobs[i]->step();
}

Scheduler::Scheduler() : state_(std::make_shared<State>()) {
  thread_ = std::thread([state = state_] { run(*state); });
}

Scheduler::~Scheduler() {
  if (!thread_.joinable()) return;
  if (std::this_thread::get_id() == thread_.get_id()) {
    // The last reference to the runtime went away inside a step: the thread ends by itself.
    {
      std::lock_guard lock(state_->mutex);
      state_->stop = true;
    }
    thread_.detach();
  } else {
    stop();
  }
}

bool Scheduler::add(std::shared_ptr<Job> job) {
  {
    std::lock_guard lock(state_->mutex);
    if (state_->stop) return false;
    state_->jobs.push_back(std::move(job));
    state_->awake = true;
  }
  state_->changed.notify_one();
  return true;
}

void Scheduler::wake() {
  {
    std::lock_guard lock(state_->mutex);
    state_->awake = true;
  }
  state_->changed.notify_one();
}

void Scheduler::dispose(std::unique_ptr<Disposable> object) noexcept {
  {
    std::lock_guard lock(state_->mutex);
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
    std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Scheduler::destroy_all(Disposable* first) {
  while (first) delete std::exchange(first, first->next_);
}

// Gives the first job that is ready a step. The lock is held on entry and return, never while a job works or goes.
bool Scheduler::step_next(State& state, std::unique_lock<std::mutex>& lock) {
  // Others only append meanwhile: this thread alone removes jobs.
  const size_t n = state.jobs.size();
  const size_t start = n == 0 ? 0 : state.next++ % n;
  for (size_t i = 0; i < n; ++i) {
    std::shared_ptr<Job> job = state.jobs[(start + i) % n];
    lock.unlock();
    const bool ready = job->ready();
    if (ready) step_group(state, lock, job);
    job.reset();  // may have been the last reference to a job, a session, the runtime
    lock.lock();
    if (ready) return true;
  }
  return false;
}

// The step of `first`, together with the others of its group that are ready. The lock is free on entry and return.
void Scheduler::step_group(State& state, std::unique_lock<std::mutex>& lock, const std::shared_ptr<Job>& first) {
  std::array<std::shared_ptr<Job>, Job::kMostTogether> jobs{first};
  size_t n = 1;
  if (const void* group = first->group()) {
    // A fraction of a step is a good price for sharing one.
    const auto patience = std::chrono::steady_clock::now() +
                          std::min<std::chrono::steady_clock::duration>(state.last_step / 4, kMostPatience);
    for (bool waiting = true; waiting;) {
      waiting = false;
      lock.lock();
      state.awake = false;
      const size_t n_jobs = state.jobs.size();
      lock.unlock();
      for (size_t at = 0; at < n_jobs && n < jobs.size(); ++at) {
        lock.lock();
        std::shared_ptr<Job> job = state.jobs[at];
        lock.unlock();
        if (std::find(jobs.begin(), jobs.begin() + n, job) != jobs.begin() + n || job->group() != group) continue;
        if (job->ready()) {
          jobs[n++] = std::move(job);
        } else {
          const auto& before = state.company;
          waiting = waiting || std::find(before.begin(), before.end(), job.get()) != before.end();
        }
      }
      if (!waiting || n == jobs.size()) break;
      lock.lock();
      waiting = state.changed.wait_until(lock, patience, [&] { return state.awake || state.stop; }) && !state.stop;
      lock.unlock();
    }
  }
  const auto work = std::chrono::steady_clock::now();
  std::array<bool, Job::kMostTogether> finished{};
  if (n == 1) {
    finished[0] = first->step();
  } else {
    std::array<Job*, Job::kMostTogether> members{};
    for (size_t i = 0; i < n; ++i) members[i] = jobs[i].get();
    first->step_together(std::span(members).first(n), std::span(finished).first(n));
  }
  state.last_step = std::chrono::steady_clock::now() - work;
  lock.lock();
  state.company = {};
  for (size_t i = 0; i < n; ++i) {
    if (finished[i]) {
      std::erase(state.jobs, jobs[i]);
    } else {
      state.company[i] = jobs[i].get();
    }
  }
  lock.unlock();
}

void Scheduler::run(State& state) {
  prepare_compute_thread("quire-0");
  std::unique_lock lock(state.mutex);
  while (!state.stop) {
    if (state.trash) {
      Disposable* trash = std::exchange(state.trash, nullptr);
      lock.unlock();
      destroy_all(trash);
      lock.lock();
      continue;
    }
    state.awake = false;
    if (!step_next(state, lock)) state.changed.wait(lock, [&] { return state.awake || state.stop; });
  }
  auto jobs = std::exchange(state.jobs, {});
  Disposable* trash = std::exchange(state.trash, nullptr);
  lock.unlock();
  destroy_all(trash);
}

}  // namespace quire
