// The engine's side of loading: works through the pieces that the loading thread hands over, one a step.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>

#include "lib/model/load_engine.h"
#include "lib/session/contain.h"
#include "lib/session/runtime.h"

namespace quire {

// start(), finish() and end() are the loading thread's, ready() and step() the engine's.
class LoadJob final : public Job, public LoadEngine {
 public:
  explicit LoadJob(Runtime& runtime) : runtime_(runtime) {}

  Status start(std::function<Status()> work) override {
    QUIRE_TRY(finish());
    {
      std::lock_guard lock(mutex_);
      work_ = std::move(work);
      state_ = State::kWaiting;
    }
    runtime_.scheduler().wake();
    return {};
  }

  Status finish() override {
    std::unique_lock lock(mutex_);
    while (state_ != State::kIdle) {
      if (state_ == State::kWaiting && runtime_.closed()) {  // the engine may have dropped the job
        state_ = State::kIdle;
        work_ = nullptr;
        return Status(Code::kClosed, "the runtime was closed during loading");
      }
      changed_.wait_for(lock, std::chrono::milliseconds(50), [&] { return state_ == State::kIdle; });
    }
    return std::exchange(status_, {});
  }

  // The engine lets the job go. Nothing was started since the last finish().
  void end() {
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
    }
    runtime_.scheduler().wake();
  }

  bool ready() override {
    std::lock_guard lock(mutex_);
    return ended_ || state_ == State::kWaiting;
  }

  bool step() override {
    std::function<Status()> work;
    {
      std::lock_guard lock(mutex_);
      if (state_ != State::kWaiting) return ended_;
      work = std::exchange(work_, nullptr);
      state_ = State::kRunning;
    }
    Status status = contain([&] { return work(); });
    work = nullptr;  // what it keeps goes before the loading thread goes on
    std::lock_guard lock(mutex_);
    status_ = std::move(status);
    state_ = State::kIdle;
    changed_.notify_all();
    return false;
  }

 private:
  enum class State { kIdle, kWaiting, kRunning };

  Runtime& runtime_;
  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kIdle;
  bool ended_ = false;
  std::function<Status()> work_;
  Status status_;  // of the last work, until finish() takes it
};

}  // namespace quire
