// Records on their way between device memory and a lower tier.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/kv/io_thread.h"
#include "lib/kv/record.h"
#include "lib/kv/tier_budget.h"
#include "lib/support/mutex.h"

namespace quire {

using Fences = std::vector<std::shared_ptr<const Fence>>;

// A piece of device memory changes its record: `out`, unless it is null, leaves it, and is written to its slot first if
// `writes`; then `in`, unless it is null, has it, and is read into it from its slot if `reads`. If writing fails,
// nothing is read, and `out` is still there.
struct Transfer {
  Buffer* memory = nullptr;
  Record* out = nullptr;
  OwnedRecords* out_owner = nullptr;  // whose `out` was
  bool writes = false;
  Record* in = nullptr;
  bool reads = false;
  bool scan = false;                    // `in` is the first to leave again (Access)
  bool prefetch = false;                // nobody waits for it yet
  RecordUser* user = nullptr;           // who asked for it
  std::shared_ptr<const Fences> after;  // what is queued on the memory so far; may be null
  bool announced = false;               // the tier knows that it will be read
  // What came of it.
  bool written = false;
  Status status;
};

// Is told what came of transfers.
class TransferListener {
 public:
  virtual void finished(const Transfer& transfer) noexcept = 0;

 protected:
  ~TransferListener() = default;
};

// The transfers of one store, one after the other in the order of submission, on an I/O thread or, without one, on the
// thread that submits. What somebody waits for runs on the thread that waits, unless an I/O thread works on others.
// Bytes go from and to where a tier has them in the host's memory (Tier::begin_write), else through one staging buffer
// of a record's size; the lower tiers see host memory alone. Tiers are told of some reads beforehand (Tier::will_read),
// so that a disk works on several at once.
//
// It touches the memory and the slots of the transfer that runs, and no state of a record: what comes of it is the
// listener's matter.
class Transfers : private IoWork {
 public:
  // record_bytes: of the largest records. io null: no thread. Its threads were started. All must outlive this.
  static Result<std::unique_ptr<Transfers>> create(Backend& backend, TierAccount& account, int64_t record_bytes,
                                                   IoThreads* io, TransferListener& listener);
  // None runs or waits.
  ~Transfers() override;

  // Whether another thread does the work.
  bool asynchronous() const { return io_ != nullptr; }
  // Allocates the staging buffer, unless it is there. kBudget, kOutOfMemory. The store's thread.
  Status make_staging();
  int64_t staging_bytes() const { return record_bytes_; }
  // What make_staging() will allocate.
  int64_t staging_left() const { return staging_ ? 0 : record_bytes_; }
  // There is a staging buffer. awaited: the caller calls claim() before it waits for the transfer. An exception: it
  // was not taken. True: no thread does the work, and the caller is to call run_all(). Never runs a transfer itself.
  // Any thread.
  bool submit(Transfer transfer, bool awaited);
  // Whether some wait, and no thread works on them or will: the caller is to call run_all().
  bool claim();
  void run_all() noexcept;
  // Takes back the transfer that was submitted last, unless it has begun.
  bool take_back(Transfer* transfer);

 private:
  Transfers(Backend& backend, TierAccount& account, int64_t record_bytes, IoThreads* io, TransferListener& listener)
      : backend_(backend), account_(account), record_bytes_(record_bytes), io_(io), listener_(listener) {}
  bool run_one() override;
  Transfer* next();
  void run(Transfer& transfer) noexcept;
  Status move(Transfer& transfer);
  Status write(const Buffer& memory, const Record& record);
  Status read(const Record& record, Buffer& memory);
  template <typename Enqueue>
  Status copy(const Enqueue& enqueue);

  Backend& backend_;
  TierAccount& account_;
  const int64_t record_bytes_;
  IoThreads* const io_;
  TransferListener& listener_;
  std::unique_ptr<Queue> queue_;
  std::unique_ptr<Buffer> staging_;  // of the store's thread until the first submit(), then of the one that runs

  Mutex mutex_;
  CondVar idle_;  // notified when none runs or waits any more
  // The oldest first: the one that runs, if `running_`, and those that wait.
  std::deque<Transfer> all_ QUIRE_GUARDED_BY(mutex_);
  bool running_ QUIRE_GUARDED_BY(mutex_) = false;
  bool scheduled_ QUIRE_GUARDED_BY(mutex_) = false;  // a thread works on them, or will
};

}  // namespace quire
