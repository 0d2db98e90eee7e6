#include "lib/kv/host_tier.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace quire {

HostTier::~HostTier() {
  while (!slabs_.empty()) {
    const auto bytes = static_cast<int64_t>(slabs_.back()->memory->size());
    slabs_.pop_back();  // it counts as long as it is there
    account_.remove(bytes);
  }
}

// ---- slots

Result<std::vector<int64_t>> HostTier::take_slots(int64_t n) {
  std::vector<int64_t> slots(static_cast<size_t>(n));
  MutexLock lock(mutex_);
  const auto missing = static_cast<size_t>(std::max<int64_t>(0, n - static_cast<int64_t>(free_.size())));
  entries_.reserve(entries_.size() + missing);
  free_.reserve(entries_.capacity());
  for (int64_t& slot : slots) {
    if (free_.empty()) {
      free_.push_back(static_cast<int64_t>(entries_.size()));
      entries_.emplace_back();
    }
    slot = free_.back();
    free_.pop_back();
  }
  next_is_full_ = false;  // it is asked again
  return slots;
}

void HostTier::free_slot(int64_t slot) {
  std::unique_ptr<Slab> unused;
  int64_t next_slot = -1;
  {
    MutexLock lock(mutex_);
    while (moving_ == slot) changed_.wait(mutex_);
    unlink(slot);
    unused = put_back(std::exchange(entry(slot).block, {}));
    next_slot = set_next(slot, -1);
    free_.push_back(slot);  // take_slots() made room
    next_is_full_ = false;
  }
  release(std::move(unused));
  leave_next(next_slot);
}

bool HostTier::can_write(int64_t slot) const {
  MutexLock lock(mutex_);
  return has_block_for(slot) || (next_ && !next_is_full_);
}

bool HostTier::can_write_behind(int64_t slot) const {
  MutexLock lock(mutex_);
  return has_block_for(slot);
}

bool HostTier::has_block_for(int64_t slot) const {
  return entries_[static_cast<size_t>(slot)].block.slab || !free_blocks_.empty() || account_.room() >= record_bytes_;
}

// ---- records

Result<void*> HostTier::begin_write(int64_t slot) {
  MutexLock space(space_mutex_);
  {
    MutexLock lock(mutex_);
    unlink(slot);
    if (entry(slot).block.slab) return static_cast<void*>(entry(slot).block.data);
  }
  QUIRE_ASSIGN(const Block block, find_block());
  MutexLock lock(mutex_);
  entry(slot).block = block;
  return static_cast<void*>(block.data);
}

void HostTier::end_write(int64_t slot, bool written) {
  std::unique_ptr<Slab> unused;
  int64_t next_slot = -1;
  {
    MutexLock lock(mutex_);
    if (written) {
      append(slot);
      stats_.bytes_written += record_bytes_;
    } else {
      unused = put_back(std::exchange(entry(slot).block, {}));
    }
    next_slot = set_next(slot, -1);  // what it has there is not the record any more
  }
  release(std::move(unused));
  leave_next(next_slot);
}

Status HostTier::write(int64_t slot, const void* record) {
  QUIRE_ASSIGN(void* const place, begin_write(slot));
  if (place) {
    std::memcpy(place, record, static_cast<size_t>(record_bytes_));
    end_write(slot, true);
    return {};
  }
  QUIRE_ASSIGN(const int64_t next_slot, slot_in_next(slot));
  const Status status = next_->write(next_slot, record);
  if (!status.ok()) {
    forget_in_next(slot, next_slot);
    return status;
  }
  MutexLock lock(mutex_);
  set_next(slot, next_slot);
  next_stats_.bytes_written += record_bytes_;
  return {};
}

StagedRecord HostTier::begin_read(int64_t slot) {
  MutexLock lock(mutex_);
  while (moving_ == slot) changed_.wait(mutex_);
  Entry& e = entry(slot);
  if (!e.block.slab) return {};
  ++e.n_readers;
  unlink(slot);
  append(slot);
  const Buffer& slab = *e.block.slab->memory;
  return {&slab, static_cast<size_t>(e.block.data - static_cast<const std::byte*>(slab.host()))};
}

void HostTier::end_read(int64_t slot) {
  MutexLock lock(mutex_);
  --entry(slot).n_readers;
  ++stats_.n_hits;
  stats_.bytes_read += record_bytes_;
}

Status HostTier::read(int64_t slot, void* record) {
  if (const StagedRecord place = begin_read(slot)) {
    std::memcpy(record, place.data(), static_cast<size_t>(record_bytes_));
    end_read(slot);
    return {};
  }
  int64_t next_slot = -1;
  {
    MutexLock lock(mutex_);
    next_slot = entry(slot).next_slot;
  }
  if (next_slot < 0) return Status(Code::kInternal, "a record is read that was not written");
  QUIRE_TRY(next_->read(next_slot, record));  // nothing comes back from there, so it is there still
  MutexLock lock(mutex_);
  ++stats_.n_misses;
  ++next_stats_.n_hits;
  next_stats_.bytes_read += record_bytes_;
  return {};
}

void HostTier::will_read(int64_t slot) {
  int64_t next_slot = -1;
  {
    MutexLock lock(mutex_);
    if (!entry(slot).block.slab) next_slot = entry(slot).next_slot;
  }
  if (next_slot >= 0) next_->will_read(next_slot);
}

// ---- blocks

// One that is free, that the budget has room for, or that of a record which goes to the next tier. None: there is a
// next tier, and the record that it is for goes there itself.
Result<HostTier::Block> HostTier::find_block() {
  {
    MutexLock lock(mutex_);
    if (!free_blocks_.empty()) return take_free();
  }
  const Status grown = grow();
  if (!grown.ok() && !next_) return grown;
  int64_t oldest = -1;
  {
    MutexLock lock(mutex_);
    if (!free_blocks_.empty()) return take_free();
    oldest = moving_ = oldest_at_rest();
  }
  return oldest < 0 ? Block() : give_to_next(oldest);
}

// Another slab, as large as the budgets and the machine allow.
Status HostTier::grow() {
  const int64_t bytes = std::clamp(account_.used() / 4, kLeastSlabBytes, kMostSlabBytes);
  int64_t n = std::max<int64_t>(1, std::min(bytes, account_.room()) / record_bytes_);
  for (;; n = 1) {
    auto slab = std::make_unique<Slab>();
    {
      MutexLock lock(mutex_);
      slabs_.reserve(slabs_.size() + 1);
      free_blocks_.reserve(static_cast<size_t>(n_blocks_ + n));
    }
    auto memory = account_.allocate(backend_, n * record_bytes_, MemoryKind::kStaging);
    if (!memory.ok() && n == 1) return memory.status();
    if (!memory.ok()) continue;
    slab->memory = std::move(*memory);
    MutexLock lock(mutex_);
    for (int64_t b = n; b > 0; --b) {  // the lowest last, so that they are taken first
      free_blocks_.push_back({slab.get(), static_cast<std::byte*>(slab->memory->host()) + (b - 1) * record_bytes_});
    }
    n_blocks_ += n;
    slabs_.push_back(std::move(slab));
    return {};
  }
}

HostTier::Block HostTier::take_free() {
  const Block block = free_blocks_.back();
  free_blocks_.pop_back();
  ++block.slab->n_used;
  return block;
}

// Returns a slab of which no block is in use any more: release() is to get it, without the mutex.
std::unique_ptr<HostTier::Slab> HostTier::put_back(Block block) {
  if (!block.slab) return nullptr;
  free_blocks_.push_back(block);  // grow() made room
  if (--block.slab->n_used > 0) return nullptr;
  n_blocks_ -= std::erase_if(free_blocks_, [&](const Block& b) { return b.slab == block.slab; });
  const auto at = std::ranges::find(slabs_, block.slab, &std::unique_ptr<Slab>::get);
  std::unique_ptr<Slab> unused = std::move(*at);
  slabs_.erase(at);
  return unused;
}

void HostTier::release(std::unique_ptr<Slab> slab) {
  if (!slab) return;
  const auto bytes = static_cast<int64_t>(slab->memory->size());
  slab.reset();
  account_.remove(bytes);
}

// ---- the next tier

// The block of the slot that is `moving_`, which it is no more afterwards. None: the next tier did not take the record,
// which stays.
HostTier::Block HostTier::give_to_next(int64_t slot) {
  struct Moving {
    HostTier& tier;
    ~Moving() {
      MutexLock lock(tier.mutex_);
      tier.moving_ = -1;
      tier.changed_.notify_all();
    }
  } moving{*this};
  const void* record = nullptr;
  {
    MutexLock lock(mutex_);
    record = entry(slot).block.data;
  }
  const auto next_slot = slot_in_next(slot);
  if (!next_slot.ok()) return {};
  if (!next_->write(next_slot.value(), record).ok()) {
    forget_in_next(slot, next_slot.value());
    return {};
  }
  MutexLock lock(mutex_);
  unlink(slot);
  set_next(slot, next_slot.value());
  ++stats_.n_evicted;
  next_stats_.bytes_written += record_bytes_;
  return std::exchange(entry(slot).block, {});
}

// The slot that it has there, or a new one, which is the caller's.
Result<int64_t> HostTier::slot_in_next(int64_t slot) {
  {
    MutexLock lock(mutex_);
    if (entry(slot).next_slot >= 0) return entry(slot).next_slot;
  }
  auto slots = next_->take_slots(1);
  if (slots.ok()) return slots.value()[0];
  MutexLock lock(mutex_);
  next_is_full_ = next_is_full_ || slots.status().code() == Code::kBudget;
  return slots.status();
}

// The slot's record could not be written to that one of the next tier.
void HostTier::forget_in_next(int64_t slot, int64_t next_slot) {
  {
    MutexLock lock(mutex_);
    set_next(slot, -1);
  }
  leave_next(next_slot);
}

// Returns what it was.
int64_t HostTier::set_next(int64_t slot, int64_t next_slot) {
  next_stats_.n_records += (next_slot >= 0 ? 1 : 0) - (entry(slot).next_slot >= 0 ? 1 : 0);
  return std::exchange(entry(slot).next_slot, next_slot);
}

void HostTier::leave_next(int64_t next_slot) {
  if (next_slot >= 0) next_->free_slot(next_slot);
}

// ---- the order of use

int64_t HostTier::oldest_at_rest() {
  int64_t slot = oldest_;
  while (slot >= 0 && entry(slot).n_readers > 0) slot = entry(slot).after;
  return slot;
}

void HostTier::append(int64_t slot) {
  Entry& e = entry(slot);
  e.listed = true;
  e.before = newest_;
  e.after = -1;
  (newest_ >= 0 ? entry(newest_).after : oldest_) = slot;
  newest_ = slot;
  ++stats_.n_records;
}

void HostTier::unlink(int64_t slot) {
  Entry& e = entry(slot);
  if (!e.listed) return;
  e.listed = false;
  (e.before >= 0 ? entry(e.before).after : oldest_) = e.after;
  (e.after >= 0 ? entry(e.after).before : newest_) = e.before;
  --stats_.n_records;
}

// ---- statistics

void HostTier::describe(TierStats& stats) const {
  MutexLock lock(mutex_);
  stats = stats_;
  stats.name = kName;
  stats.limit = account_.limit();
  stats.bytes = account_.used();
  stats.bytes_peak = account_.peak();
}

void HostTier::describe_behind(TierRows& tiers) const {
  if (!next_) return;
  TierStats stats;
  {
    MutexLock lock(mutex_);
    stats = next_stats_;
  }
  describe_next(*next_, std::move(stats), tiers);
}

}  // namespace quire
