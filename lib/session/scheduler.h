// Who computes when: one engine thread that gives each ready job a step in turn.
//
// A step is short (a prefill block, a decode step, 16 MB of a model being loaded), so jobs share the machine fairly. It
// has two halves: the first submits it to a device, the second takes what it came to. In between the thread serves
// other jobs, and looks now and then whether the device is done. Steps on one forward pass follow each other. Jobs that
// share their steps (sessions of a model that decode) take them together, as one turn: the model's weights are read
// once. A step waits a little for jobs that shared the pass's last one and are not ready yet: their readers are about
// to take a token.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <thread>

namespace quire {

// All calls are the engine thread's; none may throw.
class Job {
 public:
  // Most jobs of a shared step.
  static constexpr size_t kMostTogether = 16;

  virtual ~Job() = default;
  // True if a step has something to do. Not asked during a step.
  virtual bool ready() = 0;
  // What its steps work on, one at a time. Null: on the host alone, and they are done when submit() returns.
  virtual const void* pass() { return nullptr; }
  // Whether other jobs of its pass, which say so too, can take part in its next step.
  virtual bool shares_step() { return false; }

  // The halves of a step. jobs: this one first, then those that take part, the same in both calls. finished[i]: job i
  // is to be dropped.
  virtual void submit(std::span<Job* const> jobs) = 0;
  // Whether collect() would not wait.
  virtual bool submitted_is_done() = 0;
  virtual void collect(std::span<Job* const> jobs, std::span<bool> finished) = 0;
};

// A job that works on the host alone.
class HostJob : public Job {
 public:
  // True: finished; the job is dropped.
  virtual bool step() = 0;

 private:
  void submit(std::span<Job* const>) final { finished_ = step(); }
  bool submitted_is_done() final { return true; }
  void collect(std::span<Job* const>, std::span<bool> finished) final { finished[0] = finished_; }

  bool finished_ = false;
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
  Scheduler();  // starts the engine thread
  // Stops it after the steps that have begun; jobs left are dropped. Also legal on the engine thread.
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Any thread. False: stopped, the job was not taken.
  bool add(std::shared_ptr<Job> job);
  // A job may have become ready. Any thread.
  void wake();
  // Destroys an object on the engine thread; in drain() if that was stopped, and afterwards at once. Any thread.
  void dispose(std::unique_ptr<Disposable> object) noexcept;
  // Stops the engine thread, after the steps that have begun, and waits for it. Not on the engine thread.
  void stop();
  // After stop(), when nothing works any more that destroying an object could wait for.
  void drain();

 private:
  struct State;
  static void destroy_all(Disposable* first);
  std::shared_ptr<State> state_;  // shared with the thread, which may outlive this object by a moment
  std::thread thread_;
};

}  // namespace quire
