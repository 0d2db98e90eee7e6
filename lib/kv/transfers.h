// Records on their way between device memory and a lower tier.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "lib/backend/backend.h"
#include "lib/kv/io_thread.h"
#include "lib/kv/record_table.h"
#include "lib/kv/tier.h"
#include "lib/kv/tier_budget.h"
#include "lib/support/mutex.h"

namespace quire {

// One place in device memory changes its record: `out` is written from it first, unless its tier is null, and then `in`
// is read into it, unless its tier is null. If writing fails, nothing is read, and `out` is still there.
struct Transfer {
  struct End {
    RecordId record;
    Tier* tier = nullptr;
    int64_t slot = -1;
  };
  KvRecord memory;
  End out, in;
  std::shared_ptr<const Fence> after;  // what is queued on the memory so far; may be null
  bool prefetch = false;               // nobody waits for it yet
  // What came of it.
  bool written = false;
  Status status;
};

// The transfers of one store, one after the other in the order of submission, on an I/O thread or, without one, inside
// submit(). So a record that is written and then read again passes in this order. Bytes go through one staging buffer
// of a record's size, and the lower tiers see host memory alone.
//
// The store's thread submits and takes what is done; it alone changes the record table. The I/O thread touches the
// transfer that runs, the staging buffer, the queue of the backend and the slots of the tiers.
class Transfers : private IoWork {
 public:
  // io null: no thread. Its threads were started. Backend, account and io must outlive this.
  static Result<std::unique_ptr<Transfers>> create(Backend& backend, TierAccount& account, int64_t record_bytes,
                                                   IoThreads* io);
  // Transfers that have not begun are dropped; one that runs is waited for.
  ~Transfers() override;

  // Whether submit() leaves the work to another thread.
  bool asynchronous() const { return io_ != nullptr; }
  // Bytes of the staging buffer, which the first submit() allocates.
  int64_t staging_bytes() const { return record_bytes_; }
  bool has_staging() const { return staging_ != nullptr; }
  // kBudget, kOutOfMemory, or an exception: it was not taken.
  Status submit(Transfer transfer);
  // Submitted and not taken with take_done().
  int64_t n_in_flight() const { return n_in_flight_; }
  // Takes the oldest transfer, if it is done.
  bool take_done(Transfer* transfer);
  // Waits until the oldest transfer is done; there is one.
  void wait();

 private:
  Transfers(Backend& backend, TierAccount& account, int64_t record_bytes, IoThreads* io)
      : backend_(backend), account_(account), record_bytes_(record_bytes), io_(io) {}
  bool run_one() override;
  void run(Transfer& transfer) noexcept;
  Status move(Transfer& transfer);

  Backend& backend_;
  TierAccount& account_;
  const int64_t record_bytes_;
  IoThreads* const io_;
  std::unique_ptr<Queue> queue_;
  std::unique_ptr<Buffer> staging_;  // of the store's thread until the first submit(), then of the one that runs
  int64_t n_in_flight_ = 0;          // of the store's thread

  Mutex mutex_;
  CondVar changed_;  // notified when a transfer is done, and when none runs any more
  // The oldest first: those that are done, the one that runs or is next, those that wait.
  std::deque<Transfer> all_ QUIRE_GUARDED_BY(mutex_);
  size_t n_done_ QUIRE_GUARDED_BY(mutex_) = 0;
  bool scheduled_ QUIRE_GUARDED_BY(mutex_) = false;  // the I/O threads have this work
};

}  // namespace quire
