#include "lib/kv/compressed_tier.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "lib/support/types.h"

namespace quire {
namespace {

// Of a record: what the last block leaves unused is less than a thirty-second of it.
constexpr int64_t kBlocksOfRecord = 32;
constexpr int64_t kLeastBlockBytes = 256;
constexpr auto kBlockAlignment = static_cast<int64_t>(Allocator::kAlignment);
// A record that saves less than this part of itself goes to the next tier.
constexpr int64_t kLeastSaving = 16;

int64_t block_bytes_of(int64_t record_bytes) {
  return std::max(kLeastBlockBytes, round_up(record_bytes / kBlocksOfRecord, kBlockAlignment));
}

// What the tier itself needs: the codec, a compressed form in one piece, and a record on its way.
int64_t working_bytes_of(int64_t record_bytes, int64_t element_bytes) {
  return RecordCodec::working_bytes(record_bytes, element_bytes) +
         RecordCodec::most_bytes(record_bytes, element_bytes) + record_bytes;
}

int64_t most_blocks_of(int64_t record_bytes, int64_t element_bytes) {
  const int64_t payload = block_bytes_of(record_bytes) - static_cast<int64_t>(sizeof(void*));
  return ceil_div(RecordCodec::most_bytes(record_bytes, element_bytes), payload);
}

}  // namespace

int64_t CompressedTier::most_bytes(int64_t record_bytes, int64_t element_bytes, int64_t n_records) {
  return working_bytes_of(record_bytes, element_bytes) +
         n_records * most_blocks_of(record_bytes, element_bytes) * block_bytes_of(record_bytes);
}

int64_t CompressedTier::least_bytes(int64_t record_bytes, int64_t element_bytes) {
  return most_bytes(record_bytes, element_bytes, 1);
}

CompressedTier::CompressedTier(Allocator& allocator, const Options& options, std::unique_ptr<Tier> next)
    : allocator_(allocator),
      record_bytes_(options.record_bytes),
      block_bytes_(block_bytes_of(options.record_bytes)),
      most_blocks_(most_blocks_of(options.record_bytes, options.element_bytes)),
      next_(std::move(next)),
      account_("of compressed memory", options.budget_bytes, options.runtime) {}

Result<std::unique_ptr<CompressedTier>> CompressedTier::create(Allocator& allocator, const Options& options,
                                                               std::unique_ptr<Tier> next) {
  std::unique_ptr<CompressedTier> tier(new CompressedTier(allocator, options, std::move(next)));
  QUIRE_TRY(tier->begin(options));
  return tier;
}

Status CompressedTier::begin(const Options& options) {
  {
    MutexLock lock(mutex_);
    QUIRE_TRY(account_.check(least_bytes(options.record_bytes, options.element_bytes), " at least"));
    QUIRE_TRY(account_.add(working_bytes_of(options.record_bytes, options.element_bytes)));
  }
  MutexLock codec(codec_mutex_);
  QUIRE_ASSIGN(codec_, RecordCodec::create(allocator_, options.record_bytes, options.element_bytes));
  packed_ =
      HostMemory(allocator_, static_cast<size_t>(RecordCodec::most_bytes(options.record_bytes, options.element_bytes)));
  moved_ = HostMemory(allocator_, static_cast<size_t>(options.record_bytes));
  return packed_ && moved_ ? Status() : Status(Code::kOutOfMemory, "out of memory for compressing records");
}

CompressedTier::~CompressedTier() {
  for (size_t slot = 0; slot < entries_.size(); ++slot) shorten(entries_[slot].blocks, 0);
}

// ---- slots

Result<std::vector<int64_t>> CompressedTier::take_slots(int64_t n) {
  if (!next_) return take_own_slots(n);
  struct Taken {  // given back unless all is well
    Tier& tier;
    std::vector<int64_t> slots;
    ~Taken() {
      for (const int64_t slot : slots) tier.free_slot(slot);
    }
  } taken{*next_, {}};
  QUIRE_ASSIGN(taken.slots, next_->take_slots(n));
  const int64_t most = taken.slots.empty() ? -1 : *std::max_element(taken.slots.begin(), taken.slots.end());
  MutexLock lock(mutex_);
  if (most >= static_cast<int64_t>(entries_.size())) entries_.resize(static_cast<size_t>(most) + 1);
  return std::move(taken.slots);
}

Result<std::vector<int64_t>> CompressedTier::take_own_slots(int64_t n) {
  std::vector<int64_t> slots(static_cast<size_t>(n));
  MutexLock lock(mutex_);
  const auto missing = static_cast<size_t>(std::max<int64_t>(0, n - static_cast<int64_t>(free_.size())));
  entries_.reserve(entries_.size() + missing);
  free_.reserve(entries_.capacity());
  QUIRE_TRY(account_.add(n * most_blocks_ * block_bytes_));
  for (int64_t& slot : slots) {
    if (free_.empty()) {
      free_.push_back(static_cast<int64_t>(entries_.size()));
      entries_.emplace_back();
    }
    slot = free_.back();
    free_.pop_back();
    entry(slot).n_counted = most_blocks_;
  }
  return slots;
}

void CompressedTier::free_slot(int64_t slot) {
  Blocks blocks;
  {
    MutexLock lock(mutex_);
    while (moving_ == slot) changed_.wait(mutex_);
    blocks = take_blocks(slot);  // it will not be moved any more
  }
  shorten(blocks, 0);
  {
    MutexLock lock(mutex_);
    count(slot, 0);
    set_in_next(slot, false);
    if (!next_) free_.push_back(slot);  // take_own_slots() made room
  }
  if (next_) next_->free_slot(slot);
}

// ---- records

Status CompressedTier::write(int64_t slot, const void* record) {
  MutexLock codec(codec_mutex_);
  QUIRE_ASSIGN(const std::span<const std::byte> packed, codec_->compress(record));
  const int64_t blocks = ceil_div(static_cast<int64_t>(packed.size()), block_payload());
  const bool pays = blocks * block_bytes_ <= record_bytes_ - record_bytes_ / kLeastSaving;
  if (!next_ || pays) {
    const Status kept = keep(slot, packed);
    if (kept.ok() || !next_) return kept;
  }
  QUIRE_TRY(next_->write(slot, record));
  forget(slot);
  MutexLock lock(mutex_);
  set_in_next(slot, true);
  next_stats_.bytes_written += record_bytes_;
  return {};
}

void CompressedTier::will_read(int64_t slot) {
  if (!next_) return;
  {
    MutexLock lock(mutex_);
    if (entry(slot).blocks.first) return;
  }
  next_->will_read(slot);
}

Status CompressedTier::read(int64_t slot, void* record) {
  {
    MutexLock codec(codec_mutex_);
    Blocks blocks;
    int64_t bytes = 0;
    {
      MutexLock lock(mutex_);
      blocks = entry(slot).blocks;
      bytes = entry(slot).bytes;
      if (blocks.first) {
        unlink(slot);
        append(slot);
      }
    }
    if (blocks.first || !next_) {
      QUIRE_TRY(unpack(blocks.first, bytes, record));
      MutexLock lock(mutex_);
      ++stats_.n_hits;
      stats_.bytes_read += record_bytes_;
      return {};
    }
  }
  // Nothing comes back from the next tier, so it is there still.
  QUIRE_TRY(next_->read(slot, record));
  MutexLock lock(mutex_);
  ++stats_.n_misses;
  ++next_stats_.n_hits;
  next_stats_.bytes_read += record_bytes_;
  return {};
}

// kBudget, kOutOfMemory, or an error of the next tier: the slot has what it had.
Status CompressedTier::keep(int64_t slot, std::span<const std::byte> packed) {
  const int64_t n = ceil_div(static_cast<int64_t>(packed.size()), block_payload());
  int64_t counted = 0;  // before
  Blocks blocks;
  {
    MutexLock lock(mutex_);
    counted = entry(slot).n_counted;
    blocks = take_blocks(slot);
  }
  const int64_t before = blocks.n;
  Status status = make_room(slot, n);
  if (status.ok() && !lengthen(blocks, n)) {
    status = Status(Code::kOutOfMemory, "out of memory for a compressed record");
  }
  shorten(blocks, status.ok() ? n : before);
  if (status.ok()) {
    const auto payload = static_cast<size_t>(block_payload());
    std::span<const std::byte> rest = packed;
    for (Block* block = blocks.first; !rest.empty(); block = block->next) {
      const size_t part = std::min(payload, rest.size());
      std::memcpy(block + 1, rest.data(), part);
      rest = rest.subspan(part);
    }
  }
  MutexLock lock(mutex_);
  count(slot, status.ok() ? n : counted);
  entry(slot).blocks = blocks;
  if (blocks.first) append(slot);
  if (!status.ok()) return status;
  entry(slot).bytes = static_cast<int64_t>(packed.size());
  set_in_next(slot, false);
  stats_.bytes_written += record_bytes_;
  return {};
}

// At least so many blocks count for the slot, whose record is in no list.
Status CompressedTier::make_room(int64_t slot, int64_t n_blocks) {
  for (;;) {
    int64_t oldest = -1;
    {
      MutexLock lock(mutex_);
      const int64_t added = n_blocks - entry(slot).n_counted;
      const Status status = added > 0 ? account_.add(added * block_bytes_) : Status();
      if (status.ok()) {
        entry(slot).n_counted += std::max<int64_t>(0, added);
        return {};
      }
      if (!next_ || oldest_ < 0) return status;
      oldest = moving_ = oldest_;
    }
    QUIRE_TRY(give_to_next(oldest));
  }
}

// Of the slot that is `moving_`, which it is no more afterwards.
Status CompressedTier::give_to_next(int64_t slot) {
  const Block* first = nullptr;
  int64_t bytes = 0;
  {
    MutexLock lock(mutex_);
    first = entry(slot).blocks.first;
    bytes = entry(slot).bytes;
  }
  Status status = unpack(first, bytes, moved_.data());
  if (status.ok()) status = next_->write(slot, moved_.data());
  if (status.ok()) forget(slot);
  MutexLock lock(mutex_);
  if (status.ok()) {
    set_in_next(slot, true);
    ++stats_.n_evicted;
    next_stats_.bytes_written += record_bytes_;
  }
  moving_ = -1;
  changed_.notify_all();
  return status;
}

Status CompressedTier::unpack(const Block* first, int64_t bytes, void* record) {
  auto* const packed = static_cast<std::byte*>(packed_.data());
  int64_t done = 0;
  for (const Block* block = first; block && done < bytes; block = block->next) {
    const int64_t part = std::min(block_payload(), bytes - done);
    std::memcpy(packed + done, block + 1, static_cast<size_t>(part));
    done += part;
  }
  return codec_->decompress({packed, static_cast<size_t>(done)}, record);
}

// ---- what is held

// The slot has no record, and nothing counts for it.
void CompressedTier::forget(int64_t slot) {
  Blocks blocks;
  {
    MutexLock lock(mutex_);
    blocks = take_blocks(slot);
  }
  shorten(blocks, 0);
  MutexLock lock(mutex_);
  count(slot, 0);
  set_in_next(slot, false);
}

CompressedTier::Blocks CompressedTier::take_blocks(int64_t slot) {
  if (entry(slot).blocks.first) unlink(slot);
  return std::exchange(entry(slot).blocks, {});
}

// No more than it was.
void CompressedTier::count(int64_t slot, int64_t n_blocks) {
  account_.remove((entry(slot).n_counted - n_blocks) * block_bytes_);
  entry(slot).n_counted = n_blocks;
}

void CompressedTier::set_in_next(int64_t slot, bool in_next) {
  next_stats_.n_records += (in_next ? 1 : 0) - (entry(slot).in_next ? 1 : 0);
  entry(slot).in_next = in_next;
}

void CompressedTier::append(int64_t slot) {
  Entry& e = entry(slot);
  e.before = newest_;
  e.after = -1;
  (newest_ >= 0 ? entry(newest_).after : oldest_) = slot;
  newest_ = slot;
  ++stats_.n_records;
}

void CompressedTier::unlink(int64_t slot) {
  const Entry& e = entry(slot);
  (e.before >= 0 ? entry(e.before).after : oldest_) = e.after;
  (e.after >= 0 ? entry(e.after).before : newest_) = e.before;
  --stats_.n_records;
}

bool CompressedTier::lengthen(Blocks& blocks, int64_t n) {
  for (; blocks.n < n; ++blocks.n) {
    void* const memory = allocator_.allocate(static_cast<size_t>(block_bytes_));
    if (!memory) return false;
    blocks.first = new (memory) Block{blocks.first};
  }
  return true;
}

void CompressedTier::shorten(Blocks& blocks, int64_t n) {
  for (; blocks.n > n; --blocks.n) {
    Block* const next = blocks.first->next;
    allocator_.deallocate(blocks.first, static_cast<size_t>(block_bytes_));
    blocks.first = next;
  }
}

// ---- statistics

void CompressedTier::describe(TierStats& stats) const {
  MutexLock lock(mutex_);
  stats = stats_;
  stats.name = kName;
  stats.limit = account_.limit();
  stats.bytes = account_.used();
  stats.bytes_peak = account_.peak();
}

void CompressedTier::describe_behind(TierRows& tiers) const {
  if (!next_) return;
  TierStats stats;
  {
    MutexLock lock(mutex_);
    stats = next_stats_;
  }
  describe_next(*next_, std::move(stats), tiers);
}

}  // namespace quire
