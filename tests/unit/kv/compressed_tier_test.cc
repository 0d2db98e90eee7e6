// The compressed tier: what it holds, what it gives on, and what that costs.

#include "lib/kv/compressed_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "lib/kv/file_tier.h"
#include "tests/seed.h"
#include "tests/unit/kv/held_tier.h"
#include "tests/unit/kv/spill_directory.h"
#include "tests/unit/pause.h"

namespace quire::test {
namespace {

constexpr int64_t kRecord = 4096;

// Memory that is counted, and runs out after `left` blocks.
struct CountedMemory {
  std::atomic<int64_t> left{INT64_MAX}, bytes{0}, peak{0};

  static void* allocate(void* user, size_t size, size_t alignment) {
    auto& self = *static_cast<CountedMemory*>(user);
    if (self.left.fetch_sub(1) <= 0) return nullptr;
    const int64_t now = self.bytes += static_cast<int64_t>(size);
    for (int64_t seen = self.peak; seen < now && !self.peak.compare_exchange_weak(seen, now);) {
    }
    return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  }
  static void release(void* user, void* memory, size_t size, size_t) {
    static_cast<CountedMemory*>(user)->bytes -= static_cast<int64_t>(size);
    std::free(memory);
  }
};

using Record = std::vector<unsigned char>;

// Noise in so many sixteenths of it, zeros elsewhere: it compresses to about as much.
Record record_of(uint32_t number, int sixteenths = 4) {
  std::mt19937 random(number);
  Record record(kRecord);
  for (size_t i = 0; i < record.size(); ++i) {
    if (static_cast<int>(i % 512 / 32) < sixteenths) record[i] = static_cast<unsigned char>(random());
  }
  return record;
}

class CompressedTierTest : public testing::Test {
 protected:
  ~CompressedTierTest() override {
    tier_.reset();
    EXPECT_EQ(memory_.bytes, 0);
  }

  static int64_t budget_of(int64_t n_records) { return CompressedTier::most_bytes(kRecord, 2, n_records); }

  void make(int64_t budget, std::unique_ptr<Tier> next = nullptr, std::shared_ptr<TierBudget> runtime = nullptr) {
    auto tier = CompressedTier::create(allocator_, {kRecord, 2, budget, std::move(runtime)}, std::move(next));
    ASSERT_TRUE(tier.ok()) << tier.status().message();
    tier_ = std::move(*tier);
  }
  HeldTier* make_before_held(int64_t budget) {
    auto held = std::make_unique<HeldTier>(kRecord);
    HeldTier* const next = held.get();
    make(budget, std::move(held));
    return next;
  }
  std::vector<int64_t> take(int64_t n) {
    auto slots = tier_->take_slots(n);
    EXPECT_TRUE(slots.ok()) << slots.status().message();
    return std::move(*slots);
  }
  Status write(int64_t slot, const Record& record) { return tier_->write(slot, record.data()); }
  Record read(int64_t slot) {
    Record record(kRecord);
    const Status status = tier_->read(slot, record.data());
    EXPECT_TRUE(status.ok()) << status.message();
    return record;
  }
  TierStats stats() const {
    TierStats stats;
    tier_->describe(stats);
    return stats;
  }
  TierStats next_stats() const {
    TierRows behind;
    tier_->describe_behind(behind);
    EXPECT_EQ(behind.size(), 1u);
    return behind.empty() ? TierStats() : behind[0];
  }

  CountedMemory memory_;
  Allocator allocator_{CountedMemory::allocate, CountedMemory::release, &memory_};
  std::unique_ptr<CompressedTier> tier_;
};

TEST_F(CompressedTierTest, GivesBackWhatWasWritten) {
  make(budget_of(8));
  const auto slots = take(8);
  for (size_t i = 0; i < 8; ++i) ASSERT_TRUE(write(slots[i], record_of(static_cast<uint32_t>(i))).ok());
  ASSERT_TRUE(write(slots[3], record_of(100, 9)).ok());
  for (size_t i = 8; i-- > 0;) {
    EXPECT_TRUE(read(slots[i]) == (i == 3 ? record_of(100, 9) : record_of(static_cast<uint32_t>(i)))) << i;
  }
  const TierStats now = stats();
  EXPECT_EQ(now.name, "compressed");
  EXPECT_EQ(now.n_records, 8);
  EXPECT_EQ(now.n_hits, 8);
  EXPECT_EQ(now.n_misses, 0);
  EXPECT_EQ(now.bytes_read, 8 * kRecord);
  EXPECT_EQ(now.bytes_written, 9 * kRecord);
  EXPECT_EQ(now.bytes, memory_.bytes);
  EXPECT_EQ(now.limit, budget_of(8));
  TierRows behind;
  tier_->describe_behind(behind);
  EXPECT_TRUE(behind.empty());
}

// Alone, what is not written yet counts as if it did not compress. So a write never fails that was promised, and more
// slots are there when others were written.
TEST_F(CompressedTierTest, AloneASlotCountsWithWhatItsRecordTakes) {
  make(budget_of(4));
  auto slots = take(4);
  const Status refused = tier_->take_slots(1).status();
  EXPECT_EQ(refused.code(), Code::kBudget);
  EXPECT_NE(refused.message().find("needs " + std::to_string(budget_of(5)) + " bytes of compressed memory"),
            std::string::npos)
      << refused.message();
  EXPECT_NE(refused.message().find(std::to_string(budget_of(4))), std::string::npos) << refused.message();
  EXPECT_EQ(stats().bytes, budget_of(4));
  for (const int64_t slot : slots) ASSERT_TRUE(write(slot, record_of(static_cast<uint32_t>(slot))).ok());
  EXPECT_EQ(stats().bytes, memory_.bytes);
  EXPECT_LT(stats().bytes, budget_of(2));
  const auto more = take(2);
  for (const int64_t slot : more) ASSERT_TRUE(write(slot, record_of(static_cast<uint32_t>(slot), 16)).ok());
  for (const int64_t slot : slots) EXPECT_TRUE(read(slot) == record_of(static_cast<uint32_t>(slot)));
  for (const int64_t slot : more) EXPECT_TRUE(read(slot) == record_of(static_cast<uint32_t>(slot), 16));
  EXPECT_LE(memory_.peak, budget_of(4));
}

TEST_F(CompressedTierTest, AloneARecordThatDoesNotFitAgainLeavesTheOldBytes) {
  make(budget_of(2));
  const auto first = take(2);
  ASSERT_TRUE(write(first[0], record_of(1, 2)).ok());
  ASSERT_TRUE(write(first[1], record_of(2, 2)).ok());
  const auto second = take(1);
  ASSERT_TRUE(write(second[0], record_of(3, 16)).ok());
  const Status refused = write(first[0], record_of(4, 16));
  EXPECT_EQ(refused.code(), Code::kBudget) << refused.message();
  EXPECT_TRUE(read(first[0]) == record_of(1, 2));
  EXPECT_EQ(stats().bytes, memory_.bytes);
  tier_->free_slot(second[0]);
  ASSERT_TRUE(write(first[0], record_of(4, 16)).ok());
  EXPECT_TRUE(read(first[0]) == record_of(4, 16));
  EXPECT_TRUE(read(first[1]) == record_of(2, 2));
}

TEST_F(CompressedTierTest, FreedSlotsAreTakenAgainAndTheirMemoryIsGivenBack) {
  make(budget_of(3));
  const int64_t empty = memory_.bytes;
  const auto slots = take(3);
  for (const int64_t slot : slots) ASSERT_TRUE(write(slot, record_of(static_cast<uint32_t>(slot), 16)).ok());
  EXPECT_EQ(tier_->take_slots(1).status().code(), Code::kBudget);
  tier_->free_slot(slots[1]);
  EXPECT_EQ(take(1), std::vector<int64_t>{slots[1]});
  for (const int64_t slot : slots) tier_->free_slot(slot);
  EXPECT_EQ(memory_.bytes, empty);
  EXPECT_EQ(stats().bytes, empty);
  EXPECT_EQ(stats().n_records, 0);
}

TEST_F(CompressedTierTest, WhatWasUsedLongestAgoGoesOn) {
  HeldTier* const next = make_before_held(budget_of(3));
  const auto slots = take(20);
  int64_t n = 0;
  for (; next->n_writes() == 0; ++n) {
    ASSERT_LT(n, 20);
    ASSERT_TRUE(write(slots[static_cast<size_t>(n)], record_of(static_cast<uint32_t>(n))).ok());
    if (n == 4) read(slots[0]);  // of 0 to 4, 1 was used longest ago
  }
  ASSERT_GT(n, 5);
  Record moved(kRecord);
  ASSERT_TRUE(next->read(slots[1], moved.data()).ok());
  EXPECT_TRUE(moved == record_of(1));
  EXPECT_EQ(stats().n_evicted, 1);
  EXPECT_EQ(stats().n_records, n - 1);
  EXPECT_EQ(next_stats().n_records, 1);
  const int reads = next->n_reads();
  for (int64_t i = 0; i < n; ++i) {
    EXPECT_TRUE(read(slots[static_cast<size_t>(i)]) == record_of(static_cast<uint32_t>(i)));
  }
  EXPECT_EQ(next->n_reads(), reads + 1);
  EXPECT_EQ(stats().n_misses, 1);
  EXPECT_EQ(stats().n_hits, n);  // one of them above
  EXPECT_EQ(next_stats().n_hits, 1);
  EXPECT_EQ(next_stats().bytes_read, kRecord);
  // Written again, it is here again.
  ASSERT_TRUE(write(slots[1], record_of(50)).ok());
  EXPECT_TRUE(read(slots[1]) == record_of(50));
  EXPECT_EQ(next->n_reads(), reads + 1);
  EXPECT_LE(memory_.peak, budget_of(3));
}

TEST_F(CompressedTierTest, WhatDoesNotCompressGoesOnAtOnce) {
  HeldTier* const next = make_before_held(budget_of(4));
  const auto slots = take(2);
  ASSERT_TRUE(write(slots[0], record_of(1)).ok());
  ASSERT_TRUE(write(slots[0], record_of(2, 16)).ok());  // and nothing of the old one stays
  ASSERT_TRUE(write(slots[1], record_of(3)).ok());
  EXPECT_EQ(next->n_writes(), 1);
  EXPECT_EQ(stats().n_records, 1);
  EXPECT_TRUE(read(slots[0]) == record_of(2, 16));
  EXPECT_TRUE(read(slots[1]) == record_of(3));
  EXPECT_EQ(next_stats().bytes_written, kRecord);
}

TEST_F(CompressedTierTest, AFailingNextTierLosesNothing) {
  HeldTier* const next = make_before_held(budget_of(1));
  const auto slots = take(10);
  size_t n = 0;
  while (next->n_writes() == 0) {
    ASSERT_TRUE(write(slots[n], record_of(static_cast<uint32_t>(n))).ok());
    ++n;
  }
  next->fail_writes(2);  // of the one that is to go, and of the one that comes
  EXPECT_EQ(write(slots[n], record_of(90)).code(), Code::kIo);
  next->fail_writes(1);
  EXPECT_TRUE(write(slots[n], record_of(91)).ok());  // goes on itself
  for (size_t i = 0; i < n; ++i) EXPECT_TRUE(read(slots[i]) == record_of(static_cast<uint32_t>(i))) << i;
  EXPECT_TRUE(read(slots[n]) == record_of(91));
  next->fail_reads(1);
  Record record(kRecord);
  EXPECT_EQ(tier_->read(slots[0], record.data()).code(), Code::kIo);
  EXPECT_TRUE(read(slots[0]) == record_of(0));
}

TEST_F(CompressedTierTest, WithoutTheLeastItIsRefused) {
  const int64_t least = CompressedTier::least_bytes(kRecord, 2);
  const auto code = [&](int64_t budget) {
    return CompressedTier::create(allocator_, {kRecord, 2, budget}, nullptr).status();
  };
  EXPECT_EQ(code(least - 1).code(), Code::kBudget);
  EXPECT_NE(code(least - 1).message().find(std::to_string(least)), std::string::npos) << code(least - 1).message();
  EXPECT_TRUE(code(least).ok());
  for (int64_t blocks = 0; blocks < 3; ++blocks) {
    memory_.left = blocks;
    EXPECT_EQ(code(least).code(), Code::kOutOfMemory) << blocks;
    EXPECT_EQ(memory_.bytes, 0);
  }
}

// Each allocation of a record's memory fails in turn. Alone that is an error, and the slot has what it had; before
// another tier the record goes there.
TEST_F(CompressedTierTest, OutOfMemoryLosesNothing) {
  make(budget_of(4));
  const auto slots = take(2);
  ASSERT_TRUE(write(slots[0], record_of(1, 2)).ok());
  const int64_t held = memory_.bytes;
  int64_t blocks = 0;
  for (;; ++blocks) {
    memory_.left = blocks;
    const Status status = write(slots[0], record_of(2, 12));
    memory_.left = INT64_MAX;
    if (status.ok()) break;
    ASSERT_EQ(status.code(), Code::kOutOfMemory);
    ASSERT_EQ(memory_.bytes, held);
    ASSERT_TRUE(read(slots[0]) == record_of(1, 2));
  }
  EXPECT_GT(blocks, 5);
  EXPECT_TRUE(read(slots[0]) == record_of(2, 12));

  HeldTier* const next = make_before_held(budget_of(4));
  const auto two = take(2);
  ASSERT_TRUE(write(two[0], record_of(1)).ok());
  memory_.left = 1;
  EXPECT_TRUE(write(two[1], record_of(2)).ok());
  memory_.left = INT64_MAX;
  EXPECT_EQ(next->n_writes(), 1);
  EXPECT_TRUE(read(two[0]) == record_of(1));
  EXPECT_TRUE(read(two[1]) == record_of(2));
}

TEST_F(CompressedTierTest, SharesARuntimesBudget) {
  const auto runtime = std::make_shared<TierBudget>(budget_of(3) + budget_of(1));
  make(budget_of(3), nullptr, runtime);
  const auto slots = take(3);
  {
    auto other = CompressedTier::create(allocator_, {kRecord, 2, budget_of(2), runtime}, nullptr);
    ASSERT_TRUE(other.ok());
    ASSERT_TRUE((*other)->take_slots(1).ok());
    const Status refused = (*other)->take_slots(1).status();
    EXPECT_EQ(refused.code(), Code::kBudget);
    EXPECT_NE(refused.message().find("the runtime's budget is"), std::string::npos) << refused.message();
    for (const int64_t slot : slots) ASSERT_TRUE(write(slot, record_of(1)).ok());
    EXPECT_TRUE((*other)->take_slots(1).ok());
  }
  EXPECT_EQ(runtime->used(), stats().bytes);
  tier_.reset();
  EXPECT_EQ(runtime->used(), 0);
}

// Random calls against a table of what was written, before a file and alone. The allocator's own count never exceeds
// the budget.
TEST_F(CompressedTierTest, NeverHoldsMoreThanItsBudget) {
  const SpillDirectory directory;
  for (const bool alone : {false, true}) {
    for (const int64_t records : {1, 2, 5, 40}) {
      SCOPED_TRACE(seed_trace() + ", records: " + std::to_string(records) + (alone ? ", alone" : ""));
      memory_.peak = 0;
      std::mt19937 random = seeded_random(static_cast<uint32_t>(records));
      std::unique_ptr<Tier> file;
      if (!alone) file = std::move(*FileTier::create(directory.path(), kRecord, 0));
      make(budget_of(records), std::move(file));
      std::map<int64_t, std::pair<uint32_t, int>> written;
      std::vector<int64_t> taken;
      for (uint32_t step = 0; step < 600; ++step) {
        const int64_t slot = taken.empty() ? -1 : taken[random() % taken.size()];
        const int what = static_cast<int>(random() % 10);
        if (what < 2 || slot < 0) {
          auto slots = tier_->take_slots(1 + random() % 3);
          if (!slots.ok()) {
            ASSERT_TRUE(alone && slots.status().code() == Code::kBudget) << slots.status().message();
            if (taken.empty()) continue;
            tier_->free_slot(taken.back());
            written.erase(taken.back());
            taken.pop_back();
            continue;
          }
          taken.insert(taken.end(), slots->begin(), slots->end());
        } else if (what < 6) {
          const std::pair<uint32_t, int> content{step, static_cast<int>(random() % 17)};
          const Status status = write(slot, record_of(content.first, content.second));
          if (status.ok()) {
            written[slot] = content;
          } else {  // only what was written before may not fit
            ASSERT_TRUE(alone && status.code() == Code::kBudget && written.count(slot) == 1) << status.message();
          }
        } else if (what < 9) {
          const auto found = written.find(slot);
          if (found != written.end()) {
            ASSERT_TRUE(read(slot) == record_of(found->second.first, found->second.second));
          }
        } else {
          tier_->free_slot(slot);
          written.erase(slot);
          taken.erase(std::find(taken.begin(), taken.end(), slot));
        }
        const TierStats now = stats();
        ASSERT_LE(now.bytes, budget_of(records));
        ASSERT_LE(memory_.bytes, now.bytes);
        if (!alone) {
          ASSERT_EQ(memory_.bytes, now.bytes);
        }
      }
      EXPECT_LE(memory_.peak, budget_of(records));
      EXPECT_LE(stats().bytes_peak, budget_of(records));
      for (const auto& [slot, content] : written) {
        ASSERT_TRUE(read(slot) == record_of(content.first, content.second));
      }
      tier_.reset();
    }
  }
}

// A slot that is given back while its record moves to the next tier waits for that: whoever takes the slot next would
// have his record overwritten.
TEST_F(CompressedTierTest, ASlotIsNotGivenBackWhileItsRecordMoves) {
  struct SlowTier : HeldTier {
    using HeldTier::HeldTier;
    Status write(int64_t slot, const void* record) override {
      pause.here();
      return HeldTier::write(slot, record);
    }
    void free_slot(int64_t slot) override {
      freed_after = n_writes();
      HeldTier::free_slot(slot);
    }
    Pause pause;
    int freed_after = -1;
  };
  auto slow = std::make_unique<SlowTier>(kRecord);
  SlowTier* const next = slow.get();
  make(budget_of(1), std::move(slow));
  const auto slots = take(10);
  std::atomic<size_t> n{0};
  std::thread writer([&] {
    while (next->n_writes() == 0) {
      EXPECT_TRUE(write(slots[n], record_of(static_cast<uint32_t>(n))).ok());
      ++n;
    }
  });
  next->pause.wait_for_arrival();  // slot 0 moves
  std::atomic<bool> begun{false};
  std::thread freeing([&] {
    begun = true;
    tier_->free_slot(slots[0]);
  });
  while (!begun) std::this_thread::yield();
  for (int i = 0; i < 1000; ++i) {  // time in which the slot must not be given back
    std::this_thread::yield();
    stats();
  }
  next->pause.release();
  freeing.join();
  writer.join();
  EXPECT_EQ(next->freed_after, 1);
  EXPECT_EQ(next_stats().n_records, 0);
  for (size_t i = 1; i < n; ++i) EXPECT_TRUE(read(slots[i]) == record_of(static_cast<uint32_t>(i)));
}

// Stores of one family on several threads: each has slots of its own, and all read some that they share.
TEST_F(CompressedTierTest, ServesSeveralThreads) {
  const SpillDirectory directory;
  make(budget_of(6), std::move(*FileTier::create(directory.path(), kRecord, 0)));
  const auto shared = take(4);
  for (const int64_t slot : shared) ASSERT_TRUE(write(slot, record_of(static_cast<uint32_t>(slot))).ok());
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random = seeded_random(t);
      for (uint32_t round = 0; round < 25; ++round) {
        const auto slots = take(3);
        const auto number = [&](size_t i) { return 1000 * t + 10 * round + static_cast<uint32_t>(i); };
        for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(write(slots[i], record_of(number(i))).ok());
        const int64_t slot = shared[random() % shared.size()];
        EXPECT_TRUE(read(slot) == record_of(static_cast<uint32_t>(slot)));
        for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(read(slots[i]) == record_of(number(i)));
        for (const int64_t own : slots) tier_->free_slot(own);
        EXPECT_LE(stats().bytes, budget_of(6));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_LE(memory_.peak, budget_of(6));
  for (const int64_t slot : shared) EXPECT_TRUE(read(slot) == record_of(static_cast<uint32_t>(slot)));
}

}  // namespace
}  // namespace quire::test
