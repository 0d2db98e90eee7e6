// The engine's side of loading: works through the pieces that the loading thread hands over, one a step.
#pragma once

#include <chrono>
#include <functional>
#include <utility>

#include "lib/model/load_engine.h"
#include "lib/session/contain.h"
#include "lib/session/runtime.h"
#include "lib/support/mutex.h"

namespace quire {

// start(), finish() and end() are the loading thread's, ready() and step() the engine's.
class LoadJob final : public HostJob, public LoadEngine {
 public:
  explicit LoadJob(Runtime& runtime) : runtime_(runtime) {}

  Status start(std::function<Status()> work) override {
    QUIRE_TRY(finish());
    {
      MutexLock lock(mutex_);
      work_ = std::move(work);
      state_ = State::kWaiting;
    }
    runtime_.scheduler().wake();
    return {};
  }

  Status finish() override {
    MutexLock lock(mutex_);
    while (state_ != State::kIdle) {
      if (state_ == State::kWaiting && runtime_.closed()) {  // the engine may have dropped the job
        state_ = State::kIdle;
        work_ = nullptr;
        return Status(Code::kClosed, "the runtime was closed during loading");
      }
      // A runtime that closes wakes nobody here.
      changed_.wait_until(mutex_, CondVar::Clock::now() + std::chrono::milliseconds(50));
    }
    return std::exchange(status_, {});
  }

  // The engine lets the job go. Nothing was started since the last finish().
  void end() {
    {
      MutexLock lock(mutex_);
      ended_ = true;
    }
    runtime_.scheduler().wake();
  }

  bool ready() override {
    MutexLock lock(mutex_);
    return ended_ || state_ == State::kWaiting;
  }

  bool step() override {
    std::function<Status()> work;
    {
      MutexLock lock(mutex_);
      if (state_ != State::kWaiting) return ended_;
      work = std::exchange(work_, nullptr);
      state_ = State::kRunning;
    }
    Status status = contain([&] { return work(); });
    work = nullptr;  // what it keeps goes before the loading thread goes on
    MutexLock lock(mutex_);
    status_ = std::move(status);
    state_ = State::kIdle;
    changed_.notify_all();
    return false;
  }

 private:
  enum class State { kIdle, kWaiting, kRunning };

  Runtime& runtime_;
  Mutex mutex_;
  CondVar changed_;  // notified when state_ becomes kIdle
  State state_ QUIRE_GUARDED_BY(mutex_) = State::kIdle;
  bool ended_ QUIRE_GUARDED_BY(mutex_) = false;
  std::function<Status()> work_ QUIRE_GUARDED_BY(mutex_);
  Status status_ QUIRE_GUARDED_BY(mutex_);  // of the last work, until finish() takes it
};

}  // namespace quire
