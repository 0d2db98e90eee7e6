#include "lib/kv/io_thread.h"

#include "lib/support/thread_pool.h"

namespace quire {

void IoThreads::start() {
  MutexLock lifecycle(lifecycle_);
  {
    MutexLock lock(mutex_);
    if (running_ || stopped_) return;
    running_ = true;
  }
  try {
    for (int t = 0; t < n_threads_; ++t) threads_.emplace_back([this] { work(); });
  } catch (...) {
    end_threads();
    throw;
  }
}

void IoThreads::stop() {
  MutexLock lifecycle(lifecycle_);
  {
    MutexLock lock(mutex_);
    stopped_ = true;
  }
  end_threads();
}

void IoThreads::end_threads() {
  {
    MutexLock lock(mutex_);
    running_ = false;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

bool IoThreads::add(IoWork& work) {
  {
    MutexLock lock(mutex_);
    if (!running_) return false;
    append(work);
  }
  wake_.notify_one();
  return true;
}

void IoThreads::append(IoWork& work) {
  work.next_ = nullptr;
  (first_ ? last_->next_ : first_) = &work;
  last_ = &work;
}

void IoThreads::work() {
  prepare_compute_thread("quire-io");
  for (;;) {
    IoWork* work = nullptr;
    {
      MutexLock lock(mutex_);
      while (!first_ && running_) wake_.wait(mutex_);
      if (!first_) return;
      work = first_;
      first_ = work->next_;
    }
    if (!work->run_one()) continue;
    MutexLock lock(mutex_);
    append(*work);  // another thread may take it: this one looks for work itself
  }
}

}  // namespace quire
