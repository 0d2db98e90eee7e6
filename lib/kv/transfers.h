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
// nothing is read, and `out` is still there. Or `out` is written and stays (`stays`), if the tier has room at hand.
struct Transfer {
  Buffer* memory = nullptr;
  Record* out = nullptr;
  OwnedRecords* out_owner = nullptr;  // whose `out` was
  bool writes = false;
  bool stays = false;
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

// Is told what came of transfers. Of one that failed, what is queued on the memory (`after`) may not be done yet.
class TransferListener {
 public:
  virtual void finished(const Transfer& transfer) noexcept = 0;

 protected:
  ~TransferListener() = default;
};

// The transfers of one store, in the order of submission, on an I/O thread or on the thread that waits for them.
//
// Bytes go from and to where a tier has them in the host's memory (Tier::begin_write), else through one staging buffer
// of a record's size; the lower tiers see host memory alone. Transfers that need no staging buffer and wait one behind
// the other run together: all that is written first, then all that is read, by one call of the backend and one wait
// each. So many small records cost little more than their bytes. The others run one at a time. Tiers are told of some
// reads beforehand (Tier::will_read), so that a disk works on several at once.
//
// No two transfers that wait are about the same memory, record or slot: a record that is on its way is neither sent for
// nor given up, and its memory is its own. What failed alone is one transfer's failure, such as a tier without room;
// what failed of the copies of several is the failure of each of them.
//
// It touches the memory and the slots of the transfers that run, and no state of a record: what comes of them is the
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
  // There is a staging buffer. The transfer waits until somebody calls schedule() or claim(). An exception: it was not
  // taken. Any thread.
  void submit(Transfer transfer);
  // Has an I/O thread run what waits. True: there is none, and the caller is to call run_all().
  bool schedule();
  // Whether some wait, and no thread works on them or will: the caller is to call run_all().
  bool claim();
  void run_all() noexcept;
  // Takes back the transfer that was submitted last, unless it has begun.
  bool take_back(Transfer* transfer);

 private:
  // One that runs, and where its records lie in the host's memory.
  struct Running {
    Transfer* transfer;
    void* to = nullptr;   // of `out`, between begin_write and end_write
    StagedRecord from{};  // of `in`, between begin_read and end_read
  };
  // Of those that run together. Who waits for the first of them waits for all: for less than a millisecond on a bus of
  // 25 GB/s.
  static constexpr size_t kMostTogether = 128;
  static constexpr size_t kMostBytesTogether = size_t{16} << 20;

  Transfers(Backend& backend, TierAccount& account, int64_t record_bytes, IoThreads* io, TransferListener& listener)
      : backend_(backend), account_(account), record_bytes_(record_bytes), io_(io), listener_(listener) {}
  bool run_one() override;
  void finish(Transfer& transfer) noexcept;
  void renew_queue() noexcept;
  void announce();
  Transfer* next(size_t n_joined);
  bool join(Transfer& transfer) noexcept;
  bool begin(Running& running);
  void run_together() noexcept;
  Status wait_for_fences();
  Status wait_for(const Fences& after);
  Status write_together();
  Status read_together();
  void run_alone(Transfer& transfer) noexcept;
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
  bool queue_failed_ = false;        // of the thread that runs
  std::unique_ptr<Buffer> staging_;  // of the store's thread until the first submit(), then of the one that runs
  // Of the thread that runs, and never longer than their first capacity.
  std::vector<Running> together_;
  std::vector<StagedUpload> uploads_;

  Mutex mutex_;
  CondVar idle_;  // notified when none runs or waits any more
  // The oldest first: those that run, and those that wait.
  std::deque<Transfer> all_ QUIRE_GUARDED_BY(mutex_);
  size_t n_running_ QUIRE_GUARDED_BY(mutex_) = 0;
  bool scheduled_ QUIRE_GUARDED_BY(mutex_) = false;  // a thread works on them, or will
};

}  // namespace quire
