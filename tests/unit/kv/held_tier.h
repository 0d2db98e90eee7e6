// A tier in memory whose reads and writes wait or fail where a test wants it.
#pragma once

#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "lib/kv/tier.h"
#include "tests/unit/pause.h"

namespace quire::test {

class HeldTier : public Tier {
 public:
  explicit HeldTier(int64_t record_bytes, int64_t most = INT64_MAX) : bytes_(record_bytes), most_(most) {}

  std::string name() const override { return "held"; }
  Result<std::vector<int64_t>> take_slots(int64_t n) override {
    std::lock_guard lock(mutex_);
    if (n_taken_ + n > most_) return Status(Code::kBudget, "the held tier is full");
    std::vector<int64_t> slots;
    for (; n > 0; --n, ++n_taken_) {
      slots.push_back(free_.empty() ? n_slots_++ : free_.back());
      if (!free_.empty()) free_.pop_back();
    }
    return slots;
  }
  void free_slot(int64_t slot) override {
    std::lock_guard lock(mutex_);
    --n_taken_;
    free_.push_back(slot);
  }
  Status write(int64_t slot, const void* record) override {
    std::lock_guard lock(mutex_);
    ++n_writes_;
    if (failing_writes_ > 0 && failing_writes_-- > 0) return Status(Code::kIo, "held write");
    auto& to = records_[slot];
    to.resize(static_cast<size_t>(bytes_));
    std::memcpy(to.data(), record, to.size());
    return {};
  }
  Status read(int64_t slot, void* record) override {
    Pause* pause;
    {
      std::lock_guard lock(mutex_);
      pause = pause_;
    }
    if (pause) pause->here();
    std::lock_guard lock(mutex_);
    ++n_reads_;
    reader_ = std::this_thread::get_id();
    if (failing_reads_ > 0 && failing_reads_-- > 0) return Status(Code::kIo, "held read");
    const auto& from = records_.at(slot);
    std::memcpy(record, from.data(), from.size());
    return {};
  }
  void will_read(int64_t slot) override {
    std::lock_guard lock(mutex_);
    announced_.push_back(slot);
  }
  void describe(TierStats& stats) const override {
    std::lock_guard lock(mutex_);
    stats.bytes = n_taken_ * bytes_;
  }

  // Reads stop at that place from now on; null: they do not.
  void pause_reads(Pause* pause) {
    std::lock_guard lock(mutex_);
    pause_ = pause;
  }
  void fail_reads(int n) {
    std::lock_guard lock(mutex_);
    failing_reads_ = n;
  }
  void fail_writes(int n) {
    std::lock_guard lock(mutex_);
    failing_writes_ = n;
  }
  int n_reads() const {
    std::lock_guard lock(mutex_);
    return n_reads_;
  }
  // The thread of the last one.
  std::thread::id reader() const {
    std::lock_guard lock(mutex_);
    return reader_;
  }
  // Slots that will_read() was told of, in that order.
  std::vector<int64_t> announced() const {
    std::lock_guard lock(mutex_);
    return announced_;
  }
  int n_writes() const {
    std::lock_guard lock(mutex_);
    return n_writes_;
  }

 private:
  const int64_t bytes_, most_;
  int64_t n_slots_ = 0, n_taken_ = 0;
  std::vector<int64_t> free_;
  mutable std::mutex mutex_;
  Pause* pause_ = nullptr;
  std::thread::id reader_;
  std::vector<int64_t> announced_;
  std::map<int64_t, std::vector<char>> records_;
  int failing_reads_ = 0, failing_writes_ = 0, n_reads_ = 0, n_writes_ = 0;
};

}  // namespace quire::test
