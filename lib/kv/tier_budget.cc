#include "lib/kv/tier_budget.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace quire {

bool TierBudget::add(int64_t bytes) {
  MutexLock lock(mutex_);
  if (most() != kNoLimit && bytes > most() - used_) return false;
  if (runtime_ && !runtime_->add(bytes)) return false;
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return true;
}

void TierBudget::remove(int64_t bytes) {
  MutexLock lock(mutex_);
  used_ -= bytes;
  if (runtime_) runtime_->remove(bytes);
}

void TierBudget::set_ceiling(int64_t bytes) {
  MutexLock lock(mutex_);
  ceiling_ = bytes;
}

int64_t TierBudget::used() const {
  MutexLock lock(mutex_);
  return used_;
}

int64_t TierBudget::peak() const {
  MutexLock lock(mutex_);
  return peak_;
}

int64_t TierBudget::own_room() const {
  MutexLock lock(mutex_);
  return most() != kNoLimit ? most() - used_ : kNoLimit;
}

int64_t TierBudget::room() const { return runtime_ ? std::min(own_room(), runtime_->room()) : own_room(); }

int64_t TierBudget::shortage() const {
  const int64_t above = runtime_ ? runtime_->shortage() : 0;
  MutexLock lock(mutex_);
  return most() == kNoLimit ? above : std::max({int64_t{0}, above, spare_bytes(most()) - (most() - used_)});
}

std::string TierBudget::describe() const {
  if (runtime_ && runtime_->room() < own_room()) return runtime_->describe();
  {
    MutexLock lock(mutex_);
    if (limit_ == 0 || ceiling_ < limit_) {
      return "the device has room for " + std::to_string(ceiling_) + ", and the runtime's sessions hold " +
             std::to_string(used_);
    }
  }
  const std::string numbers = " budget is " + std::to_string(limit_) + ", and its ";
  return (runtime_ ? "the session's" + numbers + "records" : "the runtime's" + numbers + "sessions") + " hold " +
         std::to_string(used());
}

Status TierAccount::check(int64_t needed, const std::string& purpose, int64_t reclaimable) const {
  const std::string needs = "the KV cache needs " + std::to_string(needed) + " bytes " + what_ + purpose;
  if (limit_ > 0 && needed > limit_) {
    return Status(Code::kBudget, needs + "; the session's budget is " + std::to_string(limit_));
  }
  if (!runtime_ || needed - used() - reclaimable <= runtime_->room()) return {};
  return Status(Code::kBudget, needs + "; " + runtime_->describe());
}

void TierAccount::count(int64_t bytes) {
  used_ += bytes;
  peak_ = std::max(peak_, used_);
}

Status TierAccount::add(int64_t bytes) {
  QUIRE_TRY(check(used() + bytes, ""));
  MutexLock lock(mutex_);
  if ((limit_ > 0 && bytes > limit_ - used_) || (runtime_ && !runtime_->add(bytes))) {  // another thread was faster
    return Status(Code::kBudget, "the KV cache needs " + std::to_string(bytes) + " bytes more " + what_ +
                                     ", which another session has taken");
  }
  charged_ += bytes;
  count(bytes);
  return {};
}

void TierAccount::remove(int64_t bytes) {
  MutexLock lock(mutex_);
  used_ -= bytes;
  charged_ -= bytes;
  if (runtime_) runtime_->remove(bytes);
}

void TierAccount::hold_shared(int64_t bytes) {
  MutexLock lock(mutex_);
  count(bytes);
}

void TierAccount::let_go_shared(int64_t bytes) {
  MutexLock lock(mutex_);
  used_ -= bytes;
}

void TierAccount::give(int64_t bytes, TierAccount& to) {
  if (&to == this) return;
  {
    MutexLock lock(mutex_);
    used_ -= bytes;
    charged_ -= bytes;
  }
  MutexLock lock(to.mutex_);
  to.charged_ += bytes;
  to.count(bytes);
}

int64_t TierAccount::used() const {
  MutexLock lock(mutex_);
  return used_;
}

int64_t TierAccount::peak() const {
  MutexLock lock(mutex_);
  return peak_;
}

Result<std::unique_ptr<Buffer>> TierAccount::allocate(Backend& backend, int64_t bytes, MemoryKind kind) {
  struct Undo {  // whatever fails, allocation of the small object included
    TierAccount* account;
    int64_t bytes, peak;
    ~Undo() {
      if (!account) return;
      account->remove(bytes);
      MutexLock lock(account->mutex_);
      account->peak_ = std::max(peak, account->used_);
    }
  } undo{nullptr, bytes, peak()};
  QUIRE_TRY(add(bytes));
  undo.account = this;
  QUIRE_ASSIGN(auto buffer, backend.allocate(static_cast<size_t>(bytes), kind));
  undo.account = nullptr;
  return buffer;
}

Result<std::shared_ptr<Buffer>> TierAccount::allocate_shared(Backend& backend, int64_t bytes, MemoryKind kind) {
  struct Shared {
    std::unique_ptr<Buffer> buffer;
    std::shared_ptr<TierBudget> runtime;
    int64_t charged = 0;
    ~Shared() {
      buffer.reset();  // it counts as long as it is there
      if (runtime) runtime->remove(charged);
    }
  };
  auto shared = std::make_shared<Shared>();
  QUIRE_ASSIGN(shared->buffer, allocate(backend, bytes, kind));
  shared->runtime = runtime_;
  shared->charged = bytes;
  {
    MutexLock lock(mutex_);
    charged_ -= bytes;
  }
  Buffer* const buffer = shared->buffer.get();
  return std::shared_ptr<Buffer>(std::move(shared), buffer);
}

Status TierAccount::own(Backend& backend, std::shared_ptr<Buffer>& buffer) {
  std::vector<std::byte> host(buffer->size());
  return own(backend, buffer, [&](Queue& queue, const Buffer& from, Buffer& to) {
    QUIRE_TRY(backend.download(queue, from, 0, host.data(), host.size()));
    QUIRE_TRY(finish_queue(backend, queue));
    return backend.upload(queue, host.data(), to, 0, host.size());
  });
}

Status TierAccount::own(Backend& backend, std::shared_ptr<Buffer>& buffer, const Copy& copy_bytes) {
  const size_t bytes = buffer->size();
  std::shared_ptr<Buffer> copy;  // outlives the queue, which may still work on it where a copy fails
  QUIRE_ASSIGN(const auto queue, backend.create_queue());
  let_go_shared(static_cast<int64_t>(bytes));  // a copy fits wherever what is copied did
  struct Undo {
    TierAccount* account;
    int64_t bytes;
    ~Undo() {
      if (account) account->hold_shared(bytes);
    }
  } undo{this, static_cast<int64_t>(bytes)};
  QUIRE_ASSIGN(copy, allocate_shared(backend, static_cast<int64_t>(bytes), MemoryKind::kDevice));
  undo.account = nullptr;  // whichever is kept counts
  Status status = copy_bytes(*queue, *buffer, *copy);
  if (status.ok()) status = finish_queue(backend, *queue);
  if (status.ok()) std::swap(buffer, copy);
  return status;
}

int64_t TierAccount::own_room() const { return limit_ > 0 ? limit_ - used() : kNoLimit; }

int64_t TierAccount::own_shortage() const {
  return limit_ > 0 ? std::max<int64_t>(0, spare_bytes(limit_) - own_room()) : 0;
}

int64_t TierAccount::room() const { return runtime_ ? std::min(own_room(), runtime_->room()) : own_room(); }

}  // namespace quire
