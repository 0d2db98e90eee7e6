// The compressed tier: records in the machine's memory, compressed, before a file or alone.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/kv/record_codec.h"
#include "lib/kv/tier.h"
#include "lib/kv/tier_budget.h"
#include "lib/support/allocator.h"
#include "lib/support/mutex.h"

namespace quire {

// Before another tier, a slot is a slot of that tier, so that every record has its place there before it is written. A
// record is compressed into memory while the budget has room; to make room, those used longest ago are written to their
// slots of the next tier, and so is a record that compresses by less than a sixteenth, or finds no memory. Nothing
// comes back from there but to device memory.
//
// Alone, a slot counts in the budget with the longest compressed form until its record is written, and with what that
// takes from then on. kBudget where a record that is written again does not fit any more: the bytes before are kept.
//
// A record lies in a list of blocks of one size, so that whatever one gives back another one can use; less than a block
// of it is unused. Blocks and working memory come from the allocator, and all that was taken is counted in the budget.
//
// Any thread, as a Tier; records are compressed and decompressed one at a time.
class CompressedTier : public Tier {
 public:
  struct Options {
    int64_t record_bytes = 0;
    int64_t element_bytes = 2;              // of the KV type
    int64_t budget_bytes = 0;               // more than 0
    std::shared_ptr<TierBudget> runtime{};  // may be null
  };
  // next: null: there is none. kBudget: less than least_bytes(); kOutOfMemory.
  static Result<std::unique_ptr<CompressedTier>> create(Allocator& allocator, const Options& options,
                                                        std::unique_ptr<Tier> next);
  ~CompressedTier() override;

  // Working memory and one record.
  static int64_t least_bytes(int64_t record_bytes, int64_t element_bytes);
  // Working memory and n records, whatever they compress to.
  static int64_t most_bytes(int64_t record_bytes, int64_t element_bytes, int64_t n_records);

  static constexpr const char* kName = "compressed";
  std::string name() const override { return kName; }
  Result<std::vector<int64_t>> take_slots(int64_t n) override;
  void free_slot(int64_t slot) override;
  Status write(int64_t slot, const void* record) override;
  Status read(int64_t slot, void* record) override;
  void will_read(int64_t slot) override;
  void describe(TierStats& stats) const override;
  void describe_behind(TierRows& tiers) const override;

 private:
  struct Block {  // its bytes follow
    Block* next;
  };
  struct Blocks {
    Block* first = nullptr;
    int64_t n = 0;
  };

  struct Entry {
    Blocks blocks;          // none: the record is not here
    int64_t bytes = 0;      // of the compressed form
    int64_t n_counted = 0;  // blocks that count in the budget: its own, or those that it is promised
    bool in_next = false;   // the next tier has its bytes
    // Neighbours in the list of what is here, by use.
    int64_t before = -1, after = -1;
  };

  CompressedTier(Allocator& allocator, const Options& options, std::unique_ptr<Tier> next);
  Status begin(const Options& options);
  Entry& entry(int64_t slot) QUIRE_REQUIRES(mutex_) { return entries_[static_cast<size_t>(slot)]; }
  Result<std::vector<int64_t>> take_own_slots(int64_t n);
  Status keep(int64_t slot, std::span<const std::byte> packed) QUIRE_REQUIRES(codec_mutex_);
  Status make_room(int64_t slot, int64_t n_blocks) QUIRE_REQUIRES(codec_mutex_);
  Status give_to_next(int64_t slot) QUIRE_REQUIRES(codec_mutex_);
  Status unpack(const Block* first, int64_t bytes, void* record) QUIRE_REQUIRES(codec_mutex_);
  void forget(int64_t slot);
  Blocks take_blocks(int64_t slot) QUIRE_REQUIRES(mutex_);
  void count(int64_t slot, int64_t n_blocks) QUIRE_REQUIRES(mutex_);
  void set_in_next(int64_t slot, bool in_next) QUIRE_REQUIRES(mutex_);
  void append(int64_t slot) QUIRE_REQUIRES(mutex_);
  void unlink(int64_t slot) QUIRE_REQUIRES(mutex_);
  // The host's functions: no mutex_ is held.
  bool lengthen(Blocks& blocks, int64_t n) QUIRE_EXCLUDES(mutex_);
  void shorten(Blocks& blocks, int64_t n) QUIRE_EXCLUDES(mutex_);
  int64_t block_payload() const { return block_bytes_ - static_cast<int64_t>(sizeof(Block)); }

  Allocator& allocator_;
  const int64_t record_bytes_, block_bytes_;
  const int64_t most_blocks_;  // of a record
  const std::unique_ptr<Tier> next_;

  // Held while a record is compressed, decompressed, or moved to the next tier; before mutex_.
  Mutex codec_mutex_;
  std::unique_ptr<RecordCodec> codec_ QUIRE_GUARDED_BY(codec_mutex_);
  HostMemory packed_ QUIRE_GUARDED_BY(codec_mutex_);  // a compressed form in one piece
  HostMemory moved_ QUIRE_GUARDED_BY(codec_mutex_);   // a record on its way to the next tier

  mutable Mutex mutex_;
  CondVar changed_;  // notified when `moving_` is not any more
  TierAccount account_ QUIRE_GUARDED_BY(mutex_);
  std::vector<Entry> entries_ QUIRE_GUARDED_BY(mutex_);  // by slot
  std::vector<int64_t> free_ QUIRE_GUARDED_BY(mutex_);   // alone: slots; its capacity is that of entries_
  int64_t oldest_ QUIRE_GUARDED_BY(mutex_) = -1;
  int64_t newest_ QUIRE_GUARDED_BY(mutex_) = -1;
  int64_t moving_ QUIRE_GUARDED_BY(mutex_) = -1;  // to the next tier: the slot is not given back meanwhile
  TierStats stats_ QUIRE_GUARDED_BY(mutex_), next_stats_ QUIRE_GUARDED_BY(mutex_);
};

}  // namespace quire
