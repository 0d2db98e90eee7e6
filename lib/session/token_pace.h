// How long a reader of a stream may sleep where tokens come fast.
//
// Waking a thread costs some ten microseconds: on the thread that wakes it, and on the one that wakes up. A model that
// makes a token in a tenth of a millisecond would spend a good part of its time on that. So a reader of such tokens
// does not ask to be woken for the next one, but sleeps while a few of them come in: at most a millisecond, and no
// longer than the engine has room to work ahead.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace quire {

class TokenPace {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr Clock::duration kLongestNap = std::chrono::milliseconds(1);

  // n tokens were shown to the reader at once.
  void shown(Clock::time_point now, int64_t n) {
    if (last_ != Clock::time_point()) per_token_ = (now - last_) / n;
    last_ = now;
  }

  // Zero: wait to be woken. Otherwise as long as tokens for half the room come in.
  Clock::duration nap(int64_t max_undelivered) const {
    const int64_t n = max_undelivered / 2;
    if (n < 2 || per_token_ == Clock::duration() || per_token_ > kLongestNap / 2) return {};
    return std::min(per_token_ * n, kLongestNap);
  }

 private:
  Clock::time_point last_;
  Clock::duration per_token_{};
};

}  // namespace quire
