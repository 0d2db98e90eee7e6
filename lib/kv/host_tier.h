// The host tier: records of a device with memory of its own, in memory of the host from which it copies at full speed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/kv/tier.h"
#include "lib/kv/tier_budget.h"
#include "lib/support/mutex.h"

namespace quire {

// A slot has no place until its record is written: what stays on the device takes nothing here, or little
// (Residency::write_behind). Then it has a block of a slab, which is taken from the backend and counted when it is
// needed, and given back when none of its blocks is in use. Where the budget has no room, the record used longest ago
// goes to the next tier, which gets a slot for it then; a record that finds no block goes there itself. Nothing comes
// back from there but to device memory.
//
// Without a next tier, or where that is full too, writing fails with kBudget, and can_write() says so beforehand.
// Nothing is lost: the record stays where it is.
//
// Any thread, as a Tier; records get their blocks, and go to the next tier, one at a time.
class HostTier : public Tier {
 public:
  struct Options {
    int64_t record_bytes = 0;
    int64_t budget_bytes = 0;               // 0: no limit
    std::shared_ptr<TierBudget> runtime{};  // may be null
  };
  // The backend must outlive this. next: null: there is none.
  HostTier(Backend& backend, const Options& options, std::unique_ptr<Tier> next)
      : backend_(backend),
        record_bytes_(options.record_bytes),
        next_(std::move(next)),
        account_("of host memory", options.budget_bytes, options.runtime) {}
  ~HostTier() override;

  static constexpr const char* kName = "host";
  std::string name() const override { return kName; }
  Result<std::vector<int64_t>> take_slots(int64_t n) override;
  void free_slot(int64_t slot) override;
  Status write(int64_t slot, const void* record) override;
  Status read(int64_t slot, void* record) override;
  bool can_write(int64_t slot) const override;
  bool can_write_behind(int64_t slot) const override;
  Result<void*> begin_write(int64_t slot) override;
  void end_write(int64_t slot, bool written) override;
  StagedRecord begin_read(int64_t slot) override;
  void end_read(int64_t slot) override;
  void will_read(int64_t slot) override;
  void describe(TierStats& stats) const override;
  void describe_behind(TierRows& tiers) const override;

  // A slab is a quarter of what there is, within these bounds, and never less than a record.
  static constexpr int64_t kLeastSlabBytes = int64_t{1} << 20;
  static constexpr int64_t kMostSlabBytes = int64_t{64} << 20;

 private:
  struct Slab {
    std::unique_ptr<Buffer> memory;
    int64_t n_used = 0;
  };
  struct Block {
    Slab* slab = nullptr;  // null: none
    std::byte* data = nullptr;
  };
  struct Entry {
    Block block;             // of the record; none: it is not here
    int64_t next_slot = -1;  // of the next tier, where its bytes are unless it has a block; -1: it has none there
    int32_t n_readers = 0;   // between begin_read and end_read
    // Neighbours in the list of what is here and written, by use.
    bool listed = false;
    int64_t before = -1, after = -1;
  };

  bool has_block_for(int64_t slot) const QUIRE_REQUIRES(mutex_);
  Entry& entry(int64_t slot) QUIRE_REQUIRES(mutex_) { return entries_[static_cast<size_t>(slot)]; }
  Result<Block> find_block() QUIRE_REQUIRES(space_mutex_);
  Status grow() QUIRE_REQUIRES(space_mutex_);
  Block give_to_next(int64_t slot) QUIRE_REQUIRES(space_mutex_);
  int64_t oldest_at_rest() QUIRE_REQUIRES(mutex_);
  Block take_free() QUIRE_REQUIRES(mutex_);
  std::unique_ptr<Slab> put_back(Block block) QUIRE_REQUIRES(mutex_);
  void release(std::unique_ptr<Slab> slab) QUIRE_EXCLUDES(mutex_);
  Result<int64_t> slot_in_next(int64_t slot);
  void forget_in_next(int64_t slot, int64_t next_slot);
  int64_t set_next(int64_t slot, int64_t next_slot) QUIRE_REQUIRES(mutex_);
  void leave_next(int64_t next_slot);
  void append(int64_t slot) QUIRE_REQUIRES(mutex_);
  void unlink(int64_t slot) QUIRE_REQUIRES(mutex_);

  Backend& backend_;
  const int64_t record_bytes_;
  const std::unique_ptr<Tier> next_;

  Mutex space_mutex_;  // held while a block is found, and a record written to the next tier; before mutex_
  mutable Mutex mutex_;
  CondVar changed_;  // notified when `moving_` is not any more
  TierAccount account_;
  std::vector<std::unique_ptr<Slab>> slabs_ QUIRE_GUARDED_BY(mutex_);
  std::vector<Block> free_blocks_ QUIRE_GUARDED_BY(mutex_);  // capacity: all blocks
  int64_t n_blocks_ QUIRE_GUARDED_BY(mutex_) = 0;            // in use and free
  std::vector<Entry> entries_ QUIRE_GUARDED_BY(mutex_);      // by slot
  std::vector<int64_t> free_ QUIRE_GUARDED_BY(mutex_);       // slots; its capacity is that of entries_
  int64_t oldest_ QUIRE_GUARDED_BY(mutex_) = -1;
  int64_t newest_ QUIRE_GUARDED_BY(mutex_) = -1;
  int64_t moving_ QUIRE_GUARDED_BY(mutex_) = -1;        // to the next tier: it is neither read nor given back meanwhile
  bool next_is_full_ QUIRE_GUARDED_BY(mutex_) = false;  // it had no room, and may have none still
  TierStats stats_ QUIRE_GUARDED_BY(mutex_), next_stats_ QUIRE_GUARDED_BY(mutex_);
};

}  // namespace quire
