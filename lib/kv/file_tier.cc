#include "lib/kv/file_tier.h"

#include <algorithm>

namespace quire {

Result<std::unique_ptr<FileTier>> FileTier::create(const std::string& directory, int64_t record_bytes,
                                                   int64_t budget_bytes, std::shared_ptr<TierBudget> runtime,
                                                   int64_t growth) {
  QUIRE_ASSIGN(auto file, ScratchFile::create(directory));
  return std::unique_ptr<FileTier>(
      new FileTier(std::move(file), record_bytes, budget_bytes, std::move(runtime), growth));
}

int64_t FileTier::most_bytes(int64_t record_bytes, int64_t n_records) {
  return n_records == 0 ? 0 : (n_records + std::max<int64_t>(1, kGrowth / record_bytes) - 1) * record_bytes;
}

Status FileTier::reserve(int64_t n) {
  const int64_t missing = n - static_cast<int64_t>(free_.size());
  if (missing <= 0) return {};
  const int64_t needed = n_slots_ + missing;
  QUIRE_TRY(account_.check(needed * record_bytes_, ""));
  int64_t slots = std::max(needed, n_slots_ + std::max<int64_t>(1, growth_ / record_bytes_));
  slots = std::min(slots, n_slots_ + std::max(missing, account_.room() / record_bytes_));
  free_.reserve(static_cast<size_t>(slots));
  if (!grow(slots).ok()) {
    slots = needed;  // the last of a nearly full disk
    QUIRE_TRY(grow(slots));
  }
  // Lowest slots last, so that they are taken first.
  for (int64_t slot = slots; slot > n_slots_; --slot) free_.push_back(slot - 1);
  n_slots_ = slots;
  return {};
}

Status FileTier::grow(int64_t n_slots) {
  const int64_t added = (n_slots - n_slots_) * record_bytes_;
  QUIRE_TRY(account_.add(added));
  Status status = file_->reserve(n_slots * record_bytes_);
  if (!status.ok()) account_.remove(added);
  return status;
}

Result<std::vector<int64_t>> FileTier::take_slots(int64_t n) {
  std::vector<int64_t> slots(static_cast<size_t>(n));
  MutexLock lock(mutex_);
  QUIRE_TRY(reserve(n));
  for (int64_t& slot : slots) {
    slot = free_.back();
    free_.pop_back();
  }
  return slots;
}

void FileTier::free_slot(int64_t slot) {
  MutexLock lock(mutex_);
  free_.push_back(slot);  // reserve() made room
}

int64_t FileTier::bytes() const {
  MutexLock lock(mutex_);
  return file_->size();
}

Status FileTier::write(int64_t slot, const void* record) {
  return file_->write_at(slot * record_bytes_,
                         {static_cast<const std::byte*>(record), static_cast<size_t>(record_bytes_)});
}

Status FileTier::read(int64_t slot, void* record) {
  return file_->read_at(slot * record_bytes_, {static_cast<std::byte*>(record), static_cast<size_t>(record_bytes_)});
}

void FileTier::describe(TierStats& stats) const {
  MutexLock lock(mutex_);
  stats.limit = account_.limit();
  stats.bytes = account_.used();
  stats.bytes_peak = account_.peak();
}

}  // namespace quire
