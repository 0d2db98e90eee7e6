// Bytes of a tier, such as device memory or the spill file: what a runtime's stores may hold together, and what one
// store holds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "lib/backend/backend.h"
#include "lib/support/mutex.h"
#include "lib/support/status.h"

namespace quire {

// So much of a budget should be free, or be of records that can leave at once (Residency::write_behind).
constexpr int64_t spare_bytes(int64_t budget) { return budget / 8; }

// The account that the stores of a runtime share, or the tiers of a store. `used` never exceeds `limit`. Any thread.
// A device may have less than the limit says, and that changes: see set_ceiling().
class TierBudget {
 public:
  explicit TierBudget(int64_t limit) : limit_(limit) {}  // 0: no limit
  // Of one session, within the runtime's; `runtime` may be null.
  TierBudget(int64_t limit, std::shared_ptr<TierBudget> runtime) : limit_(limit), runtime_(std::move(runtime)) {}
  TierBudget(const TierBudget&) = delete;
  TierBudget& operator=(const TierBudget&) = delete;

  // False: it would exceed the limit, and nothing was changed.
  bool add(int64_t bytes);
  void remove(int64_t bytes);
  int64_t limit() const { return limit_; }
  // Beside the limit nothing is added from here on that makes more than so many bytes: what the device has left. What
  // is held stays. kNoLimit: the limit alone counts.
  void set_ceiling(int64_t bytes);
  int64_t used() const;
  int64_t peak() const;
  // Bytes that are left; kNoLimit without a limit. Another store may take them at any time.
  int64_t room() const;
  // Bytes that are missing to the spare ones; 0: they are free.
  int64_t shortage() const;
  // For a message: which budget leaves the least room, and what is used of it.
  std::string describe() const;

 private:
  int64_t own_room() const;
  int64_t most() const QUIRE_REQUIRES(mutex_) { return limit_ > 0 && limit_ < ceiling_ ? limit_ : ceiling_; }

  const int64_t limit_;
  const std::shared_ptr<TierBudget> runtime_{};
  mutable Mutex mutex_;
  int64_t ceiling_ QUIRE_GUARDED_BY(mutex_) = kNoLimit;
  int64_t used_ QUIRE_GUARDED_BY(mutex_) = 0;
  int64_t peak_ QUIRE_GUARDED_BY(mutex_) = 0;
};

// What one store holds of a tier, within a limit of its own and within the runtime's account. Whatever it holds leaves
// the runtime's account when it is destroyed. A buffer that several stores hold counts in the account of each, and once
// in the runtime's, which it leaves with its last holder. Any thread; memory is allocated and released while no mutex
// is held.
class TierAccount {
 public:
  // `what` names the tier in messages: "of memory". limit 0: none. `runtime` may be null.
  TierAccount(std::string what, int64_t limit, std::shared_ptr<TierBudget> runtime)
      : what_(std::move(what)), limit_(limit), runtime_(std::move(runtime)) {}
  ~TierAccount() {
    MutexLock lock(mutex_);
    if (runtime_) runtime_->remove(charged_);
  }
  TierAccount(const TierAccount&) = delete;
  TierAccount& operator=(const TierAccount&) = delete;

  // kBudget unless the store could hold `needed` bytes in all, if other stores gave `reclaimable` bytes back. `purpose`
  // completes "needs ... bytes of memory".
  Status check(int64_t needed, const std::string& purpose, int64_t reclaimable = 0) const;
  // kBudget: nothing was changed.
  Status add(int64_t bytes);
  void remove(int64_t bytes);
  // Adds and allocates: both or none.
  Result<std::unique_ptr<Buffer>> allocate(Backend& backend, int64_t bytes, MemoryKind kind);
  // The same for a buffer that other stores of the runtime may hold as well.
  Result<std::shared_ptr<Buffer>> allocate_shared(Backend& backend, int64_t bytes, MemoryKind kind);
  // A copy takes the place of a shared buffer: of all of it by way of the host, or of what `copy_bytes` queues.
  // kBudget, kOutOfMemory: nothing was changed.
  using Copy = std::function<Status(Queue& queue, const Buffer& from, Buffer& to)>;
  Status own(Backend& backend, std::shared_ptr<Buffer>& buffer);
  Status own(Backend& backend, std::shared_ptr<Buffer>& buffer, const Copy& copy_bytes);
  // The store holds a shared buffer of another one, or holds one no longer.
  void hold_shared(int64_t bytes);
  void let_go_shared(int64_t bytes);
  // Bytes of this account count in another one of the runtime from now on, whose limit may be exceeded.
  void give(int64_t bytes, TierAccount& to);

  int64_t limit() const { return limit_; }
  int64_t used() const;
  int64_t peak() const;
  // Bytes that can be added now; kNoLimit without limits.
  int64_t room() const;
  // The same, as far as this account's own limit goes.
  int64_t own_room() const;
  // Bytes that are missing to the spare ones of its own limit.
  int64_t own_shortage() const;

 private:
  void count(int64_t bytes) QUIRE_REQUIRES(mutex_);

  const std::string what_;
  const int64_t limit_;
  const std::shared_ptr<TierBudget> runtime_;
  mutable Mutex mutex_;  // taken before the runtime's
  int64_t used_ QUIRE_GUARDED_BY(mutex_) = 0;
  int64_t charged_ QUIRE_GUARDED_BY(mutex_) = 0;  // of it, what this account has added to the runtime's
  int64_t peak_ QUIRE_GUARDED_BY(mutex_) = 0;
};

}  // namespace quire
