// Work that is done as late as possible, by one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "lib/support/mutex.h"
#include "lib/support/status.h"

namespace quire::test {

// The queues of one device and the thread that works on them. Any thread.
class LateWorker {
 public:
  using Work = std::function<Status()>;

  // One queue: its work is numbered from 1 on.
  class Line {
   public:
    Line() = default;

   private:
    friend class LateWorker;
    std::deque<Work> waiting;
    int64_t n_added = 0;
    int64_t n_done = 0;
    Status failure;  // of the first work that failed; what stands behind it is not done
  };

  LateWorker();
  // Nothing is queued any more.
  ~LateWorker();

  // Adds work; returns its number.
  int64_t add(Line& line, Work work) QUIRE_EXCLUDES(mutex_);
  int64_t last(const Line& line) QUIRE_EXCLUDES(mutex_);
  // Adds work that first does what stands in `other` up to `number`.
  void add_wait(Line& line, std::shared_ptr<Line> other, int64_t number) QUIRE_EXCLUDES(mutex_);
  // Whether the work up to `number` is done; has it done soon if not.
  bool poll(const std::shared_ptr<Line>& line, int64_t number) QUIRE_EXCLUDES(mutex_);
  // Waits until it is done. The line's first failure.
  Status wait(const std::shared_ptr<Line>& line, int64_t number) QUIRE_EXCLUDES(mutex_);
  // Calls keep_until_idle's argument's destructor when nothing is queued: now, or later.
  void keep_until_idle(std::shared_ptr<void> what) QUIRE_EXCLUDES(mutex_);
  bool idle() QUIRE_EXCLUDES(mutex_);

 private:
  struct Request {
    std::shared_ptr<Line> line;
    int64_t number;
  };
  void loop() QUIRE_EXCLUDES(mutex_);
  void run_until(Line& line, int64_t number) QUIRE_REQUIRES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  std::deque<Request> requests_ QUIRE_GUARDED_BY(mutex_);
  int64_t n_queued_ QUIRE_GUARDED_BY(mutex_) = 0;  // in all lines
  std::vector<std::shared_ptr<void>> kept_ QUIRE_GUARDED_BY(mutex_);
  bool ending_ QUIRE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace quire::test
