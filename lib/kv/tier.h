// A place for records below device memory: the host's memory, compressed memory, a file. It knows records as bytes of
// the host, in slots.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lib/backend/memory.h"
#include "lib/support/status.h"

namespace quire {

// What a store did with one tier since it was made.
struct TierStats {
  std::string name;                           // "device", "file", ...
  int64_t limit = 0;                          // of the store; 0: none
  int64_t bytes = 0, bytes_peak = 0;          // held now, and at most
  int64_t n_records = 0;                      // that are in it: in device memory, or with a slot of the tier
  int64_t n_hits = 0;                         // device: records asked for that were there; a lower tier: read from it
  int64_t n_misses = 0;                       // device: records asked for that were not there, on their way included
  int64_t n_prefetched = 0;                   // device: records that came before they were asked for
  int64_t n_evicted = 0;                      // device: records that left it for a lower tier
  int64_t n_written_behind = 0;               // device: records that were written there while they stayed
  int64_t bytes_read = 0, bytes_written = 0;  // of a lower tier, from it and to it
  int64_t stall_ns = 0;                       // device: time in which computing waited for records
};

// Of a tier and of those behind it, the nearest first: of the host's memory, compressed memory, a file. Allocates
// nothing.
class TierRows {
 public:
  static constexpr size_t kMost = 3;
  void push_back(TierStats row) { rows_[n_++] = std::move(row); }
  size_t size() const { return n_; }
  bool empty() const { return n_ == 0; }
  TierStats& operator[](size_t i) { return rows_[i]; }
  const TierStats& front() const { return rows_[0]; }
  const TierStats* begin() const { return rows_.data(); }
  const TierStats* end() const { return rows_.data() + n_; }

 private:
  std::array<TierStats, kMost> rows_;
  size_t n_ = 0;
};

// Where a slot's bytes lie in the host's memory.
struct StagedRecord {
  const Buffer* memory = nullptr;  // null: nowhere
  size_t offset = 0;

  explicit operator bool() const { return memory != nullptr; }
  const std::byte* data() const { return static_cast<const std::byte*>(memory->host()) + offset; }
};

// Any thread, several at once: stores share tiers, with the records in them. A slot that is written, or given back, no
// other call is about; it may be read by several.
class Tier {
 public:
  virtual ~Tier() = default;
  virtual std::string name() const = 0;
  // Whether its records are read alone.
  virtual bool read_only() const { return false; }
  // kBudget, kIo, kOutOfMemory: nothing was changed.
  virtual Result<std::vector<int64_t>> take_slots(int64_t n) = 0;
  // Never allocates.
  virtual void free_slot(int64_t slot) = 0;
  virtual Status write(int64_t slot, const void* record) = 0;
  virtual Status read(int64_t slot, void* record) = 0;
  // Whether write() to the slot is likely to find room. Asked while the residency's mutex is held: it takes a moment.
  virtual bool can_write(int64_t /*slot*/) const { return true; }
  // Whether write() to the slot costs a copy in the host's memory and nothing gives way for it: then it may be written
  // before it has to be. Asked as can_write().
  virtual bool can_write_behind(int64_t /*slot*/) const { return false; }

  // Where the slot's bytes lie in the host's memory, so that a device copies to it and from it. None: nowhere, and
  // read() and write() are called instead. What was begun is ended, and on the slot nothing else is called in between,
  // but that several may read it. Errors: those of write().
  virtual Result<void*> begin_write(int64_t /*slot*/) { return nullptr; }
  // `written`: the record is there; else the slot has none.
  virtual void end_write(int64_t /*slot*/, bool /*written*/) {}
  virtual StagedRecord begin_read(int64_t /*slot*/) { return {}; }
  virtual void end_read(int64_t /*slot*/) {}

  // A hint that the slot will be read soon: what takes time without the processor can begin. Returns at once.
  virtual void will_read(int64_t /*slot*/) {}
  // Limit of this store, bytes held and their peak go into `stats`; what else the tier counts itself, too.
  virtual void describe(TierStats& stats) const = 0;
  // The same of the tiers that this one gives records on to, by itself, the nearest first.
  virtual void describe_behind(TierRows&) const {}
};

// What a tier's describe_behind() says of the next one, with what it has counted itself of that one.
inline void describe_next(const Tier& next, TierStats counted, TierRows& tiers) {
  counted.name = next.name();
  next.describe(counted);
  tiers.push_back(std::move(counted));
  next.describe_behind(tiers);
}

}  // namespace quire
