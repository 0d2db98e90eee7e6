// Which records are in device memory: brought there on request, and given to a lower tier when the budget is reached.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/kv/record_memory.h"
#include "lib/kv/record_table.h"
#include "lib/kv/tier.h"
#include "lib/kv/tier_budget.h"
#include "lib/kv/transfers.h"
#include "lib/kv/use_order.h"

namespace quire {

// What becomes of the records that are pinned when others are asked for.
enum class Pins { kReplaced, kKept };

// A record of the table is out, arriving, in, or leaving (RecordEntry::State). What computing has asked for is pinned
// until it asks for something else: it leaves memory neither for a request nor for a prefetch. Of the records that are
// in and not pinned, the least recently used leaves first. A record on its way neither leaves nor is dropped: who wants
// to, waits.
//
// A record without a slot of a lower tier is in and stays there.
//
// The bytes of any other one are in memory or in its slot, or both, at any time. One that cannot be written stays in
// memory, and is written when its place is wanted again. One that cannot be read is out, and is read when it is asked
// for again.
//
// One thread at a time, the store's. The I/O thread sees transfers, never a table or a list.
class Residency {
 public:
  // Without lower tiers (transfers null) what enters stays. page_records: of a new page, at most.
  Residency(Backend& backend, RecordTable& table, RecordMemory& memory, TierAccount& account,
            std::span<const std::shared_ptr<Tier>> tiers, std::unique_ptr<Transfers> transfers, int64_t page_records);

  // Brings the records into memory and pins them. `queue`: where work on what memory holds is queued. kIo,
  // kOutOfMemory, kBudget: nothing is lost.
  Status acquire(Queue& queue, std::span<const RecordId> records, Access access, Pins pins);
  // Begins to bring the records into memory, the first ones first, as far as half of the memory and what is not pinned
  // suffice. What fails is as if it had not been asked for.
  void prefetch(Queue& queue, std::span<const RecordId> records) noexcept;
  // A held record has that place from now on.
  void enter(RecordId id, RecordMemory::Slot memory);
  // Forgets a record that is held: its place and slot are free.
  void drop(RecordId id);
  // Releases pages until `added` bytes more fit into the account, or none is left. kIo: so far as it came.
  Status shrink_for(int64_t added);

  int64_t n_in() const { return n_in_; }
  // Of those with a slot of a lower tier.
  int64_t n_in_of(size_t tier) const { return n_in_of_[tier]; }
  // Waits until no record is on its way. What fails is as if it had not been asked for.
  void settle();
  // ---- forks
  // Writes what is in memory alone to its slot. kIo, kOutOfMemory: so far as it came.
  Status save_all();
  // The table is a copy of `other`, of a store whose save_all() succeeded: what can leave memory has left it, and the
  // slots are shared. Never fails.
  void begin_as_fork(RecordTable& other);
  // Gives all slots back. Nothing else may be called afterwards.
  void free_slots();
  // A record that is in, and shared, has that slot from now on, and is written there when it leaves.
  void move_to(RecordId id, int8_t tier, int64_t slot);
  // Bytes that must stay free for the staging buffer.
  int64_t staging_left() const;
  bool asynchronous() const { return transfers_ && transfers_->asynchronous(); }
  TierStats device_stats() const { return device_; }
  const TierStats& tier_stats(size_t tier) const { return lower_[tier]; }

 private:
  using State = RecordEntry::State;

  struct Place {
    RecordMemory::Slot memory;
    RecordId victim;  // leaves it; none: it is free
  };

  enum class Purpose { kAcquire, kPrefetch };

  Status acquire_all(Queue& queue, std::span<const RecordId> records, Pins pins);
  void collect();
  void finish(const Transfer& transfer);
  Status submit(Transfer transfer);
  void wait();
  Status start(Queue& queue, RecordId id, Purpose purpose);
  Status start_at(Queue& queue, RecordId id, const Place& place, Purpose purpose);
  Result<bool> find_place(Place* place);
  RecordId oldest_unpinned();
  Status write_out(RecordId id);
  Status save(RecordId id);
  void leave(RecordId id, State state);
  void use(RecordId id);
  bool can_leave(RecordId id) const { return table_.entry(id).slot >= 0; }
  Transfer::End end_of(RecordId id);

  Backend& backend_;
  RecordTable& table_;
  RecordMemory& memory_;
  TierAccount& account_;
  const std::span<const std::shared_ptr<Tier>> tiers_;
  const int64_t page_records_;

  UseOrder order_;  // of the records that are in and can leave
  int64_t n_in_ = 0;
  std::vector<int64_t> n_in_of_;        // of each lower tier
  uint64_t pins_ = 1;                   // entries with this number are pinned
  std::shared_ptr<const Fence> fence_;  // of the queue, when the last acquire() or prefetch() began; null: not needed
  Status failure_;                      // of a transfer that was no prefetch, since the last acquire() began
  TierStats device_;                    // hits, misses, evictions, stall
  std::vector<TierStats> lower_;
  std::unique_ptr<Transfers> transfers_;  // last: it is gone before what it works on
};

}  // namespace quire
