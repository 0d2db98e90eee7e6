#include "lib/kv/record_file.h"

#include <algorithm>

namespace quire {
namespace {

// The file grows by so many bytes at a time, or by what is asked for if that is more.
constexpr int64_t kGrowth = int64_t{4} << 20;

}  // namespace

Result<std::unique_ptr<RecordFile>> RecordFile::create(const std::string& directory, int64_t record_bytes,
                                                       int64_t budget_bytes) {
  QUIRE_ASSIGN(auto file, ScratchFile::create(directory));
  return std::unique_ptr<RecordFile>(new RecordFile(std::move(file), record_bytes, budget_bytes));
}

Status RecordFile::reserve(int64_t n) {
  const int64_t missing = n - static_cast<int64_t>(free_.size());
  if (missing <= 0) return {};
  const int64_t needed = n_slots_ + missing;
  if (budget_bytes_ > 0 && needed > budget_bytes_ / record_bytes_) {
    return Status(Code::kBudget, "the spill file needs " + std::to_string(needed * record_bytes_) +
                                     " bytes; its budget is " + std::to_string(budget_bytes_));
  }
  int64_t slots = std::max(needed, n_slots_ + std::max<int64_t>(1, kGrowth / record_bytes_));
  if (budget_bytes_ > 0) slots = std::min(slots, budget_bytes_ / record_bytes_);
  free_.reserve(static_cast<size_t>(slots));
  if (!file_->reserve(slots * record_bytes_).ok()) {
    slots = needed;  // the last of a nearly full disk
    QUIRE_TRY(file_->reserve(slots * record_bytes_));
  }
  // Lowest slots last, so that they are taken first.
  for (int64_t slot = slots; slot > n_slots_; --slot) free_.push_back(slot - 1);
  n_slots_ = slots;
  return {};
}

int64_t RecordFile::take_slot() {
  const int64_t slot = free_.back();
  free_.pop_back();
  return slot;
}

Status RecordFile::write(int64_t slot, const void* record) {
  QUIRE_TRY(file_->write_at(slot * record_bytes_,
                            {static_cast<const std::byte*>(record), static_cast<size_t>(record_bytes_)}));
  ++n_written_;
  return {};
}

Status RecordFile::read(int64_t slot, void* record) {
  QUIRE_TRY(
      file_->read_at(slot * record_bytes_, {static_cast<std::byte*>(record), static_cast<size_t>(record_bytes_)}));
  ++n_read_;
  return {};
}

}  // namespace quire
