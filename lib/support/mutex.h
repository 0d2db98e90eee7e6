// Mutexes whose use clang checks. Each member that a mutex guards says so (QUIRE_GUARDED_BY), each function that needs
// a mutex held says so (QUIRE_REQUIRES), and -Wthread-safety refuses code that breaks what was said. Other compilers
// see plain mutexes.
//
// The attributes are those of https://clang.llvm.org/docs/ThreadSafetyAnalysis.html. The analysis looks at one function
// at a time and not into lambdas, so conditions are waited for in loops.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define QUIRE_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define QUIRE_THREAD_ATTRIBUTE(x)
#endif

// Of a class: it is something that a thread can hold.
#define QUIRE_CAPABILITY(name) QUIRE_THREAD_ATTRIBUTE(capability(name))
#define QUIRE_SCOPED_CAPABILITY QUIRE_THREAD_ATTRIBUTE(scoped_lockable)
// Of a member: it is read and changed by the holder only. PT: the same of what a pointer points to.
#define QUIRE_GUARDED_BY(x) QUIRE_THREAD_ATTRIBUTE(guarded_by(x))
#define QUIRE_PT_GUARDED_BY(x) QUIRE_THREAD_ATTRIBUTE(pt_guarded_by(x))
// Of a function: its caller holds these, or must not.
#define QUIRE_REQUIRES(...) QUIRE_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define QUIRE_EXCLUDES(...) QUIRE_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
// Of a function: it takes, gives back, or checks at run time that its caller holds these.
#define QUIRE_ACQUIRE(...) QUIRE_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define QUIRE_RELEASE(...) QUIRE_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define QUIRE_ASSERT_HELD(...) QUIRE_THREAD_ATTRIBUTE(assert_capability(__VA_ARGS__))

namespace quire {

class QUIRE_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() QUIRE_ACQUIRE() { mutex_.lock(); }
  void unlock() QUIRE_RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds a mutex until the end of a block.
class QUIRE_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) QUIRE_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() QUIRE_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// A condition variable for one mutex. Waits end without reason now and then: wait in a loop.
class CondVar {
 public:
  using Clock = std::chrono::steady_clock;

  void wait(Mutex& mutex) QUIRE_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    changed_.wait(lock);
    lock.release();
  }
  // False: the time has come.
  bool wait_until(Mutex& mutex, Clock::time_point time) QUIRE_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool notified = changed_.wait_until(lock, time) == std::cv_status::no_timeout;
    lock.release();
    return notified;
  }
  void notify_one() { changed_.notify_one(); }
  void notify_all() { changed_.notify_all(); }

 private:
  std::condition_variable changed_;
};

}  // namespace quire
