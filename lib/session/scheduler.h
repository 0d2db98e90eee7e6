// Who computes when: one engine thread that gives each ready job a step in turn.
//
// A step is short (a prefill block, a decode step, 16 MB of a model being loaded) and may use all compute threads, so
// jobs share the machine fairly and never run at once. Jobs of one group (sessions of a model that decode) take a step
// together: their weights are read once. A step waits a little for members that were in the group's last step and are
// not ready yet: their readers are about to take a token.
#pragma once

#include <memory>
#include <span>
#include <thread>
#include <vector>

namespace quire {

class Job {
 public:
  virtual ~Job() = default;
  // True if step() has something to do. Called on the engine thread.
  virtual bool ready() = 0;
  // Does a part of the work on the engine thread. True: finished; the job is dropped. Must not throw.
  virtual bool step() = 0;
  // Jobs of the same group (not null) may take their next steps together: step_together() of any of them with all of
  // them, at most kMostTogether, writes finished[i] as step() of jobs[i] would return. Must not throw.
  static constexpr size_t kMostTogether = 16;
  virtual const void* group() { return nullptr; }
  virtual void step_together(std::span<Job* const> jobs, std::span<bool> finished);
};

// Something whose destructor may take a while. It is its own place in the queue, so that letting go never fails.
class Disposable {
 public:
  Disposable() = default;
  Disposable(const Disposable&) = delete;
  Disposable& operator=(const Disposable&) = delete;
  virtual ~Disposable() = default;

 private:
  friend class Scheduler;
  Disposable* next_ = nullptr;
};

class Scheduler {
 public:
  Scheduler();   // starts the engine thread
  ~Scheduler();  // stops it after the step it is in; jobs left are dropped. Also legal on the engine thread.
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Any thread. False: stopped, the job was not taken.
  bool add(std::shared_ptr<Job> job);
  // A job may have become ready. Any thread.
  void wake();
  // Destroys an object on the engine thread; on this one if that was stopped. Any thread.
  void dispose(std::unique_ptr<Disposable> object) noexcept;
  // Stops the engine thread and waits for it. Not on the engine thread.
  void stop();

 private:
  struct State;
  static void destroy_all(Disposable* first);
  std::shared_ptr<State> state_;  // shared with the thread, which may outlive this object by a moment
  std::thread thread_;
};

}  // namespace quire
