#include "lib/session/scheduler.h"

#include <algorithm>
#include <utility>

#include "lib/support/thread_pool.h"

namespace quire {

struct Scheduler::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::shared_ptr<Job>> jobs;
  std::vector<std::shared_ptr<const void>> trash;
  size_t next = 0;
  bool awake = false;
  bool stop = false;
};

Scheduler::Scheduler() : state_(std::make_shared<State>()) {
  thread_ = std::thread([state = state_] { run(state); });
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

void Scheduler::dispose(std::shared_ptr<const void> object) {
  {
    std::lock_guard lock(state_->mutex);
    if (!state_->stop) {
      state_->trash.push_back(std::move(object));
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

void Scheduler::run(const std::shared_ptr<State>& state) {
  prepare_compute_thread("quire-0");
  std::unique_lock lock(state->mutex);
  while (!state->stop) {
    if (!state->trash.empty()) {
      auto trash = std::exchange(state->trash, {});
      lock.unlock();
      trash.clear();
      lock.lock();
      continue;
    }
    state->awake = false;
    auto jobs = state->jobs;  // ready() takes session locks: not under ours
    const size_t start = jobs.empty() ? 0 : state->next++ % jobs.size();
    lock.unlock();
    bool stepped = false;
    for (size_t n = 0; n < jobs.size() && !stepped; ++n) {
      auto& job = jobs[(start + n) % jobs.size()];
      if (!job->ready()) continue;
      stepped = true;
      if (job->step()) {
        lock.lock();
        std::erase(state->jobs, job);
        lock.unlock();
      }
    }
    jobs.clear();  // may drop the last reference to a job, a session, the runtime
    lock.lock();
    if (!stepped) state->changed.wait(lock, [&] { return state->awake || state->stop || !state->trash.empty(); });
  }
  auto jobs = std::exchange(state->jobs, {});
  auto trash = std::exchange(state->trash, {});
  lock.unlock();
}

}  // namespace quire
