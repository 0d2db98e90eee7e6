#include "tests/unit/backend/late_queue.h"

#include <exception>
#include <new>
#include <utility>

namespace quire::test {

LateWorker::LateWorker() : thread_([this] { loop(); }) {}

LateWorker::~LateWorker() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

int64_t LateWorker::add(Line& line, Work work) {
  MutexLock lock(mutex_);
  line.waiting.push_back(std::move(work));
  ++n_queued_;
  return ++line.n_added;
}

int64_t LateWorker::last(const Line& line) {
  MutexLock lock(mutex_);
  return line.n_added;
}

void LateWorker::add_wait(Line& line, std::shared_ptr<Line> other, int64_t number) {
  add(line, [this, other = std::move(other), number] {
    MutexLock lock(mutex_);
    run_until(*other, number);
    return Status();
  });
}

bool LateWorker::poll(const std::shared_ptr<Line>& line, int64_t number) {
  MutexLock lock(mutex_);
  if (line->n_done >= number) return true;
  requests_.push_back({line, number});
  changed_.notify_all();
  return false;
}

Status LateWorker::wait(const std::shared_ptr<Line>& line, int64_t number) {
  MutexLock lock(mutex_);
  if (line->n_done < number) {
    requests_.push_back({line, number});
    changed_.notify_all();
  }
  while (line->n_done < number) changed_.wait(mutex_);
  return line->failure;
}

void LateWorker::keep_until_idle(std::shared_ptr<void> what) {
  MutexLock lock(mutex_);
  if (n_queued_ > 0) kept_.push_back(std::move(what));
}

bool LateWorker::idle() {
  MutexLock lock(mutex_);
  return n_queued_ == 0;
}

void LateWorker::loop() {
  MutexLock lock(mutex_);
  while (true) {
    while (requests_.empty() && !ending_) changed_.wait(mutex_);
    if (requests_.empty()) return;
    const Request request = std::move(requests_.front());
    requests_.pop_front();
    run_until(*request.line, request.number);
  }
}

// Without the mutex while it works.
void LateWorker::run_until(Line& line, int64_t number) {
  while (line.n_done < number) {
    const Work work = std::move(line.waiting.front());
    line.waiting.pop_front();
    if (line.failure.ok()) {
      mutex_.unlock();
      Status status;
      try {
        status = work();
      } catch (const std::bad_alloc&) {
        status = Status(Code::kOutOfMemory, "out of memory");
      } catch (const std::exception& e) {
        status = Status(Code::kInternal, e.what());
      }
      mutex_.lock();
      if (line.failure.ok()) line.failure = std::move(status);
    }
    ++line.n_done;
    --n_queued_;
    changed_.notify_all();
    if (n_queued_ > 0) continue;
    std::vector<std::shared_ptr<void>> freed;
    freed.swap(kept_);
    mutex_.unlock();
    freed.clear();  // may call the host's allocator
    mutex_.lock();
  }
}

}  // namespace quire::test
