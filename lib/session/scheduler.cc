#include "lib/session/scheduler.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>
#include <vector>

#include "lib/support/mutex.h"
#include "lib/support/thread_pool.h"

namespace quire {
namespace {

using Clock = CondVar::Clock;
using Jobs = std::array<std::shared_ptr<Job>, Job::kMostTogether>;

// Steps that are under way at once: models whose devices compute at the same time.
constexpr size_t kMostUnderWay = 4;
constexpr std::chrono::milliseconds kMostPatience{2};
// A device is asked whether it is done each time another part of what it has taken so far has passed.
constexpr int kPollPart = 32;
constexpr Clock::duration kShortestPoll = std::chrono::microseconds(20), kLongestPoll = std::chrono::microseconds(500);

// Steps on one pass: the one under way, and who took part in the one before.
struct Track {
  const void* pass = nullptr;
  Jobs members;  // the first n: of the step under way
  size_t n = 0;  // 0: none is
  Clock::time_point begin;
  std::array<const Job*, Job::kMostTogether> company{};  // of the last step
  Clock::duration last_step{};

  // The members; null behind them.
  std::array<Job*, Job::kMostTogether> borrowed() const {
    std::array<Job*, Job::kMostTogether> all{};
    for (size_t i = 0; i < n; ++i) all[i] = members[i].get();
    return all;
  }
};

}  // namespace

struct Scheduler::State {
  // The engine thread.
  void run() QUIRE_EXCLUDES(mutex);
  bool step_next() QUIRE_REQUIRES(mutex);
  Track* free_track(const void* pass);
  void submit(Track& track, const std::shared_ptr<Job>& first) QUIRE_EXCLUDES(mutex);
  void gather(Track& track) QUIRE_EXCLUDES(mutex);
  void move_to_end(const Track& track) QUIRE_EXCLUDES(mutex);
  bool collect_done() QUIRE_EXCLUDES(mutex);
  void collect(Track& track) QUIRE_EXCLUDES(mutex);
  void wait() QUIRE_REQUIRES(mutex);

  Mutex mutex;
  CondVar changed;
  // Who waits longest for a step comes first. The engine thread alone removes and moves them.
  std::vector<std::shared_ptr<Job>> jobs QUIRE_GUARDED_BY(mutex);
  Disposable* trash QUIRE_GUARDED_BY(mutex) = nullptr;  // a list, last in first
  bool awake QUIRE_GUARDED_BY(mutex) = false;
  bool stop QUIRE_GUARDED_BY(mutex) = false;
  bool drained QUIRE_GUARDED_BY(mutex) = false;

  // The engine thread's alone.
  std::array<Track, kMostUnderWay> tracks;
  Track host;  // of steps on no pass, which never stay under way
};

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
    if (!state_->drained) {
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

void Scheduler::drain() {
  Disposable* left = nullptr;
  {
    MutexLock lock(state_->mutex);
    state_->drained = true;
    left = std::exchange(state_->trash, nullptr);
  }
  destroy_all(left);
}

void Scheduler::destroy_all(Disposable* first) {
  while (first) delete std::exchange(first, first->next_);
}

// Ends a step whose device is done, or else begins one of the first job that is ready. False: neither. The mutex is
// free while a job works or goes.
bool Scheduler::State::step_next() {
  mutex.unlock();
  const bool collected = collect_done();
  mutex.lock();
  if (collected) return true;
  // Others only append meanwhile.
  const size_t n = jobs.size();
  for (size_t i = 0; i < n; ++i) {
    std::shared_ptr<Job> job = jobs[i];
    mutex.unlock();
    Track* track = free_track(job->pass());
    const bool ready = track && job->ready();
    if (ready) submit(*track, job);
    job.reset();  // may have been the last reference to a job, a session, the runtime
    mutex.lock();
    if (ready) return true;
  }
  return false;
}

// Where a step on the pass can begin: the track of its last step, or any that is free. Null: one is under way there, or
// on all tracks.
Track* Scheduler::State::free_track(const void* pass) {
  if (!pass) return &host;
  Track* free = nullptr;
  for (Track& track : tracks) {
    if (track.pass == pass) return track.n == 0 ? &track : nullptr;
    if (track.n == 0 && (!free || !track.pass)) free = &track;
  }
  return free;
}

// Adds the other jobs of the pass that can take part in the step. Waits a little for those that were in the last one.
void Scheduler::State::gather(Track& track) {
  // A fraction of a step is a good price for sharing one.
  const auto patience = Clock::now() + std::min<Clock::duration>(track.last_step / 4, kMostPatience);
  for (;;) {
    MutexLock lock(mutex);
    awake = false;
    bool waiting = false;
    const size_t n_jobs = jobs.size();
    for (size_t at = 0; at < n_jobs && track.n < track.members.size(); ++at) {
      std::shared_ptr<Job> job = jobs[at];
      mutex.unlock();
      const auto end = track.members.begin() + static_cast<std::ptrdiff_t>(track.n);
      if (job->pass() == track.pass && std::find(track.members.begin(), end, job) == end && job->shares_step()) {
        if (job->ready()) {
          track.members[track.n++] = std::move(job);
        } else {
          waiting = waiting || std::find(track.company.begin(), track.company.end(), job.get()) != track.company.end();
        }
      }
      job.reset();
      mutex.lock();
    }
    if (!waiting || track.n == track.members.size()) return;
    while (!awake && !stop) {
      if (!changed.wait_until(mutex, patience)) return;
    }
    if (stop) return;
  }
}

// All others have their turn before the members of this step.
void Scheduler::State::move_to_end(const Track& track) {
  MutexLock lock(mutex);
  for (size_t i = 0; i < track.n; ++i) {
    const auto at = std::find(jobs.begin(), jobs.end(), track.members[i]);
    std::rotate(at, at + 1, jobs.end());
  }
}

// The first half of the step of `first` and of those who share it; the second half too if it is done at once.
void Scheduler::State::submit(Track& track, const std::shared_ptr<Job>& first) {
  const void* pass = first->pass();
  if (track.pass != pass) {
    track.pass = pass;
    track.company = {};
    track.last_step = {};
  }
  track.members[0] = first;
  track.n = 1;
  if (pass && first->shares_step()) gather(track);
  move_to_end(track);
  track.begin = Clock::now();
  const auto borrowed = track.borrowed();
  first->submit(std::span(borrowed).first(track.n));
  if (first->submitted_is_done()) collect(track);
}

bool Scheduler::State::collect_done() {
  for (Track& track : tracks) {
    if (track.n == 0 || !track.members[0]->submitted_is_done()) continue;
    collect(track);
    return true;
  }
  return false;
}

void Scheduler::State::collect(Track& track) {
  std::array<bool, Job::kMostTogether> finished{};
  const size_t n = track.n;
  const auto borrowed = track.borrowed();
  track.members[0]->collect(std::span(borrowed).first(n), std::span(finished).first(n));
  track.last_step = Clock::now() - track.begin;
  track.company = {};
  const Jobs members = std::exchange(track.members, {});  // they go without the mutex
  track.n = 0;
  MutexLock lock(mutex);
  for (size_t i = 0; i < n; ++i) {
    if (finished[i]) {
      std::erase(jobs, members[i]);
    } else {
      track.company[i] = members[i].get();
    }
  }
}

// Until somebody calls wake(), or it is time to ask the devices again.
void Scheduler::State::wait() {
  while (!awake && !stop) {
    const auto now = Clock::now();
    Clock::duration pause = Clock::duration::max();
    for (const Track& track : tracks) {
      if (track.n == 0) continue;
      pause = std::min(pause, std::clamp((now - track.begin) / kPollPart, kShortestPoll, kLongestPoll));
    }
    if (pause == Clock::duration::max()) {
      changed.wait(mutex);
    } else if (!changed.wait_until(mutex, now + pause)) {
      return;
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
      if (!step_next()) wait();
    }
    mutex.unlock();
    for (Track& track : tracks) {
      if (track.n > 0) collect(track);
    }
    mutex.lock();
    dropped = std::exchange(jobs, {});
    left = std::exchange(trash, nullptr);
  }
  dropped.clear();
  destroy_all(left);
}

}  // namespace quire
