// Lines of a log that are kept until somebody takes them.
#pragma once

#include <cstdint>
#include <deque>
#include <new>
#include <string>
#include <string_view>

#include "lib/support/mutex.h"

namespace quire {

// Any thread.
class LogLines {
 public:
  // At most so many lines are kept; at least 1.
  explicit LogLines(size_t most) : most_(most) {}

  // Lost if there are as many as may be kept, or there is no memory: the oldest line stays the same until it is taken,
  // so that its length can be asked for first.
  void add(int32_t level, std::string_view text) noexcept {
    const MutexLock lock(mutex_);
    try {
      if (lines_.size() < most_) {
        lines_.push_back({level, n_lost_, std::string(text)});
        n_lost_ = 0;
        return;
      }
    } catch (const std::bad_alloc&) {  // lost as well
    }
    ++n_lost_;
  }

  // Calls accept(level, n_lost, text) with the oldest line, and removes it if that returns true. n_lost: lines lost
  // between the one before and this one. False: there is no line.
  template <typename Accept>
  bool take(const Accept& accept) {
    const MutexLock lock(mutex_);
    if (lines_.empty()) return false;
    const Line& oldest = lines_.front();
    if (accept(oldest.level, oldest.n_lost, std::string_view(oldest.text))) lines_.pop_front();
    return true;
  }

 private:
  struct Line {
    int32_t level;
    int64_t n_lost;
    std::string text;
  };
  const size_t most_;
  Mutex mutex_;
  std::deque<Line> lines_ QUIRE_GUARDED_BY(mutex_);  // the oldest first
  int64_t n_lost_ QUIRE_GUARDED_BY(mutex_) = 0;      // since the newest line
};

}  // namespace quire
