// The threads that read and write files for a runtime, apart from those that compute.
#pragma once

#include <thread>
#include <vector>

#include "lib/support/mutex.h"

namespace quire {

// Something with parts to do one after the other. It is its own place in the queue of IoThreads, so that adding it
// never fails. Whoever owns it keeps it until run_one() has returned false.
class IoWork {
 public:
  IoWork() = default;
  IoWork(const IoWork&) = delete;
  IoWork& operator=(const IoWork&) = delete;
  virtual ~IoWork() = default;
  // Does one part, on an I/O thread. False: none is left, and the work may be gone by now. Never throws.
  virtual bool run_one() = 0;

 private:
  friend class IoThreads;
  IoWork* next_ = nullptr;
};

// Works take turns, a part each; the parts of one work never run at once. The threads are named "quire-io", have all
// signals blocked, and are parked when there is nothing to do. Any thread.
class IoThreads {
 public:
  explicit IoThreads(int n_threads) : n_threads_(n_threads) {}  // 1 or more; none is started here
  ~IoThreads() { stop(); }
  IoThreads(const IoThreads&) = delete;
  IoThreads& operator=(const IoThreads&) = delete;

  // Starts the threads, the first time. std::system_error, std::bad_alloc: none was started.
  void start();
  // `work` is not among the works that wait or run. False: there are no threads; it was not taken.
  bool add(IoWork& work);
  // Ends the threads when nothing waits any more, and waits until they are gone. Idempotent; not on an I/O thread.
  void stop();

 private:
  void work();
  void append(IoWork& work) QUIRE_REQUIRES(mutex_);
  void end_threads() QUIRE_REQUIRES(lifecycle_);

  const int n_threads_;
  Mutex lifecycle_;  // one start() or stop() at a time
  std::vector<std::thread> threads_ QUIRE_GUARDED_BY(lifecycle_);
  Mutex mutex_;
  CondVar wake_;
  bool running_ QUIRE_GUARDED_BY(mutex_) = false;  // works are taken
  bool stopped_ QUIRE_GUARDED_BY(mutex_) = false;  // for good
  IoWork* first_ QUIRE_GUARDED_BY(mutex_) = nullptr;
  IoWork* last_ QUIRE_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace quire
