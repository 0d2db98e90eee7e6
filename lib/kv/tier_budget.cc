#include "lib/kv/tier_budget.h"

#include <algorithm>

namespace quire {

bool TierBudget::add(int64_t bytes) {
  MutexLock lock(mutex_);
  if (limit_ > 0 && bytes > limit_ - used_) return false;
  used_ += bytes;
  return true;
}

void TierBudget::remove(int64_t bytes) {
  MutexLock lock(mutex_);
  used_ -= bytes;
}

int64_t TierBudget::used() const {
  MutexLock lock(mutex_);
  return used_;
}

int64_t TierBudget::room() const {
  MutexLock lock(mutex_);
  return limit_ > 0 ? limit_ - used_ : kNoLimit;
}

Status TierAccount::check(int64_t needed, const std::string& purpose) const {
  const std::string needs = "the KV cache needs " + std::to_string(needed) + " bytes " + what_ + purpose;
  if (limit_ > 0 && needed > limit_) {
    return Status(Code::kBudget, needs + "; the session's budget is " + std::to_string(limit_));
  }
  if (!runtime_ || needed - used_ <= runtime_->room()) return {};
  return Status(Code::kBudget, needs + "; the runtime's budget is " + std::to_string(runtime_->limit()) +
                                   ", and its sessions hold " + std::to_string(runtime_->used()));
}

Status TierAccount::add(int64_t bytes) {
  QUIRE_TRY(check(used_ + bytes, ""));
  if (runtime_ && !runtime_->add(bytes)) {  // another store was faster
    return Status(Code::kBudget, "the KV cache needs " + std::to_string(bytes) + " bytes more " + what_ +
                                     "; the runtime's budget is " + std::to_string(runtime_->limit()));
  }
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return {};
}

void TierAccount::remove(int64_t bytes) {
  used_ -= bytes;
  if (runtime_) runtime_->remove(bytes);
}

Result<std::unique_ptr<Buffer>> TierAccount::allocate(Backend& backend, int64_t bytes, MemoryKind kind) {
  struct Undo {  // whatever fails, allocation of the small object included
    TierAccount* account;
    int64_t bytes, peak;
    ~Undo() {
      if (!account) return;
      account->remove(bytes);
      account->peak_ = peak;
    }
  } undo{nullptr, bytes, peak_};
  QUIRE_TRY(add(bytes));
  undo.account = this;
  QUIRE_ASSIGN(auto buffer, backend.allocate(static_cast<size_t>(bytes), kind));
  undo.account = nullptr;
  return buffer;
}

int64_t TierAccount::room() const {
  const int64_t own = limit_ > 0 ? limit_ - used_ : kNoLimit;
  return runtime_ ? std::min(own, runtime_->room()) : own;
}

}  // namespace quire
