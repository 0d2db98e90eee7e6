#include "lib/session/scheduler.h"

#include <algorithm>
#include <utility>

#include "lib/support/thread_pool.h"

namespace quire {

struct Scheduler::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::shared_ptr<Job>> jobs;
  Disposable* trash = nullptr;  // a list, last in first
  size_t next = 0;
  bool awake = false;
  bool stop = false;
};

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
    if (ready && job->step()) {
      lock.lock();
      std::erase(state.jobs, job);
      lock.unlock();
    }
    job.reset();  // may have been the last reference to a job, a session, the runtime
    lock.lock();
    if (ready) return true;
  }
  return false;
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
